"""Noise: standard normal numbers out of uniform bits, each of its own."""

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp_layers as tfdp
from helpers.forks import in_fork
from helpers.normality import assert_normal
from tfdp_layers.noise import NoiseSource, SecureNoise, SeededNoise, add_noise, normals, sources
from tfdp_layers.noise.normals import ENDS_AT, box_muller

LAST = 2**32 - 1


def from_bits(first: Any, second: Any, below: float = 0.5) -> np.ndarray:
    words = (tf.constant(np.atleast_1d(bits), tf.uint32) for bits in (first, second))
    return np.concatenate(box_muller(*words, tf.constant(below)))


def in_double(first: np.ndarray, second: np.ndarray, below: float = 0.5) -> np.ndarray:
    """The formula: two bits of the second word choose the quarter of a turn, by its sign and by its axis."""
    near = np.log1p(-(LAST - first + below) / 2**32)
    radius = np.sqrt(-2 * np.where(first > 2**31, near, np.log((first + below) / 2**32)))
    angle = ((second * 4 + 2**31) % 2**32 - 2**31) * np.pi / 2**33
    radius *= np.where(second >= 2**31, -1, 1)
    across = second // 2**30 % 2 == 1
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    return np.concatenate([np.where(across, y, x), np.where(across, x, y)])


