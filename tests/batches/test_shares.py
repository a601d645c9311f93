"""The release that warnings of private shares advise runs as it is written, and the same `fit` goes on behind it."""

import re
import types
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.batches.shares import share_of
from tfdp_layers.sampling import FixedSize, Poisson

RECORDS = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(RECORDS, 2)).astype("float32")
LABELS = np.repeat([0, 1, 1, 1], 15)
LABELS[0] = 1  # of 46, which nobody chose
IDS = np.arange(RECORDS) // 3
ODDS = float(np.log(LABELS.mean() / (1.0 - LABELS.mean())))
FACTORS = {0: 0.5 / (1.0 - LABELS.mean()), 1: 0.5 / LABELS.mean()}
WHOSE: dict[str, dict[str, Any]] = {
    "records": {},
    "units": {"unit_ids": IDS},
    "owners": {"owners": IDS, "records_per_owner": 3},
    "declared": {"unit_ids": IDS, "examples": 20},
}
FORMS = {
    "numbers": LABELS,
    "column": LABELS[:, None],
    "one-hot": np.eye(2)[LABELS],
    "tensor": tf.constant(LABELS[:, None]),
}


def advised(do: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do()
    (text,) = [str(one.message) for one in caught if "before fit" in str(one.message)]
    (call,) = re.findall(r"tfdp\.release_metric\(.*?stddev=0\.01.*?\)", text)
    return str(call)


def released(call: str, model: Any, y: Any, whose: dict[str, Any]) -> float:
    return float(eval(call, {"tfdp": tfdp, "model": model, "y": y, **whose}))


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("form", FORMS)
def test_the_call_is_that_of_the_labels_and_of_whom_they_belong_to(form, whose):
    y, model, told = FORMS[form], types.SimpleNamespace(ledger=Ledger()), WHOSE[whose]
    call = advised(lambda: PrivateBatches(X, y, Poisson(8), class_weight=FACTORS, **told))
    assert abs(released(call, model, y, told) - LABELS.mean()) < 0.1
    (entry,) = model.ledger.entries
    assert entry.release.unit == {"records": "record", "owners": "owner"}.get(whose, "unit")
    assert entry.release.examples == (60 if whose in ("records", "owners") else 20)


def test_it_is_that_of_a_table_of_pandas():
    pandas = pytest.importorskip("pandas")
    for y in (pandas.Series(LABELS), pandas.DataFrame({"ill": LABELS})):
        call = advised(lambda y=y: PrivateBatches(X, y, Poisson(8), class_weight=FACTORS))
        assert abs(released(call, types.SimpleNamespace(ledger=Ledger()), y, {}) - LABELS.mean()) < 0.1


def model_of(bias: float = 0.0) -> Any:
    last = keras.layers.Dense(1, "sigmoid", bias_initializer=keras.initializers.Constant(bias))
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), last]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 2.0), "binary_crossentropy")
    return model


FITS: dict[str, tuple[float, dict[str, Any]]] = {
    "weights, units": (0.0, {"class_weight": FACTORS, "unit_ids": IDS}),
    "odds, units": (ODDS, {"unit_ids": IDS}),
    "odds, owners": (ODDS, {"owners": IDS, "records_per_owner": 3}),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", FITS)
def test_a_fit_with_the_same_ids_goes_on_behind_it(name):
    bias, options = FITS[name]
    options, y = {"batch_size": 10, "verbose": 0, **options}, LABELS[:, None]
    warned, model = model_of(bias), model_of()
    call = advised(lambda: warned.fit(X, y, **options))
    released(call, model, y, options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Other ledgers|The classes weigh")
        model.fit(X, y, **options)
    assert len(model.ledger.entries) == 2


def test_of_another_relation_it_says_that_fit_must_draw_otherwise():
    assert "then train by Poisson sampling" in share_of(LABELS, sampling=FixedSize(8))
    assert share_of(LABELS, sampling=Poisson(8)) == share_of(LABELS)


def test_of_several_outputs_it_leaves_the_labels_open():
    for y in ({"a": LABELS, "b": LABELS}, (LABELS, LABELS), [LABELS, LABELS]):
        assert share_of(y).startswith("tfdp.release_metric(labels == 1, ")
