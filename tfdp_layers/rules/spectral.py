"""Upper bounds on how much a linear map stretches a vector: certified, where power iteration bounds from below."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.rules.rows import ROUNDING

SQUARINGS = 8
"""With n singular values the bound is at most n^(2^-10) times the norm: 0.3% above it for 32, 0.7% for 1,000."""

_GRID = 12
"""Frequencies for each degree of a trigonometric polynomial, where a finer grid than that could be needed."""

_TINY = 1e-300


def spectral_bound(real: tf.Tensor, imaginary: tf.Tensor | None = None) -> tf.Tensor:
    """An upper bound on the largest singular value of each of these matrices A + iB: a float64 scalar.

    Shapes: (..., n, m), float64, finite in float32. Not finite where an entry is not.

    Guarantee: no vector x has ||(A + iB) x|| above the bound times ||x||. Proof: let F be a matrix, G_0 = F^H F,
        f_t = ||G_t||_F and G_(t+1) = (G_t / f_t)^H (G_t / f_t). Since ||M^H M||_2 = ||M||_2^2 for every matrix M,
        ||F||_2^2 = ||G_0||_2 = f_0 ||G_0 / f_0||_2, whose last factor squared is ||G_1||_2, and so on:
        ||F||_2 = f_0^(1/2) f_1^(1/4) ... f_T^(1/2^(T+1)) ||G_T / f_T||_2^(1/2^(T+1)), and the last norm is at most that
        in Frobenius, 1. It is at least n^(-1/2), so the bound is at most n^(1/2^(T+2)) times the norm.
    Rounding: a product of k terms in float64 is off by at most 4 k 2^-53 in the Frobenius norm where the factors have
        norm 1, and is of norm n^-1 or more, so by 4 k n 2^-53 relative to it: for k = n = 2^14 by 2^-23, and the roots
        halve what each further step adds. `ROUNDING` = 2^-16, which is added here, is a hundred times that.
    Source: Delattre, Barthelemy, Araujo and Allauzen 2023, arXiv:2305.16173, section 3: Gram iteration.
    """
    largest = tf.reduce_max(tf.abs(real))
    if imaginary is not None:
        largest = tf.maximum(largest, tf.reduce_max(tf.abs(imaginary)))
    largest = tf.maximum(largest, _TINY)
    parts = [None if one is None else one / largest for one in (real, imaginary)]
    if real.shape[-2] < real.shape[-1]:
        parts = [None if one is None else tf.linalg.matrix_transpose(one) for one in parts]
    logarithm: Any = 0.0
    for step in range(SQUARINGS + 1):
        parts = gram(*parts)
        squares = tf.add_n([tf.reduce_sum(tf.square(one), axis=[-2, -1]) for one in parts if one is not None])
        norm = tf.maximum(tf.sqrt(squares), _TINY)
        parts = [None if one is None else one / norm[..., tf.newaxis, tf.newaxis] for one in parts]
        logarithm += tf.math.log(norm) / 2.0 ** (step + 1)
    return largest * tf.reduce_max(tf.exp(logarithm)) * (1.0 + ROUNDING)


def gram(real: Any, imaginary: Any) -> list[Any]:
    """F^H F of F = real + i imaginary, as its two parts."""
    if imaginary is None:
        return [tf.matmul(real, real, transpose_a=True), None]
    cross = tf.matmul(real, imaginary, transpose_a=True)
    both = tf.matmul(real, real, transpose_a=True) + tf.matmul(imaginary, imaginary, transpose_a=True)
    return [both, cross - tf.linalg.matrix_transpose(cross)]


def convolution_bound(
    kernel: tf.Tensor, strides: Sequence[int], dilation: Sequence[int], positions: Sequence[int | None]
) -> tf.Tensor:
    """An upper bound on how much a convolution stretches any picture: a float64 scalar.

    Args:
        kernel: (height, width, channels, filters), float64.
        strides, dilation: for each of the two axes.
        positions: the height and width of the output, None where it is not known.

    Guarantee: whatever the padding with zeros, ||conv(x)|| is at most the bound times ||x||. Proof: put dilated taps
        among zeros, the picture x among its padding, and cut both into blocks of stride x stride pixels, whose pixels
        become channels. Then conv(x)[p] = sum_a K_a^T z[p + a] over P positions p and A = ceil(reach / stride) blocks
        a on each axis: z has P + A - 1 blocks, and the sum never reaches beyond. So it is the restriction to P
        positions of a convolution on the torus of N = P + A - 1 blocks, which the discrete Fourier transform, unitary,
        makes block diagonal with blocks F(w) = sum_a e^(iwa) K_a^T, w in 2 pi Z / N (Sedghi, Gupta and Long 2019,
        arXiv:1805.10408, theorem 6). Its norm is the largest ||F(w)||_2; F(-w) is conjugate to F(w), so half of the
        frequencies do.
        Where that would be more than 12 d frequencies on an axis, d = A - 1, the torus is left for the largest value
        over all w, which no torus exceeds. f(w) = v^H F(w)^H F(w) v is a real trigonometric polynomial of degree d in
        either frequency, with 0 <= f <= M = max ||F||_2^2. By the inequality of Bernstein and Szego,
        t'^2 + d^2 t^2 <= d^2 (max |t|)^2, of t = f - M / 2 along one axis, f >= M cos(d s / 2)^2 at distance s from a
        maximum, up to s = pi / d. A frequency of a grid of N lies within s = pi / N of it, and so for the other axis:
        M is at most the largest value over the grid times cos(pi d / (2 N))^-2 for each axis, which puts 0.9% on the
        bound where N = 12 d.
    """
    blocks = polyphase(kernel, strides, dilation)
    slack = 1.0
    axes = []
    for reach, size in zip(blocks.shape[:2], positions, strict=True):
        degree = reach - 1
        grid = 1 if degree == 0 else _GRID * degree
        if degree and size is not None and size + degree <= grid:
            grid = size + degree
        elif degree:
            slack /= math.cos(math.pi / (2 * _GRID))
        axes.append(grid)
    if axes == [1, 1]:
        return spectral_bound(blocks[0, 0])
    angles = phases(axes, tuple(blocks.shape[:2]))
    flat = tf.reshape(blocks, [angles.shape[1], -1])
    shape = [angles.shape[0], *blocks.shape[2:]]
    real, imaginary = (
        tf.reshape(tf.matmul(tf.constant(part), flat), shape) for part in (np.cos(angles), np.sin(angles))
    )
    return slack * spectral_bound(real, imaginary)


def phases(grid: Sequence[int], reach: Sequence[int]) -> np.ndarray:
    """The angle of each tap at each frequency, of two that are conjugate the first: (frequencies, taps)."""
    down, across = (
        2.0 * np.pi / size * np.outer(np.arange(size), np.arange(taps)) for size, taps in zip(grid, reach, strict=True)
    )
    across = across[: grid[1] // 2 + 1]
    return (down[:, None, :, None] + across[None, :, None, :]).reshape(len(down) * len(across), -1)


def polyphase(kernel: tf.Tensor, strides: Sequence[int], dilation: Sequence[int]) -> tf.Tensor:
    """The kernel over blocks of stride x stride pixels: (blocks down, blocks across, pixels * channels, filters)."""
    channels, filters = kernel.shape[2:]
    for axis, step in enumerate(dilation):
        taps = kernel.shape[axis]
        if step > 1 and taps > 1:
            places = np.zeros(((taps - 1) * step + 1, taps))
            places[np.arange(taps) * step, np.arange(taps)] = 1.0
            kernel = tf.einsum("ab,bcde->acde" if axis == 0 else "ab,cbde->cade", tf.constant(places), kernel)
    missing = [-size % step for size, step in zip(kernel.shape[:2], strides, strict=True)]
    kernel = tf.pad(kernel, [[0, missing[0]], [0, missing[1]], [0, 0], [0, 0]])
    down, across = (size // step for size, step in zip(kernel.shape[:2], strides, strict=True))
    cut = tf.reshape(kernel, [down, strides[0], across, strides[1], channels, filters])
    together = tf.transpose(cut, [0, 2, 1, 3, 4, 5])
    return tf.reshape(together, [down, across, strides[0] * strides[1] * channels, filters])
