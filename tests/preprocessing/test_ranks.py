"""Private quantiles: one record's influence on the counts, their noise, what is read from them, and the cost."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers.accounting import BudgetExhausted, Ledger, Statement, epsilon
from tfdp_layers.batches.units import Units
from tfdp_layers.preprocessing import ranks
from tfdp_layers.sampling import FixedSize

LEVELS, COLUMNS, DELTA = 6, 3, 1e-5
LOW, HIGH = np.array([0.0, -1.0, 0.0]), np.array([1.0, 1.0, 1e9])
BOUND = np.sqrt(LEVELS * COLUMNS)
X = np.random.default_rng(0).uniform(LOW, HIGH, size=(500, COLUMNS))
HOSTILE = [np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320, 0.0, 1.0, 0.5]


def counts(x):
    return ranks.counted(np.asarray(x, np.float64), LOW, HIGH, LEVELS)


@pytest.mark.parametrize("value", HOSTILE, ids=str)
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)], ids=["all", "one"])
def test_no_record_moves_the_counts_by_more_than_the_bound(value, where):
    record = np.array([[0.3, 0.3, 0.3]])
    record[:, where] = value
    moved = counts(np.concatenate([X, record])) - counts(X)
    assert np.linalg.norm(moved) <= BOUND * (1 + 1e-12)
    if not np.isnan(value):
        assert np.linalg.norm(moved) == pytest.approx(BOUND)  # every record without NaN attains it


def test_a_bound_that_forgets_levels_or_columns_would_be_exceeded():
    moved = np.linalg.norm(counts(X[:1]))
    assert moved > 1.7 * np.sqrt(LEVELS)
    assert moved > 2.4 * np.sqrt(COLUMNS)


def test_each_level_counts_every_record_once():
    found = counts(X)
    for level in range(1, LEVELS + 1):
        part = found[:, 2**level - 2 : 2 ** (level + 1) - 2]
        assert np.all(part.sum(axis=1) == 500)
        expected = [np.histogram(X[:, c], 2**level, (LOW[c], HIGH[c]))[0] for c in range(COLUMNS)]
        np.testing.assert_array_equal(part, expected)


def test_exact_counts_give_exact_ranks():
    wanted = np.array([0.01, 0.25, 0.5, 0.9, 0.999])
    found = ranks.read(counts(X).astype(float), LOW, HIGH, LEVELS, wanted)
    np.testing.assert_array_equal(found, ranks.read(counts(X).astype(float), LOW, HIGH, LEVELS, wanted, 500))
    width = (HIGH - LOW) / 2**LEVELS
    exact = np.quantile(X, wanted, axis=0, method="inverted_cdf")
    assert np.all(found >= exact - 1e-9 * width)
    assert np.all(found <= exact + width * (1 + 1e-9))


def released(noise=0.5, ledger=None, x=X, **options):
    settings = {"lower": LOW, "upper": HIGH, "noise_multiplier": noise, "levels": LEVELS} | options
    return tfdp.preprocessing.quantiles(x, Ledger() if ledger is None else ledger, [0.1, 0.5, 0.9], **settings)


def test_the_noise_is_what_the_ledger_says(monkeypatch):
    kept, original = [], ranks.read
    monkeypatch.setattr(ranks, "read", lambda noisy, *rest: kept.append(noisy - counts(X)) or original(noisy, *rest))
    ledger = Ledger()
    for _ in range(10):
        released(0.5, ledger)
    (entry,) = ledger.entries
    (group,) = entry.release.groups
    assert (entry.steps, group.name, group.bound) == (10, "quantiles", pytest.approx(BOUND))
    assert group.stddev == pytest.approx(0.5 * BOUND)
    assert_normal(np.stack(kept), group.stddev)


def test_noisy_quantiles_are_near_in_rank():
    found = released(1.0, noise_source=tfdp.noise.SeededNoise(2))
    assert found.shape == (3, COLUMNS)
    assert np.all(np.diff(found, axis=0) >= 0)
    rank = np.mean(X[None] <= found[:, None], axis=1)
    deviation = LEVELS * np.sqrt(COLUMNS) / 500
    assert np.max(np.abs(rank - np.array([[0.1], [0.5], [0.9]]))) <= 5 * deviation + 2.0**-LEVELS


def test_one_column_comes_back_as_one():
    found = released(x=X[:, 0], lower=0.0, upper=1.0, levels=1)
    assert found.shape == (3,)
    assert set(found) <= {0.0, 0.5, 1.0}


def test_the_cost_joins_the_ledger_and_its_relation():
    layer, ledger = tfdp.layers.DPCentering(3.0), Ledger()
    layer.adapt(np.ones((500, 2), "float32"), FixedSize(8))
    ledger.merge(layer.ledger)
    before = float(epsilon(ledger, DELTA))
    released(2.0, ledger)
    assert float(epsilon(ledger, DELTA)) > before
    assert ledger.entries[1].release.relation is FixedSize(8).relation


def test_a_range_found_privately_serves_a_normalization():
    ledger = Ledger()
    low, high = released(1.0, ledger)[[0, 2]]
    layer = tfdp.layers.PrivateNormalization(3.0, low, high)
    layer.adapt(X.astype("float32"))
    ledger.merge(layer.ledger)
    assert ledger.steps == 2


def test_a_budget_that_is_spent_lets_nothing_out(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "read", lambda *_: pytest.fail("released"))
    ledger = Ledger(tmp_path / "ledger.json", dataset="table", budget=(0.1, DELTA))
    with pytest.raises(BudgetExhausted):
        released(1.0, ledger)
    assert ledger.steps == 0


@pytest.mark.parametrize(
    "options",
    [
        {"x": X[:0]},
        {"x": X[None]},
        {"x": X.astype(str)},
        {"noise": 0.0},
        {"noise": np.inf},
        {"noise": "2"},
        {"noise": [2.0]},
        {"levels": 0},
        {"levels": 21},
        {"lower": HIGH},
        {"upper": np.inf},
        {"lower": [0.0, 0.0]},
        {"examples": 0},
        {"noise_source": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_bad_values_and_settings_are_refused_and_cost_nothing(options):
    ledger = Ledger()
    with pytest.raises(ValueError, match=r"must|examples"):
        released(ledger=ledger, **options)
    assert ledger.steps == 0


@pytest.mark.parametrize("shape", [(90,), (90, 2)])
def test_nan_is_refused_before_anything_is_charged_and_the_fix_goes_through(shape):
    """Silently left out, it moved all quantiles down: ranks were counted of all records."""
    values = np.random.default_rng(0).uniform(0.0, 1.0, shape)
    values[:9].reshape(9, -1)[:, 0] = np.nan
    values[10:12] = np.inf
    settings = {"ledger": Ledger(), "probabilities": [0.5], "lower": 0.0, "upper": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(ValueError, match=r"9 of the 90 records hold NaN.*kept = ~np\.isnan\(values\)"):
        tfdp.preprocessing.quantiles(values, **settings)
    assert not settings["ledger"].entries
    values, ids = values.reshape(90, -1)[:, 0], np.arange(90) // 3
    kept = ~np.isnan(values)
    tfdp.preprocessing.quantiles(values[kept], unit_ids=ids[kept], **settings)
    assert len(settings["ledger"].entries) == 1


@pytest.mark.parametrize("probabilities", [[], [0.0], [1.0], [np.nan], 0.5])
def test_probabilities_lie_between_0_and_1(probabilities):
    with pytest.raises(ValueError, match="between 0 and 1"):
        tfdp.preprocessing.quantiles(X, Ledger(), probabilities, lower=LOW, upper=HIGH, noise_multiplier=1.0)


def test_a_unit_moves_the_counts_as_one_record_does_however_many_it_owns(monkeypatch):
    def moved():
        one = Units([*range(500), *[500] * 50], 550).one_each()
        return np.linalg.norm(counts(np.concatenate([X, np.full((50, COLUMNS), 0.5)])[one]) - counts(X))

    assert moved() == pytest.approx(BOUND)
    monkeypatch.setattr(Units, "one_each", lambda units: np.arange(len(units.positions)))  # planted: all of them enter
    assert moved() == pytest.approx(50 * BOUND)


def test_a_ledger_of_units_takes_quantiles_and_normalizations_of_units_alone():
    ledger, ids = Ledger(), np.arange(500) // 5
    released(2.0, ledger, unit_ids=ids)
    assert (ledger.unit, ledger.entries[0].release.examples) == ("unit", 100)
    assert Ledger.from_json(ledger.to_json()).entries[0].release == ledger.entries[0].release
    with pytest.raises(ValueError, match=r"protects one unit.*quantiles, vocabulary, release_metric and adapt alike"):
        released(2.0, ledger)
    layer = tfdp.layers.PrivateNormalization(3.0, LOW, HIGH)
    layer.adapt(X.astype("float32"), unit_ids=ids)
    ledger.merge(layer.ledger)
    other = tfdp.layers.PrivateNormalization(3.0, LOW, HIGH)
    other.adapt(X.astype("float32"))
    with pytest.raises(ValueError, match="protects one unit"):
        ledger.merge(other.ledger)
    text = " ".join(str(Statement.from_ledger(ledger, DELTA, "patient")).split())
    assert "one patient, with all records it owns; add or remove one patient" in text
    assert "1 noisy sum over all patients" in text
    assert "one patient moves the sum by at most" in text
    assert "someone with several ids is protected less" in text


def test_a_refused_adapt_leaves_the_layer_free_for_units():
    ledger, ids = Ledger(), np.arange(500) // 5
    released(2.0, ledger, unit_ids=ids)
    layer = tfdp.layers.PrivateNormalization(3.0, LOW, HIGH)
    model = tfdp.PrivateSequential([keras.Input((COLUMNS,)), layer])
    model.ledger = ledger
    with pytest.raises(ValueError, match="protects one unit"):
        layer.adapt(X.astype("float32"))
    layer.adapt(X.astype("float32"), unit_ids=ids)
    assert [entry.release.kind for entry in ledger.entries] == ["unit_whole_data", "unit_whole_data"]


def test_the_bound_is_the_same_for_levels_of_every_type():
    """The product of columns and levels wraps around in eight bits: 280 is 24, and the noise was a third."""
    wide, bounds = np.tile(X, (1, 14))[:, :40], []
    for levels in (7, np.uint8(7), np.int64(7)):
        ledger = Ledger()
        tfdp.preprocessing.quantiles(wide, ledger, [0.5], lower=-1.0, upper=1e9, noise_multiplier=2.0, levels=levels)
        bounds.append(ledger.releases[0].groups)
    assert bounds[0] == bounds[1] == bounds[2]
    assert bounds[0][0].bound == pytest.approx(np.sqrt(280))
