"""Operations on the last axes together, entry by entry of all axes before them: softmax, largest entries, matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import Node, dims_of, refused_kind, require_constants, rule, types
from tfdp_layers.proof.sizes import Number
from tfdp_layers.proof.values import MixedError, Rows, Total, UnknownError, Value
from tfdp_layers.proof.xla import TOGETHER

_AXES = {
    **dict.fromkeys(types("Softmax LogSoftmax TopK TopKV2 RGBToHSV HSVToRGB AdjustHue AdjustSaturation"), 1),
    **dict.fromkeys(types("FFT IFFT RFFT IRFFT"), 1),
    **dict.fromkeys(types("MatrixBandPart MatrixInverse MatrixDeterminant Cholesky Qr Svd SelfAdjointEigV2"), 2),
    **dict.fromkeys(types("FFT2D IFFT2D RFFT2D IRFFT2D MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3"), 2),
    "AdjustContrastv2": 3,
}
"""How many of the last axes are worked on together."""
_LINEAR = frozenset(types("MatrixBandPart"))
_NOTHING_OF_NOTHING = frozenset(types("RFFT IRFFT RFFT2D IRFFT2D"))
"""Where one of these axes is empty, a result of the length that is asked for is left as the kernel finds the memory."""


@rule(*_AXES)
def of_last_axes(node: Node, inputs: Sequence[Any]) -> Value:
    """Entry by entry of the axes in front: the records must be on one of those. Parameters are constants."""
    value, count = inputs[0], _AXES[node.type]
    require_constants(inputs[1:], f"a parameter of {node.type}")
    if isinstance(value, Total) and node.type in _LINEAR:
        return Total(value.shape, batch=value.batch)
    if not isinstance(value, Rows):
        raise refused_kind(value, node.type)
    shape = dims_of(value)
    front = len(shape) - count
    if value.axis >= front:
        raise MixedError(f"{node.type} across the records of the batch")
    if node.prover.compiled and node.type in TOGETHER:
        raise MixedError(
            f"{node.type} compiled by XLA, which goes as many rounds for all records as one of them needs: that turns"
            " vectors of equal values, and moves small values beside large ones (compile the model with"
            " jit_compile=False)"
        )
    if node.type in _NOTHING_OF_NOTHING:
        refuse_empty(node, inputs[1], shape[front:])
    results = []
    for i in range(len(node.operation.outputs)):
        rank = node.rank(i)
        if rank < front:
            raise UnknownError("the rank of the result does not fit")
        own = (*shape[:front], *last_sizes(node, inputs, rank - front))
        within = indices_of(node, i, shape[-1]) if shape else None
        results.append(
            Rows(own, batch=value.batch, axis=value.axis, outer=value.outer, inner=value.inner, within=within)
        )
    return results  # type: ignore[return-value]


def refuse_empty(node: Node, length: Any, sizes: Sequence[Number | None]) -> None:
    """Raises UnknownError where axes may be empty of which a transform of another length is asked for."""
    if all(isinstance(n, int) and n > 0 for n in sizes):
        return
    if node.type.startswith("RFFT") and None not in sizes and length.entries == tuple(sizes):
        return  # then the result is empty, too
    raise UnknownError(f"{node.type} of an axis that may be empty, of which TensorFlow's kernel writes no result")


def last_sizes(node: Node, inputs: Sequence[Any], count: int) -> Sequence[Number | None]:
    """The sizes of the last axes of a result, where they are known: of the k largest entries k."""
    if node.type == "TopKV2" and inputs[1].entries is not None and count == 1:
        return inputs[1].entries  # type: ignore[no-any-return]
    return [None] * count


def indices_of(node: Node, index: int, size: Number | None) -> tuple[Number, Number] | None:
    """Bounds of an output that says where the largest entries of the last axis stand; None of any other."""
    return (0, size - 1) if node.type in ("TopK", "TopKV2") and index == 1 and size is not None else None


@rule("InTopKV2")
def in_top(node: Node, inputs: Sequence[Any]) -> Value:
    """Whether each row's class is among its largest entries."""
    require_constants(inputs[2:], "a parameter")
    first, classes = inputs[:2]
    if not isinstance(first, Rows) or not isinstance(classes, Rows):
        raise refused_kind(classes if isinstance(first, Rows) else first, node.type)
    if first.layout != classes.layout or first.axis != 0 or classes.axis != 0:
        raise MixedError("classes of some records among the entries of others")
    return Rows((first.length,), batch=first.batch, outer=first.outer, inner=first.inner)
