"""Batches: every row is drawn as it is accounted for, once, and padding adds nothing."""

import copy
import math
import os
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdp_layers import PrivateBatches, declare_sampling
from tfdp_layers.batches import Batches
from tfdp_layers.sampling import FixedSize, Partition, Poisson, Sampling, TruncatedPoisson, entropy_generator

RECORDS = 50
ALL_KINDS = [Poisson(8), TruncatedPoisson(8), FixedSize(8), Partition(8)]
WAYS = ["stream", "tensors", "rows"]


def numbered(records: int = RECORDS) -> np.ndarray:
    """(records, 2): row i is (i + 1, i + 1), so that a drawn row names its record, and padding names none."""
    return np.repeat(np.arange(1, records + 1, dtype=np.float32)[:, None], 2, axis=1)


def fetched(batches: PrivateBatches, way: str, pad: bool = False) -> Iterator[Any]:
    """NumPy batches by each of the ways that there are."""
    if way == "stream":
        return batches.stream(pad)
    dataset = batches.dataset(pad) if way == "tensors" else batches._dataset(pad, batches._from_arrays())
    return dataset.as_numpy_iterator()


def drawn(batch: Any) -> tuple[int, ...]:
    """The records of a batch of `numbered`."""
    return tuple(int(row[0]) - 1 for row, weight in zip(batch[0], batch[2], strict=True) if weight > 0)


def pairs(records: int, batch_size: int) -> tf.data.Dataset:
    x = numbered(records)
    return tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(batch_size)


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
        assert x.shape == y.shape == (1, 2)
        assert not x.any()
        assert not weights.any()
    assert batches[0][2].tolist() == [0.0]


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


# Draws


def chi_square_p_value(batches: PrivateBatches, probability: float, draws: int = 3000) -> float:
    """That each row was in each of `draws` draws independently with `probability`."""
    rows = batches._length
    counts = np.zeros(rows)
    for batch in islice(batches.stream(), draws):
        counts[list(drawn(batch))] += 1
    statistic = ((counts - draws * probability) ** 2 / (draws * probability * (1 - probability))).sum()
    return 2 * min(stats.chi2.sf(statistic, rows), stats.chi2.cdf(statistic, rows))


