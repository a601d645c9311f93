"""Metrics of private data: the noise stated, the influence bounded, the ledger charged first."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers import metrics
from tfdp_layers.accounting import (
    BudgetExhausted,
    GroupNoise,
    Ledger,
    MetricRelease,
    Release,
    Statement,
    UnitRelease,
    epsilon,
)
from tfdp_layers.noise import NoiseSource, SeededNoise
from tfdp_layers.sampling import FixedSize, Partition, Poisson

HITS = np.arange(100) % 4 > 0  # three in four


class Silent(NoiseSource):
    """No noise, and a note of what the ledger held when noise was drawn."""

    def __init__(self, ledger=None):
        super().__init__()
        self.ledger, self.held = ledger, []

    def normal(self, shape):
        if self.ledger is not None:
            self.held.append(self.ledger.steps)
        return tf.zeros(shape)

    def widened(self, stddevs, noise_multiplier, count):
        return list(stddevs)  # nor a grid


def trained(sampling, kind=Release):
    ledger = Ledger()
    ledger.reserve(ledger.begin(kind((GroupNoise("all", 1.0, 2.0),), sampling, 100)), 3)
    return ledger


def test_a_metric_that_was_released_once_is_stated_so():
    ledger = Ledger()
    tfdp.release_metric(HITS, ledger, stddev=0.02, name="accuracy")
    assert "once the metric 'accuracy', a mean" in " ".join(str(Statement.from_ledger(ledger, 1e-5)).split())


@pytest.mark.slow
def test_the_noise_on_the_mean_is_as_stated():
    ledger = Ledger()
    sample = [tfdp.release_metric(HITS, ledger, stddev=0.02, name="accuracy") - 0.75 for _ in range(2000)]
    assert_normal(sample, 0.02)
    (entry,) = ledger.entries
    assert (entry.steps, entry.release.noise_multiplier) == (2000, pytest.approx(0.02 * 100))
    assert f"{entry.steps} times the metric 'accuracy'" in " ".join(str(Statement.from_ledger(ledger, 1e-5)).split())


def influence(value, lower=-1.0, upper=3.0):
    """What one more record of this value moves the released sum by, over the bound in the ledger."""
    ledger = Ledger()
    rest = np.linspace(-2, 5, 99)

    def total(values):
        return 100 * tfdp.release_metric(
            values, ledger, stddev=1.0, lower=lower, upper=upper, examples=100, noise_source=Silent()
        )

    moved = total(np.append(rest, value)) - total(rest)
    return abs(moved) / ledger.entries[0].release.groups[0].bound


EXTREMES = [np.nan, np.inf, -np.inf, 1e308, -1e308, 3.0, -1.0, 1.0, 0.3]


def test_one_record_moves_the_sum_by_at_most_half_the_range_and_attains_it(monkeypatch):
    worst = [influence(value) for value in EXTREMES]
    assert max(worst) == pytest.approx(1.0, abs=1e-9)
    assert influence(1.0) == influence(np.nan) == 0.0
    monkeypatch.setattr(metrics, "_centred", lambda values, lower, upper: np.nan_to_num(values))
    assert max(influence(value) for value in EXTREMES) > 2.0


@pytest.mark.parametrize("sampling", [Poisson(10), FixedSize(10), Partition(10)], ids=lambda s: s.kind)
def test_it_is_charged_before_it_exists_under_the_relation_of_the_ledger(sampling):
    ledger = trained(sampling)
    before, source = epsilon(ledger, 1e-2), Silent(ledger)
    tfdp.release_metric(HITS, ledger, stddev=0.01, noise_source=source)
    assert source.held == [4]
    assert before < epsilon(ledger, 1e-2)
    if sampling.kind != "poisson":  # the number of records is public there: it has to be the real one
        with pytest.raises(ValueError, match="Declare the real number"):
            tfdp.release_metric(HITS, ledger, stddev=0.01, examples=120)


def test_replacing_a_record_costs_as_much_as_twice_its_contribution():
    costs = {}
    for sampling in (Poisson(100), FixedSize(100)):
        ledger = Ledger()
        release = MetricRelease((GroupNoise("m", 0.5, 5.0),), sampling, 100)
        ledger.reserve(ledger.begin(release), 4 if sampling.kind == "poisson" else 1)
        costs[sampling.kind] = float(epsilon(ledger, 1e-5))
    # Two gaussians of noise z/2 are one of twice the shift: four releases of z cost what one of z / 2 does.
    assert costs["without_replacement"] == pytest.approx(costs["poisson"], rel=1e-3)


def test_a_spent_budget_releases_nothing():
    ledger = Ledger(dataset="d", budget=(1.0, 1e-5))
    source = Silent(ledger)

    def endless():
        while True:
            tfdp.release_metric(HITS, ledger, stddev=0.02, examples=100, noise_source=source)

    with pytest.raises(BudgetExhausted, match="'d'"):
        endless()
    assert source.held == list(range(1, ledger.steps + 1))
    assert 0.8 < epsilon(ledger, 1e-5) <= 1.0


def test_units_count_once_however_many_records_they_own():
    ids, values = np.array([0] * 98 + [1, 1]), np.array([1.0] * 98 + [0.0, 1.0])
    ledger = trained(Poisson(10), UnitRelease)
    assert tfdp.release_metric(values, ledger, stddev=0.1, unit_ids=ids, noise_source=Silent()) == 0.75
    assert ledger.unit == "unit"
    with pytest.raises(ValueError, match="protects one unit"):
        tfdp.release_metric(values, ledger, stddev=0.1)


def test_what_is_no_bounded_number_a_record_is_refused():
    ledger = Ledger()
    for values in (HITS[:, None], np.array(0.5), [], ["a"], np.array([1j]), np.array([None, 1.0], object)):
        with pytest.raises(ValueError, match="one number or boolean a record"):
            tfdp.release_metric(values, ledger, stddev=0.1)
    for options in (
        {"stddev": 0},
        {"stddev": np.inf},
        {"stddev": True},
        {"stddev": 1e-320},
        {"stddev": 0.1, "lower": 2.0},
    ):
        with pytest.raises(ValueError, match="Received"):
            tfdp.release_metric(HITS, ledger, **options)
    assert ledger.steps == 0


def test_a_seed_voids_the_statement():
    ledger = Ledger()
    tfdp.release_metric(HITS, ledger, stddev=0.1, noise_source=SeededNoise(1))
    assert Statement.from_ledger(ledger, 1e-5).void


@pytest.mark.parametrize(("lower", "upper"), [(-100, 100), (0, 200), (-1, 1)])
def test_bounds_are_the_same_numbers_in_every_type(lower, upper):
    """Of small integers of NumPy the range wraps around: 200 is -56 in eight bits."""
    plain = Ledger()
    tfdp.release_metric(HITS, plain, stddev=0.1, lower=lower, upper=upper)
    for kind in (np.int8 if upper < 128 else np.uint8, np.float16, np.float32):
        ledger, source = Ledger(), Silent()
        found = tfdp.release_metric(HITS, ledger, stddev=0.1, lower=kind(lower), upper=kind(upper), noise_source=source)
        assert ledger.releases[0].groups == plain.releases[0].groups
        assert found == pytest.approx(0.75)


@pytest.mark.parametrize(
    "ends", [(None, 1.0), ("0", 1.0), (0.0, [1.0]), (0.0, np.nan), (1, 1), (-8e307, 8e307), (0.0, 1e-40)]
)
def test_what_is_no_range_is_refused(ends):
    ledger = Ledger()
    with pytest.raises(ValueError, match="lower must lie below upper"):
        tfdp.release_metric(HITS, ledger, stddev=0.1, lower=ends[0], upper=ends[1])
    assert ledger.steps == 0
