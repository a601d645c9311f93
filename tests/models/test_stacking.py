"""A head on predictions out of folds adds to what the people of the folds paid: its `fit` warns of their ledger."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.several_ledgers import compiled, said

RNG = np.random.default_rng(8)
N = 240
ORDER = RNG.permutation(N)


def records():
    return RNG.normal(size=(N, 4)).astype("float32")


def head(ledger=None):
    return compiled([keras.Input((1,)), keras.layers.Dense(1)], ledger)


def fit(model, x, y):
    model.fit(x, y, batch_size=30, verbose=0, examples=len(x))
    return model


@pytest.mark.parametrize(
    "paid",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["a ledger of its own", "that of the folds"],
)
def test_a_head_on_predictions_out_of_folds_warns_unless_one_ledger_pays(paid):
    x, y, fold = records(), RNG.normal(size=(N, 1)).astype("float32"), RNG.integers(0, 2, N)
    ledger, out = tfdp.accounting.Ledger(), np.zeros((N, 1), "float32")
    for one in range(2):
        base = fit(compiled([keras.Input((4,)), keras.layers.Dense(1)], ledger), x[fold != one], y[fold != one])
        out[fold == one] = base.predict(x[fold == one], verbose=0)
    found = said(lambda: fit(head(None if paid else ledger), out, RNG.normal(size=(N, 1))))
    assert len(found) == paid
    assert not paid or "predictions among the values" in str(found[0].message)


def test_ordinary_programs_with_predictions_are_silent():
    x, y = records(), RNG.normal(size=(N, 1)).astype("float32")
    base = fit(compiled([keras.Input((4,)), keras.layers.Dense(1)]), x, y)
    others = records()
    labels = base.predict(others, verbose=0)[ORDER]  # a private model labels other people's records
    assert said(lambda: fit(compiled([keras.Input((4,)), keras.layers.Dense(1)]), others[ORDER], labels)) == []
    base.predict(x, verbose=0)  # to look at them
    assert said(lambda: fit(head(), RNG.normal(size=(N, 1)), RNG.normal(size=(N, 1)))) == []


def test_students_of_one_teacher_on_disjoint_shards_are_silent():
    base = fit(compiled([keras.Input((4,)), keras.layers.Dense(1)]), records(), RNG.normal(size=(N, 1)))
    public, shard = records(), RNG.integers(0, 2, N)
    labels = base.predict(public, verbose=0)
    for one in range(2):
        student = compiled([keras.Input((4,)), keras.layers.Dense(1)])
        assert said(lambda: fit(student, public[shard == one], labels[shard == one])) == []  # noqa: B023
