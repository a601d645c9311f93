"""Items of sources that are no records are told of before anything is spent."""

import functools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches.several import warn_of_several

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


KEPT = [i for i in range(24) if i % 3]  # of `grain_like.Filter`


@pytest.mark.parametrize("workers", [0, 3])
def test_the_records_of_a_grain_data_set_with_a_filter_are_the_items_that_it_keeps(workers):
    for source in (grain_like.Filter(GRAIN), grain_like.Map(grain_like.Filter(GRAIN))):
        records = tfdp.records(source, workers=workers)
        assert len(records) == 16
        assert np.array_equal(records.take(np.arange(16), 16)[0], X[KEPT])


def test_ids_by_place_are_those_of_the_items_that_a_filter_keeps():
    source, ids = grain_like.Filter(GRAIN), np.arange(24) // 4
    assert fitted(source, unit_ids=ids[KEPT]) == 1
    assert np.array_equal(tfdp.records(source, unit_ids=ids[KEPT]).unit_ids, ids[KEPT])
    for made in (lambda given: fitted(source, unit_ids=given), lambda given: tfdp.records(source, unit_ids=given)):
        with pytest.raises(ValueError, match=r"each of the 16 records") as refused:
            made(ids)
        fixed = eval(re.search(r"\[one for .*? is not None\]", str(refused.value))[0], {"ids": ids, "source": source})
        assert np.array_equal(fixed, ids[KEPT])
        with pytest.raises(ValueError, match=r"moves records to other places \(\.shuffle\)"):
            tfdp.records(grain_like.Filter(grain_like.Shuffle(GRAIN, seed=1)), unit_ids=ids[KEPT])


def test_a_filter_that_drops_all_is_said():
    with pytest.raises(ValueError, match="its filter drops all"):
        tfdp.records(grain_like.Filter(grain_like.cut(GRAIN, 0, 1)))


def reading(source):
    """Ways to read a data set by places, as the error about None says, or as people write it."""
    kept = [i for i in range(len(source)) if source[i] is not None]

    def read(index, of=None):
        return source[index]

    class Reads(Source):
        def __init__(self):
            self.given = source

        def __getitem__(self, index):
            return self.given[index]

    class Closes(Source):
        def __init__(self):
            pass

        def __getitem__(self, index):
            return source[index]

    closing = Closes()
    return {
        "a method": lambda: tfdp.records(kept, source.__getitem__),
        "a closure": lambda: tfdp.records(kept, read),
        "a default": lambda: tfdp.records(kept, lambda index, of=source: of[index]),
        "a partial": lambda: tfdp.records(kept, functools.partial(lambda of, index: of[index], source)),
        "a function of a function": lambda: tfdp.records(kept, lambda index: read(index)),
        "a source's attribute": lambda: tfdp.records(kept, Reads().__getitem__),
        "a source": lambda: tfdp.records(Reads()),
        "a source's method": lambda: tfdp.records(Closes()),
        "a source in a closure": lambda: tfdp.records(kept, lambda index: closing[index]),
        "a step of Grain": lambda: tfdp.records(grain_like.Map(grain_like.source(kept), map_fn=source.__getitem__)),
        "a name": lambda: tfdp.records(
            kept, eval("lambda index: [named[one] for one in [index]][0]", {"named": source})
        ),
    }


WAYS = [*reading(GRAIN)]


