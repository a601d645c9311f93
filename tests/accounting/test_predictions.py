"""Predictions of private models are known again by their values: parts, other orders, folds, columns, labels."""

import concurrent.futures

import numpy as np
import pytest

from tfdp_layers.accounting import predictions
from tfdp_layers.accounting.footprint import footprint_of, living, predicted_for

RNG = np.random.default_rng(8)
N = 240


def of(*arrays, labels=()):
    return footprint_of([], list(arrays), list(labels))


def records(count=N):
    return RNG.normal(size=(count, 4)).astype("float32")


def predicted(x, outputs=1):
    """Values as a model predicts them for these records, which it notes."""
    made = np.tanh(x @ RNG.normal(size=(x.shape[1], outputs))).astype("float32")
    predicted_for([made], [x])
    return made


def folds(x, outputs=1):
    """Predictions fold by fold, each for a copy of its rows."""
    fold, out = RNG.integers(0, 3, len(x)), np.zeros((len(x), outputs))
    for one in range(3):
        out[fold == one] = predicted(x[fold == one].copy(), outputs)
    return out


ORDER = RNG.permutation(N)
MADE = {
    "a shuffle": lambda x: of(predicted(x)[ORDER]),
    "a part": lambda x: of(predicted(x)[:50].copy()),
    "of chosen rows": lambda x: of(predicted(x[ORDER[:90]]).copy()),
    "of two halves": lambda x: of(np.concatenate([predicted(x[:100].copy()), predicted(x[100:].copy())])),
    "out of folds": lambda x: of(folds(x)),
    "out of folds, in a table": lambda x: of(np.column_stack([records(), folds(x, 3)])),
    "as labels": lambda x: of(records(), labels=[folds(x)]),
    "few among many rows": lambda x: of(np.concatenate([predicted(x)[:20], records(2000)[:, :1]])),
    "of predictions": lambda x: of(predicted(predicted(x, 2)[ORDER])[::-1].copy()),
}


@pytest.mark.few(9)
@pytest.mark.parametrize("name", MADE)
def test_what_holds_predictions_is_of_the_records_that_they_are_for(name):
    x, others = records(), records()
    found = MADE[name](x)
    for mine, theirs in ((found, of(x[ORDER])), (of(x[ORDER]), found), (found, MADE["a shuffle"](x))):
        assert mine.overlaps(theirs)
        assert not mine.same_place(theirs)  # equal numbers show it, which no statement may tell
    assert not found.overlaps(of(others))
    assert not of(others).overlaps(found)


def test_what_was_predicted_for_other_people_is_not_of_these():
    found = of(predicted(records())[ORDER])
    assert found.predicted.rows
    assert not found.overlaps(of(records()))  # public rows that a private model labels: nobody else pays for them


LEVELS = RNG.normal(size=6).astype("float32")
COMMON = {
    "classes": (lambda x: (x[:, :1] > 0).astype("float32"), lambda n: RNG.integers(0, 2, (n, 1)).astype("float32")),
    "saturated": (lambda x: np.clip(40 * x[:, :1], 0, 1), lambda n: RNG.integers(0, 2, (n, 1)).astype("float32")),
    "whole numbers": (lambda x: np.round(50 * x[:, :1]), lambda n: RNG.integers(-90, 90, (n, 1)).astype("float64")),
    "few values": (lambda x: LEVELS[RNG.integers(0, 6, (len(x), 1))], lambda n: LEVELS[RNG.integers(0, 6, (n, 1))]),
    "one value": (
        lambda x: np.full((len(x), 1), 0.1234567, "float32"),
        lambda n: np.full((n, 1), 0.1234567, "float32"),
    ),
    "half precision": (lambda x: x[:, :1].astype("float16"), lambda n: RNG.normal(size=(n, 1)).astype("float16")),
    "no numbers": (lambda x: x[:, :1] * np.nan, lambda n: RNG.normal(size=(n, 1)) * np.nan),
    "other floats": (lambda x: 1 / (1 + np.exp(-x[:, :1])), lambda n: RNG.random((n, 1)).astype("float32")),
}


