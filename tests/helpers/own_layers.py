"""Layers as users write them: weights of their own, used by their own call, without a formula."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from helpers.layer_cases import Case, stack, tokens

kl, ops = keras.layers, keras.ops


class Own(kl.Layer):
    """A layer with weights of these shapes, which computes by this function of the weights' holder and the inputs."""

    def __init__(self, compute: Callable[..., Any], part: Any = None, **shapes: tuple[int, ...]) -> None:
        super().__init__(name="own")
        self.compute, self.part, self.shapes = compute, part, shapes

    def build(self, shape: Any) -> None:
        for name, sizes in self.shapes.items():
            setattr(self, name, self.add_weight(shape=sizes, initializer="random_normal", name=name))
        if self.part is not None:
            self.part.build(shape)

    def call(self, x: Any) -> Any:
        return self.compute(self, x)


def own(shape: tuple[int, ...], compute: Callable[..., Any], part: Any = None, **shapes: Any) -> Callable[[], Case]:
    return lambda: stack(shape, Own(compute, part and part(), **shapes))


def of_tokens(compute: Callable[..., Any], **shapes: Any) -> Callable[[], Case]:
    return lambda: tokens(Own(compute, **shapes), length=4)


def pooling(s: Any, x: Any) -> Any:
    scores = ops.matmul(ops.tanh(ops.matmul(x, s.w) + s.b), s.v)
    return ops.sum(x * ops.softmax(scores, axis=1), axis=1)


def class_token(s: Any, x: Any) -> Any:
    token = ops.broadcast_to(s.token, (ops.shape(x)[0], 1, x.shape[-1]))
    return ops.concatenate([token, x], axis=1) + s.places


def tiled_token(s: Any, x: Any) -> Any:
    token = ops.tile(ops.expand_dims(s.token, (0, 1)), (ops.shape(x)[0], 1, 1))
    return ops.concatenate([token, x], axis=1) + s.places[: ops.shape(x)[1] + 1]


def repeated_token(s: Any, x: Any) -> Any:
    return ops.concatenate([ops.repeat(s.token, ops.shape(x)[0], axis=0), x], axis=1)


def attention(s: Any, x: Any) -> Any:
    def heads(w: Any) -> Any:
        return ops.transpose(ops.reshape(x @ w, (-1, x.shape[1], 2, 3)), (0, 2, 1, 3))

    shares = ops.softmax(ops.matmul(heads(s.q), ops.transpose(heads(s.k), (0, 1, 3, 2))))
    return ops.reshape(ops.transpose(ops.matmul(shares, heads(s.v)), (0, 2, 1, 3)), (-1, x.shape[1], 6)) @ s.o


def generalized_mean(s: Any, x: Any) -> Any:
    return ops.power(ops.mean(ops.power(ops.abs(x) + 0.1, s.p + 2.0), axis=1), 1.0 / (s.p + 2.0))


def experts(s: Any, x: Any) -> Any:
    return ops.einsum("bte,bteo->bto", ops.softmax(x @ s.gate), ops.einsum("btd,edo->bteo", x, s.experts))


def radial(s: Any, x: Any) -> Any:
    return ops.exp(-ops.softplus(s.g) * ops.sum((x[:, None] - s.c) ** 2, -1))


def over_degrees(s: Any, x: Any) -> Any:
    """A graph convolution: the first columns of records are edges, weighted by the degrees of the nodes."""
    edges = x[..., :4] + ops.eye(4)
    root = ops.rsqrt(ops.sum(edges, -1))
    return ops.relu(ops.matmul(edges * root[..., None] * root[:, None], ops.matmul(x[..., 4:], s.w)))


def dose_response(s: Any, x: Any) -> Any:
    power = ops.power(x, 1.0 + s.n)
    return power / (ops.power(1.0 + s.k, 1.0 + s.n) + power)


class OfDense(kl.Dense):
    """A subclass may compute otherwise."""

    def call(self, x: Any) -> Any:
        return 2.0 * super().call(x) + self.bias


APART = np.arange(4)[:, np.newaxis] - np.arange(4) + 3  # how far positions are apart, from 0 on


