"""Records from pipelines and sources say whose they are, and all that draws them protects persons."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(24, 3)).astype("float32"), np.arange(24) % 2
PATIENTS = np.array([f"p{number // 3}" for number in range(24)])  # 8 of them
NUMBERED = np.arange(24) // 3


def pipeline(ids=PATIENTS):
    return tf.data.Dataset.from_tensor_slices(({"x": X, "patient": ids}, Y))


def alone():
    return tf.data.Dataset.from_tensor_slices({"x": X, "patient": PATIENTS})


class Source:
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


RECORDS = {
    "an entry of x": lambda: tfdp.records(pipeline(), unit_ids="patient"),
    "an entry of x, in a column": lambda: tfdp.records(pipeline(PATIENTS[:, None]), unit_ids="patient"),
    "an entry of x alone": lambda: tfdp.records(alone(), unit_ids="patient"),
    "numbers": lambda: tfdp.records(pipeline(NUMBERED), unit_ids="patient"),
    "ids beside a pipeline": lambda: tfdp.records(tf.data.Dataset.from_tensor_slices((X, Y)), unit_ids=PATIENTS),
    "ids beside a source": lambda: tfdp.records(Source(), unit_ids=PATIENTS.tolist()),
    "ids beside a list": lambda: tfdp.records(list(zip(X, Y, strict=True)), unit_ids=NUMBERED),
}


@pytest.mark.parametrize("made", RECORDS.values(), ids=RECORDS)
def test_units_are_drawn_with_one_record_each(made):
    batches = tfdp.PrivateBatches(made(), sampling=tfdp.sampling.FixedSize(8))
    assert (batches.unit, batches.examples) == ("unit", 8)
    for _ in range(3):
        x, *_ = next(batches.stream())
        rows = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in x]
        assert sorted(row // 3 for row in rows) == [*range(8)]


def test_fit_protects_persons():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", run_eagerly=True)
    records = tfdp.records(pipeline(), unit_ids="patient")
    model.fit(records, batch_size=4, records_per_unit=2, verbose=0, accept_measured=True)
    release = model.ledger.entries[0].release
    assert (release.unit, release.examples, release.records_per_unit) == ("unit", 8, 2)
    for given in ({"unit_ids": PATIENTS}, {"owners": PATIENTS}):
        with pytest.raises(ValueError, match="say whose they are already"):
            model.fit(records, batch_size=4, verbose=0, **given)


def test_of_several_inputs_the_names_stay():
    two = tf.data.Dataset.from_tensor_slices(({"a": X, "b": X[:, :1], "patient": PATIENTS}, Y))
    batches = tfdp.PrivateBatches(tfdp.records(two, unit_ids="patient"), sampling=tfdp.sampling.FixedSize(8))
    x, *_ = next(batches.stream())
    assert {name: one.shape for name, one in x.items()} == {"a": (8, 3), "b": (8, 1)}


def test_numbered_ids_are_kept_in_a_cache(tmp_path):
    for _ in range(2):
        records = tfdp.records(pipeline(NUMBERED), unit_ids="patient", cache=tmp_path / "kept")
        assert tfdp.PrivateBatches(records, sampling=tfdp.sampling.FixedSize(8)).unit == "unit"


@pytest.mark.parametrize(
    ("source", "ids", "says"),
    [
        (pipeline, "name", r"x, a dict, and it has \['x', 'patient'\].*one id a record"),
        (lambda: tf.data.Dataset.from_tensor_slices((X, Y)), "patient", "x is no dict"),
        (lambda: alone().map(lambda x: {"patient": x["patient"]}), "patient", "beside what the model takes"),
        (Source, "patient", "Give one id a record"),
        (Source, PATIENTS[:9], r"one id for each of the 24 records.*\(9,\)"),
        (lambda: pipeline(np.where(NUMBERED == 1, np.nan, NUMBERED)), "patient", "3 of the 24 `unit_ids` are missing"),
        (Source, [None, *PATIENTS[1:]], "1 of the 24 `unit_ids` are missing"),
    ],
)
def test_ids_that_say_nothing(source, ids, says):
    with pytest.raises(ValueError, match=says):
        tfdp.PrivateBatches(tfdp.records(source(), unit_ids=ids), sampling=tfdp.sampling.FixedSize(8))


def test_the_fix_presumes_no_order_of_the_parts_and_works_where_the_ids_come_last():
    """Pasted as it stands, a fix for (x, ids, y) made people of the labels of (x, y, ids)."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, PATIENTS))
    with pytest.raises(ValueError, match="in the order in which your dataset gives them") as raised:
        tfdp.records(dataset, unit_ids="patient")
    said = str(raised.value)
    assert "(here float32 (3,), int64 (), string ())" in said
    fixed = eval(re.search(r"dataset\.map\(.*\(\{.*\}, y\)\)", said)[0], {"dataset": dataset})
    batches = tfdp.PrivateBatches(tfdp.records(fixed, unit_ids="patient"), sampling=tfdp.sampling.FixedSize(8))
    assert batches.examples == 8
    with pytest.raises(ValueError, match=r"gives them, or labels"):  # parts that are no tensors are not listed
        tfdp.records(tf.data.Dataset.from_tensor_slices(({"a": X}, Y)), unit_ids="patient")


@pytest.mark.parametrize("ids", [NUMBERED, PATIENTS])
def test_ids_are_not_taken_for_weights(ids):
    """As the third part of a record they are its weight: a record of patient 7,000 would weigh 7,000."""
    with pytest.raises(ValueError, match=r"tfdp.records\(dataset, unit_ids='patient'\)"):
        tfdp.records(tf.data.Dataset.from_tensor_slices((X, Y, ids)))
    weighted = tfdp.records(tf.data.Dataset.from_tensor_slices((X, Y, NUMBERED.astype("float32"))))
    assert len(weighted) == 24