@pytest.mark.few(10)
@pytest.mark.parametrize("name", COMMON)
def test_values_that_others_have_too_say_nothing(name):
    made, ordinary = COMMON[name]
    x = records(4000)
    predicted_for([made(x)], [x])
    assert not of(records(4000), labels=[ordinary(4000)]).predicted.rows
    assert not of(ordinary(4000)).predicted.rows


def test_where_float32_is_full_of_values_chance_is_no_sign():
    x = records(60_000)
    dense = (1.0 + RNG.integers(0, 1 << 18, (60_000, 2)) * 2.0**-23).astype("float32")
    predicted_for([dense[:, :1].copy()], [x])
    assert not of(dense[:, 1:].copy()).predicted.rows
    assert of(dense[::-1, :1].copy()).predicted.rows


def test_of_large_predictions_a_sample_is_kept_that_parts_agree_on():
    x, start = records(30_000), predictions._table.rows
    made, other = predicted(x, 6), predicted(x[RNG.permutation(30_000)][:15_000].copy(), 6)
    assert predictions._table.rows - start <= 2 * 4096 // 6
    part = of(made[RNG.permutation(30_000)[:9000]])
    assert part.overlaps(of(x))
    assert part.overlaps(of(other[::-1].copy()))  # both keep the rows whose hashes are smallest


@pytest.fixture
def looked_at(monkeypatch):
    """Counts the values that are looked for, or hashed."""
    counts = []
    code, hashes = predictions._Table.code, predictions.hashes_of
    monkeypatch.setattr(predictions._Table, "code", lambda self, bits: counts.append(bits.size) or code(self, bits))
    monkeypatch.setattr(
        predictions, "hashes_of", lambda arrays: counts.append(sum(a.size for a in arrays)) or hashes(arrays)
    )
    return counts


def test_what_a_look_costs_does_not_grow_with_what_was_predicted(looked_at, monkeypatch):
    x, small = records(20_000), records(32)
    predicted(records())
    costs = []
    for _ in range(2):
        looked_at.clear()
        of(x)
        predicted(small, 10)
        predicted(x, 64)
        costs.append(sum(looked_at))
        for _ in range(256):
            predicted(records(900), 2)
    assert costs[1] <= 1.1 * costs[0] <= 1.1 * (1 << 18) + 4 * 80_000


def test_of_wide_inputs_a_bounded_part_is_hashed(looked_at, monkeypatch):
    monkeypatch.setattr(predictions, "_HASHED", 1 << 14)
    x = RNG.normal(size=(4000, 40)).astype("float32")
    made = predicted(x, 2)
    assert max(looked_at) <= 1 << 14
    assert of(made[::-1].copy()).overlaps(of(x[RNG.permutation(4000)]))


def test_disjoint_people_of_one_predicted_table_are_not_each_others():
    x = records(600)
    labels, embedded = predicted(x), predicted(x, 8)
    shard = RNG.integers(0, 3, 600)
    students = [of(x[shard == one].copy(), labels=[labels[shard == one]]) for one in range(3)]
    heads = [of(embedded[shard == one]) for one in range(3)]
    stacked = predicted(predicted(x, 4), 1)
    seconds = [of(stacked[shard == one]) for one in range(3)]
    for one in range(3):
        for other in range(one):
            for some in (students, heads, seconds):
                assert not some[one].overlaps(some[other])
            assert not heads[one].overlaps(of(x[shard == other]))  # nor are raw tables of the others
            assert not seconds[one].overlaps(heads[other])
        assert heads[one].overlaps(of(x[shard == one]))
        assert seconds[one].overlaps(of(np.column_stack([records(600)[shard == one], embedded[shard == one, 5:]])))
    assert not of(embedded[300:].copy()).overlaps(footprint_of([x[:300]], None))  # rows of one array, by their place
    assert of(embedded[200:].copy()).overlaps(footprint_of([x[:300]], None))


