"""Layers of feedback alignment: they are the algorithm that they claim to be, and no record exceeds its bound."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from certify import HOSTILE, KINDS, SCALES, SLACK, Release, built, distance, extreme, influences
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdp_layers as tfdp
from tfdp_layers.layers import FeedbackDense, FeedbackOutput, FeedbackStack
from tfdp_layers.layers.feedback import feedback_matrix
from tfdp_layers.rules import L2

FEATURES, UNITS, CLASSES = 5, (6, 4), 3
ALIGNMENTS = ("direct", "sequential")


def stack(**options) -> FeedbackStack:
    defaults = {"activation": "sigmoid", "activation_clip": (1.5, 0.7, 0.9), "error_clip": 0.3, "feedback_seed": 1}
    return built(FeedbackStack(list(UNITS), output_units=CLASSES, **(defaults | options)), (FEATURES,))


def releaser(layer, group: int | None = None, mode: str = "eager") -> Release:
    """(x, e) -> summed gradients of the stack's weights (or of one of its groups) when the error at the logits is e."""
    variables = layer.trainable_variables if group is None else layer.weight_groups()[group][1]

    def sums(x, e):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) * e)
        return tape.gradient(loss, [v.value for v in variables])

    compiled = sums if mode == "eager" else tf.function(sums, autograph=False, jit_compile=mode == "xla")
    return lambda x, e: [np.asarray(g, np.float64) for g in compiled(tf.constant(x), tf.constant(e))]


# The algorithm --------------------------------------------------------------------------------------------------------


def clip(rows: np.ndarray, bound: float) -> np.ndarray:
    return rows * np.minimum(1.0, bound / np.linalg.norm(rows, axis=1, keepdims=True))


