"""Second moments of private records: their sum, what one record may move it, and the matrix that a noisy one gives."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.layers.adapted import chunks
from tfdp_layers.rules.rows import L2, LARGEST_BOUND, SMALLEST_BOUND, scale_rows, select_rows


def check_moment_clip(l2_norm_clip: float) -> None:
    """Raises ValueError where the square of a clip, which bounds what a record moves, is out of range."""
    if not SMALLEST_BOUND <= l2_norm_clip**2 <= LARGEST_BOUND:
        raise ValueError(
            f"`l2_norm_clip` must be a number from {SMALLEST_BOUND**0.5:g} to {LARGEST_BOUND**0.5:g}: its square bounds"
            f" what a record adds to second moments. Received: l2_norm_clip={l2_norm_clip!r}. Scale the data, or take"
            " l2_norm_clip=1.0."
        )


def second_moments(data: Any, channels: int, clip: float) -> tf.Tensor:
    """The diagonal of sum_i M_i, then sqrt(2) times what is above it, in float64: (d (d + 1) / 2,).

    M_i is the mean of x x^T over the positions x of record i, scaled to Frobenius norm at most clip^2; without
    positions that is x scaled to norm at most clip. The vector has the Frobenius norm of the matrix, so each record
    moves it by at most clip^2. Where there are fewer positions than channels the norm is taken of the positions'
    products, which have the same: ||X^T X||_F = ||X X^T||_F. Products and their sum are in float64; `L2` keeps a
    relative margin of 2^-16 below the clip, which rounding does not use up before 1e10 records. A record whose M_i has
    a NaN, an infinity, or entries beyond float32 counts as zero.

    Args:
        data: (records, ..., channels), or (records, ...) of as many numbers as channels each.
        channels: d.
        clip: in units of the data.
    """
    positions = math.prod(data.shape[1:]) // channels
    rule, total = L2(clip**2), tf.zeros((channels, channels), tf.float64)
    most = max(1, _NUMBERS // max(positions * channels, min(positions, channels) ** 2))
    for rows in chunks(data, most):
        records = tf.cast(tf.reshape(tf.cast(rows, tf.float32), (-1, positions, channels)), tf.float64)
        products = tf.matmul(records, records, transpose_a=channels < positions, transpose_b=channels >= positions)
        scales = tf.cast(rule.scales(tf.cast(products / positions, tf.float32)), tf.float64)
        kept = select_rows(records, scales)
        total += tf.tensordot(scale_rows(kept, scales), kept, [[0, 1], [0, 1]]) / positions
    above = tf.gather_nd(total, tf.constant(np.argwhere(np.triu(np.ones((channels, channels), bool), 1))))
    return tf.concat([tf.linalg.diag_part(total), math.sqrt(2.0) * above], 0)


def matrix_of(moments: np.ndarray, channels: int) -> np.ndarray:
    """The symmetric matrix, from the vector of `second_moments`: (channels, channels)."""
    matrix = np.zeros((channels, channels))
    matrix[np.triu_indices(channels, 1)] = moments[channels:] / math.sqrt(2.0)
    matrix += matrix.T
    matrix[np.diag_indices(channels)] = moments[:channels]
    return matrix


_NUMBERS = 2**24
"""Of one piece of the records, or of their products."""