def test_what_is_predicted_for_a_catalogue_is_of_no_person():
    items = predicted(records(150), 8)
    groups = [of(np.column_stack([items[RNG.integers(0, 150, 900)], records(900)])) for _ in range(2)]
    assert not groups[0].overlaps(groups[1])


def test_rows_of_few_kinds_say_nothing():
    kinds = np.eye(12, dtype="float32")
    rows = lambda: kinds[RNG.integers(0, 12, 400)]  # noqa: E731
    weights = RNG.normal(size=(12, 1)).astype("float32")
    mine, others = rows(), rows()
    for one in (mine, others):
        predicted_for([one @ weights], [one])
    assert not of(others, labels=[others @ weights]).predicted.rows


def test_where_most_kinds_come_several_times_single_ones_say_nothing():
    kinds, single = records(30), records(20)
    x = np.concatenate([np.repeat(kinds, 5, 0), single])
    made = predicted(x)
    assert not of(made[::-1].copy()).predicted.rows


def test_a_value_that_was_predicted_for_different_records_is_of_none():
    x, others = records(), records()
    made = predicted(x)
    again = of(predicted_again(made, x))
    assert again.overlaps(of(x[ORDER]))
    assert not of(predicted_again(made, others)).predicted.rows


def predicted_again(made, x):
    predicted_for([made.copy()], [x.copy()])
    return made[ORDER]


@pytest.mark.parametrize("columns", [slice(-1, None), slice(8, 16), [6, 12, 18]], ids=str)
def test_each_of_many_outputs_is_looked_at(columns):
    x = records(600)
    assert of(predicted(x, 24)[ORDER][:, columns]).overlaps(of(x))
    wide = predicted(x, 500)
    assert of(wide[ORDER][:, -1:]).overlaps(of(x))


def test_columns_of_what_was_predicted_for_are_known_in_data_sets_of_as_many_rows():
    x = RNG.normal(size=(N + 1, 4)).astype("float32")
    paid = of(np.column_stack([x[:, 0], 3 * x[:, 1:]]))  # scaled but for one column
    assert of(predicted(x)[::-1].copy()).overlaps(paid)


def test_where_rows_cannot_be_looked_at_their_place_tells(tmp_path):
    np.save(tmp_path / "x.npy", records())
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    made = np.tanh(np.asarray(x) @ RNG.normal(size=(4, 1))).astype("float32")
    predicted_for([made], [x])
    assert of(made[ORDER]).overlaps(footprint_of([x], None))
    assert of(made[ORDER]).overlaps(of(np.column_stack([made[:, 0], records()])))


def test_threads_that_predict_at_once_do_no_harm():
    def work():
        for _ in range(60):
            x = records(40)
            found = living(of(predicted(x)))
        return found, x

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        last = [one.result() for one in [pool.submit(work) for _ in range(4)]]
    for number, (found, _) in enumerate(last):
        assert [found.overlaps(of(x)) for _, x in last] == [number == other for other in range(4)]


class Unreadable:
    shape = (N, 1)

    def __array__(self, *_, **__):
        raise RuntimeError("no array")


@pytest.mark.parametrize(
    "given", [{"a": 1}, "text", np.zeros((3, 4)), np.zeros((N, 0)), np.array(["a"] * N), None, Unreadable()]
)
def test_whatever_was_predicted_for_is_no_error(given):
    predicted_for([np.zeros((N, 1), "float32"), np.zeros((N, 0), "float32"), np.array(0.5)], [given])
    made = RNG.normal(size=(N, 1))
    predicted_for([made], [given])
    assert of(made[ORDER]).seen(of(records())) is None


def test_forecasts_of_forecasts_are_known_and_take_no_time():
    x = records()
    made = predicted(x, 4)
    for _ in range(40):
        made = predicted(made, 4)
    found = of(made[ORDER])
    assert len(found.predicted.rows) <= 8 * 4096
    assert of(predicted(predicted(x, 2))[ORDER]).overlaps(of(x[ORDER]))
    assert not found.overlaps(of(records()))