def by_hand(layer: FeedbackStack, x: np.ndarray, e: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Algorithm 1 of Lee and Kifer in NumPy (sigmoid): gradients of all weights, and what flows below the stack."""
    affines = [[np.asarray(w, np.float64) for w in weights] for weights in layer.affines]
    feedbacks = [np.asarray(b, np.float64) for b in layer.feedbacks]
    inputs = [x.astype(np.float64)]
    for kernel, bias in affines[:-1]:
        inputs.append(1.0 / (1.0 + np.exp(-(inputs[-1] @ kernel + bias))))
    e = clip(e.astype(np.float64), layer.error_clip)
    deltas = [e]
    for i in reversed(range(len(UNITS))):
        source = e if layer.alignment == "direct" else deltas[0]
        h = inputs[i + 1]
        deltas.insert(0, clip((source @ feedbacks[i]) * h * (1 - h), layer.delta_clip[i]))
    gradients = []
    for h, delta, bound in zip(inputs, deltas, layer.activation_clip, strict=True):
        gradients += [clip(h, bound).T @ delta, delta.sum(axis=0)]
    return gradients, deltas[0] @ affines[0][0].T


@pytest.mark.parametrize("delta_clip", [None, [0.01, 0.02]], ids=["certificate only", "delta clipped"])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_updates_equal_a_step_by_hand(alignment, delta_clip):
    layer = stack(alignment=alignment, delta_clip=delta_clip)
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(8, size)).astype(np.float32) for size in (FEATURES, CLASSES))
    with tf.GradientTape() as tape:
        inputs = tf.constant(x)
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) * e)
    gradients, below = by_hand(layer, x, e)
    *found, found_below = tape.gradient(loss, [*(v.value for v in layer.trainable_variables), inputs])
    for expected, got in zip([*gradients, below], [*found, found_below], strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=1e-7)


def test_direct_and_sequential_alignment_differ_only_below_the_last_hidden_layer():
    direct, sequential = (stack(alignment=alignment) for alignment in ALIGNMENTS)
    assert [tuple(b.shape) for b in direct.feedbacks] == [(3, 6), (3, 4)]
    assert [tuple(b.shape) for b in sequential.feedbacks] == [(4, 6), (3, 4)]
    assert direct.delta_clip == pytest.approx([0.25 * 0.9 * 0.3] * 2)
    assert sequential.delta_clip == pytest.approx([0.25**2 * 0.9**2 * 0.3, 0.25 * 0.9 * 0.3])


def test_the_forward_pass_is_that_of_plain_dense_layers():
    layer, x = stack(output_activation="softmax"), 10 * np.random.default_rng(0).normal(size=(8, FEATURES))
    plain = keras.Sequential(
        [keras.Input((FEATURES,)), *(keras.layers.Dense(n, "sigmoid") for n in UNITS), keras.layers.Dense(3, "softmax")]
    )
    plain.set_weights([w for weights in layer.affines for w in weights])
    np.testing.assert_allclose(layer(x.astype(np.float32)), plain(x), atol=1e-6)
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), keras.layers.Rescaling(0.5), layer])
    np.testing.assert_allclose(model.to_keras()(x), model(x), atol=1e-6)
    assert not any(type(part).__module__.startswith("tfdp_layers") for part in model.to_keras()._flatten_layers())


def test_single_layers_with_skips_learn_from_the_same_error_as_the_stack():
    whole = stack()
    options = {"error_clip": 0.3}
    inputs = keras.Input((FEATURES,))
    hidden = [
        FeedbackDense(n, "sigmoid", CLASSES, activation_clip=c, backpropagate=i == 0, **options)
        for i, (n, c) in enumerate(zip(UNITS, whole.activation_clip[:2], strict=True))
    ]
    first, one = hidden[0](inputs)
    second, two = hidden[1](first)
    output = FeedbackOutput(CLASSES, activation_clip=0.9, **options)
    model = keras.Model(inputs, output([second, one, two]))
    model.set_weights([w for pair in zip(whole.affines, [[b] for b in whole.feedbacks] + [[]], strict=True)
                       for part in pair for w in part])  # fmt: skip
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(8, size)).astype(np.float32) for size in (FEATURES, CLASSES))
    for expected, got in zip(releaser(whole)(x, e), releaser(model)(x, e), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8)
    # A skip over the second layer: the error reaches the first one once, not twice.
    skipping = FeedbackOutput(CLASSES, activation_clip=0.9, **options)
    skipped = keras.Model(inputs, skipping([keras.layers.Concatenate()([first, second]), one, two]))
    gradients = dict(zip([v.path for v in skipped.trainable_variables], releaser(skipped)(x, e), strict=True))
    np.testing.assert_allclose(gradients[hidden[0].affine[0].path], by_hand(whole, x, e)[0][0], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("loss", "labels", "error"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), [0, 2], "softmax"),
        (keras.losses.BinaryCrossentropy(from_logits=True), [[1.0, 0, 1], [0, 0, 1]], "sigmoid"),
        (keras.losses.MeanSquaredError(), [[1.0, -2, 0.5], [0, 0, 3]], "linear"),
    ],
    ids=["cross-entropy", "binary", "squared"],
)
def test_the_error_is_prediction_minus_label_for_canonical_losses(loss, labels, error):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack(error_clip=1e3, activation_clip=1e3)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss)
    x = np.random.default_rng(0).normal(size=(2, FEATURES)).astype(np.float32)
    y = np.eye(3)[labels] if error == "softmax" else np.array(labels)
    predicted = keras.activations.get(error)(tf.constant(model(x)))
    # Keras averages over the entries of a record, except with classes.
    factor = {"softmax": 1.0, "sigmoid": 1 / 3, "linear": 2 / 3}[error]
    expected, _ = by_hand(model.layers[0], x, factor * (np.asarray(predicted) - y))
    for a, b in zip(expected, model.bounded_gradient_sums(x, np.array(labels)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_probabilities_as_outputs_give_the_error_of_their_logits(output):
    loss = {"softmax": "categorical_crossentropy", "sigmoid": "binary_crossentropy"}[output]
    layer = stack(output_activation=output)
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss)
    x, y = np.random.default_rng(0).normal(size=(2, FEATURES)).astype(np.float32), np.eye(3)[[0, 2]]
    error = (np.asarray(model(x)) - y) / (1 if output == "softmax" else 3)
    for a, b in zip(by_hand(layer, x, error)[0], model.bounded_gradient_sums(x, y), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("mode", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=["graph", "xla", "eager"])
def test_a_step_of_fit_without_noise_is_the_step_by_hand(mode, physical):
    layer = stack(delta_clip=[0.01, 0.02])
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 0.0), loss, **mode)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, FEATURES)).astype(np.float32), np.eye(CLASSES)[rng.integers(0, CLASSES, 12)]
    error = np.asarray(tf.nn.softmax(model(x))) - y
    expected = [
        np.array(v) - g / 12 for v, g in zip(layer.trainable_variables, by_hand(layer, x, error)[0], strict=True)
    ]
    model.fit(x, y, sampling=tfdp.sampling.FixedSize(12), physical_batch_size=physical, verbose=0)
    for a, b in zip(expected, layer.trainable_variables, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6)


def learned(frozen: bool = False, **options) -> float:
    """Training accuracy on a problem that is not linearly separable, of a plain Keras model without binding clips."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    keras.utils.set_random_seed(0)
    huge = {"activation_clip": 1e6, "error_clip": 1e6, "output_activation": "softmax"}
    layer = FeedbackStack([32, 16], "tanh", 2, **(huge | options))
    model = keras.Sequential([keras.Input((8,)), layer])
    for variable in layer.trainable_variables[:4]:
        variable.trainable = not frozen
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=25, verbose=0)
    return model.evaluate(x, y, verbose=0)[1]


