"""Sums and noise of the default source are whole numbers of one unit: which sums are possible, no bit tells."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.noise import NoiseSource, SeededNoise, add_noise, grid, normals
from tfdp_layers.noise.grid import GRID_BITS, LARGE, OffGrid, OnGrid, added_on_grid, on_grid

MULTIPLIER, BOUND = 50.0, 1.0


def possible_without(released: np.ndarray, stddev: float) -> float:
    """The share of numbers that noise alone gives: the standard deviation times a float32, in float32."""
    near = (released / np.float32(stddev)).astype(np.float32)
    candidates = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    return float(np.mean(np.any([np.float32(stddev) * one == released for one in candidates], axis=0)))


def released(record: bool, widened: bool) -> tuple[np.ndarray, float]:
    """380 sums that one record alone reaches, with noise; and the deviation of it."""
    sums = tf.fill([380], BOUND * 380**-0.5 if record else 0.0)
    source, stddev = NoiseSource(), MULTIPLIER * BOUND
    (drawn,) = source.widened([stddev], MULTIPLIER, 380) if widened else [stddev]
    return np.asarray(add_noise(source, [sums], [drawn])[0]), drawn


def test_which_numbers_come_out_tells_nothing_of_the_sum() -> None:
    for record in (False, True):
        numbers, stddev = released(record, widened=True)
        units = numbers.astype(np.float64) / np.float32(stddev * 2.0**-GRID_BITS)
        assert np.abs(units - np.round(units)).max() < 0.6 * np.abs(units).max() * 2.0**-23  # whole numbers, rounded
        assert len(np.unique(numbers)) > 370
    # Without the grid noise alone gives such numbers always, noise on a sum often does not.
    assert possible_without(*released(False, widened=False)) == 1.0
    assert possible_without(*released(True, widened=False)) < 0.97


@pytest.mark.parametrize("count", [99_000 // 5, 400_000])
def test_numbers_of_the_noise_are_as_often_odd_as_even_in_every_size(count: int) -> None:
    """Of float32 numbers rounded to the grid, 63% between 2 and 4 were even: halves go there."""
    source = NoiseSource()
    numbers = np.concatenate([np.asarray(source.normal([count])) for _ in range(-(-2_000_000 // count))])
    units = numbers.astype(np.float64) * 2.0**GRID_BITS
    np.testing.assert_array_equal(units, np.round(units))
    for low in (0.0, 0.25, 0.5, 1.0, 2.0):
        of_size = units[(np.abs(numbers) >= low) & (np.abs(numbers) < 2 * low + 0.25 * (low == 0.0))]
        assert abs(np.mean(of_size % 2) - 0.5) < 4.5 * 0.5 * len(of_size) ** -0.5, low


def test_a_planted_rounding_is_seen_in_the_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normals, "on_grid", lambda number, bits: tf.round(number * 2.0**20) * 2.0**-20)
    with pytest.raises(AssertionError):
        test_numbers_of_the_noise_are_as_often_odd_as_even_in_every_size(99_000 // 5)


def phase_of_circles(dithered: bool) -> float:
    """How far the radii of pairs, where they lie 0.7 units apart, gather at those that float32 has (0: not at all)."""
    rng = np.random.default_rng(0)
    first = rng.uniform(2**32 * np.exp(-(0.091**2) / 2), 2**32 * np.exp(-(0.0887**2) / 2), 400_000).astype(np.uint32)
    second = rng.integers(0, 2**19, len(first)).astype(np.uint32)  # near the axis: x is the radius
    pairs = normals.normal_pairs if dithered else normals.box_muller
    x = np.asarray(pairs(tf.constant(first), tf.constant(second), tf.constant(0.5))[0], np.float64)
    place = (1.0 - np.exp(-(x**2) / 2)) * 2.0**24  # whole where float32 has a U
    return float(np.abs(np.exp(2j * np.pi * place).mean()))


def test_circles_of_pairs_are_not_seen_in_what_comes_out() -> None:
    assert phase_of_circles(dithered=False) > 0.2
    assert phase_of_circles(dithered=True) < 0.01


@pytest.mark.parametrize("count", [1, 26_000, 10**8])
@pytest.mark.parametrize("multiplier", [0.0, 0.3, 1.0, 3.0, 50.0, 1e6])
def test_noise_over_what_a_record_moves_is_at_least_as_stated(multiplier: float, count: int) -> None:
    (drawn,) = on_grid([0.7], multiplier, count)
    rounded = 2.0**-GRID_BITS * multiplier * np.sqrt(count)
    assert isinstance(drawn, OnGrid) == (rounded <= 2.0**-3)
    if isinstance(drawn, OnGrid) and multiplier:
        moved = 0.7 / multiplier * (1 + 2.0**-11) + drawn * 2.0**-GRID_BITS * np.sqrt(count)
        assert drawn / moved >= multiplier * (1 - 1e-12)
        assert drawn / 0.7 < 1.144
    if not isinstance(drawn, OnGrid):
        assert drawn == 0.7


def moved_by_a_record(multiplier: float, count: int) -> float:
    """How far the sums on the grid move, over the bound: each lies just below where it rounds up, and a record moves it
    by whole units and next to nothing more."""
    (stddev,) = on_grid([multiplier * BOUND], multiplier, count)
    unit = stddev * 2.0**-GRID_BITS
    whole = np.full(count, np.floor(BOUND / unit * count**-0.5))
    longer = ((BOUND / unit) ** 2 * (1 - 1e-6) - (whole**2).sum()) / (2 * whole[0] + 1)
    whole[: int(longer)] += 1
    record = (whole + 1e-6) * unit
    assert 0.99 * BOUND < np.linalg.norm(record) <= BOUND
    others = (np.random.default_rng(0).integers(-5, 5, count) + 0.5 - 1e-7) * unit
    none = tf.zeros([count])
    found = [
        np.asarray(added_on_grid(tf.constant(sums, tf.float64), OnGrid(stddev), none), np.float64)
        for sums in (others, others + record)
    ]
    return float(np.linalg.norm(found[1] - found[0])) / BOUND


def on_the_lattice(record: bool, deviation: type[float]) -> float:
    """The share of sums + noise, of sums that one record alone reaches, that are multiples of the noise's steps."""
    source, stddev = SeededNoise(1), deviation(2.0)
    total = tf.fill([2000], 0.3 * 2.0 * 2.0**-GRID_BITS if record else 0.0)
    found = np.asarray(add_noise(source, [total], [stddev])[0], np.float64)
    steps = found[np.abs(found) < 0.5] / (2.0 * 2.0**-GRID_BITS)  # where float32 knows them to less
    return float(np.mean(np.abs(steps - np.round(steps)) < 0.05))


