"""Whatever records lie in, it is seen where a measurement or a person is in several of them."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

N, STEPS = 200, 16
RNG = np.random.default_rng(0)
SERIES = np.cumsum(RNG.normal(size=(N + STEPS, 3)), axis=0).astype("float32")
TOKENS = RNG.integers(0, 50, N * STEPS + 1).astype("int32")
PATIENTS = RNG.normal(size=(N // 4, 6)).astype("float32").repeat(4, 0)
VISITS = RNG.normal(size=(N, 5)).astype("float32")
TARGETS = RNG.normal(size=(N, 1)).astype("float32")

SEVERAL = {
    "windows": (np.stack([SERIES[i : i + STEPS] for i in range(N)]), SERIES[STEPS:, :1], "Records overlap"),
    "blocks": (TOKENS[:-1].reshape(N, STEPS), TOKENS[1:].reshape(N, STEPS), "Records go on in one another"),
    "visits": ((PATIENTS, VISITS), TARGETS, "Rows of one input come again"),
}
DISTRICTS = RNG.normal(size=(8, 5)).astype("float32")[np.sort(RNG.integers(0, 8, N))]
APART = {
    "series of their own": (RNG.normal(size=(N, STEPS, 3)).astype("float32"), TARGETS),
    "texts of their own": (
        np.where(np.arange(STEPS) < RNG.integers(4, STEPS, (N, 1)), RNG.integers(1, 50, (N, STEPS)), 0),
        TARGETS,
    ),
    "a table": (VISITS, TARGETS),
    "two inputs": ((VISITS, RNG.normal(size=(N, 6)).astype("float32")), TARGETS),
    "districts": ((VISITS, DISTRICTS), TARGETS),
}


class Source:
    def __init__(self, x, y):
        self.x, self.y, self.read = x, y, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        self.read += 1
        return tf.nest.map_structure(lambda one: one[index], (self.x, self.y))


class Made:
    """Items that a transform makes records of."""

    def __init__(self, x, y):
        self.source = Source(x, y)

    def records(self):
        return tfdp.records(range(len(self.source)), self.source.__getitem__)


def mapped(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def lists(x, y):
    source = Source(x, y)
    return tfdp.records([source[i] for i in range(len(source))])


def cached(x, y, folder):
    return tfdp.records(tf.data.Dataset.from_tensor_slices((x, y)), cache=folder / "cache")


PLACES = {
    "a class": lambda x, y, folder: tfdp.records(Source(x, y)),
    "a list": lambda x, y, folder: lists(x, y),
    "a transform": lambda x, y, folder: Made(x, y).records(),
    "a folder": cached,
}


def said(records, batch_size=10, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(batch_size), **options)
    return [str(one.message) for one in caught]


def said_of(x, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.PrivateBatches(x, y, sampling=tfdp.sampling.Poisson(10))
    return [str(one.message) for one in caught]


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ["windows", "blocks"])
@pytest.mark.parametrize("where", PLACES)
def test_persons_of_several_records_are_seen_wherever_these_lie(name, where, tmp_path):
    x, y, says = SEVERAL[name]
    assert any(one.startswith(says) for one in said(PLACES[where](x, y, tmp_path)))


@pytest.mark.few(8)
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("where", PLACES)
def test_records_of_their_own_bring_no_warning(name, where, tmp_path):
    x, y = APART[name]
    assert said(PLACES[where](x, y, tmp_path)) == []


@pytest.mark.parametrize("name", ["windows", "blocks"])
def test_mapped_arrays_are_looked_at(name, tmp_path):
    x, y, says = SEVERAL[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x, y = mapped(x, tmp_path / "x.npy"), mapped(y, tmp_path / "y.npy")
        tfdp.PrivateBatches(x, y, sampling=tfdp.sampling.Poisson(10))
    assert any(str(one.message).startswith(says) for one in caught)


def test_rows_that_come_again_are_seen_in_arrays_alone():
    """Of a few records nobody can tell whether rows come again that many share."""
    x, y, says = SEVERAL["visits"]
    assert any(one.startswith(says) for one in said_of(x, y))
    assert said(tfdp.records(Source(x, y))) == []


def test_units_are_left_in_peace_where_their_windows_are_their_own():
    x, y, says = SEVERAL["windows"]
    whose = np.arange(N) // 50
    (message,) = said(tfdp.records(Source(x, y)), batch_size=2, unit_ids=whose)
    assert message.startswith(says)
    assert "of somebody else" in message
    own = np.concatenate([RNG.normal(size=(1, 3)) + SERIES[i : i + 50 + STEPS] for i in range(4)]).astype("float32")
    own = np.concatenate([[own[66 * k + i : 66 * k + i + STEPS] for i in range(50)] for k in range(4)])
    assert said(tfdp.records(Source(own, y)), batch_size=2, unit_ids=whose) == []


def test_few_records_are_read_for_it():
    x, y = APART["two inputs"]
    source = Source([x[0].repeat(50, 0), x[1].repeat(50, 0)], y.repeat(50, 0))
    source.x = tuple(source.x)
    records = tfdp.records(source)
    before = source.read
    said(records)
    assert source.read - before < 150


def test_a_record_that_cannot_be_read_is_told_of_where_it_is_drawn():
    x, y = np.ones((40, 4), np.float32), np.ones((40, 1), np.float32)
    x[7] = np.nan
    assert said(tfdp.records(Source(x, y))) == []
