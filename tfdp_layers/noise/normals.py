"""Standard normal numbers from a key and a counter: Philox' random bits, and Box and Muller's formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

COMPILED = 100_000
"""Numbers from which on XLA compiles a draw: that takes 0.4 s once, and saves 3.5 ns a number in every step."""

PER_COUNTER = 4
"""Numbers that one value of the counter gives."""

_PHILOX = 1
"""What TensorFlow's operations call the algorithm."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def counted_normals(state: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Independent standard normal numbers, float32 (count,).

    They are the same, but for rounding, whether the draw is compiled or not.

    Args:
        state: int64 (3,), as `tf.random.Generator` keeps it for Philox: a counter (lower half first) and a key. Values
            of the counter from this one on are used, one for each `PER_COUNTER` numbers.
        count: an int, or an int64 scalar: XLA would compile each of its values anew, and does not see it.
    """
    counters = -(-count // PER_COUNTER)
    known = isinstance(count, int)
    draw = _compiled if known and count >= COMPILED else _plain
    numbers = tf.concat(draw(state, counters), axis=0)
    return numbers if known and count % PER_COUNTER == 0 else numbers[:count]


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


def _plain(state: tf.Tensor, counters: int | tf.Tensor) -> tuple[tf.Tensor, ...]:
    words = tf.bitcast(state, tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[counters, PER_COUNTER], key=words[2:], counter=words[:2], alg=_PHILOX, dtype=tf.uint32
    )
    a, b, c, d = tf.unstack(bits, axis=1)
    return (*box_muller(a, b), *box_muller(c, d))


def _compiled(state: tf.Tensor, counters: int) -> tuple[tf.Tensor, ...]:
    # Two kernels: in one, XLA would compute all bits anew for each of the four results.
    return tuple(_normal_kernel(*_bits_kernel(counters)(state)))


@functools.lru_cache(maxsize=64)
def _bits_kernel(counters: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    return tf.function(lambda state: philox(state, counters), jit_compile=True, autograph=False)


@tf.function(jit_compile=True, autograph=False, input_signature=[tf.TensorSpec([None], tf.uint32)] * PER_COUNTER)
def _normal_kernel(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return (*box_muller(a, b, _polynomial_turn), *box_muller(c, d, _polynomial_turn))


def philox(state: tf.Tensor, counters: int) -> tuple[tf.Tensor, ...]:
    """The random bits of so many values of the counter: `PER_COUNTER` tensors uint32 (counters,).

    Philox4x32-10, equal to TensorFlow's operation, whose own compiled form takes nine times as long.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3.
    """
    low, high, key = tf.unstack(tf.bitcast(state, tf.uint64))
    steps = tf.cast(tf.range(counters), tf.uint64)
    low = low + steps
    high = high + tf.cast(low < steps, tf.uint64)  # what was carried
    a, b, c, d = *_halves(low), *_halves(high)
    first, second = _halves(key)
    for _ in range(_ROUNDS):
        (low_a, high_a), (low_c, high_c) = (
            _halves(tf.cast(word, tf.uint64) * tf.constant(by, tf.uint64))
            for word, by in zip((a, c), _MULTIPLIERS, strict=True)
        )
        mix = tf.bitwise.bitwise_xor
        a, b, c, d = mix(mix(high_c, b), first), low_c, mix(mix(high_a, d), second), low_a
        first, second = (
            word + tf.constant(by, tf.uint32) for word, by in zip((first, second), _INCREMENTS, strict=True)
        )
    return a, b, c, d


def _halves(word: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Lower and upper 32 bits."""
    upper = tf.bitwise.right_shift(word, tf.constant(32, tf.uint64))
    return tf.cast(word, tf.uint32), tf.cast(upper, tf.uint32)
