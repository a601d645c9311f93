"""Pipelines whose sampling is declared: the same batches, or a refusal."""

import warnings
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from helpers.numbered_records import ONES, RECORDS, drawn, numbered, pairs
from tfdp_layers import PrivateBatches, declare_sampling
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.passes import same_passes
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson


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


def test_a_declared_empty_batch_is_rows_of_padding_and_a_large_one_is_refused() -> None:
    empty = pairs(RECORDS, 8).map(lambda x, y: (x[:0], y[:0]))
    x, _, weights = next(iter(declare_sampling(empty, Poisson(8), examples=RECORDS).dataset()))
    assert x.shape == (2, 2)
    assert weights.numpy().tolist() == [0.0, 0.0]
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


@pytest.mark.parametrize("batches", [6, 8])
def test_a_pass_of_another_number_of_batches_ends_the_training(batches: int) -> None:
    passes = same_passes(pairs(RECORDS, 8).enumerate().repeat(), batches)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"has not {batches} batches"):
        list(islice(passes.as_numpy_iterator(), 9))


class Counted:
    """Some batches of eight records, and a length that says another number of them."""

    def __init__(self, batches: int, said: int = 7) -> None:
        self.batches, self.said = batches, said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Any:
        return pairs(8 * self.batches, 8).as_numpy_iterator()


@pytest.mark.parametrize("sampling", [Partition(8), Cyclic(8)], ids=["partition", "cyclic"])
@pytest.mark.parametrize("batches", [5, 8])
def test_an_iterable_whose_length_is_wrong_brings_no_record_twice(batches: int, sampling: Any) -> None:
    """Five batches over and over are charged as seven: a record would be in one epoch twice."""
    stream = iter(declare_sampling(Counted(batches), sampling, examples=50).dataset())
    seen: list[int] = []
    with pytest.raises(tf.errors.OpError, match="has not the 7 batches"):
        seen.extend(number for batch in islice(stream, 9) for number in drawn(batch))
    assert len(seen) == len(set(seen)) > 0


