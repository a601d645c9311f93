"""Predictions of private models are known again by their values: parts, other orders, folds, columns, labels."""

import numpy as np
import pytest

from tfdp_layers.accounting import predictions
from tfdp_layers.accounting.footprint import footprint_of, predicted_for

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
    assert found.predicted
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


@pytest.mark.parametrize("name", COMMON)
def test_values_that_others_have_too_say_nothing(name):
    made, ordinary = COMMON[name]
    x = records(4000)
    predicted_for([made(x)], [x])
    assert not of(records(4000), labels=[ordinary(4000)]).predicted
    assert not of(ordinary(4000)).predicted


def test_where_float32_is_full_of_values_chance_is_no_sign():
    x = records(60_000)
    dense = (1.0 + RNG.integers(0, 1 << 18, (60_000, 2)) * 2.0**-23).astype("float32")
    predicted_for([dense[:, :1].copy()], [x])
    assert not of(dense[:, 1:].copy()).predicted
    assert of(dense[::-1, :1].copy()).predicted


def test_of_large_predictions_a_sample_is_kept_that_parts_agree_on(monkeypatch):
    monkeypatch.setattr(predictions, "_predictions", type(predictions._predictions)(maxlen=3))
    x = records(30_000)
    made = predicted(x, 6)
    (kept,) = predictions._predictions
    assert kept.hashes.nbytes <= 8 * 4096
    assert of(made[RNG.permutation(30_000)[:9000]]).overlaps(of(x))
    for _ in range(4):
        predicted(records())
    assert len(predictions._predictions) == 3


@pytest.mark.parametrize("given", [{"a": 1}, "text", np.zeros((3, 4)), np.zeros((N, 0)), np.array(["a"] * N), None])
def test_whatever_was_predicted_for_is_no_error(given):
    predicted_for([np.zeros((N, 1), "float32"), np.zeros((N, 0), "float32"), np.array(0.5)], [given])
    predicted_for([RNG.normal(size=(N, 1))], [given])


def test_forecasts_of_forecasts_are_known_and_take_no_time():
    x = records()
    made = predicted(x, 4)
    for _ in range(40):
        made = predicted(made, 4)
    found = of(made[ORDER])
    assert len(found.predicted) <= 48
    assert not any(one.predicted for one in found.predicted)
    assert of(predicted(predicted(x, 2))[ORDER]).overlaps(of(x[ORDER]))
    assert not found.overlaps(of(records()))
