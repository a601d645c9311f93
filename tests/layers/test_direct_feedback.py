"""DirectFeedback: the identity forward; backward the output error through a fixed matrix, and nothing from above."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import KINDS, SCALES, SLACK, extreme
from helpers.variants import slow_but
from tfdp_layers.layers import (
    ClippedConv2D,
    ClippedDense,
    ClippedEmbedding,
    DirectFeedback,
    FeedbackDense,
    FeedbackOutput,
)
from tfdp_layers.layers.direct_feedback import direct_feedback
from tfdp_layers.rules.rows import L2

SHAPE, CLASSES, CLIP = (4, 4, 2), 3, 0.3
kl = keras.layers


def network(below: type = kl.Conv2D, model: type = keras.Model, **options):
    """Two convolutions with feedback after each; the error comes from the output layer."""
    feedback = {"error_clip": CLIP, "feedback_norm": 0.8}
    inputs = keras.Input(SHAPE)
    h, one = DirectFeedback(CLASSES, feedback_seed=1, **feedback)(below(3, 3, activation="tanh", **options)(inputs))
    h, two = DirectFeedback(CLASSES, feedback_seed=2, **feedback)(below(2, 2, activation="tanh", **options)(h))
    output = FeedbackOutput(CLASSES, activation_clip=1.0, error_clip=CLIP)
    return model(inputs, output([kl.Flatten()(h), one, two]))


def data(count: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, *SHAPE)) * 3.0 ** rng.integers(-3, 3, (count, 1, 1, 1))
    return x.astype(np.float32), (scale * rng.normal(size=(count, CLASSES))).astype(np.float32)


def clip(rows: np.ndarray, bound: float) -> np.ndarray:
    return rows * np.minimum(1.0, bound / np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.mark.parametrize("mode", slow_but(["graph"], ["eager", "graph", "xla"]))
def test_each_convolution_learns_from_its_own_feedback_and_nothing_from_above(mode):
    model = network()
    convolutions = [layer for layer in model.layers if isinstance(layer, kl.Conv2D)]
    feedbacks = [layer for layer in model.layers if isinstance(layer, DirectFeedback)]
    x, e = data(7)

    def found(x, e):
        weights = [v.value for layer in convolutions for v in layer.trainable_variables]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) * e)
        return tape.gradient(loss, weights)

    run = found if mode == "eager" else tf.function(found, autograph=False, jit_compile=mode == "xla")
    expected, h = [], tf.constant(x)
    for convolution, feedback in zip(convolutions, feedbacks, strict=True):
        with tf.GradientTape() as tape:
            outputs = convolution(h)
        signal = (clip(e, CLIP) @ np.asarray(feedback.matrix)).reshape(outputs.shape)
        expected += tape.gradient(outputs, [v.value for v in convolution.trainable_variables], output_gradients=signal)
        h = outputs
    for by_hand, got in zip(expected, run(tf.constant(x), tf.constant(e)), strict=True):
        np.testing.assert_allclose(got, by_hand, rtol=1e-4, atol=1e-6)


def test_the_forward_pass_is_the_identity_and_zeros():
    x = data(3)[0]
    outputs, sink = DirectFeedback(CLASSES)(x)
    np.testing.assert_array_equal(outputs, x)
    np.testing.assert_array_equal(sink, np.zeros((3, CLASSES)))


def test_what_arrives_from_above_is_not_used():
    inputs = tf.constant(data(2)[0])
    layer = DirectFeedback(CLASSES)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs, sink = layer(inputs)
        loss = tf.reduce_sum(sink * 0.1) + tf.reduce_sum(outputs * np.nan)
    assert np.all(np.isfinite(tape.gradient(loss, inputs)))


def arriving(e: np.ndarray, norm: float = 0.8, rule: L2 | None = None) -> np.ndarray:
    """The norm of each record's gradient below a layer whose sinks receive e."""
    layer = DirectFeedback(CLASSES, error_clip=CLIP, feedback_norm=norm, feedback_seed=1)
    x = tf.zeros((len(e), *SHAPE))
    layer.build(x.shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        sink = (layer(x) if rule is None else direct_feedback(x, tf.convert_to_tensor(layer.matrix), rule))[1]
        loss = tf.reduce_sum(tf.where(e != 0.0, sink, 0.0) * tf.constant(e))
    return np.linalg.norm(np.asarray(tape.gradient(loss, x), np.float64).reshape(len(e), -1), axis=1)


def stretched(norm: float = 0.8) -> np.ndarray:
    """The error that the feedback matrix stretches most."""
    layer = DirectFeedback(CLASSES, feedback_norm=norm, feedback_seed=1)
    layer.build((None, *SHAPE))
    return 1e3 * np.linalg.svd(np.asarray(layer.matrix))[0][:, :1].T.astype(np.float32)


def test_what_flows_below_attains_its_bound():
    assert arriving(stretched())[0] == pytest.approx(CLIP * 0.8, rel=1e-4)


def test_a_forgotten_clip_of_the_error_is_found():
    class Unbounded(L2):
        def scales(self, rows):
            return tf.ones(tf.shape(rows)[:1])

    assert arriving(stretched(), rule=Unbounded(CLIP))[0] > CLIP


def test_no_error_exceeds_the_bound_or_touches_another_record():
    rng = np.random.default_rng(0)
    e = np.stack([extreme(kind, scale, (CLASSES,), rng) for kind in KINDS for scale in SCALES])
    norms = arriving(e)
    assert np.all(norms <= CLIP * 0.8 * (1 + SLACK))
    assert np.all(norms[~np.isfinite(e).all(axis=1)] == 0.0)
    order = rng.permutation(len(e))
    np.testing.assert_allclose(arriving(e[order]), norms[order], rtol=1e-5, atol=1e-12)


CLIPPED = {"input_clip": 2.0, "upstream_clip": 0.05}


def private(below: type = ClippedConv2D, **options):
    return network(below, tfdp.PrivateModel, **(options or CLIPPED))


def test_a_private_model_states_the_bounds_of_the_layers_below():
    model = private()
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    convolution = 0.05 * np.sqrt(2.0**2 + 1)
    bounds = sorted(group.bound for group in model.sensitivities())
    assert bounds == pytest.approx(sorted([convolution, convolution, CLIP * np.sqrt(2)]))
    x, y = data(6)[0], np.arange(6) % CLASSES
    x[2] = np.nan
    alone = [model.bounded_gradient_sums(x[[i]], y[[i]]) for i in range(6)]
    for total, *parts in zip(model.bounded_gradient_sums(x, y), *alone, strict=True):
        np.testing.assert_allclose(total, np.sum(parts, axis=0), rtol=1e-4, atol=1e-6)
    assert np.all(np.asarray(alone[2][0]) == 0.0)
    assert np.any(np.asarray(alone[0][0]) != 0.0)


def test_ordinary_convolutions_below_are_clipped_record_by_record():
    keras.utils.set_random_seed(0)
    bound = 2.0
    inputs = keras.Input(SHAPE)
    h, sink = DirectFeedback(CLASSES, error_clip=1e3)(kl.Conv2D(3, 3, activation="tanh")(inputs))
    model = tfdp.PrivateModel(inputs, kl.Add()([kl.Dense(CLASSES)(kl.Flatten()(h)), sink]))
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, bound * np.sqrt(2), clipping="per_layer"), loss)
    x, y = data(8)[0], np.arange(8) % CLASSES
    weights = [v.value for v in model.trainable_variables]
    expected, norms = [np.zeros(w.shape) for w in weights], []
    for i in range(8):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(y[i : i + 1], model(x[i : i + 1], training=True)))
        parts = [np.asarray(g, np.float64) for g in tape.gradient(value, weights)]
        for first in (0, 2):  # kernel and bias of each layer
            norms.append(np.sqrt(sum(np.sum(g**2) for g in parts[first : first + 2])))
            scale = min(1.0, bound / norms[-1])
            for j in (first, first + 1):
                expected[j] += scale * parts[j]
    assert min(norms[::2]) < bound < max(norms[::2])
    for found, total in zip(model.bounded_gradient_sums(x, y), expected, strict=True):
        np.testing.assert_allclose(found, total, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_matrix_is_saved_restored_and_never_trained(tmp_path):
    model = private()
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), loss)
    layers = [layer for layer in model.layers if isinstance(layer, DirectFeedback)]
    before = [np.asarray(layer.matrix) for layer in layers]
    x, y = data(12)[0], np.arange(12) % CLASSES
    model.fit(x, y, sampling=tfdp.sampling.Poisson(4), epochs=2, verbose=0)
    assert not any(variable is layer.matrix for layer in layers for variable in model.trainable_variables)
    model.save(tmp_path / "model.keras")
    for path in ("first", "second"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        for matrix, layer in zip(before, [q for q in loaded.layers if isinstance(q, DirectFeedback)], strict=True):
            np.testing.assert_array_equal(layer.matrix, matrix, err_msg=path)
        np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
    np.testing.assert_allclose(model.to_keras()(x), model(x), atol=1e-5)


def test_a_nested_model_with_feedback_becomes_a_plain_one():
    inner_inputs, inputs = keras.Input((4,)), keras.Input((4,))
    inner = keras.Model(
        inner_inputs, DirectFeedback(CLASSES)(ClippedDense(5, activation="tanh", **CLIPPED)(inner_inputs))
    )
    model = tfdp.PrivateModel(inputs, FeedbackOutput(CLASSES, activation_clip=1.0)(inner(inputs)))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(model.to_keras()(x), model(x), atol=1e-6)


def test_arguments_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="output_units"):
        DirectFeedback(0)
    with pytest.raises(ValueError, match="error_clip"):
        DirectFeedback(3, error_clip=np.nan)
    with pytest.raises(ValueError, match="fix its dimensions"):
        DirectFeedback(3)(keras.Input((None, 4)))


