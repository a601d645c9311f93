"""Networks that benchmarks time: m1 CNN 28x28x1, 26k weights; m2 MLP, 795k; m3 CNN 32x32x3, 551k; m4 transformer."""

from typing import Any

import keras
import numpy as np

import tfdp_layers as tfdp

__all__ = ["IN_LAYER", "layers", "network", "records"]

IN_LAYER = ("spatial_l1", "patch", "exact")
"""How layers of this library bound records: by two clips (of which convolutions have two kinds), or `gradient_clip`."""

kl = keras.layers


def layers(name: str, bound: str | None = None) -> list[Any]:
    """The layers of "m1", "m2" or "m3": Keras' own, or bounded by one of `IN_LAYER`."""
    clips: dict[str, Any] = {}
    if bound is not None:
        clips = {"gradient_clip": 0.5} if bound == "exact" else {"input_clip": 5.0, "upstream_clip": 0.1}
    kinds = (tfdp.layers.ClippedConv2D, tfdp.layers.ClippedDense) if bound else (kl.Conv2D, kl.Dense)
    conv_clips = clips | ({"bound": bound} if bound else {})

    def conv(*args: Any, **kwargs: Any) -> Any:
        return kinds[0](*args, activation="relu", **conv_clips, **kwargs)

    def dense(*args: Any, **kwargs: Any) -> Any:
        return kinds[1](*args, **clips, **kwargs)

    if name == "m1":
        return [
            *(keras.Input((28, 28, 1)), conv(16, 8, strides=2, padding="same"), kl.MaxPooling2D(2, 1)),
            *(conv(32, 4, strides=2), kl.MaxPooling2D(2, 1), kl.Flatten(), dense(32, activation="relu"), dense(10)),
        ]
    if name == "m2":
        return [keras.Input((784,)), dense(1000, activation="relu"), dense(10)]
    stack: list[Any] = [keras.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        stack += [conv(filters, 3, padding="same"), conv(filters, 3, padding="same"), kl.MaxPooling2D(2)]
    return [*stack, kl.Flatten(), dense(128, activation="relu"), dense(10)]


def network(name: str) -> keras.Model:
    """An ordinary network: those of `layers`, "m4", and three recurrent ones.

    m4: a transformer block, vocabulary 10,000, 128 tokens, width 64, two heads. lstm: `LSTM(64)` on 32 steps of 32
    numbers; stacked: the same cell in `StackedRNNCells`; convlstm: `ConvLSTM2D(8, 3)` on 6 images of 16 x 16.
    """
    if name in ("lstm", "stacked"):
        cell = kl.LSTM(64) if name == "lstm" else kl.RNN(kl.StackedRNNCells([kl.LSTMCell(64)]))
        return keras.Sequential([keras.Input((32, 32)), cell, kl.Dense(10)])
    if name == "convlstm":
        return keras.Sequential([keras.Input((6, 16, 16, 1)), kl.ConvLSTM2D(8, 3), kl.Flatten(), kl.Dense(10)])
    if name != "m4":
        return keras.Sequential(layers(name))
    tokens = keras.Input((128,), dtype="int32")
    hidden = kl.Embedding(10_000, 64)(tokens)
    normal = kl.LayerNormalization()(hidden)
    hidden = kl.Add()([hidden, kl.MultiHeadAttention(2, 32)(normal, normal)])
    wide = kl.Dense(128, activation="relu")(kl.LayerNormalization()(hidden))
    hidden = kl.Add()([hidden, kl.Dense(64)(wide)])
    return keras.Model(tokens, kl.Dense(2)(kl.GlobalAveragePooling1D()(hidden)))


def by_feedback(name: str) -> keras.Model:
    """The network of `layers` whose hidden layers learn from the output error; their clips cost the same whatever."""
    inputs, *between, hidden, output = layers(name, "spatial_l1")
    h, sinks = inputs, []
    for layer in between:
        h = layer(h)
        if isinstance(layer, kl.MaxPooling2D):
            h, sink = tfdp.layers.DirectFeedback(10)(h)
            sinks.append(sink)
    h, sink = tfdp.layers.FeedbackDense(hidden.units, "relu", 10, activation_clip=5.0)(h)
    return keras.Model(inputs, tfdp.layers.FeedbackOutput(output.units, activation_clip=5.0)([h, *sinks, sink]))


def records(model: keras.Model, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers, or tokens, in the shape of a model's input, and classes of its output."""
    rng = np.random.default_rng(0)
    shape, classes = (count, *model.input_shape[1:]), model.output_shape[-1]
    y = rng.integers(0, classes, count)
    if keras.backend.is_int_dtype(model.inputs[0].dtype):
        return rng.integers(0, 10_000, shape, "int32"), y
    return rng.normal(size=shape).astype("float32"), y
