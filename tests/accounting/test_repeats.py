"""Copies among records are noticed, rows that are equal by chance are not taken for copies."""

import re
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.equal_rows import cells, of
from helpers.variants import slow_but
from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.repeats import warn_of_repeated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 5)).astype("float32")
RARE = RNG.random(600) < 0.05
IMAGES = RNG.integers(0, 256, (200, 6, 6), dtype=np.uint8)


def visits(rng, count):
    """Age, pressure where it was taken, and whether: half of the rows equal others."""
    missing = rng.random(count) < 0.2
    return np.stack([rng.integers(18, 95, count), rng.normal(130, 20, count).round() * ~missing, missing], 1)


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


def lone(*arrays):
    return footprint_of(arrays, arrays).sketch.lone


WIDE = np.random.default_rng(1).normal(size=(300, 32)).astype("float32")
CLASSES = np.concatenate([WIDE[:, :14], np.eye(250)[np.arange(300) % 250], np.eye(250)[np.arange(300) // 2]], axis=1)
AMOUNTS = np.random.default_rng(1).gamma(4.0, 10.0, size=(600, 32))

LONE_COPIES = {
    "one person thirty times": (np.concatenate([WIDE, np.repeat(WIDE[:1], 29, axis=0)]), (1, 30)),
    "one person three times": (np.concatenate([WIDE, np.repeat(WIDE[:1], 2, axis=0)]), (1, 3)),
    "seven people twenty times": (np.concatenate([WIDE, np.repeat(WIDE[:7], 19, axis=0)]), (7, 20)),
    "one person among few": (np.concatenate([WIDE[:30], np.repeat(WIDE[:1], 29, axis=0)]), (1, 30)),
    "nobody but one": (np.repeat(WIDE[:1], 300, axis=0), (1, 300)),
    "of ten columns": (np.concatenate([AMOUNTS[:, :10], np.repeat(AMOUNTS[:1, :10], 9, axis=0)]), (1, 10)),
    "beside a copied pair": (np.concatenate([WIDE, WIDE[:1], np.repeat(WIDE[1:2], 9, axis=0)]), (1, 10)),
    "beside two pairs": (np.concatenate([WIDE, WIDE[:2], np.repeat(WIDE[2:3], 40, axis=0)]), (1, 41)),
    "among many classes": (np.concatenate([CLASSES, np.repeat(CLASSES[:1], 40, axis=0)]), (1, 41)),
    "among columns of few values": (
        np.concatenate([rows := np.concatenate([np.round(WIDE[:, :20]), WIDE[:, 20:]], 1), np.repeat(rows[:1], 9, 0)]),
        (1, 10),
    ),
}


@pytest.mark.few(40)
@pytest.mark.parametrize("name", LONE_COPIES)
def test_copies_of_single_people_are_noticed_by_what_nobody_else_has(name):
    rows, expected = LONE_COPIES[name]
    rows = rows[np.random.default_rng(2).permutation(len(rows))]
    assert lone(rows) == lone(*rows.T) == lone(rows[:, :7], rows[:, 7:]) == expected


def scaled(rows):
    return (rows - rows.mean(axis=0)) / rows.std(axis=0)


def some(rows, values, count=30):
    return np.concatenate([np.broadcast_to(values, (count, rows.shape[1])), rows[count:]])


def stuck(rng):
    """Windows of a sensor that hung for a while."""
    series = rng.normal(size=632).cumsum()
    series[100:180] = series[100]
    return np.lib.stride_tricks.sliding_window_view(series, 32)[:600]


def floor(rng):
    """Powers of one number that is measured down to a limit."""
    return np.maximum(rng.normal(size=(600, 1)), -1.0) ** np.arange(1, 20)


def towns(rng):
    """What is known of the place where somebody lives."""
    return rng.normal(size=(300, 20))[np.repeat(np.arange(300), np.minimum(rng.zipf(2.0, 300), 200))]


def messages(rng):
    """Embeddings of texts, some of which many people wrote."""
    usual = rng.normal(size=(300, 64))[np.repeat(np.arange(300), np.minimum(rng.zipf(2.0, 300), 100))]
    return np.concatenate([rng.normal(size=(3000, 64)), usual])


ROWS = np.random.default_rng(3)
HONEST = {
    "nobody twice": WIDE,
    "blank": some(AMOUNTS, 0.0),
    "blank, scaled": scaled(some(AMOUNTS, 0.0)),
    "blank, to the range": some(AMOUNTS, 0.0) / AMOUNTS.max(axis=0),
    "unlike zero, and blank, scaled": scaled(some(ROWS.normal(2.0, 1.0, (600, 32)), 0.0)),
    "imputed by the mean": some(AMOUNTS, AMOUNTS[30:].mean(axis=0)),
    "imputed by the mean of others, scaled": scaled(some(AMOUNTS, AMOUNTS[30:].mean(axis=0)))[::3],
    "imputed by the median": some(AMOUNTS, np.median(AMOUNTS[30:], axis=0)),
    "imputed by the mean in most columns": some(
        AMOUNTS, np.where(np.arange(32) < 17, AMOUNTS[30:].mean(axis=0), AMOUNTS[0])
    ),
    "less than anybody, as codes of no answer": some(AMOUNTS, -1.0 - 0.7 * np.arange(32)),
    "more than anybody": some(AMOUNTS, AMOUNTS.max(axis=0) + 0.7 * np.arange(1, 33)),
    "a constant for what is missing": some(WIDE, -0.25),
    "blank images": some(ROWS.integers(0, 256, (300, 784)) / 255.0, 1.0),
    "half did not answer": some(ROWS.integers(1, 6, (300, 30)), 0, 150),
    "a sensor that hung": stuck(ROWS),
    "a sensor that hung, scaled": scaled(stuck(ROWS)),
    "powers of what has a floor": floor(ROWS),
    "places": ROWS.normal(size=(40, 20))[ROWS.integers(0, 40, 900)],
    "towns": towns(ROWS),
    "messages": messages(ROWS),
    "two treatments": ROWS.normal(size=(2, 16))[ROWS.integers(0, 2, 300)],
    "zeros": np.zeros((300, 32)),
    "one grid of times": np.repeat(np.linspace(0.0, 1.0, 32)[np.newaxis], 300, axis=0),
    "classes": np.eye(10)[ROWS.integers(0, 10, 300)],
    "counts": np.log1p(ROWS.poisson(3.0, (300, 32))),
    "three times in few numbers": np.concatenate([X, X[:1], X[:1]]),
    "a pair": np.concatenate([WIDE, WIDE[:1]]),
    "not finite": some(WIDE, np.inf),
}


@pytest.mark.few(40)
@pytest.mark.parametrize("name", HONEST)
def test_single_rows_that_stand_for_nothing_or_for_many_are_not(name):
    assert lone(HONEST[name]) == (0, 0)


@pytest.mark.few(40)
@pytest.mark.parametrize("draw", NATURAL, ids=range(len(NATURAL)))
def test_single_rows_that_are_equal_by_chance_are_not(draw):
    assert [lone(draw(np.random.default_rng(seed), 600)) for seed in range(4)] == [(0, 0)] * 4


def test_a_person_among_very_many_is_noticed():
    rows = np.random.default_rng(4).normal(size=(60_000, 12)).astype("float32")
    rows[::2_000] = rows[0]
    assert lone(rows) == (1, 30)


def fit(rows, **options):
    model = tfdp.make_private(keras.Sequential([keras.Input(rows.shape[1:]), keras.layers.Dense(1)]))
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


def test_copies_of_one_person_bring_a_warning_and_a_unit_none():
    rows, _ = LONE_COPIES["one person thirty times"]
    with pytest.warns(UserWarning, match="Some rows come several times, up to 30.*stand-in for no answer") as caught:
        fit(rows)
    assert sum("come several times" in str(one.message) for one in caught) == 1
    with warnings.catch_warnings(record=True) as silent:
        warnings.simplefilter("always")
        fit(rows, unit_ids=[*range(300), *[0] * 29])
    assert not any("come several times" in str(one.message) for one in silent)


@pytest.mark.parametrize("ids", [None, np.arange(1200) // 2])
def test_the_warning_says_how_it_is_silenced_once(ids):
    rows, unit = np.tile(X, (2, 1)), "record" if ids is None else "unit"
    footprint = footprint_of([], [rows], [], None if ids is None else People.by(ids))
    with pytest.warns(
        UserWarning, match=r"public \(items, questions, codes.*nothing is lost, and all may stay"
    ) as told:
        warn_of_repeated(footprint, unit)
    quiet = re.search(r"warnings\.filterwarnings\('ignore', '([^']+)'\)", str(told[0].message))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", quiet[1])
        warn_of_repeated(footprint, unit)