def test_records_that_are_mixed_below_are_refused():
    inputs = keras.Input((4,))
    h, sink = DirectFeedback(CLASSES)(ClippedDense(4, **CLIPPED)(keras.ops.flip(inputs, axis=0)))
    model = tfdp.PrivateModel(inputs, FeedbackOutput(CLASSES, activation_clip=1.0)([h, sink]))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    with pytest.raises(ValueError, match="record"):
        model.fit(np.ones((8, 4), "float32"), np.zeros(8), sampling=tfdp.sampling.Poisson(4), verbose=0)


def direct(x):
    return DirectFeedback(CLASSES)(x)


def through_a_layer(x):
    return FeedbackDense(4, "tanh", CLASSES, activation_clip=1.0, backpropagate=True)(x)


@pytest.mark.parametrize("feedback", [direct, through_a_layer])
def test_a_weight_that_gets_the_error_outside_of_its_layer_is_refused(feedback):
    """Nothing of the forward pass shows this use: the activation is dropped, only the sink is there."""
    inputs, below = keras.Input((4,)), ClippedDense(4, **CLIPPED)
    h = below(inputs)
    sink = feedback(kl.Lambda(lambda x: tf.matmul(x, below.kernel))(inputs))[1]
    model = tfdp.PrivateModel(inputs, FeedbackOutput(CLASSES, activation_clip=1.0)([h, sink]))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    with pytest.raises(ValueError, match="used outside its layer"):
        model.sensitivities()


