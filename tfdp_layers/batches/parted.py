"""Flat maps that make several records of what may be one person's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.batches.apart import are_numbers, gives_parts, is_batched, may_be_batches, parts_of
from tfdp_layers.batches.inner import made_within
from tfdp_layers.batches.made import OF_MANY, Made
from tfdp_layers.batches.steps import below, graphs_of, kind, operations, steps
from tfdp_layers.proof.outside import PYTHON

__all__ = ["makes_several"]

_MANY = ("ReadFile", "MatchingFiles", *PYTHON)
"""Operations that may read what a name names, a file of many people's rows say."""
_ONE = ("DecodePng", "DecodeJpeg", "DecodeAndCropJpeg", "DecodeBmp", "DecodeGif", "DecodeImage", "DecodeWav")
"""Operations that read one picture or sound, which is one record."""
_PARTS = {"parts", "count", "constant"}
"""Kinds of what is made of an element, or for each of several numbers; of copies of the whole `repeats` tells."""
_IN_MEMORY, _COUNTS = ("TensorSlice", "SparseTensorSlice", "TextLine"), ("Range", "Counter", "Random")


def makes_several(dataset: Any, made: Made | None) -> str:
    """What makes several records of an element, in words; empty where nothing does, as far as is seen.

    Args:
        made: what a flat map makes of an element, see `made_within`; None of other steps.
    """
    source = below(dataset)[0]
    if is_batched(source) or are_numbers(source):
        return ""
    if parts := next(filter(None, (parts_of(source, graph) for graph in graphs_of(dataset))), 0):
        return f"a flat map of this pipeline makes {parts} records of each element"
    if made is None or not gives_parts(dataset) or not _may_be_several(dataset, source, made):
        return ""
    return "a flat map of this pipeline makes several records of an element (a series, a text, a picture), or may"


def _may_be_several(dataset: Any, source: Any, made: Made) -> bool:
    """Whether a flat map makes several records of an element that is one record for certain.

    A number of parts that is not known counts as several. Not those: elements that may be batches (a generator's, or
    what Python code made), whole numbers, which name rows of an array, and names of files with many rows.
    """
    if _reads(dataset):
        return False
    if _is_one_record(source):
        made = made_within(dataset)
    elif _may_be_ragged_rows(source):
        return False
    parts = made.kinds & _PARTS and not made.kinds & (OF_MANY | {"all"})
    return made.most != 1 and bool(parts or "pieces" in made.kinds)


def _may_be_ragged_rows(source: Any) -> bool:
    """Whether ragged components and others have as many rows, as a batch's have."""
    specs = tf.nest.flatten(source.element_spec)
    ragged = any(isinstance(one, tf.RaggedTensorSpec) for one in specs)
    known = [one.shape for one in specs if isinstance(one, tf.TensorSpec | tf.RaggedTensorSpec) and one.shape.rank]
    return ragged and len(known) == len(specs) > 1 and len({one[0] for one in known}) == 1


def _reads(step: Any) -> bool:
    """Whether functions of a step may read what its elements name, other than one picture or sound for each name.

    What a function within it decodes (a `.map` of the names that it lists, say) has a name of its own.
    """
    specs = [each for one in below(step) for each in tf.nest.flatten(one.element_spec)]
    if not any(getattr(one, "dtype", None) == tf.string for one in specs):
        return False
    found = [*operations(step)]
    decoded = any(one in _ONE and operation is not None for one, operation in found)
    return any(one in _MANY for one, _ in found) and not decoded


def _is_one_record(source: Any) -> bool:
    """Whether each element is an item of arrays, or a line, which no step put together with others: no batch."""
    found = [*steps(source)]
    ends = [one for one in found if not below(one)]
    known = all(kind(one) in (*_IN_MEMORY, *_COUNTS) for one in ends)
    records = any(kind(one) in _IN_MEMORY and not are_numbers(one) for one in ends)
    inner = [one for one in found if below(one)]
    many = any((gives_parts(one) and not _gives_records(one)) or "Group" in kind(one) or _reads(one) for one in inner)
    return known and records and not many


def _gives_records(step: Any) -> bool:
    """Whether a flat map reads lines or records of files, or takes batches apart that a step cut, and no more."""
    source = below(step)[0]
    several = set().union(*(may_be_batches(source, graph) for graph in graphs_of(step)))
    made = made_within(step, several)
    apart = is_batched(source) and made.kinds == {"rows"}
    return made.size == 1 and (apart or ("entry" in made.kinds and made.kinds <= {"entry", "file", "whole"}))
