"""What each record adds to the gradient of a kernel in an einsum."""

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Arrangement, Contribution, Products, Stored


def einsum_contribution(equation: str, kernel: keras.Variable, x: tf.Tensor, u: tf.Tensor) -> Contribution:
    """The gradients of the kernel in `tf.einsum(equation, x, kernel)`, for x and the gradient u at its result.

    Where no label is in inputs, kernel and outputs alike, it is a product over positions; otherwise (a kernel for each
    position or head) the gradients are written out.
    """
    operands, outputs = equation.split("->")
    inputs, weights = operands.split(",")
    batch, own = inputs[0], inputs[1:]
    contracted = [label for label in weights if label in own and label not in outputs]
    free = [label for label in weights if label in outputs and label not in own]
    shared = [label for label in weights if label in own and label in outputs]
    places = [label for label in own if label in outputs and label not in weights]
    plain = len(set(inputs)) == len(inputs) and len(set(outputs)) == len(outputs)
    if shared or not plain or len(contracted) + len(free) != len(weights) or len(own) != len(contracted) + len(places):
        x, u = tf.cast(x, tf.float32), tf.cast(u, tf.float32)
        return Stored(kernel, tf.einsum(f"{inputs},{outputs}->{batch}{weights}", x, u))
    order = [[*contracted, *free].index(label) for label in weights]
    sizes = [kernel.shape[weights.index(label)] for label in [*contracted, *free]]
    return Products(
        kernel,
        matrix(x, inputs, batch, places, contracted),
        matrix(u, outputs, batch, places, free),
        Arrangement(tuple(sizes), tuple(order)),
    )


def matrix(values: tf.Tensor, labels: str, batch: str, places: list[str], features: list[str]) -> tf.Tensor:
    """values -> (batch, product of places, product of features)."""
    order = [labels.index(label) for label in [batch, *places, *features]]
    ordered = values if order == sorted(order) else tf.transpose(values, order)
    sizes = [ordered.shape[i] for i in range(1, len(order))]
    first, last = sizes[: len(places)], sizes[len(places) :]
    width = 1
    for size in last:
        width *= size
    if None in first:
        return tf.reshape(ordered, (tf.shape(ordered)[0], -1, width))
    count = 1
    for size in first:
        count *= size
    return tf.reshape(ordered, (-1, count, width))
