"""Batches: shapes, padding that adds nothing, memory, weights, and what is refused before a draw."""

import math
import tracemalloc
from collections.abc import Callable
from itertools import islice
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.numbered_records import ONES, RECORDS, WAYS, drawn, fetched, numbered
from tfdp_layers import PrivateBatches
from tfdp_layers.batches import stores
from tfdp_layers.batches.base import Batches
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, Sampling, TruncatedPoisson, entropy_generator

ALL_KINDS = [Poisson(8), TruncatedPoisson(8), FixedSize(8), Partition(8), Cyclic(8)]


# Shapes, dtypes, structures


@pytest.mark.parametrize("way", WAYS)
def test_dtypes_are_kept_except_float64_and_the_records_of_a_row_belong_together(way: str) -> None:
    pixels = np.arange(RECORDS * 3, dtype=np.uint8).reshape(RECORDS, 3)
    x = {"image": pixels, "side": [numbered().astype(np.float64), tf.constant(numbered())]}
    y = (np.arange(RECORDS, dtype=np.int32), numbered() > 3)
    weight = np.linspace(0.5, 1.0, RECORDS)
    batch = next(fetched(PrivateBatches(x, y, FixedSize(7), sample_weight=(weight, weight * 2)), way))
    records = batch[1][0]
    assert batch[0]["image"].dtype == np.uint8
    assert batch[0]["side"][0].dtype == np.float32
    assert batch[2][0].dtype == np.float32
    assert batch[1][1].dtype == bool
    np.testing.assert_array_equal(batch[0]["image"], pixels[records])
    np.testing.assert_array_equal(batch[0]["side"][1], numbered()[records])
    np.testing.assert_array_equal(batch[1][1], (numbered() > 3)[records])
    np.testing.assert_allclose(batch[2][1], 2 * weight[records], rtol=1e-6)
    assert len(set(records)) == 7


@pytest.mark.parametrize("source", ["arrays", "two outputs", "pipeline", "records", "declared"])
def test_a_column_of_weights_is_what_keras_takes_it_for(source: str) -> None:
    x, column = numbered(8), np.linspace(0.5, 1.0, 8, dtype="float32")[:, None]
    if source == "arrays":
        batches: Any = PrivateBatches(x, x, FixedSize(8), sample_weight=column)
    elif source == "two outputs":
        batches = PrivateBatches(x, (x, x), FixedSize(8), sample_weight=(column, 2 * column))
    elif source == "records":
        batches = PrivateBatches(tfdp.records(list(zip(x, x, column, strict=True))), None, FixedSize(8))
    else:
        dataset = tf.data.Dataset.from_tensor_slices((x, x, column))
        if source == "pipeline":
            batches = PrivateBatches(tfdp.records(dataset), None, FixedSize(8))
        else:
            batches = tfdp.declare_sampling(dataset.batch(8), Partition(8), examples=8)
    drawn, _, weights = next(iter(batches.dataset()))
    wanted = column[np.asarray(drawn)[:, 0].astype(int) - 1, 0]
    np.testing.assert_allclose(keras.tree.flatten(weights)[0], wanted, rtol=1e-6)
    assert {tuple(leaf.shape) for leaf in keras.tree.flatten(weights)} == {(8,)}


def test_weights_of_positions_are_refused_in_records_too() -> None:
    with pytest.raises(ValueError, match=r"weight of shape \(2,\): weights are one number a record"):
        tfdp.records([(1.0, 1.0, np.ones(2))])


def test_without_targets_y_is_none() -> None:
    batches = PrivateBatches(numbered(), sampling=FixedSize(4))
    assert batches[0][1] is None
    assert next(iter(batches.dataset()))[1] is None


@pytest.mark.parametrize("sampling", ALL_KINDS, ids=lambda s: s.kind)
def test_states_what_the_model_reads(sampling: Sampling) -> None:
    batches = PrivateBatches(numbered(), sampling=sampling, physical_batch_size=np.int64(3))
    assert isinstance(batches, Batches)
    assert isinstance(batches, keras.utils.PyDataset)
    assert (len(batches), batches.examples, batches.physical_batch_size) == (math.ceil(RECORDS / 8), RECORDS, 3)
    assert (batches.sampling, batches.seeded, batches.declared) == (sampling, False, False)
    assert PrivateBatches(numbered(), sampling=sampling, seed=0).seeded


