"""Operations that work entry by entry, with broadcasting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.lists import lists_added
from tfdp_layers.proof.narrowing import require_within
from tfdp_layers.proof.places import with_places
from tfdp_layers.proof.rules import Node, dims_of, refused_kind, refused_with_total, rule, same_batch, types
from tfdp_layers.proof.sizes import Number, is_below
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Everyone,
    ListOf,
    MixedError,
    Places,
    Rows,
    Special,
    Total,
    UnknownError,
    Value,
)
from tfdp_layers.proof.walks import added

NONLINEAR = types("""
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e BitwiseAnd BitwiseOr BitwiseXor
    Bucketize Cast Ceil ClipByValue Complex ComplexAbs Cos Cosh Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc
    Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Igamma Igammac Imag Inv InvGrad Invert IsFinite
    IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual Polygamma Pow RandomGammaGrad Real RealDiv
    Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad Select SelectV2
    Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square
    SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
""")
_SUMS = {"Add", "AddV2", "Sub", "Neg", "AddN"}
_QUOTIENTS = {"RealDiv", "Div", "DivNoNan"}
MAY_NOT_FIT = frozenset({"Equal", "NotEqual"})
"""What may give one number, instead of failing, where shapes do not fit (`incompatible_shape_error`)."""


@rule(*NONLINEAR)
def elementwise(node: Node, inputs: Sequence[Any]) -> Value:
    """An entry of the result depends on the entries at its place alone, after broadcasting (`Select` on its own way).

    Guarantee: rows of the same records, at the same axis and laid out alike, stay rows. Constants may join them where
    they are the same for all places along that axis. Casts may depend on where an entry stands: see `narrowing`.
    """
    if node.type == "Cast":
        require_within(node)
    kinds = {type(value) for value in inputs}
    if kinds & {Places, Special}:
        return with_places(node, inputs)
    if Carried in kinds:
        return added(node, inputs)
    if kinds == {Everyone} and node.type == "LogicalNot":
        return dataclasses.replace(inputs[0], negated=not inputs[0].negated)
    if kinds == {ListOf} and node.type == "AddN":
        return lists_added(node, inputs)
    if Total in kinds:
        return of_totals(node, inputs)
    if not kinds <= {Rows, Constant}:
        raise refused_kind(next(v for v in inputs if not isinstance(v, Rows | Constant)), node.type)
    return of_rows(node, inputs)


def of_rows(node: Node, inputs: Sequence[Any]) -> Value:
    """Entry by entry of rows and constants."""
    rank = max(len(dims_of(value)) for value in inputs)
    shapes = [aligned(node, i, value, rank) for i, value in enumerate(inputs)]
    rows = [(value, shape) for value, shape in zip(inputs, shapes, strict=True) if isinstance(value, Rows)]
    batch = same_batch([value for value, _ in rows])
    axes = {axis_after(node, value, rank) for value, _ in rows}
    if len(axes) > 1:
        raise MixedError("records along one axis meet records along another")
    axis = axes.pop()
    outer, inner = common_layout([value for value, _ in rows])
    for value, shape in zip(inputs, shapes, strict=True):
        if isinstance(value, Constant):
            require_alike(value, shape[axis], batch.static)
    if node.type in MAY_NOT_FIT and node.attribute("incompatible_shape_error", True) is False:
        require_compatible(shapes)
    sizes = broadcast(shapes)
    sizes[axis] = batch.size * outer * inner
    first = rows[0][0].fill
    same = (node.type == "Cast" and first in (0.0, 1.0)) or (node.type == "Neg" and first == 0.0)
    fill = first if same else 0.0 if never(node, inputs) else None
    laid: dict[str, Any] = {"batch": batch, "axis": axis, "outer": outer, "inner": inner}
    return Rows(tuple(sizes), **laid, fill=fill, within=bounds(node, inputs))


def never(node: Node, inputs: Sequence[Any]) -> bool:
    """Whether a comparison is false of every entry: of integers that are not below a number, whether they are."""
    if node.type != "Less" or not isinstance(inputs[0], Rows) or not isinstance(inputs[1], Constant):
        return False
    within, numbers = inputs[0].within, inputs[1].entries
    return within is not None and bool(numbers) and all(is_below(within[0], n) is False for n in numbers or ())


def aligned(node: Node, index: int, value: Value, rank: int) -> list[Number | None]:
    """The sizes of the axes after broadcasting to a rank: from the right, but a vector that selects, from the left."""
    shape = list(dims_of(value))
    if node.type == "Select" and index == 0 and len(shape) == 1:
        return [*shape, *[1] * (rank - 1)]
    return [1] * (rank - len(shape)) + shape  # type: ignore[list-item, operator]


def axis_after(node: Node, value: Rows, rank: int) -> int:
    shape = dims_of(value)
    from_left = node.type == "Select" and len(shape) == 1
    return value.axis if from_left else value.axis + rank - len(shape)


def common_layout(rows: Sequence[Rows]) -> tuple[Number, Number]:
    """(outer, inner) of all; what is one number in every entry is laid out like any other.

    Raises: MixedError where entries of different records would meet.
    """
    settled = [value for value in rows if value.fill is None] or [rows[0]]
    layouts = {(value.outer, value.inner) for value in settled}
    if len(layouts) > 1 or len({value.outer * value.inner for value in rows}) > 1:
        raise MixedError("records laid out in one order meet records laid out in another")
    return layouts.pop()


def require_alike(value: Constant, size: Number | None, static: int | None) -> None:
    """Raises unless a constant is the same for all places along an axis of this size of its own."""
    if size == 1 or (value.fill is not None and size is not None and size == static):
        return
    if size is None or not isinstance(size, int):
        raise UnknownError("a constant whose size along the records is not known")
    raise MixedError("a constant with an entry for each place in the batch")


def broadcast(shapes: Sequence[Sequence[Number | None]]) -> list[Number | None]:
    """The sizes after broadcasting."""
    return [merged_size(sizes) for sizes in zip(*shapes, strict=True)]


def merged_size(sizes: Sequence[Number | None]) -> Number | None:
    """The size that all sizes but 1 are. None for several names: one of them may stand for 1."""
    others = {n for n in sizes if n != 1}
    plain = [n for n in others if isinstance(n, int)]
    if plain:
        return plain[0]
    return next(iter(others), 1) if len(others) < 2 else None


def require_compatible(shapes: Sequence[Sequence[Number | None]]) -> None:
    """Raises unless shapes are known to be broadcast together, where the operation does not fail if they are not."""
    for sizes in zip(*shapes, strict=True):
        if len({n for n in sizes if n != 1}) > 1 or None in sizes:
            raise UnknownError("two shapes that may not fit, of which one number is made then")


def bounds(node: Node, inputs: Sequence[Any]) -> tuple[Number, Number] | None:
    """Bounds of an integer result, where they are plain to see: truth values are 0 or 1, remainders small.

    Of a choice that always falls on the second alternative: its own.
    """
    if node.type == "FloorMod" and isinstance(inputs[1], Constant) and inputs[1].entries is not None:
        divisors = inputs[1].entries
        return (0, divisors[0] - 1) if len(divisors) == 1 and at_least_one(divisors[0]) else None
    if node.type == "SelectV2" and inputs[0].fill == 0.0 and isinstance(inputs[2], Rows):
        return inputs[2].within
    if node.type != "Cast":
        return None
    if node.operation.inputs[0].dtype.is_bool and not node.dtype().is_bool:
        return 0, 1
    before, after = node.operation.inputs[0].dtype, node.dtype()
    wider = before.is_integer and after.is_integer and after.size >= before.size
    return inputs[0].within if wider else None


def at_least_one(number: Number) -> bool:
    return isinstance(number, int) and number > 0


def of_totals(node: Node, inputs: Sequence[Any]) -> Value:
    """Sums over records: linear operations keep them additive, in real arithmetic.

    A sum of sums; a multiple by a constant; a quotient by one; a choice by constants between sums (zero counts as one).
    """
    totals = [value for value in inputs if isinstance(value, Total)]
    if not all(isinstance(value, Total | Constant) for value in inputs):
        raise refused_with_total(next(v for v in inputs if not isinstance(v, Total | Constant)), node.type)
    batch = same_batch(totals)
    additive = [isinstance(value, Total) or value.fill == 0.0 for value in inputs]
    ok = {
        "Cast": numeric_cast(node),
        "Mul": len(totals) == 1,
        "MulNoNan": isinstance(inputs[0], Total) and len(totals) == 1,
        "SelectV2": isinstance(inputs[0], Constant) and all(additive[1:]),
        "Select": isinstance(inputs[0], Constant) and all(additive[1:]),
    }
    ok |= dict.fromkeys(_SUMS, all(additive))
    real = node.dtype().is_floating or node.dtype().is_complex
    ok |= dict.fromkeys(_QUOTIENTS, real and isinstance(inputs[0], Total) and len(totals) == 1)
    if not ok.get(node.type, False):
        if node.type in _SUMS:
            raise UnknownError("a constant added to a sum over records")
        raise MixedError(f"{node.type} of a sum over records is not additive")
    rank = max((len(dims_of(value)) for value in inputs if value.shape is not None), default=0)
    if any(value.shape is None for value in inputs):
        return Total(None, batch=batch)
    return Total(tuple(broadcast([aligned(node, i, value, rank) for i, value in enumerate(inputs)])), batch=batch)


def numeric_cast(node: Node) -> bool:
    """Whether a cast keeps sums: between real numbers, or to complex ones. Integers may be beyond their type."""
    before, after = node.operation.inputs[0].dtype, node.dtype()
    return bool((before.is_floating and after.is_floating) or (after.is_complex and not before.is_integer))


@rule("Bitcast")
def bitcast(node: Node, inputs: Sequence[Any]) -> Any:
    """The same bytes as numbers of another type, entry by entry where both are as long."""
    if node.operation.inputs[0].dtype.size != node.dtype().size:
        raise UnknownError("bytes as more numbers, or as fewer")
    return elementwise(node, inputs)


@rule(
    "Identity",
    "IdentityN",
    "StopGradient",
    "PreventGradient",
    "CheckNumerics",
    "EnsureShape",
    "Snapshot",
    any_input=True,
)
def identity(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """The inputs as they are; whether a check fails is a channel beside the released sums."""
    return list(inputs)