def on_tokens(change, clip: float):
    """A model of tokens, which have no gradient, whose sink `change` bends."""
    inputs = keras.Input((5,), dtype="int32")
    h = kl.Flatten()(ClippedEmbedding(11, 2, upstream_clip=clip)(inputs))
    h, sink = DirectFeedback(CLASSES, error_clip=10 * clip)(h)
    model = tfdp.PrivateModel(inputs, FeedbackOutput(CLASSES, activation_clip=1.0)([h, change(sink)]))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), keras.losses.SparseCategoricalCrossentropy(True))
    return model


@pytest.mark.parametrize("clip", [pytest.param(0.1, marks=pytest.mark.slow), 1e-6])
def test_errors_of_other_records_are_refused_whatever_their_size(clip):
    """Noise is scaled to each group's bound: the gap of a group must not drown in the gradients of another."""
    tfdp.check_independence(on_tokens(lambda sink: sink, clip))
    with pytest.raises(ValueError, match="Records are not independent"):
        tfdp.check_independence(on_tokens(lambda sink: keras.ops.flip(sink, axis=0), clip))


def test_sinks_of_other_rows_than_the_records_are_refused():
    with pytest.raises(ValueError, match="is called on 1 rows for"):
        on_tokens(lambda sink: keras.ops.sum(sink, axis=0, keepdims=True), 0.1).sensitivities()
