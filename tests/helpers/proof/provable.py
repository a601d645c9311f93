"""Networks and private models in which no record meets another: what must be proved."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.layer_cases import CASES
from tfdp_layers.proof import Report, prove_sums

kl = keras.layers
CLIPS = {"input_clip": 1.0, "upstream_clip": 0.5}
Layers = Callable[[], list[Any]]


def image(*layers: Any, shape: tuple[int, ...] = (8, 8, 3)) -> Any:
    return keras.Sequential([keras.Input(shape), *layers])


def tokens(*layers: Any, length: int | None = 6) -> Any:
    return keras.Sequential([keras.Input((length,), dtype="int32"), *layers])


def residual() -> Any:
    x = keras.Input((8, 8, 3))
    y = kl.Conv2D(4, 3, padding="same", activation="relu")(x)
    y = kl.Add()([y, kl.Conv2D(4, 3, padding="same")(kl.LayerNormalization()(y))])
    return keras.Model(x, kl.Dense(2)(kl.GlobalAveragePooling2D()(kl.GroupNormalization(2)(y))))


def transformer(mask: bool = False, length: int | None = 6) -> Any:
    ids = keras.Input((length,), dtype="int32")
    x = kl.Embedding(11, 8, mask_zero=mask)(ids)
    for _ in range(2):
        y = kl.LayerNormalization()(x)
        x = x + kl.MultiHeadAttention(2, 4, dropout=0.1)(y, y, use_causal_mask=not mask)
        x = x + kl.Dense(8)(kl.Dense(16, activation="gelu")(kl.LayerNormalization()(x)))
    return keras.Model(ids, kl.Dense(3)(kl.GlobalMaxPooling1D()(x)))


def attention_kinds() -> Any:
    a, b = keras.Input((5, 8)), keras.Input((4, 8))
    x = kl.Attention(use_scale=True)([a, b])
    x = kl.AdditiveAttention()([x, b])
    x = kl.GroupQueryAttention(4, 4, 2)(x, b)
    return keras.Model([a, b], kl.Dense(2)(kl.Flatten()(x)))


def recomputed(make: Callable[[], Any]) -> Any:
    """Activations that the backward pass computes again, in place of keeping them."""
    with keras.RematScope("activations"):
        return make()


def crossed(*types: str) -> Any:
    features = [keras.Input((1,), dtype=kind) for kind in types]
    return keras.Model(features, kl.Dense(2)(kl.HashedCrossing(7, output_mode="one_hot")(features)))


class Frames(kl.Layer):
    """Which TensorFlow cuts by parts of a shape that it splits."""

    def call(self, x: Any) -> Any:
        real, imaginary = keras.ops.stft(x, 8, 4, 8)
        return keras.ops.concatenate([real, imaginary, tf.signal.frame(x, 5, 3)], axis=-1)


NETWORKS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: image(kl.Flatten(), kl.Dense(5, activation="tanh"), kl.Dense(2)),
    "activations": lambda: image(
        kl.Dense(4, activation="swish"), kl.ELU(), kl.LeakyReLU(), kl.PReLU(), kl.Softmax(), kl.ReLU(6.0)
    ),
    "recomputed activations": lambda: recomputed(
        lambda: image(kl.Flatten(), kl.Dense(4, activation="tanh"), kl.Dense(3, activation="swish"))
    ),
    "cnn": lambda: image(
        kl.Conv2D(4, 3, activation="relu"), kl.MaxPooling2D(2), kl.Conv2D(4, 2), kl.AveragePooling2D(2), kl.Flatten()
    ),
    "convolutions": lambda: image(
        kl.SeparableConv2D(4, 3), kl.Conv2DTranspose(3, 3, strides=2), kl.DepthwiseConv2D(3), kl.UpSampling2D(2)
    ),
    "upsampling, bilinear": lambda: image(kl.UpSampling2D(2, interpolation="bilinear"), kl.Conv2D(2, 3)),
    "convolution with gaps": lambda: image(kl.Conv2D(4, 3, dilation_rate=2), kl.Conv2D(3, 1, groups=1)),
    "convolution of groups": lambda: image(kl.Conv2D(6, 3, groups=3)),
    "convolutions in one dimension": lambda: image(
        kl.Conv1D(4, 3, padding="causal"), kl.MaxPooling1D(2), kl.ZeroPadding1D(1), kl.Cropping1D(1), shape=(9, 2)
    ),
    "convolutions in three dimensions": lambda: image(kl.Conv3D(2, 2), kl.AveragePooling3D(2), shape=(4, 5, 5, 2)),
    "residual": residual,
    "norms": lambda: image(
        kl.LayerNormalization(), kl.GroupNormalization(3), kl.RMSNormalization(), kl.UnitNormalization()
    ),
    "frozen batch norm": lambda: image(kl.Conv2D(4, 3), kl.BatchNormalization(trainable=False), kl.Flatten()),
    "spectral normalization": lambda: image(kl.Flatten(), kl.SpectralNormalization(kl.Dense(4)), kl.Dense(2)),
    "simple rnn": lambda: image(kl.SimpleRNN(4, return_sequences=True), kl.SimpleRNN(2), shape=(5, 3)),
    "lstm": lambda: image(kl.LSTM(4, return_sequences=True), kl.LSTM(2, go_backwards=True), shape=(5, 3)),
    "lstm of any length": lambda: image(kl.LSTM(4, return_sequences=True), kl.LSTM(2), shape=(None, 3)),
    "gru": lambda: image(kl.GRU(4, return_sequences=True), kl.GRU(2, reset_after=False), shape=(5, 3)),
    "dropout in steps": lambda: image(kl.LSTM(4, dropout=0.2, recurrent_dropout=0.2), shape=(5, 3)),
    "bidirectional": lambda: image(
        kl.Bidirectional(kl.LSTM(3, return_sequences=True)), kl.Bidirectional(kl.GRU(2)), shape=(5, 3)
    ),
    "masked": lambda: tokens(kl.Embedding(9, 4, mask_zero=True), kl.LSTM(4, return_sequences=True), kl.GRU(3)),
    "convolutional lstm": lambda: image(kl.ConvLSTM2D(2, 2), kl.Flatten(), shape=(3, 5, 5, 2)),
    "transformer": transformer,
    "transformer with masks": lambda: transformer(mask=True),
    "transformer of any length": lambda: transformer(length=None),
    "kinds of attention": attention_kinds,
    "time distributed": lambda: image(
        kl.TimeDistributed(kl.Conv2D(2, 3)), kl.TimeDistributed(kl.Flatten()), kl.LSTM(2), shape=(3, 6, 6, 2)
    ),
    "embedding": lambda: tokens(kl.Embedding(9, 4), kl.GlobalAveragePooling1D(), kl.Dense(2)),
    "embedding, averaged under a mask": lambda: tokens(kl.Embedding(9, 4, mask_zero=True), kl.GlobalAveragePooling1D()),
    "shapes": lambda: image(kl.Permute((2, 1, 3)), kl.Reshape((16, 12)), kl.Reshape((-1, 6)), kl.Flatten()),
    "frames of a signal": lambda: image(Frames(), kl.Dense(2), shape=(20,)),
    "repeated": lambda: image(kl.Flatten(), kl.RepeatVector(3), kl.Dense(2)),
    "dropout": lambda: image(kl.Dropout(0.3), kl.SpatialDropout2D(0.2), kl.Flatten(), kl.AlphaDropout(0.1)),
    "noise": lambda: image(kl.GaussianNoise(0.3), kl.GaussianDropout(0.2), kl.Flatten(), kl.Dense(2)),
    "augmentation": lambda: image(
        kl.RandomFlip(), kl.RandomRotation(0.1), kl.RandomTranslation(0.1, 0.1), kl.RandomZoom(0.1), kl.Flatten()
    ),
    "random contrast": lambda: image(kl.RandomContrast(0.2), kl.Flatten()),
    "random brightness": lambda: image(kl.RandomBrightness(0.2), kl.Flatten()),
    "random crop": lambda: image(kl.RandomCrop(6, 6), kl.Flatten(), kl.Dense(2)),
    "resizing": lambda: image(kl.Resizing(5, 5), kl.Rescaling(0.5), kl.CenterCrop(4, 4), kl.Flatten()),
    "discretization": lambda: image(kl.Discretization([0.0, 0.5]), kl.Flatten()),
    "crossed texts": lambda: crossed("string", "string"),
    "crossed texts and numbers": lambda: crossed("string", "int64"),
    "normalization": lambda: image(kl.Normalization(mean=0.1, variance=2.0), kl.Flatten()),
}


def clipped(shape: tuple[int, ...], *layers: Any) -> Any:
    return keras.Sequential([keras.Input(shape), *layers])


def bounded_transformer() -> Any:
    L = tfdp.layers  # noqa: N806
    ids = keras.Input((6,), dtype="int32")
    x = L.ClippedEmbedding(11, 8, upstream_clip=0.5)(ids)
    y = L.ClippedLayerNormalization(upstream_clip=0.5)(x)
    x = x + L.ClippedMultiHeadAttention(2, 4, **CLIPS)(y, y)
    x = L.ClippedGroupNormalization(2, upstream_clip=0.5)(x)
    x = kl.Flatten()(L.ClippedEinsumDense("abc,cd->abd", (6, 4), bias_axes="d", **CLIPS)(x))
    return keras.Model(ids, L.ClippedDense(3, **CLIPS)(x))


def bounded() -> dict[str, Callable[[], Any]]:
    """Models of layers that bound themselves."""
    L = tfdp.layers  # noqa: N806
    patches = {"bound": "patch", **CLIPS}
    return {
        "clipped dense": lambda: clipped(
            (6,), L.ClippedDense(5, activation="tanh", **CLIPS), L.ClippedDense(3, **CLIPS)
        ),
        "clipped dense, recomputed": lambda: recomputed(
            lambda: clipped((6,), L.ClippedDense(5, activation="tanh", **CLIPS), L.ClippedDense(3, **CLIPS))
        ),
        "clipped dense, wide input": lambda: clipped((40,), L.ClippedDense(5, **CLIPS)),
        "clipped dense over positions": lambda: clipped((4, 6), L.ClippedDense(5, **CLIPS), kl.Flatten()),
        "clipped conv1d": lambda: clipped((9, 3), L.ClippedConv1D(4, 3, **CLIPS), kl.Flatten()),
        "clipped conv2d": lambda: clipped((8, 8, 3), L.ClippedConv2D(4, 3, strides=2, **CLIPS), kl.Flatten()),
        "clipped conv2d by patches": lambda: clipped((8, 8, 3), L.ClippedConv2D(4, 3, **patches), kl.Flatten()),
        "clipped conv3d": lambda: clipped((4, 5, 5, 2), L.ClippedConv3D(2, 2, **CLIPS), kl.Flatten()),
        "clipped depthwise": lambda: clipped((8, 8, 3), L.ClippedDepthwiseConv2D(3, **CLIPS), kl.Flatten()),
        "clipped transformer": bounded_transformer,
        "direct feedback": lambda: clipped(
            (6,), L.FeedbackStack([5, 4], "tanh", 3, activation_clip=1.0, error_clip=0.5)
        ),
        "sequential feedback": lambda: clipped(
            (6,), L.FeedbackStack([5, 4], "tanh", 3, activation_clip=1.0, error_clip=0.5, alignment="sequential")
        ),
        "gradient filter": lambda: clipped(
            (5, 3), kl.Reshape((15,)), L.ClippedDense(4, **CLIPS), L.GradientFilter("tanh"), L.ClippedDense(3, **CLIPS)
        ),
    }


def private(model: Any, optimizer: Any, loss: Any = None) -> Any:
    """The model, private and compiled."""
    made = tfdp.make_private(model)
    made.compile(optimizer, loss or keras.losses.MeanSquaredError(), metrics=["mae"])
    return made


def noisy() -> Any:
    return tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0)


def specs_of(model: Any) -> tuple[Any, Any, tf.TensorSpec]:
    """Inputs, labels like the outputs, and weights, of an unknown number of records."""

    def spec(tensor: Any) -> tf.TensorSpec:
        return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)

    x = keras.tree.map_structure(spec, model.inputs if len(model.inputs) > 1 else model.inputs[0])
    if isinstance(getattr(model, "_inputs_struct", None), dict):
        x = keras.tree.map_structure(spec, model._inputs_struct)
    y = keras.tree.map_structure(spec, getattr(model, "_outputs_struct", model.outputs[0]))
    return x, y, tf.TensorSpec((None,), tf.float32)


def sums_proof(model: Any) -> Report:
    return prove_sums(model, *specs_of(model))


def per_record(name: str) -> Any:
    return CASES[name]()[0]
