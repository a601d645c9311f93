"""Small models of every layer kind that has per-record formulas, with inputs for three records."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.applications.convnext import LayerScale

from tfdp_layers.per_record import per_record_formulas

kl = keras.layers
Case = tuple[Any, Any]


def normal(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(3, *shape)), tf.float32)


def ids(*shape: int, vocabulary: int = 5) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).integers(0, vocabulary, (3, *shape)), tf.int32)


def stack(shape: tuple[int, ...], *layers: Any, lora: bool = False) -> Case:
    model = keras.Sequential([keras.Input(shape), *layers])
    if lora:
        for layer in model.layers:
            if hasattr(layer, "enable_lora"):
                layer.enable_lora(2)
    return model, normal(*shape)


def tokens(*layers: Any, length: int = 6, lora: bool = False) -> Case:
    model = keras.Sequential([keras.Input((length,), dtype="int32"), *layers])
    if lora:
        model.layers[0].enable_lora(2)
    return model, ids(length)


def integers() -> Case:
    """As lookups inside of a model give them, one-hot or counted: Keras multiplies them by a kernel of floats."""
    a = keras.Input((6,), dtype="int32")
    both = [kl.Dense(3, activation="tanh")(a), kl.EinsumDense("ab,bc->ac", 2, bias_axes="c")(a)]
    return keras.Model(a, kl.Concatenate()(both)), ids(6)


MASKED = tf.constant([[0, 0, 1, 2, 0, 3], [1, 2, 0, 0, 0, 0], [1, 1, 1, 1, 1, 2]], tf.int32)


def masked(*layers: Any) -> Case:
    return tokens(kl.Embedding(5, 3, mask_zero=True), *layers)[0], MASKED


def attention() -> Case:
    a, b, ids = keras.Input((5, 6)), keras.Input((4, 6)), keras.Input((5,), dtype="int32")
    y = kl.MultiHeadAttention(2, 3, value_dim=4)(a + kl.Embedding(4, 6, mask_zero=True)(ids), a)
    y = kl.MultiHeadAttention(2, 3, use_bias=False)(y, y, use_causal_mask=True)
    y = kl.GroupQueryAttention(3, 4, 2)(y, b)
    tensors = [normal(5, 6), normal(4, 6), tf.constant([[1, 2, 0, 0, 0], [3, 1, 1, 1, 0], [2, 2, 2, 2, 2]])]
    return keras.Model([a, b, ids], y), tensors


def shared() -> Case:
    """Dense twice and once in a row, a convolution and a normalization twice, in a nested model."""
    a = keras.Input((5, 4, 6))
    dense, conv, norm = kl.Dense(6, activation="tanh"), kl.Conv2D(6, 3, padding="same"), kl.LayerNormalization()
    inner_in = keras.Input((5, 4, 6))
    inner = keras.Model(inner_in, norm(conv(dense(inner_in))))
    return keras.Model(a, norm(conv(inner(dense(inner(a)))))), normal(5, 4, 6)


def shared_embedding() -> Case:
    a, b = keras.Input((4,), dtype="int32"), keras.Input((3,), dtype="int32")
    table = kl.Embedding(5, 3)
    return keras.Model([a, b], kl.Concatenate(axis=1)([table(a), table(b)])), [ids(4), ids(3)]


def several_inputs_and_outputs() -> Case:
    a, b = keras.Input((3,), name="a"), keras.Input((4, 2), name="b")
    hidden = kl.Concatenate()([kl.Dense(3, activation="tanh")(a), kl.Flatten()(kl.Conv1D(2, 2)(b))])
    outputs = {"c": kl.Dense(2, name="c")(hidden), "d": kl.Dense(1, name="d")(hidden)}
    return keras.Model({"a": a, "b": b}, outputs), {"a": normal(3), "b": normal(4, 2)}


class Block(kl.Layer):
    """A composite layer without weights of its own, which uses one part twice."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm, self.dense, self.last = kl.LayerNormalization(), kl.Dense(4, activation="gelu"), kl.Dense(2)

    def build(self, shape: Any) -> None:
        for part in (self.norm, self.dense, self.last):
            part.build((None, shape[1], 4))

    def call(self, x: Any) -> Any:
        return self.last(x + self.dense(self.norm(self.dense(x))))


class Cell(kl.Layer):
    """A recurrent cell of one's own, of parts that are layers."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.state_size = units
        self.new, self.old = kl.Dense(units), kl.Dense(units, use_bias=False)

    def build(self, shape: Any) -> None:
        self.new.build(shape)
        self.old.build((None, self.state_size))

    def call(self, x: Any, states: Any) -> Any:
        h = keras.ops.tanh(self.new(x) + self.old(states[0]))
        return h, [h]


class Scales(kl.Layer):
    """Owns weights, one of them a number, and has a part: the slow way."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(shape[-1], 3))
        self.s = self.add_weight(shape=())
        self.part = kl.Dense(2)
        self.part.build((None, 3))

    def call(self, x: Any) -> Any:
        # Not tf.matmul: of TensorFlow 2.21 with oneDNN it writes beyond its memory for small (n, 1, m, k) by (k, l).
        return self.part(self.s * tf.tanh(tf.tensordot(x, self.w, 1)))