def test_without_noise_the_hidden_layers_learn():
    still = learned(frozen=True)
    for options in ({"alignment": "direct"}, {"alignment": "sequential"}, {"feedback": "orthogonal"}):
        assert learned(**options) > max(still + 0.1, 0.85), options


# Feedback matrices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("shape", [(10, 256), (256, 10), (1, 7), (7, 1), (6, 6)])
def test_a_feedback_matrix_has_exactly_its_spectral_norm(shape, distribution):
    matrix = feedback_matrix(shape, 0.9, distribution, (3, 1)).astype(np.float64)
    singular = np.linalg.svd(matrix, compute_uv=False)
    assert singular[0] == pytest.approx(0.9, rel=1e-6)
    assert (singular[-1] == pytest.approx(0.9, rel=1e-6)) == (distribution == "orthogonal" or min(shape) == 1)
    assert not np.array_equal(matrix, feedback_matrix(shape, 0.9, distribution, (3, 2)))


def test_feedback_matrices_are_weights_that_are_never_trained(tmp_path):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack(activation=tfdp.activations.tempered_sigmoid())])
    model.compile(tfdp.optimizers.NoisyOptimizer("adam", 1.0), "mse")
    layer = model.layers[0]
    assert len(layer.trainable_variables) == 6
    assert {id(b) for b in layer.feedbacks} == {id(v) for v in layer.non_trainable_variables}
    before = [np.array(b) for b in layer.feedbacks]
    x, y = np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32)
    model.fit(x, y, batch_size=4, verbose=0)
    layer.feedbacks[0].assign(before[0] / 2)  # what is saved is the weight, not the seed
    model.save(tmp_path / "model.keras")
    one, two = (keras.models.load_model(tmp_path / "model.keras") for _ in range(2))
    for loaded in (one, two):
        np.testing.assert_array_equal(loaded.layers[0].feedbacks[0], before[0] / 2)
        np.testing.assert_array_equal(loaded.layers[0].feedbacks[1], before[1])
        np.testing.assert_array_equal(loaded(x), model(x))
        assert [(g.name, g.bound) for g in loaded.sensitivities()] == [(g.name, g.bound) for g in model.sensitivities()]
        for a, b in zip(model.bounded_gradient_sums(x, y), loaded.bounded_gradient_sums(x, y), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_aligned_feedback_starts_in_the_direction_of_backpropagation(alignment):
    layer = stack(activation="linear", activation_clip=1e6, error_clip=1e6, feedback="aligned", alignment=alignment)
    for matrix in layer.feedbacks:
        assert np.linalg.norm(np.asarray(matrix, np.float64), 2) == pytest.approx(0.9, rel=1e-6)
    rng = np.random.default_rng(3)
    x, e = rng.normal(size=(7, FEATURES)).astype("float32"), rng.normal(size=(7, CLASSES)).astype("float32")
    with tf.GradientTape() as tape:
        h = tf.constant(x)
        for kernel, bias in layer.affines:
            h = tf.matmul(h, kernel) + bias
        loss = tf.reduce_sum(h * e)
    true = tape.gradient(loss, [v.value for v in layer.trainable_variables])
    for found, gradient in zip(releaser(layer)(x, e), true, strict=True):
        cosine = np.sum(found * gradient) / np.linalg.norm(found) / np.linalg.norm(gradient)
        assert cosine == pytest.approx(1.0, abs=1e-5)


def test_aligned_feedback_stays_what_it_was_when_the_weights_move(tmp_path):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack(feedback="aligned")])
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 1.0), "mse")
    before = [np.array(b) for b in model.layers[0].feedbacks]
    model.fit(np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32), batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    for layer in (model.layers[0], keras.models.load_model(tmp_path / "model.keras").layers[0]):
        for matrix, start in zip(layer.feedbacks, before, strict=True):
            np.testing.assert_array_equal(matrix, start)
    with pytest.raises(ValueError, match="product is zero"):
        stack(feedback="aligned", kernel_initializer="zeros")


