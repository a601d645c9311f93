"""Reductions over axes, and what goes along one axis: running sums, reversals, largest entries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import Node, axes_of, dims_of, only_rows, refused_kind, require_constants, rule, summed
from tfdp_layers.proof.sizes import Number
from tfdp_layers.proof.values import Everyone, MixedError, Rows, Total, Value

_LINEAR = ("Sum", "Mean")


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def reduction(node: Node, inputs: Sequence[Any]) -> Value:
    """Over axes of each record: row by row. Over the records' axis: a sum is additive, everything else mixes.

    Whether all entries of all records are true, or any is, is kept for a branch that proves to make no difference.
    """
    value = inputs[0]
    require_constants(inputs[1:], "the axes of a reduction")
    keep = bool(node.attribute("keep_dims"))
    if isinstance(value, Total):
        if node.type not in _LINEAR or (node.type == "Mean" and node.dtype().is_integer):
            raise MixedError(f"{node.type} of a sum over records is not additive")
        return Total(None, batch=value.batch)
    if not isinstance(value, Rows):
        raise refused_kind(value, f"{node.type}")
    shape = dims_of(value)
    axes = set(axes_of(inputs[1], len(shape)))
    left = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
    if value.axis not in axes:
        moved = value.axis - (0 if keep else sum(i < value.axis for i in axes))
        within = of_integers(node, value, [shape[i] for i in axes])
        return Rows(left, batch=value.batch, axis=moved, outer=value.outer, inner=value.inner, within=within)
    if node.type in ("All", "Any") and axes == set(range(len(shape))) and not keep and not value.batch.padded:
        tensor = node.operation.inputs[0]
        name = f"{node.frame.path}/{tensor.name}"
        return Everyone((), name=name, tensor=tensor, frame=node.frame, holds=node.type == "All")
    if node.type != "Sum":
        raise MixedError(f"{node.type} over the records of the batch")
    return summed(value, left)


def of_integers(node: Node, value: Rows, sizes: Sequence[Number | None]) -> tuple[Number, Number] | None:
    """Bounds of what is left of bounded integers, as the number of words of a text is: of their sum, or of one."""
    known = [n for n in [*(value.within or ()), *sizes] if isinstance(n, int)]
    if value.within is None or len(known) < 2 + len(sizes) or not node.dtype().is_integer:
        return None
    least, most, *counts = known
    if node.type == "Sum":
        return least * math.prod(counts), most * math.prod(counts)
    return (least, most) if node.type in ("Max", "Min") and min(counts, default=1) > 0 else None


@rule("L2Loss")
def half_square(node: Node, inputs: Sequence[Any]) -> Value:
    """Half the sum of all squares: additive over rows."""
    value = inputs[0]
    return summed(only_rows(value, "the sum of squares"), ())


@rule("BiasAddGrad")
def bias_gradient(node: Node, inputs: Sequence[Any]) -> Value:
    """The sum over all axes but that of the channels."""
    value = inputs[0]
    if isinstance(value, Total):
        return Total(None, batch=value.batch)
    if not isinstance(value, Rows):
        raise refused_kind(value, "the gradient of a bias")
    rank = len(dims_of(value))
    channels = 1 if node.attribute("data_format") == b"NCHW" else rank - 1
    if value.axis == channels:
        return Rows((dims_of(value)[channels],), batch=value.batch, outer=value.outer, inner=value.inner)
    return summed(value, (dims_of(value)[channels],))


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2", "Roll", "Reverse")
def along(node: Node, inputs: Sequence[Any]) -> Value:
    """Along axes other than that of the records; entries stay on their axes."""
    value = inputs[0]
    require_constants(inputs[1:], f"a parameter of {node.type}")
    if isinstance(value, Total) and node.type in ("Cumsum", "ReverseV2", "Roll"):
        return Total(value.shape, batch=value.batch)
    if not isinstance(value, Rows):
        raise refused_kind(value, node.type)
    rank = len(dims_of(value))
    axes = axes_of(inputs[-1], rank) if node.type != "Reverse" else tuple(range(rank))
    if value.axis in axes:
        raise MixedError(f"{node.type} along the records of the batch")
    kept = dataclasses.replace(value, fill=None, within=None, runs=None)
    if node.type == "Cumsum" and not node.attribute("reverse"):
        return dataclasses.replace(kept, within=running(value, axes[0]))
    return kept


def running(value: Rows, axis: int) -> tuple[Number, Number] | None:
    """Bounds of the running sums of integers along an axis."""
    if value.runs is not None and value.runs[0] == axis:
        return value.runs[1:]
    size = dims_of(value)[axis]
    if value.within is None or size is None or not all(isinstance(n, int) for n in value.within):
        return None
    least, most = value.within
    return min(least, 0) * size, max(most, 0) * size  # type: ignore[type-var]


@rule("ArgMax", "ArgMin")
def place_of_extreme(node: Node, inputs: Sequence[Any]) -> Value:
    """Where the largest entry along an axis is: not along that of the records."""
    value = inputs[0]
    require_constants(inputs[1:], "the axis")
    if not isinstance(value, Rows):
        raise refused_kind(value, node.type)
    shape = dims_of(value)
    axis = axes_of(inputs[1], len(shape))[0]
    if axis == value.axis:
        raise MixedError(f"{node.type} along the records of the batch")
    left = tuple(n for i, n in enumerate(shape) if i != axis)
    size = shape[axis]
    within = None if size is None else (0, size - 1)
    own = value.axis - (axis < value.axis)
    return Rows(left, batch=value.batch, axis=own, outer=value.outer, inner=value.inner, within=within)


@rule("ReverseSequence")
def reverse_sequence(node: Node, inputs: Sequence[Any]) -> Value:
    """The first entries of each record along one axis backwards, as many as that record says."""
    value, lengths = inputs
    if not isinstance(value, Rows):
        raise refused_kind(value, "reversal")
    own = isinstance(lengths, Rows) and lengths.layout == value.layout
    if not own or node.attribute("batch_dim") != value.axis or node.attribute("seq_dim") == value.axis:
        raise MixedError("records reversed, or as other records say")
    return dataclasses.replace(value, fill=None, within=None, runs=None)