OWN_CASES: dict[str, Callable[[], Case]] = {
    "dense": own((6,), lambda s, x: tf.matmul(x, s.w) + s.b, w=(6, 5), b=(5,)),
    "dense over positions": own((2, 4, 6), lambda s, x: ops.relu(ops.matmul(x, s.w) + s.b), w=(6, 5), b=(5,)),
    "attention pooling": own((4, 6), pooling, w=(6, 7), b=(7,), v=(7, 1)),
    "class token": own((4, 6), class_token, token=(1, 1, 6), places=(1, 5, 6)),
    "class token, tiled": own((4, 6), tiled_token, token=(6,), places=(9, 6)),
    "class token, repeated": own((4, 6), repeated_token, token=(1, 1, 6)),
    "low rank": own((4, 6), lambda s, x: x @ (s.a @ s.b), a=(6, 2), b=(2, 5)),
    "attention": own((4, 6), attention, q=(6, 6), k=(6, 6), v=(6, 6), o=(6, 6)),
    "weight normalization": own((6,), lambda s, x: x @ (s.g * s.v / ops.norm(s.v, axis=0)), v=(6, 3), g=(3,)),
    "generalized mean": own((4, 6), generalized_mean, p=()),
    "radial": own((6,), radial, g=(4,), c=(4, 6)),
    "squared differences": own((4, 6), lambda s, x: tf.math.squared_difference(s.c, x) / s.g, c=(6,), g=(6,)),
    "a token for masked ones": own((4, 6), lambda s, x: ops.where(x[..., :1] > 0, s.m, x) - s.n, m=(6,), n=(4, 1)),
    "positions mixed": own((4, 6), lambda s, x: tf.matmul(s.w, x), w=(5, 4)),
    "heads": own((4, 6), lambda s, x: ops.einsum("btd,hdk->bhtk", x, s.w), w=(2, 6, 4)),
    "a matrix for each place": own((3, 4, 6), lambda s, x: ops.matmul(x, s.w), w=(3, 6, 4)),
    "experts": own((4, 6), experts, gate=(6, 3), experts=(3, 6, 4)),
    "a part of Keras'": own((4, 6), lambda s, x: x + s.a * s.part(s.a * x), part=lambda: kl.Dense(6, "tanh"), a=(6,)),
    "convolution": own((7, 2), lambda s, x: ops.conv(x, s.w, strides=2, padding="same"), w=(3, 2, 4)),
    "standardized convolution": own(
        (5, 5, 2), lambda s, x: ops.conv(x, s.w - ops.mean(s.w, axis=(0, 1, 2))), w=(3, 3, 2, 4)
    ),
    "depthwise": own((5, 5, 2), lambda s, x: ops.depthwise_conv(x, s.w), w=(3, 3, 2, 2)),
    "looked up and tied": of_tokens(lambda s, x: ops.take(s.t, x, axis=0) @ ops.transpose(s.t), t=(11, 6)),
    "looked up by place": of_tokens(
        lambda s, x: ops.take(s.t, x, axis=0) + ops.take(s.p, ops.arange(4), axis=0), t=(11, 6), p=(5, 6)
    ),
    "numbers looked up": of_tokens(lambda s, x: ops.take(s.t, x, axis=0), t=(11,)),
    "of Dense": lambda: stack((4, 6), OfDense(3)),
    "relative places": own((4, 4), lambda s, x: x + ops.take(s.t, APART), t=(7,)),
    "relative places of heads": own((4, 4), lambda s, x: x + ops.mean(ops.take(s.t, APART, axis=0), -1), t=(7, 3)),
    "columns looked up": own((4, 6), lambda s, x: x @ ops.take(s.t, [3, 1, 1], axis=1), t=(6, 4)),
    "entries looked up": own((6,), lambda s, x: x * tf.gather_nd(s.t, [[0, 1], [2, 2]] * 3), t=(3, 4)),
    "sorted": own((4, 6), lambda s, x: x * ops.sort(s.t), t=(6,)),
    "scattered": own((4, 6), lambda s, x: x * tf.scatter_nd([[0], [4]], s.t, [6]), t=(2,)),
    "sorted, squeezed": own((4, 6), lambda s, x: x * ops.squeeze(ops.sort(s.t), 1)[..., 0], t=(6, 1, 1)),
    "an inverse": own((4, 6), lambda s, x: x @ ops.inv(s.t + 9.0 * np.eye(6, dtype="float32")), t=(6, 6)),
}
OWN_OF_POSITIVE = {
    "logarithms": own((4, 6), lambda s, x: ops.matmul(ops.log(x), s.w), w=(6, 3)),
    "a graph convolution": own((4, 6), over_degrees, w=(2, 3)),
    "a dose response": own((6,), dose_response, n=(6,), k=(6,)),
    "log odds": own((6,), lambda s, x: ops.log(x / (1.0 - x)) * s.w, w=(6,)),
    "from one on": own((6,), lambda s, x: ops.arccosh(x) * s.w, w=(6,)),
}
"""NaN of negative numbers, or beyond a range."""
OWN_FEW = ["attention pooling", "class token", "weight normalization", "looked up and tied", "relative places"]


def refused(compute: Callable[..., Any]) -> Any:
    return stack((4, 6), Own(compute, w=(6, 6)))[0]


def looping(s: Any, x: Any) -> Any:
    return tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, tf.tanh(h @ s.w)), [0, x])[1]


def with_a_loss(s: Any, x: Any) -> Any:
    s.add_loss(tf.reduce_sum(x @ s.w))
    return x @ s.w


OWN_REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a loop": (looping, "takes them to (StatelessWhile|PartitionedCall), for which there is no rule"),
    "a function": (lambda s, x: tf.function(lambda h: h @ s.w)(x), "takes them to .*PartitionedCall"),
    "weights given out": (lambda s, x: s.w * 2.0, "from weights alone"),
    "records along columns": (lambda s, x: tf.transpose(s.w @ tf.transpose(x[:, 0])), "MatMul"),
    "heads before records": (lambda s, x: tf.transpose(tf.einsum("btd,de->ebt", x, s.w), (1, 2, 0)), "Einsum"),
    "behind Keras' back": (lambda s, x: x * s.w._value[0], "used outside its layer"),
    "a loss over the batch": (with_a_loss, "add_loss"),
    "a mean of logarithms over the batch": (
        lambda s, x: ops.log(x) * s.w[0] - ops.mean(ops.log(x) * s.w[0], axis=0),
        "are not those of its records",
    ),
    "NaN of all": (lambda s, x: ops.log(-1.0 - ops.abs(x)) * s.w[0], "could not be compared"),
    "a mean over the batch": (lambda s, x: x * s.w[0] - ops.mean(x * s.w[0], axis=0), "are not those of its records"),
}
