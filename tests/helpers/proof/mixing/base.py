"""Functions in which records meet, or places or the number of records count: none may be proved.

Each takes records (batch, 6) and gives a row for each. `SUMS` are of what is released instead: sums that are not
additive though every row may be.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

Function = Callable[..., Any]
ROWS: dict[str, Callable[[], Function]] = {}
SUMS: dict[str, Callable[[], Function]] = {}


def rows(function: Function) -> Function:
    """Registers a function of records."""
    ROWS[function.__name__] = lambda: function
    return function


def made(function: Callable[[], Function]) -> Callable[[], Function]:
    """Registers a maker of one, which may make variables first."""
    ROWS[function.__name__] = function
    return function


def sums(function: Function) -> Function:
    SUMS[function.__name__] = lambda: function
    return function


def made_sums(function: Callable[[], Function]) -> Callable[[], Function]:
    SUMS[function.__name__] = function
    return function


def mean(x: Any) -> Any:
    return tf.reduce_mean(x, axis=0, keepdims=True)


def size(x: Any) -> Any:
    return tf.shape(x)[0]


def loop(body, *start, step=1, x=None, until=None):
    limit = size(x) if until is None else until
    return tf.while_loop(lambda i, *_: i < limit, lambda i, *v: (i + step, *body(i, *v)), [tf.constant(0), *start])[1:]


def pieces(x, part, start=None, step=3, length=3, limit=None, first=0, add=None):
    """A loop over slices of x; `part(slice, start)` is added to what is carried."""
    limit = size(x) if limit is None else limit
    add = add or (lambda total, i, found: total + found)

    def body(i, total):
        here = tf.minimum(length, size(x) - i)
        own = tf.slice(x, [i if start is None else start(i), 0], [here, 6])
        return i + step, add(total, i, part(own, i))

    return tf.while_loop(lambda i, _: i < limit, body, [tf.constant(first), tf.zeros(6)])[1]


def total(rows, _=None):
    return tf.reduce_sum(tf.tanh(rows), axis=0)


raw = tf.raw_ops


def hidden(x, number):
    """A number of which TensorFlow's own shapes show nothing."""
    return tf.shape(x)[1] * number // 6


def turned(x):
    """The records along axis 1."""
    return tf.reshape(tf.transpose(x), tf.stack([hidden(x, 6), size(x)]))


def copies(x):
    """The records twice, each twice in a row, and all of them twice: of one shape."""
    return tf.repeat(x, 2, axis=0), tf.tile(x, [2, 1])


def by_twos(y):
    return tf.reshape(y, (-1, 2 * y.shape[-1]))
