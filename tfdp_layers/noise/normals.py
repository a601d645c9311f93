"""Standard normal numbers from a key and a counter: Philox' random bits, and Box and Muller's formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfdp_layers.noise.cores import cores

COMPILED = 100_000
"""Numbers from which on XLA compiles a draw: that takes 0.4 s once, and saves 3.5 ns a number in every step."""

PER_COUNTER = 4
"""Numbers that one value of the counter gives."""

_ROWS = 64
"""Of a compiled draw. XLA shares work among cores by rows: a single row it cuts into loops that take twice as long."""

WHOLE = PER_COUNTER * _ROWS
"""A compiled draw of a multiple of so many numbers needs no cutting."""

_PHILOX = 1
"""What TensorFlow's operations call the algorithm."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def counted_normals(state: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Independent standard normal numbers, float32 (count,).

    A draw that is compiled (of a known count from `COMPILED` on) has them in another order: pair by pair.

    Args:
        state: int64 (3,), as `tf.random.Generator` keeps it for Philox: a counter (lower half first) and a key. Values
            of the counter from this one on are used, one for each `PER_COUNTER` numbers.
        count: an int, or an int64 scalar: XLA would compile each of its values anew, and does not see it.
    """
    counters = -(-count // PER_COUNTER)
    known = isinstance(count, int)
    draw = _compiled if known and count >= COMPILED else _plain
    numbers = draw(state, counters)
    return numbers if known and numbers.shape == (count,) else numbers[:count]


def box_muller(first: tf.Tensor, second: tf.Tensor, turn: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Pairs of independent standard normal numbers from uniform random bits: two uint32 (n,) -> two float32 (n,).

    Closer to normal in the tails than TensorFlow's: a radius from 32 bits ends at sqrt(2 ln 2^33) = 6.76 standard
    deviations, which a normal number exceeds once in 7e10 draws; TensorFlow's, from 23 bits, ends at 5.7, once in 7e7.

    Args:
        turn: cosine and sine of 2 pi bits / 2^32; left out, by TensorFlow's operations.

    Source: Box and Muller 1958, A note on the generation of random normal deviates.
    """
    # In (0, 1]: 1/2 more than the bits, so that the logarithm is finite.
    radius = tf.sqrt(-2.0 * tf.math.log((tf.cast(first, tf.float32) + 0.5) * 2.0**-32))
    cosine, sine = (turn or _turn)(second)
    return radius * cosine, radius * sine


def _turn(bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    angle = tf.cast(bits, tf.float32) * (2.0 * math.pi * 2.0**-32)
    return tf.cos(angle), tf.sin(angle)


def _polynomial_turn(bits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same by Taylor's polynomials on the nearest eighth of a turn, within 3e-8 before rounding.

    XLA's own sine and cosine on the CPU are called number by number, and take three times all the rest.
    """
    shifted = bits + tf.constant(1 << 29, tf.uint32)
    quadrant = tf.bitwise.right_shift(shifted, tf.constant(30, tf.uint32))
    within = tf.bitwise.bitwise_and(shifted, tf.constant((1 << 30) - 1, tf.uint32))
    angle = tf.cast(tf.cast(within, tf.int32) - (1 << 29), tf.float32) * (2.0 * math.pi * 2.0**-32)
    z = angle * angle
    sine = angle * (1.0 + z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880)))))
    cosine = 1.0 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320))))
    odd = tf.bitwise.bitwise_and(quadrant, tf.constant(1, tf.uint32)) > 0
    along, across = tf.where(odd, sine, cosine), tf.where(odd, cosine, sine)
    return tf.where((quadrant == 1) | (quadrant == 2), -along, along), tf.where(quadrant > 1, -across, across)


def _plain(state: tf.Tensor, counters: int | tf.Tensor) -> tf.Tensor:
    words = tf.bitcast(state, tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[counters, PER_COUNTER], key=words[2:], counter=words[:2], alg=_PHILOX, dtype=tf.uint32
    )
    a, b, c, d = tf.unstack(bits, axis=1)
    return tf.concat([*box_muller(a, b), *box_muller(c, d)], axis=0)


def _compiled(state: tf.Tensor, counters: int) -> tf.Tensor:
    """At least the numbers of so many values of the counter: of the next multiple of `_ROWS`."""
    whole = -(-counters // _ROWS) * _ROWS
    rows = 1 if cores() == 1 else _ROWS
    pairs = _kernel(whole, rows, _packed if in_xla() else tf.complex)(state)
    return tf.reshape(tf.bitcast(pairs, tf.float32), [-1])


@functools.lru_cache(maxsize=64)
def _kernel(counters: int, rows: int, pair: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A tensor (2 rows, counters / rows), each entry a pair of numbers.

    XLA computes the bits anew for each half, and for four numbers in four tensors four times. As one complex number a
    pair is stored the fastest; a cluster that XLA compiles as a whole cannot take it apart again.
    """

    def pairs(state: tf.Tensor) -> tf.Tensor:
        a, b, c, d = philox(state, counters, rows)
        return tf.concat([pair(*box_muller(*words, _polynomial_turn)) for words in ((a, b), (c, d))], axis=0)

    return tf.function(pairs, jit_compile=True, autograph=False)


def _packed(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Two float32 as the lower and the upper half of a uint64."""
    low, high = (tf.cast(tf.bitcast(half, tf.uint32), tf.uint64) for half in (first, second))
    return tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, tf.constant(32, tf.uint64)))


def in_xla() -> bool:
    """Whether what is being traced is compiled by XLA as a whole."""
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def philox(state: tf.Tensor, counters: int, rows: int = 1) -> tuple[tf.Tensor, ...]:
    """The random bits of so many values of the counter: `PER_COUNTER` tensors uint32 (rows, counters / rows).

    Philox4x32-10, equal to TensorFlow's operation, whose own compiled form takes nine times as long. Words stay in
    64-bit lanes, where products are; the casts there and back tell the compiler that upper halves are empty.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3.
    """
    low, high, key = tf.unstack(tf.bitcast(state, tf.uint64))
    counter = low + tf.cast(tf.reshape(tf.range(counters), [rows, -1]), tf.uint64)
    high = high + tf.cast(counter < low, tf.uint64)  # what was carried
    a, b, c, d = _lower(counter), _upper(counter), _lower(high), _upper(high)
    first, second = tf.cast(key, tf.uint32), tf.cast(_upper(key), tf.uint32)
    mix = tf.bitwise.bitwise_xor
    for _ in range(_ROUNDS):
        left, right = (_lower(word) * tf.constant(by, tf.uint64) for word, by in zip((a, c), _MULTIPLIERS, strict=True))
        keys = tf.cast(first, tf.uint64), tf.cast(second, tf.uint64)
        a, b = _lower(mix(mix(_upper(right), b), keys[0])), _lower(right)
        c, d = _lower(mix(mix(_upper(left), d), keys[1])), _lower(left)
        first, second = (
            word + tf.constant(by, tf.uint32) for word, by in zip((first, second), _INCREMENTS, strict=True)
        )
    return tuple(tf.cast(word, tf.uint32) for word in (a, b, c, d))


def _lower(word: tf.Tensor) -> tf.Tensor:
    """The lower 32 bits, as uint64."""
    return tf.cast(tf.cast(word, tf.uint32), tf.uint64)


def _upper(word: tf.Tensor) -> tf.Tensor:
    """The upper 32 bits, as uint64."""
    return tf.bitwise.right_shift(word, tf.constant(32, tf.uint64))
