"""Small private models of five kinds, and batches for them."""

from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp

CLIPS = {"input_clip": 1.0, "upstream_clip": 0.5}
kl, tl = keras.layers, tfdp.layers


def mlp() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    model = tfdp.PrivateSequential(
        [
            keras.Input((6,)),
            tl.ClippedDense(5, activation="tanh", **CLIPS),
            kl.Dropout(0.2),
            tl.ClippedDense(3, **CLIPS),
        ]
    )
    return model, rng.normal(size=(12, 6)).astype("float32"), rng.integers(0, 3, 12)


def cnn() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    model = tfdp.PrivateSequential(
        [
            keras.Input((8, 8, 2)),
            tl.ClippedConv2D(3, 3, padding="same", activation="relu", bound="patch", **CLIPS),
            kl.MaxPooling2D(2),
            kl.GroupNormalization(groups=1, center=False, scale=False),
            tl.ClippedDepthwiseConv2D(2, strides=2, **CLIPS),
            kl.Flatten(),
            tl.ClippedDense(3, use_bias=False, **CLIPS),
        ]
    )
    return model, rng.normal(size=(12, 8, 8, 2)).astype("float32"), rng.integers(0, 3, 12)


def shared() -> tuple[Any, Any, Any]:
    """One layer used three times, over many positions, inside a nested model."""
    rng = np.random.default_rng(2)
    inputs = keras.Input((5, 4))
    layer = tl.ClippedDense(4, activation="tanh", **CLIPS)
    inner_in = keras.Input((5, 4))
    inner = keras.Model(inner_in, layer(layer(inner_in)))
    outputs = tl.ClippedDense(3, **CLIPS)(kl.GlobalAveragePooling1D()(layer(inner(inputs))))
    return tfdp.PrivateModel(inputs, outputs), rng.normal(size=(12, 5, 4)).astype("float32"), rng.integers(0, 3, 12)


def sequence() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    model = tfdp.PrivateSequential(
        [
            keras.Input((7, 3)),
            tl.ClippedConv1D(4, 3, padding="causal", dilation_rate=2, activation="gelu", **CLIPS),
            tl.ClippedDense(4, **CLIPS),
            kl.Flatten(),
            tl.ClippedDense(3, **CLIPS),
        ]
    )
    return model, rng.normal(size=(12, 7, 3)).astype("float32"), rng.integers(0, 3, 12)


def two_inputs_two_outputs() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(4)
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    hidden = tl.ClippedDense(4, activation="tanh", **CLIPS)(kl.Concatenate()([a, b]))
    outputs = [tl.ClippedDense(3, name="c", **CLIPS)(hidden), tl.ClippedDense(3, name="d", **CLIPS)(hidden)]
    x = {"a": rng.normal(size=(12, 3)).astype("float32"), "b": rng.normal(size=(12, 2)).astype("float32")}
    y = rng.integers(0, 3, 12)
    return tfdp.PrivateModel({"a": a, "b": b}, outputs), x, [y, (y + 1) % 3]


def feedback() -> tuple[Any, Any, Any]:
    """A clipped convolution below a stack trained by feedback alignment."""
    rng = np.random.default_rng(5)
    model = tfdp.PrivateSequential(
        [
            keras.Input((6, 6, 1)),
            tl.ClippedConv2D(3, 3, strides=2, activation="tanh", bound="patch", **CLIPS),
            kl.Flatten(),
            tl.FeedbackStack([5, 4], "sigmoid", 3, activation_clip=1.0, delta_clip=0.05, error_clip=0.5),
        ]
    )
    return model, rng.normal(size=(12, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 12)


def feedback_with_a_skip() -> tuple[Any, Any, Any]:
    """Feedback into a layer that clips itself, single feedback layers, dropout between them, and a skip."""
    rng = np.random.default_rng(6)
    inputs = keras.Input((6,))
    below, zero = tl.DirectFeedback(3)(tl.ClippedDense(4, activation="tanh", **CLIPS)(inputs))
    first, one = tl.FeedbackDense(5, "tanh", 3, activation_clip=1.0)(below)
    second, two = tl.FeedbackDense(4, "relu", 3, activation_clip=1.0)(kl.Dropout(0.2)(first))
    outputs = tl.FeedbackOutput(3, activation_clip=1.0)([kl.Concatenate()([first, second]), zero, one, two])
    return tfdp.PrivateModel(inputs, outputs), rng.normal(size=(12, 6)).astype("float32"), rng.integers(0, 3, 12)


MODELS = [mlp, cnn, shared, sequence, two_inputs_two_outputs, feedback, feedback_with_a_skip]


def compiled(
    made: tuple[Any, Any, Any], noise: float = 1.0, optimizer: Any = None, **options: Any
) -> tuple[Any, Any, Any]:
    """The model of (model, x, y), compiled with cross-entropy and SGD of rate 1."""
    model, x, y = made
    noisy = tfdp.optimizers.NoisyOptimizer(
        optimizer or keras.optimizers.SGD(1.0), noise, noise_source=options.pop("noise_source", "default")
    )
    model.compile(noisy, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model, x, y


def rows(data: Any, index: Any) -> Any:
    """Some rows of every array."""
    return keras.tree.map_structure(lambda a: a[index], data)
