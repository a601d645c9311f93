"""Pipelines whose sampling is declared: the same batches, or a refusal."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from helpers.numbered_records import ONES, RECORDS, drawn, numbered, pairs
from tfdp_layers import PrivateBatches, declare_sampling
from tfdp_layers.batches.base import Batches
from tfdp_layers.sampling import FixedSize, Partition, Poisson


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
