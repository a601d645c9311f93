"""Convolutions, their gradients, pooling and resizing: rows of axis 0, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.elementwise import merged_size
from tfdp_layers.proof.rules import Node, all_constant, dims_of, refused_kind, rule, same_batch, summed, types
from tfdp_layers.proof.sizes import Number
from tfdp_layers.proof.values import Constant, Counted, MixedError, Rows, Total, Value

_FIRST = types("""
    Conv2D Conv3D Conv DepthwiseConv2dNative MaxPool MaxPool3D AvgPool AvgPool3D ResizeBilinear
    ResizeNearestNeighbor ResizeBicubic ResizeArea ResizeBilinearGrad ResizeNearestNeighborGrad ResizeBicubicGrad
    SpaceToDepth DepthToSpace LRN Dilation2D ExtractImagePatches ScaleAndTranslate
""")
_ROWS_AT = {
    **dict.fromkeys(_FIRST, (0,)),
    **dict.fromkeys(["ResizeBilinearGrad", "ResizeBicubicGrad"], (0, 1)),
    "Conv2DBackpropInput": (2,),
    "Conv3DBackpropInputV2": (2,),
    "DepthwiseConv2dNativeBackpropInput": (2,),
    "AvgPoolGrad": (1,),
    "AvgPool3DGrad": (1,),
    "MaxPoolGrad": (0, 1, 2),
    "MaxPool3DGrad": (0, 1, 2),
    "MaxPoolGradGrad": (0, 1, 2),
    "MaxPool3DGradGrad": (0, 1, 2),
    "LRNGrad": (0, 1, 2),
    "Dilation2DBackpropInput": (0, 2),
    "ImageProjectiveTransformV2": (0, 1),
    "ImageProjectiveTransformV3": (0, 1),
    "SparseSoftmaxCrossEntropyWithLogits": (0, 1),
    "SoftmaxCrossEntropyWithLogits": (0, 1),
}
"""Which inputs may hold records, on axis 0 of each; the others are constants."""
_SHAPES_AT = {
    "Conv2DBackpropInput": 0,
    "Conv3DBackpropInputV2": 0,
    "DepthwiseConv2dNativeBackpropInput": 0,
    "AvgPoolGrad": 0,
    "AvgPool3DGrad": 0,
}
"""Which input is the shape of the result: the operation fails where it does not fit."""
_ONE_FOR_ALL = ("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
"""Whose second input may be one row for all records."""


@rule(*_ROWS_AT)
def row_by_row(node: Node, inputs: Sequence[Any]) -> Value:
    """Row i of the result from row i of the inputs that hold records, and from constants.

    Assumes that kernels keep the rows of axis 0 apart, whatever the layout of the other axes.
    """
    require_single_rows(node)
    places, shape_at = _ROWS_AT[node.type], _SHAPES_AT.get(node.type)
    for i, value in enumerate(inputs):
        if i not in places and i != shape_at and not isinstance(value, Constant):
            raise refused_kind(value, f"{node.type}, where a constant belongs")
        if i == shape_at and not isinstance(value, Constant | Counted):
            raise refused_kind(value, f"{node.type}, where a shape belongs")
    rows = [inputs[i] for i in places if isinstance(inputs[i], Rows)]
    for i in places:
        if not isinstance(inputs[i], Rows) and not one_for_all(node, i, inputs[i]):
            raise refused_kind(inputs[i], node.type)
    batch = same_batch(rows)
    if any(v.axis != 0 for v in rows):
        raise MixedError(f"{node.type} across the records, which are not on its axis 0")
    if len({v.layout for v in rows}) > 1:
        raise MixedError("records laid out in one order meet records laid out in another")
    first = rows[0]
    return [  # type: ignore[return-value]
        Rows((first.length, *other_sizes(node, i, inputs)), batch=batch, outer=first.outer, inner=first.inner)
        for i in range(len(node.operation.outputs))
    ]


def require_single_rows(node: Node) -> None:
    """Raises MixedError for windows or steps over several rows of axis 0, which XLA computes, or without that axis."""
    windows = [node.attribute(name) for name in ("ksize", "ksizes", "strides", "rates", "dilations")]
    if any(list(window)[:1] not in ([], [1]) for window in windows if isinstance(window, list | tuple)):
        raise MixedError(f"{node.type} with windows or steps over the records")
    if node.attribute("batch_dims", 1) != 1:
        raise MixedError(f"{node.type} without an axis of records, or with several")


def other_sizes(node: Node, index: int, inputs: Sequence[Any]) -> list[Number | None]:
    """The sizes of an output's axes behind the records', where more is known than by TensorFlow."""
    if node.type.endswith("SoftmaxCrossEntropyWithLogits") and index == 1:
        given = [inputs[0]] if node.type.startswith("Sparse") else inputs
        return [merged_size([dims_of(value)[1] for value in given])]
    return [None] * (node.rank(index) - 1)


def one_for_all(node: Node, index: int, value: Any) -> bool:
    """Whether an input is one constant row for all records."""
    if not isinstance(value, Constant) or node.type not in _ONE_FOR_ALL or index != 1:
        return False
    return dims_of(value)[0] == 1


@rule("BiasAdd")
def bias_add(node: Node, inputs: Sequence[Any]) -> Value:
    """A constant for each channel, added to rows whose channels are not the records."""
    value, bias = inputs
    if not isinstance(value, Rows) or not isinstance(bias, Constant):
        raise refused_kind(bias if isinstance(value, Rows) else value, "a bias")
    channels = 1 if node.attribute("data_format") == b"NCHW" else len(dims_of(value)) - 1
    if value.axis == channels:
        raise MixedError("a bias for each place in the batch")
    return Rows(value.shape, batch=value.batch, axis=value.axis, outer=value.outer, inner=value.inner)


@rule(
    "Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter", "Dilation2DBackpropFilter"
)
def filter_gradient(node: Node, inputs: Sequence[Any]) -> Value:
    """A sum over rows of what input and gradient of each row give: bilinear, so additive over records.

    Where one of the two is a sum over records itself and the other a constant it is linear in it.
    """
    require_single_rows(node)
    dilation = node.type == "Dilation2DBackpropFilter"
    first, gradient, shape = (inputs[0], inputs[2], inputs[1])
    if not isinstance(shape, Constant):
        raise refused_kind(shape, "the filter" if dilation else "the shape of a filter")
    both = [first, gradient]
    totals = [v for v in both if isinstance(v, Total)]
    if totals:
        if len(totals) > 1 or dilation or not all_constant([v for v in both if not isinstance(v, Total)]):
            raise MixedError("the gradient of a filter from sums over records")
        return Total(None, batch=totals[0].batch)
    if not isinstance(first, Rows) or not isinstance(gradient, Rows):
        raise refused_kind(gradient if isinstance(first, Rows) else first, "the gradient of a filter")
    if first.layout != gradient.layout or first.axis != 0 or gradient.axis != 0:
        raise MixedError("the gradient of a filter from inputs of some records and gradients of others")
    return summed(first, None)


@rule("FusedBatchNormV3", "FusedBatchNormV2", "FusedBatchNorm")
def batch_normalization(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Row by row with given mean and variance; with those of the batch records meet."""
    value = inputs[0]
    if not isinstance(value, Rows) or not all_constant(inputs[1:]):
        raise MixedError("normalization by what depends on records")
    if node.attribute("is_training"):
        raise MixedError("mean and variance over the batch")
    if value.axis != 0:
        raise MixedError("normalization across the records, which are not on axis 0")
    result = Rows(value.shape, batch=value.batch, outer=value.outer, inner=value.inner)
    return [result, *[Constant(None)] * (len(node.operation.outputs) - 1)]