def known(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, said to have the batches of a pass."""
    return dataset.apply(tf.data.experimental.assert_cardinality(7))


def changing(passes: list[np.ndarray]) -> tf.data.Dataset:
    """Records in another order in every pass, in a way that nothing shows beforehand."""
    of_passes = iter([*passes, *passes])
    generated = tf.data.Dataset.from_generator(
        lambda: iter(next(of_passes)), output_signature=tf.TensorSpec((2,), tf.float32)
    )
    return known(generated.map(lambda x: (x, x[0])).batch(8))


@pytest.mark.parametrize("kept", ["shuffled once", "list", "cache", "cache of batches"])
def test_one_order_in_every_pass_is_let_in_as_cyclic(kept: str) -> None:
    x = numbered()
    records = tf.data.Dataset.from_tensor_slices((x, x[:, 0]))
    batched = records.shuffle(RECORDS, reshuffle_each_iteration=False).batch(8)
    datasets = {
        "shuffled once": batched,
        "list": list(batched.as_numpy_iterator()),
        "cache": known(records.shuffle(RECORDS).cache().map(lambda x, y: (x, y)).batch(8).prefetch(1)),
        "cache of batches": records.shuffle(RECORDS).batch(8).cache(),
    }
    declared = declare_sampling(datasets[kept], Cyclic(8), examples=RECORDS)
    stream = declared.dataset().as_numpy_iterator()
    passes = [[set(drawn(next(stream))) for _ in range(7)] for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]
    assert set().union(*passes[0]) == set(range(RECORDS))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([numbered(), numbered()[::-1]], "other records at the same places"),
        ([numbered(), np.roll(numbered(), 24, axis=0)], "other records at the same places"),
        ([numbered(), np.concatenate([numbered(), numbered()[:9]])], "7 elements"),  # what assert_cardinality says
        ([numbered(), numbered()[:40]], "7 elements"),
    ],
)
def test_a_pass_that_differs_from_the_first_ends_the_training(passes: list[np.ndarray], message: str) -> None:
    same = declare_sampling(changing([numbered(), numbered()]), Cyclic(8), examples=RECORDS).dataset()
    assert len(list(islice(same.as_numpy_iterator(), 14))) == 14
    declared = declare_sampling(changing(passes), Cyclic(8), examples=RECORDS).dataset()
    with pytest.raises(tf.errors.OpError, match=message):
        list(islice(declared.as_numpy_iterator(), 15))


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
        (pairs(RECORDS, 8).repeat(), Cyclic(8), "endless"),
        (pairs(RECORDS, 8).filter(lambda x, y: True), Cyclic(8), "unknown"),
        (known(pairs(RECORDS, 8).filter(lambda x, y: True)), Cyclic(8), "FilterDataset drops or places"),
        (pairs(RECORDS, 8).shuffle(7), Cyclic(8), "reshuffle_each_iteration=False"),
        (pairs(RECORDS, 8).shuffle(7).map(lambda x, y: (x, y)), Cyclic(8), "another one in each"),
        (pairs(RECORDS, 8).cache().shuffle(7), Cyclic(8), "another one in each"),
        (pairs(RECORDS, 8).shuffle(7).cache().take(7), Cyclic(8), "take behind .cache leaves it unfinished"),
        (iter([(ONES, ONES)]), Cyclic(8), "unknown"),
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


ALL = tf.data.Dataset.from_tensor_slices((np.ones((40, 2)), np.ones(40)))
HALF, by_turns = ALL.take(20), tf.data.Dataset.sample_from_datasets


def of_40(records: tf.data.Dataset) -> tf.data.Dataset:
    return records.apply(tf.data.experimental.assert_cardinality(40))


def chance(records: tf.data.Dataset = ALL) -> tf.data.Dataset:
    """Poisson draws, each a pass over the records."""
    return records.filter(lambda x, y: tf.random.uniform([]) < 0.2).batch(40)


CUT = {
    "shuffled batches as Poisson": (lambda: ALL.shuffle(40).batch(8).repeat(), Poisson(8), "no such draw"),
    "of another size": (
        lambda: ALL.shuffle(40).repeat().batch(16),
        Poisson(8),
        r"\.batch\(16\) cuts .*Partition\(16\)",
    ),
    "as fixed draws": (lambda: ALL.shuffle(40).batch(8).map(lambda x, y: (x, y)), FixedSize(8), "no such draw"),
    "a partition of another size": (lambda: ALL.batch(5), Partition(8), r"\.batch\(5\): .*Declare Partition\(5\)"),
    "records that come twice": (
        lambda: ALL.take(20).repeat(2).shuffle(40).batch(8),
        Partition(8),
        "each several times",
    ),
    **{
        f"records that come twice, {how}": (lambda make=make: make().batch(8), Partition(8), "each several times")
        for how, make in {
            "behind themselves": lambda: HALF.concatenate(HALF).shuffle(40),
            "cut twice alike": lambda: ALL.take(20).concatenate(ALL.take(20)),
            "by turns": lambda: of_40(by_turns([ALL.take(8).repeat(2), ALL.skip(16)])),
            "cut across rounds": lambda: ALL.take(36).repeat(2).take(40),
            "shuffled, cut across rounds": lambda: ALL.take(36).shuffle(36).repeat().take(40),
            "by shard": lambda: ALL.repeat(2).shard(2, 0),
            "cut off": lambda: HALF.shuffle(20).repeat().take(40),
            "shuffled across rounds": lambda: ALL.repeat().shuffle(99).take(40),
            "in a flat map": lambda: of_40(HALF.flat_map(lambda *one: tf.data.Dataset.from_tensors(one).repeat(2))),
        }.items()
    },
    "records that come twice, in an order": (
        lambda: HALF.repeat(2).batch(8),
        Cyclic(8),
        "each several times",
    ),
    "by turns as Poisson": (
        lambda: by_turns([ALL.take(4).repeat(), ALL.skip(4).repeat()], [0.5, 0.5]).batch(8),
        Poisson(8),
        "by turns from several data sets",
    ),
    "a batch across rounds": (lambda: ALL.take(36).repeat().batch(8).take(5), Partition(8), "each several times"),
    "every second batch of two rounds": (lambda: ALL.batch(8).repeat(2).shard(2, 0), Cyclic(8), "each several times"),
    "batches that draw, kept": (lambda: chance().cache(), Poisson(8), r"\.cache keeps its batches"),
    "batches of a generator, kept": (
        lambda: (
            tf.data.Dataset.from_generator(
                lambda: iter([(np.ones((3, 2)), np.ones(3))]),
                output_signature=(tf.TensorSpec((None, 2)), tf.TensorSpec((None,))),
            )
            .cache()
            .map(lambda x, y: (2 * x, y))
            .shuffle(9)
            .prefetch(1)
        ),
        FixedSize(3),
        r"\.cache keeps its batches",
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_batches_that_are_seen_not_to_be_those_declared_bring_one_warning(name: str) -> None:
    dataset, sampling, message = CUT[name]
    examples = 64 if name == "a partition of another size" else 40
    with pytest.warns(UserWarning, match=f"is declared as .*{message}") as caught:
        declare_sampling(dataset(), sampling, examples=examples)
    assert len(caught) == 1


def drawn_in_step() -> tuple[tf.Tensor, tf.Tensor]:
    rows = tf.random.poisson([], 8.0, tf.int32)
    return tf.random.normal([rows, 2]), tf.ones([rows])


def first_two(records: Any, _: Any) -> Any:
    return records


def test_those_that_may_be_as_declared_bring_no_warning() -> None:
    first = ALL.shuffle(40).batch(8).take(1).repeat()
    whole = ALL.batch(40).repeat()
    for batches, sampling in (
        (chance().repeat(), Poisson(8)),
        (chance(ALL.cache()).repeat(), Poisson(8)),
        (first, FixedSize(8)),
        (ALL.shuffle(40).batch(8), Partition(8)),
        (whole, Poisson(40)),  # all records: each draw of so many is that
        (whole.take(1).cache(), FixedSize(40)),
        (tf.data.Dataset.range(99).cache().map(lambda _: drawn_in_step()), Poisson(8)),
        (chance().repeat().cache(), Poisson(8)),  # without an end: never replayed
        (ALL.shuffle(40).repeat().batch(8).take(5), Partition(8)),  # the first round
        (ALL.shuffle(40).batch(8).repeat().take(5), Partition(8)),
        (ALL.repeat().take(40).map(lambda x, y: (x, y)).batch(8).prefetch(2), Partition(8)),
        (ALL.cache().repeat(2).prefetch(1).batch(8).cache().take(5), Cyclic(8)),
        (ALL.take(20).concatenate(ALL.skip(20)).shuffle(40).batch(8), Partition(8)),
        (of_40(by_turns([HALF, ALL.skip(20)])).batch(8), Partition(8)),
        (by_turns([chance(), chance()]), Poisson(8)),
        (tf.data.Dataset.zip(ALL, tf.data.Dataset.from_tensors(1.0).repeat()).batch(8).map(first_two), Partition(8)),
        (ALL.batch(8).cache(), Partition(8)),
        (ALL.batch(8).cache().prefetch(2), Cyclic(8)),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            declare_sampling(batches, sampling, examples=40)
        assert [str(one.message) for one in caught] == []