def test_seeds_of_the_feedback():
    fresh = [FeedbackStack([4], "tanh", 3, activation_clip=1.0) for _ in range(2)]
    assert fresh[0].feedback_seed != fresh[1].feedback_seed
    again = FeedbackStack.from_config(fresh[0].get_config())
    for layer in (*fresh, again):
        layer.build((None, 2))
    assert not np.array_equal(fresh[0].feedbacks[0], fresh[1].feedbacks[0])
    np.testing.assert_array_equal(fresh[0].feedbacks[0], again.feedbacks[0])


# Certificates ---------------------------------------------------------------------------------------------------------


def witness(layer: FeedbackStack, group: int) -> tuple[np.ndarray, np.ndarray]:
    """A record that attains the bound of a group. All weights zero: sigmoids are at their steepest, and at 1/2."""
    for variable in layer.trainable_variables:
        variable.assign(np.zeros(variable.shape))
    e = np.ones(CLASSES)
    if group < len(UNITS):  # the error that the feedback matrix stretches most, first through the one above it
        matrix = np.asarray(layer.feedbacks[group], np.float64)
        if layer.alignment == "sequential" and group == 0:
            matrix = np.asarray(layer.feedbacks[1], np.float64) @ matrix / 4
        e = np.linalg.svd(matrix)[0][:, 0]
    return np.full(FEATURES, 1e3, np.float32), (1e3 * e).astype(np.float32)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("group", range(3))
def test_a_witness_attains_the_bound_of_each_layer(group, use_bias):
    layer = stack(use_bias=use_bias)
    x, e = witness(layer, group)
    found = distance(releaser(layer, group)(x[None], e[None])) / layer.sensitivities()[group]
    assert 1 - 1e-4 <= found <= 1 + SLACK


def test_a_clip_of_delta_is_attained_whatever_the_activation():
    steep = lambda x: 7.0 * tf.tanh(3.0 * x)  # noqa: E731 (without a derivative_bound: the clip is enough)
    layer = stack(activation=steep, delta_clip=0.01, activation_clip=1.0)
    x, e = np.full(FEATURES, 2.0, np.float32), np.full(CLASSES, 1e3, np.float32)
    for kernel, bias in layer.affines:  # 7 tanh(0.3) = 2 at each unit: beyond the clip, and steep
        kernel.assign(np.zeros(kernel.shape))
        bias.assign(np.full(bias.shape, 0.1))
    for group, bound in enumerate(layer.sensitivities()[:2]):
        assert distance(releaser(layer, group)(x[None], e[None])) == pytest.approx(bound, rel=1e-4)
        assert bound == pytest.approx(0.01 * np.sqrt(2))


def test_the_sequential_bound_covers_both_matrices_in_a_row():
    """No witness joins both matrices' largest directions here; the numerical supremum stays below the product."""
    layer = stack(alignment="sequential")
    x, e = witness(layer, 0)
    found = distance(releaser(layer, 0)(x[None], e[None])) / layer.sensitivities()[0]
    assert 0.3 < found <= 1 + SLACK


CASES = {
    "direct": {},
    "sequential": {"alignment": "sequential"},
    "relu": {"activation": "relu", "use_bias": False},
    "delta": {"delta_clip": 1e-3, "activation": "elu"},
}


