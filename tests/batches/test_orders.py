"""The one order that cyclic draws follow is nobody's to read or to write."""

import random
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

RECORDS, SIZE, DECAY = 12, 3, 0.9
X, Y = np.eye(RECORDS, dtype="float32"), np.zeros((RECORDS, 1), "float32")


def batches(sampling: Any = None, **options: Any) -> tfdp.PrivateBatches:
    return tfdp.PrivateBatches(X, Y, sampling or tfdp.sampling.Cyclic(SIZE), **options)


def write(order: Any) -> None:
    order[0][:] = 0


WAYS = {"reverse": lambda order: order.reverse(), "shuffle": random.shuffle, "write": write}


@pytest.mark.parametrize("way", WAYS)
def test_an_order_tells_nothing_and_takes_nothing(way: str) -> None:
    with pytest.raises((AttributeError, TypeError)):
        WAYS[way](batches().order)


def test_nor_does_the_pass_that_draws_follow() -> None:
    drawn = batches(seed=1)
    with pytest.raises(ValueError, match="read-only"):
        drawn._pass[0][:] = 0
    with pytest.raises((AttributeError, TypeError)):
        drawn._pass.reverse()  # type: ignore[attr-defined]


def test_batches_with_one_order_have_an_order_of_their_own_and_others_none() -> None:
    one, other = batches(), batches()
    assert one.order is one.order is not other.order
    before = one.order
    one._rekey(7)
    assert one.order is not before
    assert batches(tfdp.sampling.Partition(SIZE)).order is None


def test_a_stream_that_goes_on_visits_each_record_at_its_place_of_every_pass() -> None:
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tfdp.make_private(keras.Sequential([keras.Input((RECORDS,)), dense]))
    optimizer = tfdp.optimizers.ClippedOptimizer(
        keras.optimizers.SGD(1.0), 0.0, 1.0, noise=tfdp.noise.Correlated(DECAY)
    )
    model.compile(optimizer, lambda y, p: keras.ops.abs(p + 1e6 - y)[:, 0])
    drawn, found = batches(), []
    for _ in range(3):
        steps = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: found.append(np.asarray(model.layers[-1].kernel)[:, 0])
        )
        model.fit(drawn, epochs=1, verbose=0, callbacks=[steps])
    added = -np.diff(np.concatenate([np.zeros((1, RECORDS)), found]), axis=0) * SIZE
    for steps in np.split(np.round(added), 3):
        np.testing.assert_array_equal(steps, np.round(added)[: RECORDS // SIZE])
    assert [entry.steps for entry in model.ledger.entries] == [len(found)]
