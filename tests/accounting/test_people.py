"""Where it is said whose records are, rows count that different people have; what is one's own is covered."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.repeats import repeated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 5)).astype("float32")
RARE = RNG.random(600) < 0.05
IMAGES = RNG.integers(0, 256, (200, 6, 6), dtype=np.uint8)
WIDE = np.random.default_rng(1).normal(size=(300, 32)).astype("float32")


def blank(rng, count):
    return np.where(rng.random((count, 1)) < 0.3, 0.0, rng.normal(size=(count, 6)))


def seen(rows, people):
    sketch = footprint_of([], [rows], [], people).sketch
    return repeated(sketch) is not None or sketch.lone != (0, 0)


PAIR = np.repeat(np.arange(300), 2)
TEXTS = np.array([f"text {place}" for place in range(200)], object)
DESK = np.repeat(np.arange(50), 2)
SEVERAL_IDS = {
    "two sites": (np.tile(X, (2, 1)), np.repeat([0, 1], 600)),
    "two of three sites": (np.concatenate([X, X[:200]]), np.concatenate([np.arange(600) // 200, np.ones(200, int)])),
    "eight departments": (np.tile(X, (8, 1)), np.concatenate([PAIR + 300 * k for k in range(8)])),
    "two exports": (np.tile(X, (2, 1)), np.concatenate([PAIR, PAIR + 300])),
    "texts": (np.tile(TEXTS, 4), np.arange(800) // 2),
    "a rare class oversampled, with new ids": (
        np.concatenate([X, X[RNG.choice(np.flatnonzero(RARE), 540)]]),
        np.concatenate([PAIR, 300 + np.arange(540) // 2]),
    ),
    "one person under thirty ids": (
        np.concatenate([WIDE, np.repeat(WIDE[:1], 29, axis=0)]),
        np.concatenate([np.arange(300) // 2, 150 + np.arange(29)]),
    ),
    "numbers of rows, by fours": (np.repeat(X, 5, axis=0), np.arange(3000) // 4),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", SEVERAL_IDS)
def test_rows_under_several_ids_are_noticed(name):
    """At 8 ids a person one person moved a sum by 8 bounds, and nothing was said."""
    rows, ids = SEVERAL_IDS[name]
    assert seen(rows, People.by(ids))
    assert seen(rows, People(np.arange(len(ids)), np.unique(ids, return_inverse=True)[1], len(ids)))


def cells_of_heavy_users(rng):
    """Four people have all that there is, many others have little."""
    return rng.integers(0, 5, (2100, 2)), np.concatenate([rng.integers(0, 4, 2000), np.arange(4, 104)])


def grid_of_heavy_users(rng):
    """Four people have the whole grid, and others one cell each: five people have a cell, or four, none three."""
    cells = np.indices((20, 20)).reshape(2, -1).T
    return cells[np.append(np.tile(np.arange(400), 4), rng.integers(0, 400, 100))], np.append(
        np.repeat(np.arange(4), 400), np.arange(4, 104)
    )


def measured_by_two(rng):
    """Each cell of a grid was measured by two of twelve laboratories."""
    cells, first = np.indices((14, 14)).reshape(2, -1).T, rng.integers(0, 12, 196)
    return np.tile(cells, (2, 1)), np.append(first, (first + rng.integers(1, 12, 196)) % 12)


COVERED = {
    "a grid of heavy users": grid_of_heavy_users(RNG),
    "each cell by two of twelve": measured_by_two(RNG),
    "each row again, of the same person": (np.tile(X, (8, 1)), np.tile(PAIR, 8)),
    "what stays with a person": (np.repeat(X[:300], 20, axis=0), np.repeat(np.arange(300), 20)),
    "one person's, thirty times": (
        np.concatenate([WIDE, np.repeat(WIDE[:1], 29, axis=0)]),
        np.concatenate([np.arange(300), np.zeros(29, int)]),
    ),
    "few columns": (RNG.integers(0, 4, (2000, 3)), np.arange(2000) // 10),
    "of heavy users": cells_of_heavy_users(RNG),
    "of twelve people": (RNG.integers(0, 5, (2000, 2)), RNG.integers(0, 12, 2000)),
    "what all are shown": (np.tile(IMAGES[:30], (100, 1, 1)), np.repeat(np.arange(100), 30)),
    "each person gets each treatment": (np.tile(np.eye(24), (60, 1)), np.repeat(np.arange(60), 24)),
    "blank rows": (blank(RNG, 2000), np.arange(2000) // 10),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", COVERED)
def test_what_one_person_has_several_times_is_covered_and_chance_is_chance(name):
    rows, ids = COVERED[name]
    assert not seen(rows, People.by(ids))


def test_rows_that_share_an_owner_are_one_persons():
    names = np.stack([DESK, 50 + np.arange(100)], 1)  # each second owner is another one
    people = People(np.repeat(np.arange(100), 2), names.reshape(-1), 100)
    rows = np.repeat(WIDE[:50], 2, axis=0)
    assert not seen(rows, people)
    assert seen(np.concatenate([rows[::2], rows[1::2]]), people)
    assert np.array_equal(people.holders(DESK, np.full(50, 2)), np.ones(50))
    assert not people.met(DESK, DESK).any()
    assert people.met(DESK, np.roll(DESK, 2)).all()
    assert people.strangers(0, 2)
    assert not people.strangers(0, 1)
    assert people.positions is None
    assert len(people.first(10).records) == 20


@pytest.mark.parametrize("whose", [{"unit_ids": [f"A{i}" for i in PAIR] + [f"B{i}" for i in PAIR]}, {"owners": "each"}])
def test_a_training_says_it(whose):
    if "owners" in whose:
        whose = {"owners": [[f"{k}{i}"] for k in "AB" for i in PAIR], "records_per_owner": 2}
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    x, y = np.tile(X, (2, 1)), np.ones((1200, 1), "float32")
    with pytest.warns(UserWarning, match=r"under ids of different people.*give each person one id"):
        model.fit(x, y, batch_size=20, epochs=1, verbose=0, **whose)


def test_quantiles_vocabularies_and_adapted_layers_say_it():
    ids = np.arange(800) // 4
    rows = np.tile(X[:200], (4, 1))
    says = "under ids of different people"
    settings = {"noise_multiplier": 9.0, "unit_ids": ids}
    with pytest.warns(UserWarning, match=says):
        tfdp.preprocessing.quantiles(rows, tfdp.accounting.Ledger(), [0.5], lower=-5.0, upper=5.0, **settings)
    layer = tfdp.layers.PrivateNormalization(noise_multiplier=9.0, lower=-5.0, upper=5.0)
    with pytest.warns(UserWarning, match=says):
        layer.adapt(rows, unit_ids=ids)
    texts = np.tile(TEXTS, 4).tolist()
    with pytest.warns(UserWarning, match=says):
        tfdp.preprocessing.vocabulary(texts, tfdp.accounting.Ledger(), failure=1e-6, **settings)


def test_what_more_than_half_of_many_people_have_is_nobodys():
    own = np.random.default_rng(5).integers(0, 256, (600, 6, 6), dtype=np.uint8)
    rows, ids = np.concatenate([own, np.tile(IMAGES[:24], (50, 1, 1))]), np.repeat(np.arange(50), 12)
    people = People.by(np.append(ids, np.repeat(np.arange(50), 24)))
    assert repeated(footprint_of([], [rows], [], people).sketch) is None
    fewer = np.append(np.arange(600), 600 + np.arange(24 * 20))  # shown to 20 of 50
    assert repeated(footprint_of([], [rows[fewer]], [], People.by(people.owners[fewer])).sketch) is not None


def test_each_record_counts_for_the_owner_who_has_most_of_its_kind():
    people = People(np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 1, 1, 2, 1, 3, 4]), 4)
    assert people.holders(np.zeros(4, int), np.array([4])).tolist() == [2]  # the second one, and the last
    assert people.holders(np.array([0, 1, 1, -1]), np.array([1, 2])).tolist() == [1, 1]
    assert People.by(np.array([0, 0, 1, 2])).holders(np.array([0, 0, 0, 1]), np.array([3, 1])).tolist() == [2, 1]