def hostile(shape_x: tuple[int, ...], shape_e: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [(extreme(*x, shape_x, rng), extreme(*e, shape_e, rng)) for x, e in HOSTILE]


def kinds():
    return st.tuples(st.sampled_from(KINDS), st.sampled_from(SCALES))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(CASES)),
    rows=st.lists(st.tuples(kinds(), kinds()), min_size=2, max_size=4),
    weights=st.sampled_from([0.0, 1e-20, 1.0, 1e20, np.nan, np.inf]),
    feedback=st.sampled_from([1.0, 1e6, 1e30, np.nan]),
    seed=st.integers(0, 2**16),
)
def test_no_record_exceeds_the_bound_whatever_weights_and_matrices_are(name, rows, weights, feedback, seed):
    layer = stack(**CASES[name])
    for variable in layer.weights:
        scale = feedback if any(variable is b for b in layer.feedbacks) else weights
        with np.errstate(invalid="ignore"):
            variable.assign(np.asarray(variable) * np.float32(scale))
    rng = np.random.default_rng(seed)
    x = np.stack([extreme(*kind, (FEATURES,), rng) for kind, _ in rows])
    e = np.stack([extreme(*kind, (CLASSES,), rng) for _, kind in rows])
    release = releaser(layer)
    bounds = np.repeat(layer.sensitivities(), 2 if layer.use_bias else 1)
    alone = [release(x[[i]], e[[i]]) for i in range(len(rows))]
    together = release(x, e)
    for i, part in enumerate(alone):
        others = np.arange(len(rows)) != i
        rest = release(x[others], e[others])
        for group, (_, variables, bound) in enumerate(layer.weight_groups()):
            pick = slice(group * len(variables), (group + 1) * len(variables))
            assert distance(part[pick]) <= bound * (1 + SLACK), (rows[i], group)
            assert distance(together[pick], rest[pick]) <= bound * (1 + SLACK), (rows[i], group)
    for bound, total, *parts in zip(bounds, together, *alone, strict=True):
        np.testing.assert_allclose(total, np.sum(parts, axis=0), atol=SLACK * bound)


def test_records_that_are_not_finite_contribute_zero_and_leave_others_alone():
    layer = stack()
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(3, size)).astype(np.float32) for size in (FEATURES, CLASSES))
    clean = releaser(layer)(x[:2], e[:2])
    for spoiled, value in itertools.product(("x", "e"), (np.nan, np.inf, -np.inf)):
        bad_x, bad_e = x.copy(), e.copy()
        (bad_x if spoiled == "x" else bad_e)[2, 1] = value
        assert distance(releaser(layer)(bad_x[2:], bad_e[2:])[:2]) == 0.0
        if spoiled == "e":
            for a, b in zip(releaser(layer)(bad_x, bad_e), clean, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9)
    # As in training: a record that is not finite has an error that is not finite, so no layer learns from it.
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    bad_x = x.copy()
    bad_x[2] = np.nan
    without = model.bounded_gradient_sums(x[:2], np.array([0, 1]))
    for a, b in zip(model.bounded_gradient_sums(bad_x, np.array([0, 1, 2])), without, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_graph_and_xla_keep_the_bound_and_agree_with_eager(name, mode):
    layer = stack(**CASES[name])
    records = [witness(stack(**CASES[name]), 0), *hostile((FEATURES,), (CLASSES,))]
    x, e = (np.stack(parts) for parts in zip(*records, strict=True))
    total = np.linalg.norm(layer.sensitivities())
    assert distance(releaser(layer, mode=mode)(x, e), releaser(layer)(x, e)) <= 1e-4 * total
    assert max(influences(releaser(layer, mode=mode), records)) <= total * (1 + SLACK)


def test_convolutions_below_are_clipped_record_by_record():
    """The paper's hybrid: each convolution's gradient, driven by the feedback, clipped to a share of its own."""
    features = 4 * 4 * 2
    feedback = FeedbackStack([5], "tanh", CLASSES, activation_clip=1.0, error_clip=0.3, delta_clip=0.2)
    below = [keras.Input((6, 6, 1)), keras.layers.Conv2D(2, 3, activation="tanh"), keras.layers.Reshape((features,))]
    model = tfdp.PrivateSequential([*below, feedback])
    clipping = {"l2_norm_clip": 0.4, "clipping": "per_layer"}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, **clipping), loss)
    assert [(g.bound, g.self_bounded) for g in model.sensitivities()][-1] == (0.4, False)
    rng = np.random.default_rng(8)
    x = (rng.normal(size=(9, 6, 6, 1)) * 3.0 ** rng.integers(-5, 3, (9, 1, 1, 1))).astype("float32")
    y = rng.integers(0, CLASSES, 9)
    weights = [v.value for v in model.layers[0].trainable_variables]
    expected, norms = [np.zeros(w.shape) for w in weights], []
    for i in range(9):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(y[i : i + 1], model(x[i : i + 1], training=True)))
        parts = [np.asarray(g, np.float64) for g in tape.gradient(value, weights)]
        norms.append(np.sqrt(sum(np.sum(g**2) for g in parts)))
        expected = [t + g * min(1.0, 0.4 / norms[-1]) for t, g in zip(expected, parts, strict=True)]
    assert min(norms) < 0.4 < max(norms)
    for found, total in zip(model.bounded_gradient_sums(x, y), expected, strict=False):
        np.testing.assert_allclose(found, total, rtol=1e-3, atol=1e-6)


