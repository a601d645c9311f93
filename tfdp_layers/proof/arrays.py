"""Puts known integers elsewhere, for `arithmetic`: shapes cut and joined, permutations, constants filled in.

Where TensorFlow's own kernel fails, nothing is said of the result: NumPy may take what other kernels refuse, and XLA or
another device compute something else than either (of an index that is out of range the nearest entry, or zeros).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfdp_layers.proof.arithmetic import LARGEST, UndecidedError, axis_of, operation, plain, require, same
from tfdp_layers.proof.rules import Node

_ENTRYWISE = ("Add", "AddV2", "GreaterEqual", "Cast", "Identity")


@operation("Pack")
def pack(node: Node, *arrays: Any) -> Any:
    return np.stack(arrays, node.attribute("axis"))


@operation("Unpack")
def unpack(node: Node, a: Any) -> list[Any]:
    return list(np.moveaxis(a, node.attribute("axis"), 0))


@operation("Split")
def split(node: Node, axis: Any, a: Any) -> list[Any]:
    return np.split(a, node.attribute("num_split"), axis_of(axis, a.ndim))


@operation("SplitV")
def split_by(node: Node, a: Any, sizes: Any, axis: Any) -> list[Any]:
    """Parts of these sizes, one of which may be -1: what the others leave."""
    found, along = [int(n) for n in plain(sizes)], axis_of(axis, a.ndim)
    if -1 in found:
        found[found.index(-1)] = a.shape[along] - (sum(found) + 1)
    require(min(found) >= 0 and sum(found) == a.shape[along])
    return np.split(a, np.cumsum(found)[:-1], along)


@operation("ConcatV2")
def concat(node: Node, *arrays: Any) -> Any:
    *parts, axis = arrays
    return np.concatenate(parts, axis_of(axis, parts[0].ndim))


@operation("Reshape")
def reshape(node: Node, a: Any, shape: Any) -> Any:
    wanted = [int(n) for n in plain(shape).ravel()]
    require(all(n >= -1 for n in wanted) and wanted.count(-1) < 2)
    return a.reshape(wanted)


@operation("ExpandDims")
def expand_dims(node: Node, a: Any, axis: Any) -> Any:
    require(axis.size == 1)
    return np.expand_dims(a, axis_of(axis.ravel()[0], a.ndim + 1))


@operation("Squeeze")
def squeeze(node: Node, a: Any) -> Any:
    return np.squeeze(a, tuple(node.attribute("squeeze_dims")) or None)


@operation("Transpose")
def transpose(node: Node, a: Any, order: Any) -> Any:
    return np.transpose(a, plain(order))


@operation("ReverseV2")
def reverse(node: Node, a: Any, axes: Any) -> Any:
    return np.flip(a, tuple(plain(axes)))


@operation("Tile")
def tile(node: Node, a: Any, times: Any) -> Any:
    often = [int(n) for n in plain(times)]
    require(len(often) == a.ndim and all(n >= 0 for n in often) and a.size * math.prod(often) <= LARGEST)
    return np.tile(a, often)


@operation("Pad", "PadV2")
def pad(node: Node, a: Any, by: Any, value: Any = 0) -> Any:
    widths = plain(by)
    if np.prod([n + sum(pair) for n, pair in zip(a.shape, widths, strict=True)], dtype=object) > LARGEST:
        raise UndecidedError
    return np.pad(a, widths, constant_values=np.asarray(value, object).item())


@operation("Fill")
def fill(node: Node, shape: Any, value: Any) -> Any:
    wanted = plain(shape)
    require(value.ndim == 0)
    if np.prod(wanted, dtype=object) > LARGEST:
        raise UndecidedError
    return np.full(wanted, value, dtype=object)


@operation("BroadcastTo")
def broadcast_to(node: Node, a: Any, shape: Any) -> Any:
    wanted = plain(shape)
    if np.prod(wanted, dtype=object) > LARGEST:
        raise UndecidedError
    return np.broadcast_to(a, wanted)


@operation("Range")
def arange(node: Node, start: Any, limit: Any, step: Any) -> Any:
    bounds = [int(plain(n)) for n in (start, limit, step)]
    require(bounds[2] != 0 and (bounds[1] - bounds[0]) * bounds[2] >= 0)
    if len(range(*bounds)) > LARGEST:
        raise UndecidedError
    return np.arange(*bounds).astype(object)


@operation("Slice")
def cut(node: Node, a: Any, begin: Any, size: Any) -> Any:
    found = []
    for n, b, s in zip(a.shape, plain(begin).tolist(), plain(size).tolist(), strict=True):
        count = n - b if s == -1 else s
        require(b >= 0 and count >= 0 and b + count <= n)
        found.append(slice(b, b + count))
    return a[tuple(found)]


@operation("StridedSlice")
def strided(node: Node, a: Any, begin: Any, end: Any, step: Any) -> Any:
    masks = {m: node.attribute(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    index: list[Any] = []
    for i, (b, e, s) in enumerate(zip(plain(begin), plain(end), plain(step), strict=True)):
        here = {name: mask >> i & 1 for name, mask in masks.items()}
        if here["ellipsis"]:
            index.append(Ellipsis)
        elif here["new_axis"]:
            index.append(None)
        elif here["shrink_axis"]:
            require(s > 0)
            index.append(int(b))
        else:
            index.append(slice(None if here["begin"] else int(b), None if here["end"] else int(e), int(s)))
    return a[tuple(index)]


@operation("GatherV2")
def gather(node: Node, a: Any, indices: Any, axis: Any) -> Any:
    if node.attribute("batch_dims", 0):
        raise UndecidedError
    own, along = plain(indices), axis_of(axis, a.ndim)
    require(bool(np.all((own >= 0) & (own < a.shape[along]))))
    return np.take(a, own, along)


@operation("InvertPermutation")
def invert(node: Node, order: Any) -> Any:
    places = plain(order)
    require(sorted(places.tolist()) == list(range(len(places))))
    return np.argsort(places).astype(object)


@operation("ConcatOffset")
def offsets(node: Node, axis: Any, *shapes: Any) -> list[Any]:
    at, found, place = 0, [], axis_of(axis, len(shapes[0]))
    require(
        all(
            same(n, m) is not False
            for s in shapes
            for i, (n, m) in enumerate(zip(s, shapes[0], strict=True))
            if i != place
        )
    )
    for shape in shapes:
        one = np.zeros(len(shape), object)
        one[place] = at
        found.append(one)
        at = at + shape[place]
    return found


def only_summed_over(tensor: Any) -> bool:
    """Whether a tensor is only ever, perhaps after arithmetic entry by entry, the axes of a sum.

    What a function returns may be used in any way.
    """
    if any(one.name == tensor.name for one in getattr(tensor.graph, "outputs", ())):
        return False
    return all(
        tensor is not user.inputs[0]
        if user.type == "Sum"
        else user.type in _ENTRYWISE and only_summed_over(user.outputs[0])
        for user in tensor.consumers()
    )


@operation("BroadcastArgs")
def broadcast_sizes(node: Node, first: Any, second: Any) -> Any:
    """The shape that two are broadcast to. What may be 1 for one number of records, beside another size, is neither."""
    rank = max(len(first), len(second))
    a, b = ([1] * (rank - len(s)) + list(s) for s in (first, second))
    require(all(n == m or 1 in (n, m) for n, m in zip(a, b, strict=True)))
    return np.array([m if n == 1 else n for n, m in zip(a, b, strict=True)], object)


@operation("BroadcastGradientArgs")
def broadcast_axes(node: Node, first: Any, second: Any) -> list[Any]:
    """Axes along which each of two shapes was broadcast. A size that may be 1 for one number of records is not 1.

    Where both sizes are 1, TensorFlow may name the axis or not; so it may be summed over, and nothing else be done.
    """
    if not all(map(only_summed_over, node.operation.outputs)):
        raise UndecidedError
    rank = max(len(first), len(second))
    a, b = ([1] * (rank - len(s)) + list(s) for s in (first, second))
    require(not any(same(n, m) is same(n, 1) is same(m, 1) is False for n, m in zip(a, b, strict=True)))
    found = []
    for own, other, length in ((a, b, len(first)), (b, a, len(second))):
        axes = [i for i in range(rank) if own[i] == 1 and (other[i] != 1 or i < rank - length)]
        found.append(np.array(axes, object))
    return found


@operation("DynamicStitch")
def stitch(node: Node, *arrays: Any) -> Any:
    half = len(arrays) // 2
    found: dict[int, Any] = {}
    for indices, data in zip(arrays[:half], arrays[half:], strict=True):
        own = plain(indices).ravel()
        require(data.shape[: indices.ndim] == indices.shape)
        found.update(zip(own.tolist(), data.reshape((own.size, *data.shape[indices.ndim :])), strict=True))
    require(sorted(found) == list(range(len(found))))
    return np.stack([np.asarray(found[i], object) for i in range(len(found))])
