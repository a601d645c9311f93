"""Within a step, before its release: the workers compare the records that each of them sums."""

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp_layers.batches.agreement import Agreement
from tfdp_layers.batches.generators import alive
from tfdp_layers.models.workers import Workers
from tfdp_layers.proof.replicas import replica_number

__all__ = ["agreed", "placed", "told_by_all"]

_AT_ONCE = 1024
"""Numbers of a replica in one exchange, two a row, where the rows of a draw vary: its shape must be the same in all."""


def placed(told: tf.Tensor, of: int, start: Any = 0) -> tf.Tensor:
    """What this of so many replicas tells of its rows, in a place of its own: their sum holds what all tell.

    Of as many numbers in each draw: all, where their number is static, else `_AT_ONCE` of them from `start` on.
    """
    if (size := told.shape[0]) is None:
        size, told = _AT_ONCE, told[start : start + _AT_ONCE]
        told = tf.ensure_shape(tf.pad(told, [[0, size - tf.size(told)]]), [size])
    number = tf.cast(replica_number(), tf.int32)
    return tf.ensure_shape(tf.pad(told, [[number * size, (of - 1 - number) * size]]), [of * size])


def told_by_all(first: tf.Tensor, stamps: Any, of: int, strategy: tf.distribute.Strategy) -> tf.Tensor:
    """What all replicas tell of their rows, in any order, with zeros between: the rest is exchanged where there is one.

    A collective of a loop must have the same shape each time, so it takes several of them for a larger draw. All draw
    as many rows: all make as many.

    Args:
        first: the sum of all that is `placed` at 0.
        stamps: of each replica; what it tells is behind two numbers.
    """

    def local(stamp: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, placed(stamp[2:], of, start))

    def more(start: tf.Tensor, told: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = strategy.experimental_local_results(strategy.run(local, args=(stamps, start)))[0]
        return start + _AT_ONCE, tf.concat([told, found], 0)

    mine = strategy.experimental_local_results(stamps)[0][2:]
    if mine.shape[0] is not None:
        return first
    shapes = tf.TensorShape([]), tf.TensorShape([None])
    begun = tf.constant(_AT_ONCE), first
    return tf.while_loop(lambda start, _: start < tf.size(mine), more, begun, shapes, parallel_iterations=1)[1]


def agreed(told: tf.Tensor, agreement: Callable[[], Agreement | None], workers: Workers | None) -> tf.Tensor:
    """Whether all workers hold the records that any of them sums, where that is in question: see `Agreement`.

    Args:
        told: by all replicas, the same on all workers; empty where nothing is compared.
        agreement: gives, for each step, what compares; a method.
    """
    if workers is None:
        return tf.constant(True)
    method = weakref.WeakMethod(agreement)  # TensorFlow never frees what it calls

    def calls(name: str, kind: tf.DType, *asked: tf.Tensor) -> tf.Tensor:
        def call(*values: Any) -> Any:
            return getattr(alive(method)(), name)(*values)

        return tf.numpy_function(call, asked, kind)

    def verified() -> tf.Tensor:
        differs = tf.reshape(calls("verify", tf.int64, asked), [1])
        total = workers.totals([differs])[0]  # of all replicas: the step waits for the last worker that reads
        return tf.ensure_shape(calls("conclude", tf.bool, total[0]), [])

    compared = tf.cond(tf.size(told) > 0, lambda: calls("compare", tf.int64, told), lambda: tf.zeros([0], tf.int64))
    asked = tf.ensure_shape(compared, [None])
    return tf.cond(tf.size(asked) > 0, verified, lambda: tf.constant(True))
