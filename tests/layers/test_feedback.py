"""Layers of feedback alignment are the algorithm that they claim to be."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.feedback_cases import ALIGNMENTS, CLASSES, FEATURES, UNITS, releaser, stack
from helpers.variants import slow_but
from tfdp_layers.layers import FeedbackDense, FeedbackOutput, FeedbackStack


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


MODES = [{}, {"jit_compile": True}, {"run_eagerly": True}]


@pytest.mark.few(1)
@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES), ids=["graph", "xla", "eager"])
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


@pytest.mark.slow
def test_without_noise_the_hidden_layers_learn():
    still = learned(frozen=True)
    for options in ({"alignment": "direct"}, {"alignment": "sequential"}, {"feedback": "orthogonal"}):
        assert learned(**options) > max(still + 0.1, 0.85), options