def lora() -> Case:
    layers = [kl.Dense(5), kl.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), kl.Reshape((4, 6, 1))]
    return stack((4, 9), *layers, kl.Conv2D(3, 2), lora=True)


def tied(lora: bool = False, **options: Any) -> Case:
    """Logits from the table that embeds the tokens; an input of numbers goes into the product with it."""
    a, b = keras.Input((6,), dtype="int32"), keras.Input((4, 3))
    table = kl.ReversibleEmbedding(5, 3, **options)
    y = table(b + kl.Dense(3, activation="tanh")(table(a))[:, 1:5], reverse=True)
    if lora:
        table.enable_lora(2)
    return keras.Model([a, b], y), [ids(6), normal(4, 3)]


def masked_table() -> Case:
    """An embedding that sets a mask in its call, and puts out logits of its own table."""
    a = keras.Input((6,), dtype="int32")
    table = kl.ReversibleEmbedding(5, 3, mask_zero=True)
    return keras.Model(a, table(kl.SimpleRNN(3)(table(a)), reverse=True)), MASKED


def scaled_attention() -> Case:
    a, b = keras.Input((4, 3)), keras.Input((5, 3))
    y = kl.Attention(use_scale=True)([a, b])
    y = kl.Attention(use_scale=True, score_mode="concat")([y, b, b + 1.0])
    y = kl.AdditiveAttention()([y, b], use_causal_mask=True)
    return keras.Model([a, b], kl.Attention(score_mode="concat")([y, kl.AdditiveAttention(use_scale=False)([b, y])])), [
        normal(4, 3),
        normal(5, 3),
    ]


class Frozen(kl.Layer):
    """What `enable_lora()` of a KerasHub backbone makes: in a frozen layer, frozen parts with LoRA that trains."""

    def build(self, shape: Any) -> None:
        self.dense, self.table = kl.Dense(shape[-1], activation="tanh"), kl.Embedding(5, shape[-1])
        self.heads = kl.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
        self.dense.build(shape)
        self.heads.build(shape)
        self.table.build((None, shape[1]))
        self.w = self.add_weight(shape=(shape[-1],))
        self.trainable = False
        for part in (self.dense, self.heads, self.table):
            part.trainable = True
            part.enable_lora(2)

    def call(self, x: Any) -> Any:
        ids = keras.ops.cast(keras.ops.abs(2.0 * x[..., 0]), "int32") % 5
        return self.heads(self.w * self.dense(x) + self.table(ids))


