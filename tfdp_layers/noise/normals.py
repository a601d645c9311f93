"""Standard normal numbers from a key and a counter: Philox' random bits, and Box and Muller's formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfdp_layers.noise.cores import cores

COMPILED = 20_000
"""Numbers from which on XLA compiles a draw: that takes 0.4 s once, and saves 5 ns a number in every step."""

PER_COUNTER = 4
"""Numbers that one value of the counter gives."""

SHARED = 64
"""Values of the counter whose numbers have the lowest bits of their radius in common: see `_below`."""

GRID_BITS = 20
"""Numbers are multiples of 2^-20: up to 16 in size float32 has each of them."""

ENDS_AT = math.sqrt(2.0 * 97 * math.log(2.0))
"""The largest number: of a radius whose bits, 32 and 64 more, are all 0."""

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
            of the counter from this one on are used, one for each `PER_COUNTER` numbers; and, for what lies below 32
            bits of a radius, as many at most of those whose highest bit is the other one.
        count: an int, or an int64 scalar: XLA would compile each of its values anew, and does not see it.
    """
    counters = -(-count // PER_COUNTER)
    known = isinstance(count, int)
    draw = _compiled if known and count >= COMPILED else _plain
    numbers = draw(state, counters)
    return numbers if known and numbers.shape == (count,) else numbers[:count]


def on_grid(number: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Multiples of 2^-`GRID_BITS`, float32: of numbers of float32, with as many words of the bits that they came from.

    A number of float32 falls on the grid as float32 has it: some multiples come of more numbers than others, by up to a
    half for those that lie half-way, and pairs from circles that lie as close as the grid; so how often each comes out
    told a sum that it was added to. So each is moved by up to 128 steps, by eight bits that float32 rounds away: which
    adds independent noise of 2^-12 times the width, and leaves no place rarer than its neighbours.
    """
    moved = tf.cast(tf.bitwise.bitwise_and(bits, tf.constant(255, tf.uint32)), tf.float32)
    return (tf.floor(number * 2.0**GRID_BITS) + (moved - 127.0)) * 2.0**-GRID_BITS


def normal_pairs(first: tf.Tensor, second: tf.Tensor, below: tf.Tensor, turn: Any = None) -> tuple[tf.Tensor, ...]:
    """`box_muller`, `on_grid`."""
    numbers = box_muller(first, second, below, turn)
    return on_grid(numbers[0], first), on_grid(numbers[1], second)


def box_muller(
    first: tf.Tensor, second: tf.Tensor, below: tf.Tensor, turn: Callable[[tf.Tensor], Any] | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Pairs of independent standard normal numbers from random bits: uint32 (n,), uint32 (n,) -> two float32 (n,).

    The radius is sqrt(-2 log U) of a uniform U in (0, 1), where float32 knows U to 2^-24 of itself, down to 2^-97, and
    1 - U likewise: so it ends at 11.6 (`ENDS_AT`), and is never 0. Of 32 bits it would end at 6.76, which a normal
    number exceeds once in 7e10 draws: and a record that moves one sum to where noise alone never comes would be found
    out there with certainty. (So it was: in 200 steps with noise 0.35, 11 of 20,000 records, where delta 1e-5 allows
    0.2.) TensorFlow's own, from 23 bits, ends at 5.68.

    Args:
        below: float32 in (0, 1), of a shape that broadcasts to that of `first`: the bits of U below its first 32.
        turn: cosine and sine of an angle in [-pi / 4, pi / 4]; left out, TensorFlow's operations.

    Source: Box and Muller 1958, A note on the generation of random normal deviates.
    """
    low, high = ((tf.cast(word, tf.float32) + below) * 2.0**-32 for word in (first, tf.bitwise.invert(first)))
    # -log(1 - high) by its series where U is near 1, which float32 knows to 2^-25 only: to 2^-26 of itself.
    series = high * (1.0 + high * (1 / 2 + high * (1 / 3)))
    radius = tf.sqrt(2.0 * tf.where(high < 2.0**-8, series, -tf.math.log(low)))
    # Two bits choose among the four quarters of a turn around an axis, the others where in it: exactly near each axis.
    within = tf.bitcast(tf.bitwise.left_shift(second, tf.constant(2, tf.uint32)), tf.int32)
    cosine, sine = (turn or _turn)(tf.cast(within, tf.float32) * (math.pi / 4 * 2.0**-31))
    radius = tf.where(second >= tf.constant(1 << 31, tf.uint32), -radius, radius)
    across = tf.bitwise.bitwise_and(second, tf.constant(1 << 30, tf.uint32)) > 0
    along, beside = radius * cosine, radius * sine
    return tf.where(across, beside, along), tf.where(across, along, beside)


def _turn(angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cos(angle), tf.sin(angle)


def _polynomial_turn(angle: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same by Taylor's polynomials, within 3e-8 before rounding.

    XLA's own sine and cosine on the CPU are called number by number, and take three times all the rest.
    """
    z = angle * angle
    sine = angle * (1.0 + z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880)))))
    cosine = 1.0 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320))))
    return cosine, sine


def _plain(state: tf.Tensor, counters: int | tf.Tensor) -> tf.Tensor:
    """At least the numbers of so many values of the counter: of the next multiple of `SHARED`."""
    groups = -(-counters // SHARED)
    a, b, c, d = tf.unstack(_bits(state, [SHARED * groups, PER_COUNTER]), axis=1)
    first = tf.reshape(tf.stack([a, c]), [2, SHARED, groups])
    second = tf.reshape(tf.stack([b, d]), [2, SHARED, groups])
    return tf.reshape(tf.stack(normal_pairs(first, second, tf.reshape(_below(state, groups), [2, 1, groups]))), [-1])


def _bits(state: tf.Tensor, shape: list[int | tf.Tensor]) -> tf.Tensor:
    """Those of `philox`, by TensorFlow's operation: uint32 of this shape, four in a row of one value of the counter."""
    words = tf.bitcast(state, tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=words[2:], counter=words[:2], alg=_PHILOX, dtype=tf.uint32
    )


def _below(state: tf.Tensor, groups: int | tf.Tensor) -> tf.Tensor:
    """A number in (0, 1) for each half of `groups` groups of `SHARED` values of the counter: float32 (2 groups,).

    They have 64 bits each, and move a radius by less than float32 shows but where its own 32 bits are nearly all equal:
    by 2^-20 or more once in 2^14 pairs. So pairs may share them. Their counters differ from all others in the highest
    bit.
    """
    apart = tf.bitwise.bitwise_xor(state, tf.constant([0, -(2**63), 0], tf.int64))
    upper, lower = tf.unstack(tf.cast(_bits(apart, [2, 2 * groups]), tf.float32))
    return (upper + (lower + 0.5) * 2.0**-32) * 2.0**-32


def _compiled(state: tf.Tensor, counters: int) -> tf.Tensor:
    """At least the numbers of so many values of the counter: of the next multiple of `_ROWS`."""
    whole = -(-counters // _ROWS) * _ROWS
    # Outside of the kernel, which would compute them anew for each number. One column shares them.
    rows = 1 if cores() == 1 else _ROWS
    below = tf.reshape(_below(state, whole // _ROWS), [2, 1, -1])
    below = below if rows > 1 else tf.tile(below, [1, 1, _ROWS])
    pairs = _kernel(whole, rows, _packed if in_xla() else tf.complex)(state, below)
    return tf.reshape(tf.bitcast(pairs, tf.float32), [-1])


@functools.lru_cache(maxsize=64)
def _kernel(counters: int, rows: int, pair: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """A tensor (2 rows, counters / rows), each entry a pair of numbers.

    XLA computes the bits anew for each half, and for four numbers in four tensors four times. As one complex number a
    pair is stored the fastest; a cluster that XLA compiles as a whole cannot take it apart again.
    """

    def pairs(state: tf.Tensor, below: tf.Tensor) -> tf.Tensor:
        a, b, c, d = philox(state, counters, rows)
        halves = zip(((a, b), (c, d)), tf.unstack(below), strict=True)
        return tf.concat([pair(*normal_pairs(*words, part, _polynomial_turn)) for words, part in halves], axis=0)

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