@pytest.mark.filterwarnings("ignore:.*seem to be")
@pytest.mark.parametrize("way", WAYS)
def test_what_a_source_is_read_from_is_looked_at_as_the_source_is(way):
    """Else the fix that an error names would turn off what is refused and told of in a data set of Grain."""
    repeated = reading(grain_like.Repeat(GRAIN, length=48))[way]()
    with pytest.raises(ValueError, match="pipeline that repeats them"):
        fitted(repeated)
    zipped = grain_like.Zip(GRAIN, grain_like.Shuffle(GRAIN, seed=1), length=24)
    with pytest.raises(ValueError, match="Records meet in this Grain data set"):
        reading(grain_like.Map(zipped))[way]()
    moved = reading(grain_like.Shuffle(GRAIN, seed=1))[way]()
    with pytest.raises(ValueError, match=r"moves records to other places \(\.shuffle\)"):
        fitted(moved, unit_ids=np.arange(len(moved)) // 4)
    for step, message in (
        ("RandomMap", "random_map"),
        ("Batch", "is a batch of several"),
        ("Slice", "behind .shuffle"),
    ):
        source = grain_like.Shuffle(GRAIN, seed=1)
        made = grain_like.cut(source, 0, 20) if step == "Slice" else getattr(grain_like, step)(source)
        with pytest.warns(UserWarning, match=message):
            reading(made)[way]()


@pytest.mark.parametrize("way", WAYS)
def test_a_source_that_is_read_by_places_brings_no_word(way):
    for source in (GRAIN, grain_like.Map(GRAIN)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            records = reading(source)[way]()
        assert not records.repeated
        assert not records.moved


def test_a_pipeline_that_a_function_reads_by_index_is_looked_at_and_one_that_a_source_keeps_is_not():
    pipeline = tf.data.Dataset.from_tensor_slices((X, Y))
    at, twice = tf.data.experimental.at, pipeline.repeat(2)
    assert tfdp.records([*range(48)], lambda index: at(twice, index)).repeated
    source = Source(lambda index: (X[index], Y[index]))
    source.read_once = pipeline.repeat().batch(4)
    assert not tfdp.records(source).repeated


def test_a_public_pipeline_that_a_function_goes_through_is_none_of_the_records():
    public = tf.data.Dataset.from_tensor_slices(X).repeat()
    assert not tfdp.records([*range(24)], lambda index: (X[index] + 0 * next(iter(public)).numpy(), 0.0)).repeated


def test_the_refusal_names_a_data_set_that_code_holds_and_says_what_to_do_where_it_is_public():
    public = grain_like.Repeat(GRAIN, length=48)
    records = tfdp.records([*range(24)], lambda index: (X[index] + 0 * public[index][0], Y[index]))
    with pytest.raises(ValueError, match=r"Seen is a RepeatMapDataset, .*let the code hold what it gives"):
        fitted(records)
    with pytest.raises(ValueError, match="repeats them") as refused:
        fitted(tfdp.records(public))
    assert "Seen is" not in str(refused.value)
    given = [*map(public.__getitem__, range(48))]
    assert not tfdp.records([*range(24)], lambda index: (X[index] + 0 * given[index][0], Y[index])).repeated


class Raising(type):
    def __getattr__(cls, name):
        raise RuntimeError(name)


class OfRaising(metaclass=Raising):
    pass


class NoDict(Source):
    def __init__(self):
        pass

    @property
    def __dict__(self):
        raise RuntimeError("__dict__")

    def __getitem__(self, index):
        return X[index], Y[index]


def test_objects_that_cannot_be_looked_at_are_passed_by():
    odd = OfRaising()
    assert len(tfdp.records([*range(24)], lambda index: (X[index], Y[index]) if odd else None)) == 24
    assert len(tfdp.records(NoDict())) == 24


def test_attributes_that_are_called_as_a_data_set_elsewhere_are_none():
    names = {"GRAIN": grain_like.Repeat(GRAIN, length=48)}
    read = eval("lambda index: (float(index).GRAIN if index < 0 else float(index), 0.0)", names)
    assert not tfdp.records([*range(24)], read).repeated


def test_copies_are_looked_for_in_what_numbers_stand_for():
    with pytest.warns(UserWarning, match="The 96 records seem to be 12, each 8 times"):
        warn_of_several(tfdp.records([*range(96)], lambda index: (X[index % 12], Y[index % 12])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_several(tfdp.records([*range(24)], lambda index: (X[index], Y[index])))


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

    class ParquetIterDataset(grain_like.Stream):
        __module__ = grain_like.MODULE

    class MapIterDataset(grain_like.Stream):
        __module__, _parents = grain_like.MODULE, (ParquetIterDataset(),)

    with pytest.raises(ValueError, match=r"MapIterDataset of Grain is a stream.*Parquet files as arrays"):
        tfdp.records(MapIterDataset())


def test_the_name_of_an_entry_is_no_id():
    source = Source(lambda i: ({"x": X[i], "patient": i // 4}, Y[i]))
    for made in (lambda: fitted(source, unit_ids="patient"), lambda: tfdp.records(source, unit_ids="patient")):
        with pytest.raises(
            ValueError, match=r"names an entry.*unit_ids=\[source\[i\]\[0\]\['patient'\] for i in range"
        ):
            made()


def test_a_column_of_pandas_is_no_source_and_the_refusal_says_what_is_one():
    class Series:
        ndim, iloc = 1, None

        def __init__(self, values):
            self.values = values

        def __len__(self):
            return len(self.values)

        def __getitem__(self, index):
            return self.values[index]

        def __array__(self, *_, **__):
            return np.asarray(self.values, object)

    files = Series(["a.png", "b.png"])
    with pytest.raises(ValueError, match=r"^Series holds values.*tfdp\.records\(list\(values\), transform\)"):
        tfdp.records(files, lambda name: (X[len(name)], 0.0))
    assert len(tfdp.records(list(files), lambda name: (X[len(name)], np.float32(0)))) == 2
    with pytest.raises(ValueError, match=r"^ndarray holds values.*go to fit as they are\.$"):
        tfdp.records(np.zeros((4, 2)))