def test_an_ordinary_keras_model_fits_on_it() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(PrivateBatches(numbered() / RECORDS, np.ones(RECORDS), Poisson(8)), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


# Padding


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("physical", [None, 6])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampling", ALL_KINDS, ids=lambda s: s.kind)
def test_padding_is_zero_with_weight_zero_and_nothing_drawn_is_lost(
    sampling: Sampling, way: str, physical: int | None, pad: bool
) -> None:
    x = numbered()
    batches = PrivateBatches(x, x[:, 0], sampling, physical, seed=3)
    sizes = set()
    expected = sampling.draws(RECORDS, entropy_generator(3))
    for batch in islice(fetched(batches, way, pad), 20):
        records, (features, targets, weights) = next(expected), batch
        assert drawn(batch) == tuple(records)
        assert len(features) == len(targets) == len(weights)
        assert set(weights[: len(records)]) <= {1.0}
        for array in batch:
            assert not array[len(records) :].any()
        sizes.add(len(weights))
    if sampling.largest(RECORDS) is not None:
        assert len(sizes) == 1
    if pad and physical:
        assert all(size % physical == 0 for size in sizes)


def test_padded_poisson_has_few_sizes_and_little_padding() -> None:
    batches = PrivateBatches(numbered(20_000), sampling=Poisson(1024))
    sizes = [(len(weights), weights.sum()) for _, _, weights in islice(batches.stream(pad=True), 200)]
    assert len({rows for rows, _ in sizes}) <= 5
    assert max(rows - real for rows, real in sizes) < 1024 / 8


def test_a_step_of_padding_is_no_finer_than_the_draws_vary() -> None:
    batches = PrivateBatches(numbered(1000), sampling=Poisson(16))
    assert len({len(weights) for _, _, weights in islice(batches.stream(pad=True), 300)}) <= 10


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_an_empty_draw_is_rows_of_padding(way: str, pad: bool) -> None:
    batches = PrivateBatches(numbered(3), numbered(3), Poisson(1), examples=10**9)
    for x, y, weights in islice(fetched(batches, way, pad), 3):
        assert x.shape == y.shape == (2, 2)
        assert not x.any()
        assert not weights.any()
    assert batches[0][2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("sampling", "piece", "fewest"), [(Poisson(1), None, 2), (Poisson(1), 1, 1), (FixedSize(1), None, 1)]
)
def test_draws_of_varying_size_are_never_computed_as_one_row(
    sampling: Sampling, piece: int | None, fewest: int
) -> None:
    """Kernels may round one row otherwise than two; pieces of one record, and constant sizes, are all alike."""
    batches = PrivateBatches(numbered(5), sampling=sampling, physical_batch_size=piece)
    for pad in (False, True):
        sizes = {len(weights) for _, _, weights in islice(batches.stream(pad=pad), 60)}
        assert min(sizes) == fewest


def test_no_piece_is_a_single_row() -> None:
    batches = PrivateBatches(numbered(60), sampling=Poisson(17), physical_batch_size=4)
    sizes = {len(weights) for _, _, weights in islice(batches.stream(), 200)}
    assert len(sizes) > 8
    assert all(size % 4 != 1 for size in sizes)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("sampling", ALL_KINDS, ids=lambda s: s.kind)
def test_thirty_batches_trace_a_step_once(sampling: Sampling, pad: bool) -> None:
    traces = []

    @tf.function
    def step(iterator: Any) -> Any:
        x, y, weights = next(iterator)
        traces.append(x.shape)
        return tf.reduce_sum(x * weights[:, None]) + tf.reduce_sum(y)

    dataset = PrivateBatches(numbered(), numbered()[:, 0], sampling).dataset(pad)
    iterator = iter(dataset)
    for _ in range(30):
        step(iterator)
    assert len(traces) == 1
    constant = sampling.largest(RECORDS)
    assert dataset.element_spec[0].shape.as_list() == [constant, 2]


# Memory


def test_mapped_pixels_larger_than_memory_are_drawn(tmp_path: Any) -> None:
    x = np.memmap(tmp_path / "sparse.bin", np.uint8, "w+", shape=(1 << 20, 1 << 18))  # 256 GiB, none of it on disk
    y = np.zeros(len(x), np.int32)
    for view in (x, x[::-1]):  # np.take would copy the second, whose memory runs backwards
        batches = PrivateBatches(view, y, Poisson(4))
        assert next(iter(batches.dataset(pad=True)))[0].shape[1:] == (1 << 18,)


def test_mapped_floats_are_checked_and_drawn_in_pieces(tmp_path: Any) -> None:
    path, size = tmp_path / "floats.bin", 96 << 20
    x = np.memmap(path, np.float32, "w+", shape=(size // 4096, 1024))

    def peak(work: Callable[[], Any]) -> int:
        tracemalloc.start()
        work()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(lambda: next(PrivateBatches(x, None, FixedSize(16)).dataset().as_numpy_iterator())) < size / 4
    assert peak(lambda: np.isfinite(x).all() and np.array(x)) > size  # the measure sees a copy
    x[-1, -1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        PrivateBatches(x, None, FixedSize(16))


def test_tensors_are_kept_only_of_small_arrays_in_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "records.npy", numbered())
    on_disk = np.load(tmp_path / "records.npy", mmap_mode="r")

    def keeps_tensors(x: np.ndarray) -> bool:
        batches = PrivateBatches(x, sampling=Poisson(8))
        next(iter(batches.dataset()))
        return bool(batches._store._tensors)

    assert keeps_tensors(numbered())
    assert not keeps_tensors(on_disk)
    assert not keeps_tensors(np.asarray(on_disk)[::2])
    monkeypatch.setattr("tfdp_layers.batches.stores.COPY_BYTES", 100)
    assert not keeps_tensors(numbered())


# Weights


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(RECORDS) % 3,
        (np.arange(RECORDS) % 3).reshape(-1, 1).astype(np.float32),
        np.eye(3)[np.arange(RECORDS) % 3],
    ],
    ids=["integers", "column", "one-hot"],
)
@pytest.mark.parametrize(
    "kind", [dict, lambda given: {float(label): of for label, of in given.items()}, lambda given: Series(given)]
)
def test_class_weights_multiply_the_weights_of_their_records(labels: np.ndarray, kind: Callable[[Any], Any]) -> None:
    weight = np.linspace(1, 2, RECORDS)
    factors = np.array([1.0, 5.0, 0.25])[np.arange(RECORDS) % 3]  # class 0 is not named
    for given, expected in ((None, factors), (weight, weight * factors)):
        options = {"sample_weight": given, "class_weight": kind({1: 5, 2: 0.25, 7: 9.0})}
        batches = PrivateBatches(numbered(), labels, Partition(RECORDS), **options)
        x, _, weights = batches[0]
        np.testing.assert_allclose(weights, expected[x[:, 0].astype(int) - 1], rtol=1e-6)


class Series:
    """As pandas', which is no Mapping."""

    iloc = None

    def __init__(self, given: dict[int, float]) -> None:
        self.items = given.items


# Refusals: before anything is drawn

NAN = np.where(numbered() == 7, np.nan, 123456.0)
INFINITE = np.where(numbered() == 7, np.inf, 1.0).astype(np.float16)


def stacked(rows: Any) -> np.ndarray:
    """As pandas keeps a column of arrays: each row an object."""
    column = np.empty(RECORDS, object)
    column[:] = list(rows)
    return column


class Frame:
    """A data frame as far as a check looks at one: its columns' types, and all of it as objects."""

    def __init__(self, **types: str) -> None:
        self.dtypes = {name: np.dtype(kind) for name, kind in types.items()}

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array([[None] * len(self.dtypes)] * RECORDS, dtype=object)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (numbered(0), None, {}, "empty"),
        ({}, None, {}, "empty"),
        (numbered(), numbered(49), {}, "50.*49"),
        ({"a": numbered(), "b": numbered(49)}, None, {}, "first axes"),
        (np.array([[1], [2, 3]] * 25, dtype=object), None, {}, "pad them to one"),
        (np.zeros(RECORDS, complex), None, {}, "[Ee]ncode"),
        (np.zeros(RECORDS, "datetime64[s]"), None, {}, "Count days"),
        (numbered(), np.array(["yes"] * RECORDS), {}, "Number the classes"),
        (np.zeros(RECORDS, np.dtype(">f4")), None, {}, "[Ee]ncode"),
        (np.array(["text", None] * (RECORDS // 2), object), None, {}, "strings are missing"),
        (tf.ragged.constant([[1], [2, 3]] * 25), None, {}, r"shape=\(None, N\).*that you know beforehand"),
        (tf.sparse.eye(RECORDS), None, {}, r"tf.sparse.to_dense\(x\)\.$"),
        (np.ma.masked_array(numbered(), numbered() == 3), None, {}, r"x.filled\(0\)"),
        ([1, 2, 3], None, {}, "asarray"),
        (None, None, {}, "array"),
        (np.float32(1), None, {}, "scalar"),
        (NAN, None, {}, "NaN"),
        (Frame(age="i8", ward="O"), None, {}, r"several types \(no numbers: ward\)"),
        (Frame(age="i8", income="f8"), None, {}, r"then x\.astype\('float32'\)"),
        (numbered(), INFINITE, {}, "y holds NaN or inf"),
        ({"age": numbered(), "income": NAN}, None, {}, r"x\['income'\] holds NaN.*nan_to_num\(x\['income'\]\.astype"),
        (numbered(), [ONES, INFINITE], {}, r"y\[1\] holds NaN"),
        (numbered(), None, {"sample_weight": np.array(["1"] * RECORDS)}, "It holds strings, and weights are numbers"),
        ({"day": np.zeros(RECORDS, "datetime64[s]")}, None, {}, r"\(x\['day'\] - .*/ numpy.timedelta64\(1, 'D'\)"),
        (np.zeros(RECORDS, "timedelta64[ns]"), None, {}, r"Count days: x / numpy.timedelta64\(1, 'D'\)"),
        (Frame(age="i8", day="M8[ns]"), None, {}, r"Of dates count days: \(x\['day'\] - "),
        (stacked(np.ones((RECORDS, 2))), None, {}, r"entries are arrays themselves: numpy.stack\(x\)"),
        (stacked([[1.0, 2.0]] * RECORDS), None, {}, r"entries are arrays themselves: numpy.stack\(x\)"),
        ({"age": [1, 2] * 25, "day": ONES}, None, {}, r"x\['age'\] is a list of 50 ints.*numpy.asarray\(x\['age'\]\)"),
        (numbered(), "severity", {}, r"A column is given itself: y=table\['severity'\]"),
        ({"age": numbered(), "income": numbered(49)}, None, {}, r"x\['age'\] 50, x\['income'\] 49\."),
        (numbered(), None, {"sampling": Poisson(51)}, "51"),
        (numbered(), None, {"sampling": None}, "sampling"),
        (numbered(), None, {"sampling": "poisson"}, "sampling"),
        (numbered(), None, {"examples": 10.5}, "integer"),
        (numbered(), None, {"examples": 4}, "batch_size"),
        (numbered(), None, {"physical_batch_size": 0}, "at least 1"),
        (numbered(), None, {"physical_batch_size": 2.0}, "integer"),
        (numbered(), None, {"physical_batch_size": True}, "integer"),
        (numbered(), None, {"sample_weight": -ONES}, "at least 0"),
        (numbered(), None, {"sample_weight": ONES * np.nan}, "finite"),
        (numbered(), None, {"sample_weight": ONES * 1e300}, "finite"),
        (numbered(), None, {"sample_weight": np.ones((RECORDS, 2))}, "shape"),
        (numbered(), None, {"sample_weight": ONES[1:]}, "shape"),
        (numbered(), {"a": ONES, "b": ONES}, {"sample_weight": {"a": ONES}}, "structure of y"),
        (numbered(), ONES, {"class_weight": {0: -1.0}}, "at least 0"),
        (numbered(), ONES, {"class_weight": {"cat": 1.0}}, "integer classes"),
        (numbered(), ONES, {"class_weight": {0: None}}, "finite factors"),
        (numbered(), ONES / 3, {"class_weight": {0: 1.0}}, "one-hot"),
        (numbered(), numbered(), {"class_weight": {0: 1.0}}, "one-hot"),
        (numbered(), None, {"class_weight": {0: 1.0}}, "sample_weight"),
        (numbered(), {"a": ONES}, {"class_weight": {0: 1.0}}, "sample_weight"),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_draw(
    x: Any, y: Any, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generators = []
    monkeypatch.setattr("tfdp_layers.batches.arrays.entropy_generator", lambda seed: generators.append(seed))
    with pytest.raises(ValueError, match=message) as refusal:
        PrivateBatches(x, y, **{"sampling": Poisson(8), **options})
    assert not generators
    assert "123456" not in str(refusal.value)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arrays_are_copied_part_by_part(dtype, order, monkeypatch):
    """What is drawn stays what was checked, whoever writes into the array later."""
    monkeypatch.setattr(stores, "_PART_BYTES", 64)
    array = np.asarray(np.random.default_rng(0).integers(0, 9, (37, 5)).astype(dtype), order=order)
    expected, made = array.copy(), stores.copied(array)
    array[:] = 1
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, expected)
