"""Batches that a declared pipeline is seen to cut from passes over its records, where other draws are declared."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import below, kind, number, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["warn_of_cut"]

_BATCHES = ("Batch", "ParallelBatch", "PaddedBatch")
_AROUND = ("Map", "ParallelMap", "Prefetch", "Cache", "Options", "Shuffle", "Repeat", "AssertCardinality")
_PLAIN = (*_AROUND, "Zip", "TensorSlice", "Range", "TFRecord", "TextLine", "FixedLengthRecord", "Take", "Skip", "Shard")
"""Steps that draw nothing: each pass over them gives each record once."""
_OF_PASSES = ("partition", "cyclic")


def warn_of_cut(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> None:
    """Warns where `.batch` cuts passes over the records into batches, and these are not what is declared.

    Seen are `.batch` of records from arrays and files, shuffled or not; not batches that functions, generators, flat
    maps or filters make, which may draw; nor those of all records, which all draws of so many are.
    """
    step: Any = dataset
    while kind(step) in _AROUND:
        step = below(step)[0]
    size = number(step, "_batch_size") if kind(step) in _BATCHES else None
    if (
        size is None
        or int(size) == sampling.batch_size >= examples
        or not all(kind(one) in _PLAIN for one in steps(below(step)[0]))
    ):
        return
    if sampling.kind not in _OF_PASSES:
        warn(
            f"This pipeline is declared as {sampling}, and .batch({int(size)}) cuts passes over its records into its"
            " batches: each record is in exactly one batch of a pass, which is no such draw, and costs more than is"
            f" stated. Give the single records to tfdp.records, and fit draws them; or declare Partition({int(size)})."
        )
    elif int(size) != sampling.batch_size:
        warn(
            f"This pipeline is declared as {sampling}, and its batches are of .batch({int(size)}): what is stated is"
            f" for others. Declare {type(sampling).__name__}({int(size)}), or the batches' true size."
        )
    elif repeats(dataset):
        warn(
            f"This pipeline is declared as {sampling}, with each record once in an epoch, and gives each several times"
            " (.repeat, or behind itself): a person in it k times costs more than is stated. Leave .repeat out, and"
            " declare as many examples as there are records."
        )