class Holds(kl.Layer):
    """Owns nothing: it holds the kernel of another layer, and multiplies with it transposed."""

    def __init__(self, dense: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dense = dense

    def build(self, shape: Any) -> None:
        self.kernel = self.dense.kernel

    def call(self, x: Any) -> Any:
        return tf.matmul(x, self.kernel, transpose_b=True)


@per_record_formulas(Holds)
def holds(layer: Any, record: Any, inputs: Any) -> Any:
    return record.product_transposed(layer.kernel, inputs)


def autoencoder() -> Case:
    """A kernel tied through a layer that holds it."""
    a, dense = keras.Input((2, 5)), kl.Dense(3, activation="tanh")
    return keras.Model(a, Holds(dense)(dense(a))), normal(2, 5)


CASES: dict[str, Callable[[], Case]] = {
    "dense": lambda: stack((5,), kl.Dense(4, activation="tanh"), kl.Dense(3, use_bias=False)),
    "dense over positions": lambda: stack((2, 3, 4), kl.Dense(4), kl.Dense(30)),
    "dense by gram": lambda: stack((2, 30), kl.Dense(30)),
    "integers": integers,
    "einsum": lambda: stack(
        (7, 6),
        kl.EinsumDense("abc,cde->abde", (7, 2, 3), bias_axes="de"),
        kl.EinsumDense("abde,def->abf", (7, 5), bias_axes="f"),
    ),
    "einsum, a kernel for each position": lambda: stack((4, 6), kl.EinsumDense("abc,bcd->abd", (4, 3), bias_axes="bd")),
    "einsum with an ellipsis": lambda: stack((7, 6), kl.EinsumDense("...x,xy->...y", 3, bias_axes="y")),
    "einsum, positions added up": lambda: stack((7, 6), kl.EinsumDense("abc,cd->ad", 3)),
    "einsum, positions mixed": lambda: stack((4, 6), kl.EinsumDense("abc,bd->adc", (3, 6), bias_axes="d")),
    "conv2d": lambda: stack((7, 6, 2), kl.Conv2D(3, 3, padding="same", strides=2), kl.Conv2D(2, 2, dilation_rate=2)),
    "conv2d of groups": lambda: stack((4, 4, 4), kl.Conv2D(6, 2, groups=2)),
    "conv3d": lambda: stack((3, 4, 3, 2), kl.Conv3D(2, 2)),
    "conv of wide patches": lambda: stack((4, 4, 3), kl.Conv2D(20, 3)),
    "transposed": lambda: stack((4, 3, 2), kl.Conv2DTranspose(3, 3, strides=2, padding="same")),
    "transposed 1d": lambda: stack((4, 2), kl.Conv1DTranspose(3, 3, strides=2)),
    "transposed 3d": lambda: stack((2, 2, 2, 1), kl.Conv3DTranspose(2, 2, strides=2)),
    "depthwise": lambda: stack((5, 5, 2), kl.DepthwiseConv2D(3, depth_multiplier=2)),
    "depthwise 1d": lambda: stack((6, 2), kl.DepthwiseConv1D(3, depth_multiplier=2, padding="same")),
    "separable": lambda: stack((5, 6, 2), kl.SeparableConv2D(3, 3, strides=2, padding="same", depth_multiplier=2)),
    "separable 1d": lambda: stack((6, 2), kl.SeparableConv1D(3, 3)),
    "embedding": lambda: tokens(kl.Embedding(5, 3)),
    "embedding, one axis more": lambda: (
        keras.Sequential([keras.Input((2, 3), dtype="int32"), kl.Embedding(5, 3)]),
        ids(2, 3),
    ),
    "norms": lambda: stack(
        (6, 8),
        kl.LayerNormalization(),
        kl.GroupNormalization(2),
        kl.RMSNormalization(),
        kl.LayerNormalization(axis=[1, 2]),
    ),
    "norms, channels first": lambda: stack((4, 3, 2), kl.GroupNormalization(2, axis=1), kl.LayerNormalization(axis=1)),
    "prelu": lambda: stack((3, 4), kl.PReLU("ones"), kl.PReLU("ones", shared_axes=[1])),
    "simple rnn": lambda: stack((4, 3), kl.SimpleRNN(4, return_sequences=True), kl.SimpleRNN(2, unroll=True)),
    "lstm": lambda: stack((4, 3), kl.LSTM(3, return_sequences=True), kl.LSTM(2, go_backwards=True, use_bias=False)),
    "gru": lambda: stack((4, 3), kl.GRU(3, return_sequences=True), kl.GRU(2, reset_after=False)),
    "gru without bias": lambda: stack((4, 3), kl.GRU(3, use_bias=False, go_backwards=True, return_sequences=True)),
    "rnn of a cell of Keras": lambda: stack((4, 3), kl.RNN(kl.GRUCell(3), go_backwards=True)),
    "rnn of a cell of one's own": lambda: stack((3, 2), kl.RNN(Cell(3), return_sequences=True), kl.Flatten()),
    "rnn of stacked cells, masked": lambda: masked(kl.Dense(3), kl.RNN([kl.LSTMCell(2), kl.GRUCell(2)])),
    "convolutional lstm": lambda: stack((2, 3, 3, 1), kl.ConvLSTM2D(1, 2), kl.Flatten()),
    "bidirectional": lambda: stack(
        (4, 3), kl.Bidirectional(kl.LSTM(3, return_sequences=True)), kl.Bidirectional(kl.GRU(2))
    ),
    "masked": lambda: masked(kl.Dense(3), kl.Bidirectional(kl.GRU(2))),
    "masked, zero outputs": lambda: masked(
        kl.GRU(3, return_sequences=True, zero_output_for_mask=True), kl.SimpleRNN(2)
    ),
    "time distributed": lambda: stack(
        (3, 4, 4, 2),
        kl.TimeDistributed(kl.Conv2D(3, 3)),
        kl.TimeDistributed(kl.Flatten()),
        kl.TimeDistributed(kl.Dense(2)),
    ),
    "time distributed, masked": lambda: masked(kl.TimeDistributed(kl.Dense(3, activation="tanh")), kl.LSTM(2)),
    "attention": attention,
    "shared": shared,
    "shared embedding": shared_embedding,
    "several inputs and outputs": several_inputs_and_outputs,
    "composite": lambda: stack((3, 4), Block()),
    "lora": lora,
    "lora, channels first": lambda: stack((2, 5, 6), kl.Conv2D(3, 2, data_format="channels_first"), lora=True),
    "lora embedding": lambda: tokens(kl.Embedding(5, 4), lora=True),
    "lora in a frozen layer": lambda: stack((4, 6), Frozen()),
    "tied": tied,
    "tied, with lora": lambda: tied(lora=True),
    "a table each way": lambda: tied(tie_weights=False, logit_soft_cap=2.0),
    "tied, masked": masked_table,
    "tied through a holder": autoencoder,
    "scaled attention": scaled_attention,
    "spectral normalization": lambda: stack((5,), kl.SpectralNormalization(kl.Dense(4), power_iterations=99)),
    "layer scale": lambda: stack((3, 4), LayerScale(0.5, 4)),
}
FEW = ["dense", "dense by gram", "einsum", "conv2d", "depthwise", "embedding", "norms", "gru", "masked", "attention",
       "shared", "several inputs and outputs", "lora"]  # fmt: skip
"""One of each kind; the others run with the slow tests."""