def test_without_a_grid_for_the_sums_the_noise_is_on_none() -> None:
    (drawn,) = NoiseSource().widened([2.0], 1e6, 10**6)
    assert isinstance(drawn, OffGrid)
    for record in (False, True):
        assert on_the_lattice(record, OffGrid) < 0.4
    # The planted bug: numbers on the grid, added to sums that are not.
    assert on_the_lattice(False, float) == 1.0
    assert on_the_lattice(True, float) == 0.0


def test_noise_on_no_grid_has_the_deviation_that_is_stated_in_every_size() -> None:
    source = SeededNoise(2)
    source.rekey()
    for sizes in ([3, 50_000], [None]):

        @tf.function(input_signature=[tf.TensorSpec(sizes, tf.float32)])
        def noisy(total: tf.Tensor) -> tf.Tensor:
            return add_noise(source, [total], [OffGrid(3.0)])[0]

        drawn = noisy(tf.zeros([3, 50_000] if len(sizes) > 1 else [150_000]))
        assert abs(np.std(drawn) / 3.0 - 1.0) < 0.01


@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1_000_000), (50.0, 90_000), (0.1, 30_000_000)])
def test_rounding_moves_a_sum_by_what_is_allowed_for_and_reaches_it(multiplier: float, count: int) -> None:
    (stddev,) = on_grid([multiplier * BOUND], multiplier, count)
    allowed = stddev / (multiplier * BOUND)
    found = moved_by_a_record(multiplier, count)
    assert 1.0 + 0.95 * (allowed - 1.0 - 2.0**-11) < found <= allowed


def test_adversarial_sums_of_float32_move_by_what_is_allowed_for() -> None:
    """2,048 records of one direction, scaled by a number that is no power of two; and huge, tiny, negative ones."""
    rng, multiplier, count = np.random.default_rng(0), 0.7, 1000
    (stddev,) = on_grid([multiplier * BOUND], multiplier, count)
    for size in (2048.0, 1.0, 1e-3, 1e-20):
        for _ in range(20):
            others = (size * rng.normal(size=count) * count**-0.5).astype(np.float32)
            record = rng.normal(size=count)
            joined = (others + record / np.linalg.norm(record) * 0.999 * BOUND).astype(np.float32)
            totals, none = [tf.constant(others), tf.constant(joined)], tf.zeros([count])
            in_units = [np.asarray(added_on_grid(t, OnGrid(stddev), none), np.float64) for t in totals]
            rounding = np.linalg.norm(joined.astype(np.float64) - others) / BOUND
            assert np.linalg.norm(in_units[1] - in_units[0]) / BOUND <= rounding * stddev / (multiplier * BOUND)


@pytest.mark.parametrize("kind", [tf.float32, tf.float64])
def test_compiled_sums_are_those_that_are_not_compiled(kind: tf.DType, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    total = tf.constant(rng.normal(size=(LARGE // 100, 100)), kind)
    noise = tf.constant(rng.normal(size=total.shape), tf.float32)
    found = added_on_grid(total, OnGrid(0.37), noise)
    assert found.dtype == kind
    monkeypatch.setattr(grid, "LARGE", 10**9)
    np.testing.assert_array_equal(found, added_on_grid(total, OnGrid(0.37), noise))
    np.testing.assert_allclose(found, total + 0.37 * tf.cast(noise, kind), atol=2e-6)


class Seen(SeededNoise):
    """Keeps what it was given to add, and gave back."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: list[tuple[float, tf.Tensor]] = []

    def perturbed(self, total: tf.Tensor, stddev: float, noise: tf.Tensor) -> tf.Tensor:
        self.seen.append((stddev, super().perturbed(total, stddev, noise)))
        return self.seen[-1][1]


@pytest.mark.parametrize("options", [{}, {"noise": tfdp.noise.Correlated(0.9)}], ids=["independent", "correlated"])
def test_what_an_optimizer_releases_is_whole_on_the_grid(options: dict) -> None:
    source = Seen()
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(40)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 2.0, noise_source=source, **options), "mse")
    sums = [tf.random.normal([3, 40]), tf.zeros([40])]
    for _ in range(2):
        model.optimizer._reserve(1)
        with model.optimizer._stepping():
            model.optimizer.release(sums, model.trainable_variables, model.sensitivities(), 8)
    assert len(source.seen) == 4
    for stddev, numbers in source.seen:
        assert isinstance(stddev, OnGrid)
        units = np.asarray(numbers, np.float64) / np.float32(stddev * 2.0**-GRID_BITS)
        assert np.abs(units - np.round(units)).max() < 0.6 * np.abs(units).max() * 2.0**-23
