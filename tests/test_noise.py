"""Noise: standard normal numbers out of uniform bits, each of its own."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp_layers.noise import SeededNoise, add_noise, box_muller

LAST = 2**32 - 1


def from_bits(first: Any, second: Any) -> np.ndarray:
    return np.asarray(box_muller(*(tf.constant(np.atleast_1d(bits), tf.uint32) for bits in (first, second))))


def test_normal_numbers_are_those_of_the_formula_in_double_precision() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 1000))
    bits[0, :6], bits[1, :6] = (0, 1, 2**16, 2**31, LAST - 1000, LAST), (0, LAST, 2**30, 2**31, 3 * 2**30, 1)
    radius, angle = np.sqrt(-2 * np.log((bits[0] + 0.5) / 2**32)), 2 * np.pi * bits[1] / 2**32
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    # Near radius 0 float32 knows 1 - u to 2^-25 only, so the radius to sqrt(2^-24).
    np.testing.assert_allclose(from_bits(*bits), expected, rtol=2e-6, atol=3e-4)
    assert np.abs(from_bits(*bits)[6:1000] - expected[6:1000]).max() < 2e-6


def test_normal_numbers_are_finite_and_reach_into_the_tails() -> None:
    assert np.all(np.isfinite(from_bits([0, LAST, 0, LAST], [0, 0, LAST, LAST])))
    assert from_bits(0, 0)[0] == pytest.approx(stats.norm.isf(1.38e-11 / 2), rel=1e-3)


@pytest.mark.parametrize("jit_compile", [None, True])
def test_a_million_numbers_are_standard_normal_and_uncorrelated(jit_compile: bool | None) -> None:
    source = SeededNoise(3)
    source.rekey()
    draw = tf.function(lambda: source.normal([1_000_001]), jit_compile=jit_compile)
    sample = np.asarray(draw(), np.float64)
    assert sample.shape == (1_000_001,)
    assert stats.kstest(sample, "norm").pvalue > 1e-3
    assert stats.kstest(sample, "norm", args=(0, 1.02)).pvalue < 1e-3
    # Tails, where the test above sees little: four standard deviations out, 63 expected.
    assert 30 < np.sum(np.abs(sample) > 4) < 105
    half = len(sample) // 2
    for a, b in ((sample[:half], sample[half : 2 * half]), (sample[:-1], sample[1:])):  # of one pair; neighbours
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.005
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < 0.005


def test_each_tensor_gets_its_own_noise_of_its_own_deviation() -> None:
    sums = [tf.zeros((300, 7)), tf.ones(()), tf.zeros((50, 40)), tf.zeros((0, 3)), tf.zeros((2001,))]
    noisy = [np.asarray(t) for t in add_noise(SeededNoise(4), sums, [0.1, 0.0, 2.0, 1.0, 30.0])]
    assert [t.shape for t in noisy] == [(300, 7), (), (50, 40), (0, 3), (2001,)]
    assert noisy[1] == 1.0
    scaled = [noisy[0].ravel() / 0.1, noisy[2].ravel() / 2.0, noisy[4] / 30.0]
    for part in scaled:
        assert stats.kstest(part, "norm").pvalue > 1e-3
    assert len(np.unique(np.concatenate(scaled))) > 0.99 * sum(map(len, scaled))