def test_what_flows_on_below_is_each_records_own():
    layer = stack()
    rng = np.random.default_rng(0)
    x, e = (rng.normal(size=(2, size)).astype(np.float32) for size in (FEATURES, CLASSES))

    def below(e):
        with tf.GradientTape() as tape:
            inputs = tf.constant(x)
            tape.watch(inputs)
            loss = tf.reduce_sum(layer(inputs) * e)
        return np.asarray(tape.gradient(loss, inputs))

    expected = below(e)
    e[1] = np.nan
    assert np.any(expected[1] != 0)
    np.testing.assert_array_equal(below(e)[0], expected[0])
    np.testing.assert_array_equal(below(e)[1], 0.0)


# Planted bugs ---------------------------------------------------------------------------------------------------------


def largest(layer: FeedbackStack) -> float:
    """The largest influence on any group, over its bound, of witnesses and of hostile records."""
    rng = np.random.default_rng(0)
    ordinary = [tuple(1e4 * rng.normal(size=n).astype(np.float32) for n in (FEATURES, CLASSES)) for _ in range(3)]
    worst = 0.0
    for group, bound in enumerate(layer.sensitivities()):
        records = [witness(layer, group), *ordinary, *hostile((FEATURES,), (CLASSES,))]
        worst = max(worst, *(influence / bound for influence in influences(releaser(layer, group), records)))
    return worst


def activation_clip_forgotten(patch):
    patch.setattr(FeedbackStack, "logits", patched_rules("activation"))


def delta_clip_forgotten(patch):
    patch.setattr(FeedbackStack, "logits", patched_rules("delta", "error"))


def bias_forgotten(patch):
    patch.setattr(
        FeedbackStack,
        "sensitivities",
        lambda self: [d * c for d, c in zip((*self.delta_clip, self.error_clip), self.activation_clip, strict=True)],
    )


def factor_of_the_feedback_forgotten(patch):
    patch.setattr("tfdp_layers.layers.feedback_stack.delta_clips", lambda n, *rest: [1e3] * n)
    patch.setattr(FeedbackStack, "sensitivities", lambda self: [0.25 * 0.3 * c * 0.1 for c in self.activation_clip])


def multiplied_by_zero_instead_of_selected(patch):
    patch.setattr(tf.math, "multiply_no_nan", tf.multiply)


class Unbounded(L2):
    """The rule that someone forgot."""

    def scales(self, rows):
        return tf.ones(tf.shape(rows)[:1])


def patched_rules(*forgotten):
    honest = FeedbackStack.logits

    def logits(self, x):
        from tfdp_layers.layers import feedback_stack

        rules = feedback_stack.FeedbackRules
        feedback_stack.FeedbackRules = lambda activation, error, delta: rules(
            *(
                Unbounded(rule.bound) if rule and name in forgotten else rule
                for name, rule in zip(("activation", "error", "delta"), (activation, error, delta), strict=True)
            )
        )
        try:
            return honest(self, x)
        finally:
            feedback_stack.FeedbackRules = rules

    return logits


