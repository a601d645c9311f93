"""Copies among records are noticed, rows that are equal by chance are not taken for copies."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.accounting.repeats import repeated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 5)).astype("float32")
RARE = RNG.random(600) < 0.05
IMAGES = RNG.integers(0, 256, (200, 6, 6), dtype=np.uint8)


def visits(rng, count):
    """Age, pressure where it was taken, and whether: half of the rows equal others."""
    missing = rng.random(count) < 0.2
    return np.stack([rng.integers(18, 95, count), rng.normal(130, 20, count).round() * ~missing, missing], 1)


def of(*arrays):
    return repeated(footprint_of(arrays, arrays).sketch)


COPIES = {
    "a file that was read twice": (np.tile(X, (2, 1)), (600, 600, 2)),
    "each row five times": (np.repeat(X, 5, axis=0), (600, 600, 5)),
    "a rare class oversampled": (np.concatenate([X, X[RNG.choice(np.flatnonzero(RARE), 540)]]), None),
    "a very rare class oversampled": (np.concatenate([X, np.repeat(X[:9], 60, axis=0)]), (600, 9, 61)),
    "a rare class three times": (np.concatenate([X, X[RARE], X[RARE]]), (600, int(RARE.sum()), 3)),
    "a bootstrap sample": (X[RNG.integers(0, 600, 600)], None),
    "few rows ten times each": (np.tile(X[:60], (10, 1)), (60, 60, 10)),
    "few rows, of which a few ten times as often": (np.repeat(X[:60], [5] * 40 + [50] * 20, axis=0), None),
    "images": (np.concatenate([IMAGES, IMAGES[:30]]), (200, 30, 2)),
    "a table whose rows are equal by chance, twice": (np.tile(visits(RNG, 600), (2, 1)), None),
    "texts": (np.tile(np.array([f"text {place}" for place in range(100)], object), 2), (100, 100, 2)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_noticed(name):
    rows, expected = COPIES[name]
    found = of(rows)
    assert found is not None
    assert expected in (None, found)
    columns = [rows] if rows.ndim != 2 else [*rows.T]
    assert of(*columns) is not None


def heavy(rng, count):
    return np.minimum(rng.zipf(1.4, (count, 3)), 10**6)


def cells(kinds, columns):
    return lambda rng, count: rng.integers(0, kinds, (count, columns))


def alike(rng, count):
    """Columns that all follow one number."""
    return np.round(2.0 * (rng.normal(size=(count, 1)) + 0.05 * rng.normal(size=(count, 8))))


def modal(rng, count):
    """Nearly all answers are the usual ones."""
    return (rng.random((count, 12)) < 0.05) * rng.integers(1, 4, (count, 12))


def blank(rng, count):
    return np.where(rng.random((count, 1)) < 0.3, 0.0, rng.normal(size=(count, 6)))


NATURAL = [visits, heavy, alike, modal, blank, cells(8, 3), cells(40, 3), cells(500, 1), cells(2, 20)]


@pytest.mark.parametrize("draw", NATURAL, ids=range(len(NATURAL)))
@pytest.mark.parametrize("count", [60, 600, 6000])
def test_rows_that_are_equal_by_chance_are_not(draw, count):
    assert [of(draw(np.random.default_rng(seed), count)) for seed in range(6)] == [None] * 6


def short_messages(rng, kinds, words):
    """Token ids, padded behind; a fifth of the messages is of few kinds."""
    rows = rng.integers(40, 2000, (3000, 20)) * (np.arange(20) < rng.integers(4, 21, (3000, 1)))
    usual = np.zeros((kinds, 20), int)
    usual[:, :words] = rng.integers(1, 2000, (kinds, words))
    return np.where(rng.random((3000, 1)) < 0.2, usual[rng.integers(0, kinds, 3000)], rows)


@pytest.mark.parametrize(("kinds", "words"), [(30, 1), (200, 1), (15, 3)])
def test_messages_that_many_people_write_are_not(kinds, words):
    assert [of(short_messages(np.random.default_rng(seed), kinds, words)) for seed in range(4)] == [None] * 4


DESIGNS = {
    "treatments": np.eye(24)[np.repeat(np.arange(24), 40)],
    "a few people left": np.eye(24)[np.repeat(np.arange(24), 40)][RNG.permutation(960)[:940]],
    "combinations": np.repeat(np.indices((5, 4, 3)).reshape(3, -1).T, 10, axis=0),
    "hours and weekdays": np.stack([np.arange(1680) % 24, np.arange(1680) // 24 % 7], 1),
    "places": np.repeat(RNG.normal(size=(40, 3)), 25, axis=0),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_cells_of_a_design_are_not(name):
    assert of(DESIGNS[name]) is None
    assert of(*DESIGNS[name].T) is None


def test_coordinates_of_places_where_several_people_live_are_not():
    places = RNG.normal(size=(1200, 3)).astype("float32")
    assert of(places[RNG.integers(0, 1200, 5000)]) is None


def test_records_of_few_products_tell_nothing():
    products = RNG.normal(size=(40, 8))
    assert of(products[RNG.integers(0, 40, 900)]) is None


def fit(rows, **options):
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 2.0), "mse")
    model.fit(rows, rows[:, :1], batch_size=50, steps_per_epoch=1, verbose=0, **options)


def quantiles(rows, **options):
    ledger = tfdp.accounting.Ledger()
    tfdp.preprocessing.quantiles(rows, ledger, [0.5], lower=0.0, upper=1.0, noise_multiplier=9.0, **options)


def adapt(rows, **options):
    tfdp.layers.DPCentering(1.0).adapt(rows, **options)


CALLS = {"fit": fit, "quantiles": quantiles, "adapt": adapt}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(["quantiles", "fit"], [*CALLS]))
def test_what_is_charged_for_them_warns_unless_it_protects_units(name):
    twice = np.tile(X[:100], (2, 1))
    for rows, options in ((twice, {}), (twice, {"unit_ids": np.tile(np.arange(100), 2)}), (X[:100], {})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            CALLS[name](rows, **options)
        said = [one for one in caught if "Of 100 different rows" in str(one.message)]
        assert all("are other people's" in str(one.message).split(" Then leave the copies out")[0] for one in said)
        assert len(said) == (rows is twice and not options)
        assert all(one.filename == __file__ for one in said)