@pytest.mark.parametrize("examples", [RECORDS // 2, RECORDS, 2 * RECORDS])
def test_poisson_draws_each_row_with_the_declared_probability(examples: int) -> None:
    def batches() -> PrivateBatches:
        return PrivateBatches(numbered(), sampling=Poisson(5), examples=examples, seed=1)

    probability = 5 / examples
    assert chi_square_p_value(batches(), probability) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert chi_square_p_value(batches(), probability * wrong) < 1e-9


@pytest.mark.parametrize("examples", [RECORDS - 1, RECORDS + 1])
@pytest.mark.parametrize("sampling", [FixedSize(8), Partition(8)], ids=lambda s: s.kind)
def test_a_fixed_number_of_records_must_be_the_number_of_rows(sampling: Sampling, examples: int) -> None:
    with pytest.raises(ValueError, match=f"{examples}"):
        PrivateBatches(numbered(), sampling=sampling, examples=examples)


def sampled(batches: PrivateBatches, way: str) -> list[tuple[int, ...]]:
    if way == "items":
        return [drawn(batches[0]) for _ in range(6)]
    return [drawn(batch) for batch in islice(fetched(batches, way), 6)]


@pytest.mark.parametrize("way", ["items", *WAYS])
@pytest.mark.parametrize("sampling", [FixedSize(25), Partition(25), Poisson(25)], ids=lambda s: s.kind)
def test_nothing_is_replayed_and_a_seed_repeats(sampling: Sampling, way: str) -> None:
    # Two draws of 25 among 50 are equal with probability below 1e-13.
    one, other = (PrivateBatches(numbered(), sampling=sampling) for _ in range(2))
    seen = sampled(one, way) + sampled(other, way) + sampled(one, way) + sampled(one, "items")
    assert len(set(map(frozenset, seen))) == len(seen)
    seeded = [sampled(PrivateBatches(numbered(), sampling=sampling, seed=5), way) for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_one_dataset_iterated_twice_does_not_replay_even_with_a_seed() -> None:
    for pad in (False, True):
        dataset = PrivateBatches(numbered(), sampling=FixedSize(25), seed=5).dataset(pad)
        seen = [frozenset(drawn(batch)) for _ in range(2) for batch in islice(dataset.as_numpy_iterator(), 6)]
        assert len(set(seen)) == 12


def test_threads_share_the_draws_without_replay() -> None:
    batches = PrivateBatches(numbered(), sampling=FixedSize(25), seed=2)
    with ThreadPoolExecutor(8) as pool:
        seen = {frozenset(drawn(batch)) for batch in pool.map(batches.__getitem__, [0] * 400)}
    one_by_one = sampling_draws(FixedSize(25), 400)
    assert seen == one_by_one


def sampling_draws(sampling: Sampling, count: int) -> set[frozenset[int]]:
    return {frozenset(draw.tolist()) for draw in islice(sampling.draws(RECORDS, entropy_generator(2)), count)}


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_are_refused(duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="replay"):
        duplicate(PrivateBatches(numbered(), sampling=Poisson(8)))


def test_a_forked_process_is_refused() -> None:
    batches = PrivateBatches(numbered(), sampling=Poisson(8))
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            batches[0]
        except RuntimeError as error:
            outcome = 0 if "fork" in str(error) else 2
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("batch_size", [7, 10])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_partition_starts_afresh_and_covers_every_record_once_an_epoch(way: str, pad: bool, batch_size: int) -> None:
    batches = PrivateBatches(numbered(), sampling=Partition(batch_size))
    orders = []
    for _ in range(2):  # the second iteration starts anew, though the first stopped, and read ahead, within an epoch
        stream = fetched(batches, way, pad)
        for _ in range(2):
            epoch = [drawn(next(stream)) for _ in range(len(batches))]
            assert [len(batch) for batch in epoch[:-1]] == [batch_size] * (len(batches) - 1)
            orders.append(sum(epoch, ()))
            assert sorted(orders[-1]) == list(range(RECORDS))
        next(stream)
    assert len(set(orders)) == 4


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
        return bool(batches._tensors)

    assert keeps_tensors(numbered())
    assert not keeps_tensors(on_disk)
    assert not keeps_tensors(np.asarray(on_disk)[::2])
    monkeypatch.setattr("tfdp_layers.batches._COPY_BYTES", 100)
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
def test_class_weights_multiply_the_weights_of_their_records(labels: np.ndarray) -> None:
    weight = np.linspace(1, 2, RECORDS)
    factors = np.array([1.0, 5.0, 0.25])[np.arange(RECORDS) % 3]  # class 0 is not named
    for given, expected in ((None, factors), (weight, weight * factors)):
        batches = PrivateBatches(
            numbered(), labels, Partition(RECORDS), sample_weight=given, class_weight={1: 5, 2: 0.25, 7: 9.0}
        )
        x, _, weights = batches[0]
        np.testing.assert_allclose(weights, expected[x[:, 0].astype(int) - 1], rtol=1e-6)


# Refusals: before anything is drawn

NAN = np.where(numbered() == 7, np.nan, 123456.0)
INFINITE = np.where(numbered() == 7, np.inf, 1.0).astype(np.float16)
ONES = np.ones(RECORDS)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (numbered(0), None, {}, "empty"),
        ({}, None, {}, "empty"),
        (numbered(), numbered(49), {}, "50.*49"),
        ({"a": numbered(), "b": numbered(49)}, None, {}, "first axes"),
        (np.array(["text"] * RECORDS), None, {}, "[Ee]ncode"),
        (np.array([[1], [2, 3]] * 25, dtype=object), None, {}, "[Ee]ncode"),
        (np.zeros(RECORDS, complex), None, {}, "[Ee]ncode"),
        (np.zeros(RECORDS, "datetime64[s]"), None, {}, "[Ee]ncode"),
        (np.zeros(RECORDS, np.dtype(">f4")), None, {}, "[Ee]ncode"),
        (tf.constant(["text"] * RECORDS), None, {}, "[Ee]ncode"),
        (tf.ragged.constant([[1], [2, 3]] * 25), None, {}, "dense"),
        (tf.sparse.eye(RECORDS), None, {}, "dense"),
        (np.ma.masked_array(numbered(), numbered() == 3), None, {}, "dense"),
        ([1, 2, 3], None, {}, "asarray"),
        (None, None, {}, "array"),
        (np.float32(1), None, {}, "scalar"),
        (NAN, None, {}, "NaN"),
        (numbered(), INFINITE, {}, "y holds NaN or inf"),
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
        (numbered(), None, {"sample_weight": ONES[:, None]}, "shape"),
        (numbered(), None, {"sample_weight": ONES[1:]}, "shape"),
        (numbered(), {"a": ONES, "b": ONES}, {"sample_weight": {"a": ONES}}, "structure of y"),
        (numbered(), ONES, {"class_weight": {0: -1.0}}, "at least 0"),
        (numbered(), ONES, {"class_weight": {"cat": 1.0}}, "integer classes"),
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
    monkeypatch.setattr("tfdp_layers.batches.entropy_generator", lambda seed: generators.append(seed))
    with pytest.raises(ValueError, match=message) as refusal:
        PrivateBatches(x, y, **{"sampling": Poisson(8), **options})
    assert not generators
    assert "123456" not in str(refusal.value)


# Declared pipelines


@pytest.mark.parametrize("pad", [False, True])
def test_declared_batches_follow_the_same_protocol(pad: bool) -> None:
    batches = declare_sampling(pairs(RECORDS, 8), Partition(8), examples=RECORDS)
    assert isinstance(batches, Batches)
    assert (batches.examples, batches.physical_batch_size, batches.seeded, batches.declared) == (
        RECORDS,
        None,
        False,
        True,
    )
    stream = batches.dataset(pad).as_numpy_iterator()
    for _ in range(2):  # a finite dataset is repeated
        epoch = [next(stream) for _ in range(len(batches))]
        assert sum((drawn(batch) for batch in epoch), ()) == tuple(range(RECORDS))
        assert not any(array[len(drawn(batch)) :].any() for batch in epoch for array in batch)
        assert len(epoch[-1][2]) == (3 if pad else 2)


def test_declared_weights_and_float64_are_converted() -> None:
    weights = np.linspace(0, 1, RECORDS)
    dataset = tf.data.Dataset.from_tensor_slices((numbered().astype(np.float64), {"a": weights}, {"a": weights}))
    x, y, weight = next(iter(declare_sampling(dataset.batch(8), FixedSize(8), examples=RECORDS).dataset()))
    assert x.dtype == y["a"].dtype == weight["a"].dtype == tf.float32
    assert weight["a"].shape == (8,)
    np.testing.assert_allclose(weight["a"], weights[:8])


def test_a_declared_empty_batch_is_a_row_of_padding_and_a_large_one_is_refused() -> None:
    empty = pairs(RECORDS, 8).map(lambda x, y: (x[:0], y[:0]))
    x, _, weights = next(iter(declare_sampling(empty, Poisson(8), examples=RECORDS).dataset()))
    assert x.shape == (1, 2)
    assert weights.numpy().tolist() == [0.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="more rows"):
        next(iter(declare_sampling(pairs(RECORDS, 9), FixedSize(8), examples=RECORDS).dataset()))


@pytest.mark.parametrize("once", [False, True])
def test_other_iterables_are_let_in_and_lose_no_batch(once: bool) -> None:
    x = numbered(4)
    batches = [(x[:3], x[:3, 0]), (x[3:], x[3:, 0])]

    class Repeatable:
        def __iter__(self) -> Any:
            return iter(batches)

    declared = declare_sampling(iter(batches) if once else Repeatable(), Poisson(2), examples=4)
    stream = declared.dataset().as_numpy_iterator()
    assert [drawn(batch) for batch in islice(stream, 2)] == [(0, 1, 2), (3,)]
    if once:
        with pytest.raises(tf.errors.OpError, match="ran out"):
            next(stream)
    else:
        assert drawn(next(stream)) == (0, 1, 2)


@pytest.mark.parametrize(
    ("dataset", "sampling", "message"),
    [
        (pairs(RECORDS, 8).unbatch(), Poisson(8), "Single records need"),
        (tf.data.Dataset.from_tensors((tf.zeros((28, 28)), tf.zeros(10))), Poisson(8), "Single records need"),
        (pairs(RECORDS, 8).map(lambda x, y: x), Poisson(8), "tuples"),
        (pairs(RECORDS, 8).map(lambda x, y: (x, y, x)), Poisson(8), "one number a record"),
        (tf.data.Dataset.from_tensors((tf.ragged.constant([[1], [1, 2]]), tf.zeros(2))), Poisson(2), "dense"),
        (pairs(RECORDS, 8).repeat(), Partition(8), "endless"),
        (pairs(RECORDS, 8).filter(lambda x, y: True), Partition(8), "unknown"),
        (pairs(RECORDS, 9), Partition(8), "6 batches"),
        (pairs(RECORDS, 8).take(0), Poisson(8), "no batches"),
        (iter([]), Poisson(8), "no batches"),
        (iter([(ONES, ONES)]), Partition(8), "unknown"),
        (3, Poisson(8), "iterable"),
        (iter([(np.float32(1), np.float32(1))]), Poisson(8), "Single records need"),
        ([(ONES, ONES)], Poisson(8), "drawn once"),
        (pairs(RECORDS, 8), None, "sampling"),
        (pairs(RECORDS, 8), Poisson(51), "51"),
    ],
)
def test_a_pipeline_that_cannot_be_as_declared_is_refused(dataset: Any, sampling: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declare_sampling(dataset, sampling, examples=RECORDS)


def test_what_draws_for_itself_cannot_be_declared_otherwise() -> None:
    with pytest.raises(ValueError, match="its own sampling"):
        declare_sampling(PrivateBatches(numbered(), sampling=Partition(8)), Poisson(8), examples=RECORDS)
