"""The bound on what a kernel stretches is one: above the largest singular value, by little."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from helpers.variants import slow_but
from tfdp_layers.rules import spectral
from tfdp_layers.rules.spectral import convolution_bound, spectral_bound

RNG = np.random.default_rng(0)
MATRICES = {
    "tall": RNG.normal(size=(40, 7)),
    "wide": RNG.normal(size=(7, 40)),
    "one row": RNG.normal(size=(1, 9)),
    "rank one": np.outer(RNG.normal(size=20), RNG.normal(size=30)),
    "orthogonal": np.linalg.qr(RNG.normal(size=(48, 48)))[0],
    "two near the top": np.diag([1.0, 1.0 - 1e-9, 0.1]),
    "hidden from ones": np.outer([1.0, -1.0], [1.0, -1.0]) + 0.01,
    "tiny": RNG.normal(size=(6, 6)) * 1e-44,
    "huge": RNG.normal(size=(6, 6)) * 1e37,
    "far apart": np.diag([3e38, 1.0, 1e-45]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_bound_is_above_the_norm_and_near_it(name: str) -> None:
    matrix = MATRICES[name]
    norm = np.linalg.svd(matrix)[1][0]
    assert norm <= float(spectral_bound(tf.constant(matrix))) <= norm * min(matrix.shape) ** 2.0**-10 * 1.0001


def test_of_complex_matrices_the_largest_counts() -> None:
    real, imaginary = RNG.normal(size=(2, 5, 6, 4))
    norm = np.linalg.svd(real + 1j * imaginary)[1].max()
    assert norm <= float(spectral_bound(tf.constant(real), tf.constant(imaginary))) <= norm * 1.002


def test_zeros_have_none_and_what_is_not_finite_has_no_bound() -> None:
    assert float(spectral_bound(tf.zeros((3, 3), tf.float64))) <= 1e-290
    for value in (np.nan, np.inf, -np.inf):
        matrix = np.eye(3)
        matrix[1, 2] = value
        assert not np.isfinite(float(spectral_bound(tf.constant(matrix))))


def as_matrix(
    kernel: np.ndarray, strides: tuple[int, ...], dilation: tuple[int, ...], padding: str, space: tuple[int, ...]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """A convolution, written out from the definition: one picture of zeros and a one after the other."""
    taps = kernel.shape[:2]
    reach = [(k - 1) * d + 1 for k, d in zip(taps, dilation, strict=True)]
    positions, before = [], []
    for size, width, step in zip(space, reach, strides, strict=True):
        same = padding == "same"
        positions.append(-(-size // step) if same else (size - width) // step + 1)
        before.append(max((positions[-1] - 1) * step + width - size, 0) // 2 if same else 0)
    matrix = np.zeros((*space, kernel.shape[2], *positions, kernel.shape[3]))
    for p, q, a, b in itertools.product(*map(range, (*positions, *taps))):
        row = p * strides[0] + a * dilation[0] - before[0]
        column = q * strides[1] + b * dilation[1] - before[1]
        if 0 <= row < space[0] and 0 <= column < space[1]:
            matrix[row, column, :, p, q, :] += kernel[a, b]
    return matrix.reshape(np.prod(space) * kernel.shape[2], -1), tuple(positions)


CONVOLUTIONS = [
    ((3, 3), (1, 1), (1, 1), "same", (7, 7)),
    ((3, 2), (1, 1), (1, 1), "valid", (6, 5)),
    ((5, 4), (2, 2), (1, 1), "same", (8, 9)),
    ((4, 4), (4, 4), (1, 1), "valid", (8, 8)),
    ((2, 2), (3, 3), (1, 1), "same", (7, 7)),
    ((3, 3), (1, 1), (2, 3), "same", (6, 7)),
    ((3, 3), (2, 1), (1, 1), "valid", (7, 6)),
    ((1, 1), (1, 1), (1, 1), "same", (3, 4)),
    ((3, 3), (1, 1), (1, 1), "valid", (3, 3)),
]


@pytest.mark.parametrize(
    ("taps", "strides", "dilation", "padding", "space"), slow_but(CONVOLUTIONS[3:4], CONVOLUTIONS, several=True)
)
def test_no_picture_is_stretched_beyond_the_bound_of_a_convolution(
    taps: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: str,
    space: tuple[int, ...],
) -> None:
    kernel = np.random.default_rng(1).normal(size=(*taps, 2, 3))
    for one in (kernel, np.abs(kernel)):
        matrix, positions = as_matrix(one, strides, dilation, padding, space)
        norm = np.linalg.svd(matrix)[1][0]
        known = float(convolution_bound(tf.constant(one), strides, dilation, positions))
        unknown = float(convolution_bound(tf.constant(one), strides, dilation, (None, None)))
        assert norm <= known <= unknown * 1.0001
        # How far above a small picture's norm that of all pictures lies is the kernel's own affair.
        assert unknown <= 1.02 * limit_of(one, strides, dilation)


def limit_of(kernel: np.ndarray, strides: tuple[int, ...], dilation: tuple[int, ...]) -> float:
    """The norm over all pictures, from a fine grid of frequencies: of the kernel itself, where strides are 1."""
    if max(strides) > 1:
        return np.inf
    down, across = (np.exp(2j * np.pi * np.outer(np.arange(97) / 97, np.arange(k) * 1.0)) for k in kernel.shape[:2])
    return np.linalg.svd(np.einsum("fa,gb,abcd->fgcd", down, across, kernel))[1].max() * 1.001


def test_a_coarse_grid_without_its_slack_would_be_below_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose largest frequency lies between those of the grid."""
    phase = np.exp(1j * np.pi / 2 * np.arange(2))
    kernel = np.zeros((1, 2, 2, 2))
    kernel[0, :, 0, 0] = kernel[0, :, 1, 1] = phase.real
    kernel[0, :, 0, 1], kernel[0, :, 1, 0] = phase.imag, -phase.imag
    monkeypatch.setattr(spectral, "_GRID", 6)
    norm = np.linalg.svd(as_matrix(kernel, (1, 1), (1, 1), "valid", (1, 60))[0])[1][0]
    assert norm > 1.99
    assert norm <= float(convolution_bound(tf.constant(kernel), (1, 1), (1, 1), (1, None)))
    monkeypatch.setattr(spectral.math, "cos", lambda angle: 1.0)
    assert float(convolution_bound(tf.constant(kernel), (1, 1), (1, 1), (1, None))) < norm
