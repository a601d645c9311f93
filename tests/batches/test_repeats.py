"""Records that a pipeline or a source gives several times are refused where a record is what is protected."""

import sys

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.repeats import repeats

Dataset = tf.data.Dataset
X = np.arange(40.0, dtype="float32").reshape(20, 2)
ALONE = Dataset.from_tensor_slices(X)
PAIRS = Dataset.from_tensor_slices((X, X[:, 0]))
TURNS = Dataset.range(2).repeat(20)


class MapDataset:
    """As Grain makes them."""

    __module__ = "grain._src.python.dataset.dataset"

    def __init__(self, length=20, parents=()):
        self._length, self._parents = length, parents

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return X[index % 20], X[index % 20, 0]


class RepeatMapDataset(MapDataset):
    __module__ = MapDataset.__module__


REPEATED = {
    "repeat": PAIRS.repeat(3),
    "before other steps": PAIRS.repeat(2).map(lambda x, y: (x + 1.0, y)).shuffle(9).prefetch(1),
    "endless, then cut": PAIRS.repeat().take(50),
    "oversampled": Dataset.sample_from_datasets([PAIRS.repeat(), PAIRS], [0.5, 0.5]).take(30),
    "behind itself": PAIRS.concatenate(PAIRS.repeat(2)),
    "all of a zip": Dataset.zip((ALONE.repeat(2), ALONE.repeat(2))),
    "enumerated": PAIRS.repeat(2).enumerate().map(lambda _, pair: pair),
    "Grain": RepeatMapDataset(200),
    "Grain, before other steps": MapDataset(200, (MapDataset(200, (RepeatMapDataset(200),)),)),
}
ONCE = {
    "plain": PAIRS.shuffle(20),
    "repeat(1)": PAIRS.repeat(1),
    "a label for all": Dataset.zip((ALONE, Dataset.from_tensors(0.0).repeat())),
    "a mixture of two": Dataset.sample_from_datasets([PAIRS.take(9), PAIRS.skip(9)], [0.5, 0.5]),
    "in turns": Dataset.choose_from_datasets([PAIRS.take(10), PAIRS.skip(10)], TURNS),
    "counted": PAIRS.enumerate().map(lambda _, pair: pair),
    "two parts": PAIRS.take(3).concatenate(PAIRS.skip(3)),
    "Grain": MapDataset(20, (MapDataset(),)),
    "another library's": type("Repeat", (MapDataset,), {"__module__": "mine"})(),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_repeats_records_is_refused_unless_it_is_said_whose_they_are(name):
    records = tfdp.records(REPEATED[name])
    with pytest.raises(ValueError, match=r"Leave \.repeat out"):
        tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5))
    ids = np.arange(len(records)) % 20
    assert tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(5), unit_ids=ids).examples == 20


@pytest.mark.parametrize("name", ONCE)
def test_what_repeats_no_record_is_taken(name):
    assert not repeats(ONCE[name])
    tfdp.PrivateBatches(tfdp.records(ONCE[name]), sampling=tfdp.sampling.Poisson(5))


def test_a_source_without_an_end_is_refused():
    """Grain's repeat() has this length: an epoch would be as many steps."""
    with pytest.raises(ValueError, match="source is endless"):
        tfdp.records(MapDataset(sys.maxsize // 20 * 20))
