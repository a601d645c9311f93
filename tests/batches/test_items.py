"""Items of sources that are no records are told of before anything is spent."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers import grain_like

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X[:, :1]
GRAIN = grain_like.source([*zip(X, Y, strict=True)])


class Source:
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.item(index)


def fitted(source, **arguments):
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", run_eagerly=True)
    try:
        model.fit(source, batch_size=6, verbose=0, accept_measured=True, **arguments)
    finally:
        spent = len(model.ledger.entries)
    return spent


def test_a_filter_of_grain_is_refused_and_what_it_keeps_is_taken():
    source = grain_like.Map(grain_like.Filter(GRAIN))
    for given in (source, [source]):
        with pytest.raises(
            ValueError, match=r"\.filter, which keeps its length.*tfdp\.records\(kept, source\.__getitem__"
        ):
            tfdp.records(given) if given is source else fitted(*given)
    source = grain_like.Filter(GRAIN)
    kept = [i for i in range(len(source)) if source[i] is not None]
    assert len(kept) == 16
    assert fitted(tfdp.records(kept, source.__getitem__), unit_ids=np.array(kept) // 4) == 1


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (lambda i: None, "Record 0 is None"),
        (
            lambda i: [X[i], Y[i]],
            r"Record 0 is, or holds, a list of 2, \['ndarray', 'ndarray'\].*tfdp\.records\(source, tuple",
        ),
        (lambda i: [X[i], X[i]], r"a list of 2"),
        (lambda i: [{"a": X[i]}, 1.0], "a list of 2"),
        (lambda i: ([X[i], X[i]], Y[i]), "a list of 2"),
        (lambda i: [[1.0, 2.0], [3.0]], "Rows of several lengths are padded"),
    ],
)
def test_items_that_are_no_records(item, says):
    for made in (lambda: fitted(Source(item)), lambda: tfdp.records(Source(item))):
        with pytest.raises(ValueError, match=says):
            made()


def test_lists_of_numbers_are_arrays_and_lists_of_parts_become_tuples():
    assert tfdp.records(Source(lambda i: ([1.0, 2.0], [[0.0], [1.0]]))).fields[1].shape == (2, 1)
    assert fitted(tfdp.records(Source(lambda i: [X[i], Y[i]]), tuple)) == 1


def test_none_in_the_middle_names_its_record():
    records = tfdp.records(Source(lambda i: (X[i], Y[i]) if i != 7 else None))
    with pytest.raises(ValueError, match="Record 7 is None"):
        records.take(np.arange(24), 24)


def test_streams_of_grain_have_no_index():
    for made in (lambda: fitted(grain_like.Stream()), lambda: tfdp.records(grain_like.Stream())):
        with pytest.raises(ValueError, match=r"Stream of Grain is a stream.*MapDataset before \.to_iter_dataset"):
            made()


def test_the_name_of_an_entry_is_no_id():
    source = Source(lambda i: ({"x": X[i], "patient": i // 4}, Y[i]))
    for made in (lambda: fitted(source, unit_ids="patient"), lambda: tfdp.records(source, unit_ids="patient")):
        with pytest.raises(
            ValueError, match=r"names an entry.*unit_ids=\[source\[i\]\[0\]\['patient'\] for i in range"
        ):
            made()