@pytest.mark.parametrize(
    "bug",
    [
        activation_clip_forgotten,
        delta_clip_forgotten,
        bias_forgotten,
        factor_of_the_feedback_forgotten,
        multiplied_by_zero_instead_of_selected,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(bug, monkeypatch):
    assert largest(stack()) <= 1 + SLACK
    bug(monkeypatch)
    assert largest(stack()) > 1 + 100 * SLACK


# What is refused ------------------------------------------------------------------------------------------------------


def test_the_total_sensitivity_of_the_paper_is_solved_for():
    layer = FeedbackStack.from_total_sensitivity(2.0, [128, 256], "sigmoid", 10)
    assert (layer.error_clip, layer.feedback_norm) == (0.1, 0.9)
    # 2 gamma beta tau_e sqrt(1 + tau_h^2) = C / sqrt(L), and all layers together C.
    assert layer.activation_clip == pytest.approx([25.64, 25.64, 5.687], abs=0.01)
    assert 2 * np.linalg.norm(layer.sensitivities()) == pytest.approx(2.0)
    hybrid = FeedbackStack.from_total_sensitivity(3.0, [384, 384], "sigmoid", 10, layers=5)
    assert 2 * np.array(hybrid.sensitivities()) == pytest.approx(3 / np.sqrt(5))
    without = FeedbackStack.from_total_sensitivity(2.0, [8], "tanh", 3, use_bias=False)
    assert 2 * np.linalg.norm(without.sensitivities()) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"hidden_0: a record's sensitivity of 0.02887 .* 0.09 "):
        FeedbackStack.from_total_sensitivity(0.1, [8, 8], "tanh", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": []}, "single layer use"),
        ({"units": [4, 0]}, "positive integer"),
        ({"activation": "exponential"}, "no upper bound"),
        ({"activation": lambda x: x}, "derivative_bound"),
        ({"error_clip": 0.0}, "error_clip"),
        ({"feedback_norm": np.nan}, "feedback_norm"),
        ({"activation_clip": [1.0, 1.0]}, "3 of them"),
        ({"activation_clip": -1.0}, "activation_clip"),
        ({"delta_clip": [1.0, 1.0, 1.0]}, "2 of them"),
        ({"feedback": "uniform"}, "aligned"),
        ({"alignment": "backwards"}, "sequential"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FeedbackStack(**({"units": [4, 4], "activation": "tanh", "output_units": 3, "activation_clip": 1.0} | options))


def test_uses_that_no_bound_covers_are_refused():
    with pytest.raises(ValueError, match="one vector a record"):
        built(FeedbackStack([4], "tanh", 3, activation_clip=1.0), (5, 2))
    with pytest.raises(ValueError, match="float32"):
        built(FeedbackStack([4], "tanh", 3, activation_clip=1.0, dtype="mixed_bfloat16"), (5,))(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="at least one sink of width"):
        FeedbackOutput(3, activation_clip=1.0)(np.zeros((2, 4), np.float32))
    layer = FeedbackStack([6], "tanh", 5, activation_clip=1.0)
    inputs = keras.Input((5,))
    twice = tfdp.PrivateModel(inputs, layer(layer(inputs)))
    once = tfdp.PrivateModel(inputs, layer(inputs))
    assert [g.bound for g in twice.sensitivities()] == [2 * g.bound for g in once.sensitivities()]
    assert [g.name for g in once.sensitivities()] == [f"{layer.name}/hidden_0", f"{layer.name}/output"]


def test_frozen_weights_have_no_group():
    layer = stack()
    for variable in layer.affines[0]:
        variable.trainable = False
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    assert [g.name.split("/")[1] for g in model.sensitivities()] == ["hidden_1", "output"]


def test_a_clip_changed_during_fit_stops_it():
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack()])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    x, y = np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32)

    class Loosens(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.layers[0].activation_clip = (9.0, 9.0, 9.0)

    with pytest.raises(RuntimeError, match="changed while fit runs"):
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Loosens()])
