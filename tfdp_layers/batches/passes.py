"""Pipelines that are declared to go round one fixed order: what can be seen of that is checked, while they run."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.batches.chance import BATCHES, KEEPING
from tfdp_layers.batches.places import in_any_order
from tfdp_layers.batches.steps import below, kind, steps

__all__ = ["digest_of", "refuse_moving_order", "same_passes"]

_BY_CONTENT = ("Filter", "GroupBy", "TakeWhile", "Unique", "DirectedInterleave")
_TO_THE_END = (*KEEPING, *BATCHES, "Shuffle", "Skip", "Unbatch")
"""Steps that each pass reads to the end of what they get."""


def refuse_moving_order(dataset: tf.data.Dataset) -> None:
    """Raises ValueError for a pipeline that is seen to shuffle anew in every pass, or to place records by content.

    So do parallel steps, at any depth of its functions, that give elements as they become ready. A `.cache` keeps the
    order that a shuffle makes once, but does not make the time that a record takes independent of what it holds.
    """
    kept = _kept(dataset)
    for step in steps(dataset):
        name = type(step).__name__.strip("_")
        if getattr(step, "_reshuffle_each_iteration", False) and id(step) not in kept:
            raise ValueError(
                "Cyclic needs one order for all passes, but .shuffle() of this dataset makes another one in each. Use"
                " .shuffle(n, reshuffle_each_iteration=False), or .cache() behind it, all of which each pass reads (a"
                " .take behind .cache leaves it unfinished), or declare it as tfdp.sampling.Partition, which is dearer."
            )
        if any(word in name for word in _BY_CONTENT):
            raise ValueError(
                f"Cyclic needs each record at a place that no record's content decides, but {name} drops or places"
                " records by what they hold. Do that to the data before, so that it is part of how they were"
                " collected, or give single records to tfdp.records, and draw by Poisson sampling."
            )
    if how := in_any_order(dataset):
        raise ValueError(
            f"Cyclic needs one order for all passes, but this dataset gives elements as they become ready ({how}), so"
            " that how long each takes, which may depend on what it holds, decides about its place: below .cache, too,"
            " which keeps that order. Give these steps deterministic=True, or leave deterministic=False out of the"
            " options."
        )


def _kept(dataset: tf.data.Dataset) -> set[int]:
    """The ids of the steps whose elements a `.cache` keeps, as each pass reads it to its end, and so the first does."""
    step: Any = dataset
    while kind(step) in _TO_THE_END:
        step = below(step)[0]
    return {id(one) for one in steps(step)} if kind(step) == "Cache" else set()


def same_passes(numbered: tf.data.Dataset, batches: int) -> tf.data.Dataset:
    """The batches of an endless dataset of (place in its pass, batch), as long as every pass is like the first.

    Compared are the number of batches of a pass, and a digest of the first record of each, kept in memory alone.

    Raises: tf.errors.InvalidArgumentError, while iterating, for a pass that differs.
    """

    @tf.autograph.experimental.do_not_convert
    def look(seen: Any, element: Any) -> Any:
        (step, digests), (place, batch) = seen, element
        expected, digest = step % batches, first_record(batch)
        known = tf.where(step < batches, digest, digests[expected])
        checks = [
            tf.debugging.assert_equal(
                place,
                expected,
                f"A pass over the dataset has not {batches} batches, as Cyclic sampling of the declared examples has:"
                " declare the true number of examples.",
            ),
            tf.debugging.assert_equal(
                digest,
                known,
                "A pass over the dataset has other records at the same places than the first one, so it is not Cyclic:"
                " use .shuffle(n, reshuffle_each_iteration=False), put random augmentation into the model (its layers"
                " leave a record at its place), or declare tfdp.sampling.Partition.",
            ),
        ]
        with tf.control_dependencies(checks):
            kept = tf.tensor_scatter_nd_update(digests, [[expected]], [tf.identity(known)])
            return (step + 1, kept), keras.tree.map_structure(tf.identity, batch)

    start = (tf.constant(0, tf.int64), tf.zeros([batches], tf.int64))
    return numbered.scan(start, look)


def first_record(batch: Any) -> tf.Tensor:
    """A digest of the first row of every tensor, int64."""
    return digest_of([leaf[:1] for leaf in keras.tree.flatten(batch)])


def digest_of(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    """A digest of what tensors hold, int64: the same in each process."""
    return tf.strings.to_hash_bucket_fast(tf.strings.join([tf.io.serialize_tensor(leaf) for leaf in leaves]), 2**62)