def test_normal_numbers_are_those_of_the_formula_in_double_precision() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (2, 1000))
    bits[0, :7], bits[1, :7] = (0, 1, 2**16, 2**31, LAST - 1000, LAST - 2**24, LAST), (0, LAST, 2**30, 2**31, 1, 7, 3)
    np.testing.assert_allclose(from_bits(*bits), in_double(*bits), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(from_bits(*bits)[7:1000], in_double(*bits)[7:1000], rtol=2e-6, atol=2e-7)


def test_their_angles_are_spread_evenly_over_the_whole_turn() -> None:
    second = np.arange(2**19, 2**32, 2**20, dtype=np.uint32)
    x, y = from_bits(np.full(len(second), 2**31), second).reshape(2, -1)
    angles = np.sort(np.arctan2(y, x))
    np.testing.assert_allclose(np.diff(angles), 2 * np.pi / len(second), rtol=1e-2)


@pytest.mark.parametrize("below", [2.0**-65, 0.5, 1.0 - 2.0**-24])
def test_normal_numbers_are_finite_never_zero_and_reach_into_the_tails(below: float) -> None:
    ends = from_bits([0, LAST, 0, LAST], [0, 0, LAST, LAST], below)
    assert np.all(np.isfinite(ends))
    radius = np.hypot(*ends.reshape(2, 4))
    np.testing.assert_allclose(radius[0], np.sqrt(2 * (32 * np.log(2) - np.log(below))), rtol=1e-6)
    np.testing.assert_allclose(radius[1], np.sqrt(2 * below * 2.0**-32), rtol=1e-6)


def test_the_largest_number_is_where_a_normal_law_has_less_than_any_delta() -> None:
    lowest = np.float32((0.5 * 2.0**-32) * 2.0**-32)  # all 64 bits 0
    assert from_bits(0, 0, lowest)[0] == pytest.approx(ENDS_AT, rel=1e-6)
    assert stats.norm.sf(ENDS_AT) < 1e-30
    assert stats.norm.sf(ENDS_AT - 1 / 0.3) < 1e-15  # beside a record of 1 / 0.3 deviations, in one sum


def test_bits_below_the_32_of_a_radius_are_uniform_of_their_own_and_not_those_of_numbers() -> None:
    state = tf.constant([1, 2, 3], tf.int64)
    below = np.asarray(normals._below(state, 50_000), np.float64)
    assert below.shape == (100_000,)
    assert below.min() > 0.0
    assert below.max() <= 1.0
    assert stats.kstest(below, "uniform").pvalue > 1e-3
    others = np.asarray(normals._bits(state, [50_000, 4]), np.float64).ravel() * 2.0**-32
    assert not np.intersect1d(np.round(below, 9), np.round(others, 9)).size > 100  # of 9 digits, some by chance
    assert len(np.unique(below)) > 99_000


@pytest.mark.slow
@pytest.mark.few(1)
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


def check_standard_normal(sample: np.ndarray) -> None:
    assert_normal(sample)
    assert stats.kstest(sample, "norm", args=(0, 1.02)).pvalue < 1e-3
    assert 5 < np.sum(np.abs(sample) > 4) * 400_000 / len(sample) < 55  # 25 expected; outside: once in 10^6
    for a, b in ((sample[::2], sample[1::2]), (sample[:-1], sample[1:])):
        size = min(len(a), len(b))
        assert abs(np.corrcoef(a[:size], b[:size])[0, 1]) < 0.01
        assert abs(np.corrcoef(a[:size] ** 2, b[:size] ** 2)[0, 1]) < 0.01


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("generator", ["AES", "operating system"])
def test_secure_numbers_are_standard_normal_and_fresh_in_every_step(
    generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if generator == "AES":
        pytest.importorskip("cryptography")
    else:
        monkeypatch.setattr(sources, "secure_bytes", lambda: os.urandom)
    source = SecureNoise()
    draw = tf.function(lambda: source.normal([401, 999]))  # an odd number
    sample = np.asarray(draw()).ravel()
    check_standard_normal(sample)
    assert not np.isin(sample, draw()).any()
    assert np.asarray(source.normal([])).shape == ()
    with pytest.raises(AssertionError):
        check_standard_normal(np.repeat(sample[:200_000], 2))  # a key used twice


def test_every_step_has_its_own_key_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    asked = []
    monkeypatch.setattr(sources.os, "urandom", lambda count: asked.append(count) or bytes(count))
    first, second = sources.secure_normal(5), sources.secure_normal(5)
    assert asked == [32, 16, 32, 16]
    np.testing.assert_array_equal(first, second)  # the stuck system is the only way to repeat


def test_secure_numbers_stay_finite_wherever_the_point_lies() -> None:
    ends = np.array([-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1])
    numbers = sources.polar_pairs(np.array(np.meshgrid(ends, ends)).reshape(2, -1))
    assert numbers.shape[1] >= 16
    assert np.isfinite(numbers).all()
    assert 8 < np.abs(numbers).max() < 14


@pytest.mark.parametrize("stddev", [3e-9, 0.7, 1.0, 123.0])
def test_secure_noise_hides_the_lowest_bits_of_the_sum(stddev: float) -> None:
    """Every result lies on one grid that the standard deviation alone gives, whatever the sums: Mironov's attack asks
    which results a sum can lead to, and here the answer is the same for all sums. The default source fails it."""
    spacing = 2.0 ** (np.floor(np.log2(stddev)) - 30)
    sums = tf.constant(np.random.default_rng(0).normal(size=20_000) * stddev * 1e-3, tf.float64)
    noisy = np.asarray(add_noise(SecureNoise(), [sums], [stddev])[0])
    np.testing.assert_array_equal(noisy / spacing, np.round(noisy / spacing))
    assert_normal(noisy - np.asarray(sums), stddev)
    usual = np.asarray(add_noise(SeededNoise(1), [sums], [stddev])[0])
    assert (usual / spacing != np.round(usual / spacing)).any()
    # More than stated by what rounding the sums may add to a record's contribution, z sqrt(d) being 2^18.
    ratio = np.asarray(SecureNoise().perturbed(tf.zeros([1], tf.float64), stddev, tf.ones([1], tf.float64)))[0] / stddev
    assert ratio >= 1.0 + 2.0**18 * spacing / stddev


def test_secure_noise_is_named_kept_and_refused_under_xla(tmp_path: Any) -> None:
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    layers = [tf.keras.Input((2,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=1.0)]
    model = tfdp.PrivateSequential(layers)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0, noise_source="secure"), "mse", steps_per_execution=2)
    model.fit(x, y, batch_size=2, verbose=0)
    assert model.ledger.entries[0].release.generator == "secure"
    assert "a cryptographic generator keyed by the operating system" in " ".join(
        str(model.privacy_statement(0.1)).split()
    )
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.noise_source.generator == "secure"
    loaded.compile(loaded.optimizer, "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False"):
        loaded.fit(x, y, batch_size=2, verbose=0)
    with pytest.raises(ValueError, match="'default', 'secure'"):
        tfdp.optimizers.NoisyOptimizer("sgd", 1.0, noise_source="strong")


def test_a_fork_draws_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases of one noise give away the difference of their sums."""
    source = NoiseSource()

    def numbers() -> list[float]:
        return source.normal([3]).numpy().tolist()

    numbers()
    assert in_fork(numbers) != repr(numbers())
    process = os.getpid()
    monkeypatch.setattr(sources.os, "getpid", lambda: process)  # planted: a fork is not noticed
    assert in_fork(numbers) == repr(numbers())
