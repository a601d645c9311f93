"""Between which numbers a real tensor's entries lie, whatever the records hold: from the operations that make it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import tensorflow as tf

from tfdp_layers.proof.frames import Frame
from tfdp_layers.proof.intervals import interval_of
from tfdp_layers.proof.real_numbers import ANYTHING, UNIT, Reals, flushed, hull, moderate, of_constant, without
from tfdp_layers.proof.rules import types

__all__ = ["Reals", "reals_of"]

_DEPTH = 64
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_COPIES = ("EnsureShape", "Identity", "IdentityN", "PreventGradient", "StopGradient")

Place: TypeAlias = "tuple[Frame, Any]"
"""A tensor, and the frame that it is computed in."""


def reals_of(frames: Mapping[str, Frame], frame: Frame, tensor: Any) -> Reals:
    """Numbers that every entry of a tensor lies between, at worst all of them.

    Guarantee: holds for every entry, in numbers of the tensor's type, however Grappler puts constants together.

    Args:
        frames: the last one of each path, to look into functions that were called.
        frame: in which the tensor is; what was handed in is followed outwards.
    """
    return _Look(frames).of(frame, tensor, _DEPTH)


class _Look:
    """One look back; what was found of a tensor is kept."""

    def __init__(self, frames: Mapping[str, Frame]) -> None:
        self.frames = frames
        self.known: dict[tuple[int, str], Reals] = {}

    def of(self, frame: Frame, tensor: Any, depth: int) -> Reals:
        frame, tensor = self.source(frame, tensor)
        key = (id(frame), tensor.name)
        if key not in self.known:
            self.known[key] = self.found(frame, tensor, depth)
        return self.known[key]

    def source(self, frame: Frame, tensor: Any) -> Place:
        """The tensor of which this one is a copy, and its frame."""
        while True:
            frame, tensor = frame.resolve(tensor)
            operation = tensor.op
            inner = self.frames.get(f"{frame.path}/{operation.name}|f") if operation.type in _CALLS else None
            if operation.type in _COPIES:
                tensor = operation.inputs[tensor.value_index]
            elif inner is not None:
                frame, tensor = inner, inner.graph.outputs[tensor.value_index]
            else:
                return frame, tensor

    def found(self, frame: Frame, tensor: Any, depth: int) -> Reals:
        value, operation = frame.values.get(tensor.name), tensor.op
        fill = getattr(value, "fill", None)
        if fill is not None:
            return Reals(fill, fill, False)
        if tensor.dtype.is_bool:
            return Reals(0.0, 1.0, False)
        if tensor.dtype.is_integer:
            low, high = interval_of(frame.values, tensor)
            return Reals(float(low), float(high), False)
        if not tensor.dtype.is_floating or depth == 0:
            return ANYTHING
        if operation.type == "Const":
            return flushed(tensor.dtype, of_constant(tf.make_ndarray(operation.get_attr("value"))))
        if operation.type in ("Select", "SelectV2"):
            return self.selected(frame, operation, depth - 1)
        rule = RULES.get(operation.type)
        if rule is None:
            return ANYTHING
        return flushed(tensor.dtype, rule(operation, *[self.of(frame, one, depth - 1) for one in operation.inputs]))

    def selected(self, frame: Frame, operation: Any, depth: int) -> Reals:
        """Either alternative, each without what the condition says it is not where it is taken."""
        condition, *both = operation.inputs
        found = [
            without(
                self.of(frame, one, depth), self.excluded(frame, condition, taken, self.source(frame, one)), one.dtype
            )
            for one, taken in zip(both, (True, False), strict=True)
        ]
        return hull(*found)

    def excluded(self, frame: Frame, condition: Any, true: bool, place: Place) -> frozenset[str]:
        """Which of "nan", "inf" and "-inf" an entry of the tensor is not where the condition is true (or is not)."""
        frame, condition = self.source(frame, condition)
        kind, inputs = condition.op.type, list(condition.op.inputs)
        if kind == "LogicalNot":
            return self.excluded(frame, inputs[0], not true, place)
        if kind == ("LogicalAnd" if true else "LogicalOr"):
            return self.excluded(frame, inputs[0], true, place) | self.excluded(frame, inputs[1], true, place)
        if kind == "LogicalAnd":  # nan_to_num: it is not infinite and beyond zero
            return self.infinite(frame, inputs, place) | self.infinite(frame, inputs[::-1], place)
        says = {("IsNan", False): "nan", ("IsInf", False): "inf -inf", ("IsFinite", True): "nan inf -inf"}
        if (kind, true) not in says or not same(self.source(frame, inputs[0]), place):
            return frozenset()
        return frozenset(says[kind, true].split())

    def infinite(self, frame: Frame, both: Sequence[Any], place: Place) -> frozenset[str]:
        """Which infinity "the entry is infinite, and on that side of zero" asks for."""
        (its, asked), (home, side) = (self.source(frame, one) for one in both)
        if asked.op.type != "IsInf" or side.op.type not in ("Greater", "Less"):
            return frozenset()
        own, other = side.op.inputs
        zero = getattr(home.values.get(other.name), "fill", None) == 0.0
        if not zero or not all(same(self.source(*one), place) for one in ((home, own), (its, asked.op.inputs[0]))):
            return frozenset()
        return frozenset(["inf" if side.op.type == "Greater" else "-inf"])


def same(a: Place, b: Place) -> bool:
    return a[0] is b[0] and a[1].name == b[1].name


def first(operation: Any, one: Reals, *others: Reals) -> Reals:
    return one


def every(operation: Any, *parts: Reals) -> Reals:
    """Of joined parts; a shape or an axis among them widens it at most."""
    return hull(*parts)


def within(low: float, high: float) -> Callable[..., Reals]:
    """Of a function whose numbers lie there, whatever it is of; it gives no number (NaN) where it got none."""
    return lambda operation, *inputs: Reals(low, high, any(one.nan or not one.finite for one in inputs))


def rounded(function: Callable[[float], float]) -> Callable[..., Reals]:
    """Of a function of single numbers that never falls."""

    def at(end: float) -> float:
        return float(function(end)) if math.isfinite(end) else end

    return lambda operation, one: Reals(at(one.low), at(one.high), one.nan)


def smaller(operation: Any, a: Reals, b: Reals) -> Reals:
    """The smaller number; where one is none, it may be the other."""
    highs = [min(a.high, b.high), *([b.high] if a.nan else []), *([a.high] if b.nan else [])]
    return Reals(min(a.low, b.low), max(highs), a.nan or b.nan)


def negative(operation: Any, one: Reals) -> Reals:
    return Reals(-one.high, -one.low, one.nan)


def larger(operation: Any, a: Reals, b: Reals) -> Reals:
    return negative(operation, smaller(operation, negative(operation, a), negative(operation, b)))


def clipped(operation: Any, one: Reals, low: Reals, high: Reals) -> Reals:
    """Where the ends may be the wrong way round, kernels give the one, and XLA the other."""
    found = larger(operation, smaller(operation, one, high), low)
    return found if low.high <= high.low else hull(found, low, high)


def largest_of_windows(operation: Any, one: Reals) -> Reals:
    """A window of what is no number may give the smallest number, or minus infinity."""
    return Reals(-math.inf if one.nan else one.low, one.high, one.nan)


def above_zero(operation: Any, one: Reals) -> Reals:
    return larger(operation, one, Reals(0.0, 0.0, False))


def absolute(operation: Any, one: Reals) -> Reals:
    ends = abs(one.low), abs(one.high)
    return Reals(0.0 if one.has_zero else min(ends), max(ends), one.nan)


def added(operation: Any, a: Reals, b: Reals) -> Reals:
    for one, other in ((a, b), (b, a)):
        if (one.low, one.high) == (0.0, 0.0):
            return Reals(other.low, other.high, a.nan or b.nan)
    meet = (a.low == -math.inf and b.high == math.inf) or (a.high == math.inf and b.low == -math.inf)
    if meet or any(
        one.low == one.high and 4.0 * abs(one.low) > float(operation.outputs[0].dtype.max) for one in (a, b)
    ):
        return ANYTHING
    slack = 0.0
    if min(a.low, b.low) < 0.0 < max(a.high, b.high):  # what rounding takes, nothing gives back where they cancel
        sizes = [abs(end) for one in (a, b) for end in (one.low, one.high) if math.isfinite(end)]
        slack = 2.0 * max(sizes, default=0.0) * float(ml_dtypes.finfo(operation.outputs[0].dtype.as_numpy_dtype).eps)
    return widened(operation, a.low + b.low - slack, a.high + b.high + slack, a.nan or b.nan)


def subtracted(operation: Any, a: Reals, b: Reals) -> Reals:
    return added(operation, a, negative(operation, b))


def multiplied(operation: Any, a: Reals, b: Reals) -> Reals:
    for one, other in ((a, b), (b, a)):
        if (one.low, one.high) == (1.0, 1.0):
            return Reals(other.low, other.high, a.nan or b.nan)
    if any(one.has_zero and not other.finite for one, other in ((a, b), (b, a))) or not moderate(operation, a, b):
        return ANYTHING
    ends = [m * n for m in (a.low, a.high) for n in (b.low, b.high)]
    return widened(operation, min(ends), max(ends), a.nan or b.nan)


def divided(operation: Any, a: Reals, b: Reals) -> Reals:
    least = float(ml_dtypes.finfo(operation.outputs[0].dtype.as_numpy_dtype).smallest_normal)
    inverse = max(abs(b.low), abs(b.high)) <= 1.0 / least or not b.finite  # by which XLA multiplies
    if (
        (b.low < least and b.high > -least)
        or not (a.finite or b.finite)
        or not inverse
        or not moderate(operation, a, b)
    ):
        return ANYTHING
    if (b.low, b.high) == (1.0, 1.0):
        return Reals(a.low, a.high, a.nan or b.nan)
    ends = [m / n for m in (a.low, a.high) for n in (b.low, b.high)]
    return widened(operation, min(ends), max(ends), a.nan or b.nan, 2)


def remainder(operation: Any, one: Reals, by: Reals) -> Reals:
    """Of what is next to the divisor rounding may make the divisor itself."""
    least = float(ml_dtypes.finfo(operation.outputs[0].dtype.as_numpy_dtype).smallest_normal)
    if not least <= by.low <= by.high < math.inf:
        return ANYTHING
    return Reals(0.0, by.high, one.nan or by.nan or not one.finite)


def widened(operation: Any, low: float, high: float, nan: bool, times: int = 1) -> Reals:
    """With what rounding may add, so often. What is beyond the type is infinite; what is next to zero may be zero."""
    info = ml_dtypes.finfo(operation.outputs[0].dtype.as_numpy_dtype)
    by, least, most = times * 0.5 * float(info.eps), float(info.smallest_normal), float(info.max)
    low, high = low - abs(low) * by, high + abs(high) * by
    if 0.0 < abs(low) < least:
        low = min(0.0, math.copysign(least, low))
    if 0.0 < abs(high) < least:
        high = max(0.0, math.copysign(least, high))
    return Reals(-math.inf if low < -most else min(low, most), math.inf if high > most else max(high, -most), nan)


def cast(operation: Any, one: Reals) -> Reals:
    """To another real type: rounding keeps the order."""
    kind = operation.outputs[0].dtype.as_numpy_dtype
    with np.errstate(over="ignore"):
        low, high = float(kind(one.low)), float(kind(one.high))
    return Reals(min(low, one.low), max(high, one.high), one.nan)


def averaged(operation: Any, one: Reals, *others: Reals) -> Reals:
    """A mean of so many numbers as is known: rounding adds half a unit for each."""
    if operation.type == "Mean":
        shape, along = operation.inputs[0].shape, tf.get_static_value(operation.inputs[1])
        sizes: list[int] = [0] if shape.rank is None or along is None else [shape[int(i)] or 0 for i in np.ravel(along)]
    else:
        sizes = list(operation.get_attr("ksize"))
    if 0 in sizes or not one.finite:
        return ANYTHING
    return widened(operation, one.low, one.high, one.nan, math.prod(sizes) + 1)


def between(operation: Any, one: Reals, size: Reals) -> Reals:
    """Of pictures that are interpolated from those of their pixels that lie around."""
    return widened(operation, one.low, one.high, one.nan, 16) if one.finite else ANYTHING


def square_root(operation: Any, one: Reals) -> Reals:
    if not 0.0 <= one.low <= one.high < math.inf:
        return ANYTHING
    return widened(operation, math.sqrt(one.low), math.sqrt(one.high), one.nan, 2)


def squared(operation: Any, one: Reals) -> Reals:
    size = absolute(operation, one)
    return multiplied(operation, size, size)


def extreme(operation: Any, one: Reals, axes: Reals) -> Reals:
    """The largest or smallest of some; of none an infinity."""
    shape, along = operation.inputs[0].shape, tf.get_static_value(operation.inputs[1])
    if shape.rank is not None and along is not None and all(shape[int(i)] for i in np.ravel(along)):
        return one
    return Reals(-math.inf if operation.type == "Max" else one.low, math.inf if operation.type == "Min" else one.high)


RULES: dict[str, Callable[..., Reals]] = {
    **dict.fromkeys(types("BroadcastTo DepthToSpace ExpandDims Reshape ReverseV2 Slice SpaceToDepth"), first),
    "MaxPool": largest_of_windows,
    **dict.fromkeys(types("SplitV Squeeze StridedSlice Tile Transpose Unpack"), first),
    **dict.fromkeys(types("ConcatV2 Pack PadV2 Split"), every),
    "Pad": lambda operation, one, by: hull(one, Reals(0.0, 0.0, False)),
    "GatherV2": lambda operation, one, *others: hull(one, Reals(0.0, 0.0, False)),  # of an index out of range zeros
    "Fill": lambda operation, shape, value: value,
    "Cast": cast,
    **dict.fromkeys(["Add", "AddV2", "BiasAdd"], added),
    "Sub": subtracted,
    "Mul": multiplied,
    **dict.fromkeys(["RealDiv", "Div"], divided),
    "FloorMod": remainder,
    "Neg": negative,
    "Abs": absolute,
    "Minimum": smaller,
    "Maximum": larger,
    "ClipByValue": clipped,
    **dict.fromkeys(["Max", "Min"], extreme),
    **dict.fromkeys(["Mean", "AvgPool", "AvgPool3D"], averaged),
    **dict.fromkeys(["ResizeBilinear", "ResizeNearestNeighbor"], between),
    "Sqrt": square_root,
    "Square": squared,
    **dict.fromkeys(["Round", "Rint"], rounded(round)),
    "Floor": rounded(math.floor),
    "Ceil": rounded(math.ceil),
    "Relu": above_zero,
    "Relu6": lambda operation, one: smaller(operation, above_zero(operation, one), Reals(6.0, 6.0, False)),
    **dict.fromkeys(["Sigmoid", "Softmax"], within(0.0, 1.0)),
    **dict.fromkeys(["Tanh", "Sign"], within(-1.0, 1.0)),
    **dict.fromkeys(["RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"], lambda *_: UNIT),
}
