"""Checksums of what replicas and workers hold, which they compare in place of the numbers.

They tell copies that drifted apart, not copies that somebody made to look alike: the factors are no secret.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

__all__ = ["PRIME", "checksums", "integers"]

PRIME = 1048573
"""Checksums are below this: sums of their squares over a thousand workers stay exact in int64. The largest prime below
2^20: round numbers differ in their high bits alone, which a power of two would leave out."""

_BITS = {1: tf.int8, 2: tf.int16}
"""As what numbers of so many bytes are taken apart; larger ones as several of 32 bits."""

_BLOCK, _STEP, _KEY = 4096, 0x1851F42D4C957F2D, (0x2545F491, 0x4F6CDD1D)
_FACTORS = np.frombuffer(hashlib.shake_128(b"places").digest(4 * _BLOCK), "<i4") | 1
"""Odd, so that one other number always makes another sum; and with nothing in common; the same in every process."""


def checksums(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Two numbers below 2^20 that nearly always tell other bits, or an exchange of numbers or of tensors: int64 (2,).

    A sum of all bits, each 32 of them by a factor that was drawn for their place in a block, modulo 2^32, and each
    block by one of its own, modulo 2^64.
    """
    parts: dict[bool, list[tf.Tensor]] = {True: [], False: []}
    for value in values:
        whole = integers(value)
        parts[whole.shape.num_elements() is None or whole.shape.num_elements() >= _BLOCK].append(whole)
    few = [tf.concat(parts[False], 0)] if parts[False] else []
    found = tf.zeros([], tf.int64)
    for whole in [*few, *parts[True]]:
        found = found * _STEP + _weighed(whole)
    return tf.math.floormod(tf.stack([found, tf.bitwise.right_shift(found, tf.constant(31, tf.int64))]), PRIME)


def integers(value: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor, as whole numbers of 32 of them at most, on one axis: int32, or int64 where there are GPUs.

    Of a text those of a digest. TensorFlow's operations on int32 run on the CPU, and on int64 many times slower there.
    """
    kind = tf.int64 if tf.config.list_logical_devices("GPU") else tf.int32
    if value.dtype == tf.string:
        return integers(tf.strings.to_hash_bucket_strong(value, 2**62, _KEY))
    if value.dtype == tf.bool:
        return tf.reshape(tf.cast(value, kind), [-1])
    return tf.reshape(tf.cast(tf.bitcast(value, _BITS.get(value.dtype.size, tf.int32)), kind), [-1])


def _weighed(whole: tf.Tensor) -> tf.Tensor:
    """The sum of whole numbers (n,), each by the factor of its place: of its block, and within it. int64.

    The same for int32 and int64: modulo 2^32 their products and sums are equal.
    """
    factors, rows = tf.constant(_FACTORS, whole.dtype), tf.size(whole) // _BLOCK
    whole = _mixed(whole)
    left = whole[rows * _BLOCK :]
    last = _modulo(tf.reduce_sum(left * factors[: tf.size(left)]))
    if whole.shape.num_elements() is not None and whole.shape.num_elements() < _BLOCK:
        return last
    places = (tf.range(tf.cast(rows, tf.int64)) + 1) * _STEP
    places = tf.bitwise.bitwise_xor(places, tf.bitwise.right_shift(places, tf.constant(29, tf.int64))) * (2 * _STEP) + 1
    blocks = tf.reshape(whole[: rows * _BLOCK], [-1, _BLOCK])
    sums = tf.linalg.matvec(blocks, factors) if whole.dtype == tf.int32 else tf.reduce_sum(blocks * factors, 1)
    return last + tf.reduce_sum(_modulo(sums) * places)


def _mixed(whole: tf.Tensor) -> tf.Tensor:
    """Whole numbers modulo 2^32, their high bits in the low ones, too: two turned signs would be 2^31 twice, so 0."""
    bits = tf.bitcast(whole, tf.uint32) if whole.dtype == tf.int32 else _modulo(whole)
    mixed = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(16, bits.dtype)))
    return tf.bitcast(mixed, whole.dtype)


def _modulo(sums: tf.Tensor) -> tf.Tensor:
    """Whole numbers modulo 2^32: int64."""
    return tf.bitwise.bitwise_and(tf.cast(sums, tf.int64), tf.constant(2**32 - 1, tf.int64))
