"""Puts known integers elsewhere, for `arithmetic`: shapes cut and joined, permutations, constants filled in."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdp_layers.proof.arithmetic import LARGEST, UndecidedError, operation, plain
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
    return np.split(a, node.attribute("num_split"), int(plain(axis)))


@operation("SplitV")
def split_by(node: Node, a: Any, sizes: Any, axis: Any) -> list[Any]:
    """Parts of these sizes, one of which may be -1: what the others leave."""
    found, along = [int(n) for n in plain(sizes)], int(plain(axis))
    if -1 in found:
        found[found.index(-1)] = a.shape[along] - (sum(found) + 1)
    return np.split(a, np.cumsum(found)[:-1], along)


@operation("ConcatV2")
def concat(node: Node, *arrays: Any) -> Any:
    *parts, axis = arrays
    return np.concatenate(parts, int(plain(axis)))


@operation("Reshape")
def reshape(node: Node, a: Any, shape: Any) -> Any:
    return a.reshape(plain(shape))


@operation("ExpandDims")
def expand_dims(node: Node, a: Any, axis: Any) -> Any:
    return np.expand_dims(a, int(plain(axis).ravel()[0]))


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
    return np.tile(a, plain(times))


@operation("Pad", "PadV2")
def pad(node: Node, a: Any, by: Any, value: Any = 0) -> Any:
    widths = plain(by)
    if np.prod([n + sum(pair) for n, pair in zip(a.shape, widths, strict=True)], dtype=object) > LARGEST:
        raise UndecidedError
    return np.pad(a, widths, constant_values=np.asarray(value, object).item())


@operation("Fill")
def fill(node: Node, shape: Any, value: Any) -> Any:
    wanted = plain(shape)
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
    if len(range(*bounds)) > LARGEST:
        raise UndecidedError
    return np.arange(*bounds).astype(object)


@operation("Slice")
def cut(node: Node, a: Any, begin: Any, size: Any) -> Any:
    pairs = zip(plain(begin), plain(size), strict=True)
    return a[tuple(slice(b, None if n == -1 else b + n) for b, n in pairs)]


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
            index.append(int(b))
        else:
            index.append(slice(None if here["begin"] else int(b), None if here["end"] else int(e), int(s)))
    return a[tuple(index)]


@operation("GatherV2")
def gather(node: Node, a: Any, indices: Any, axis: Any) -> Any:
    if node.attribute("batch_dims", 0):
        raise UndecidedError
    return np.take(a, plain(indices), int(plain(axis)))


@operation("InvertPermutation")
def invert(node: Node, order: Any) -> Any:
    return np.argsort(plain(order)).astype(object)


@operation("ConcatOffset")
def offsets(node: Node, axis: Any, *shapes: Any) -> list[Any]:
    at, found, place = 0, [], int(plain(axis))
    for shape in shapes:
        one = np.zeros(len(shape), object)
        one[place] = at
        found.append(one)
        at = at + shape[place]
    return found


def only_summed_over(tensor: Any) -> bool:
    """Whether a tensor is only ever, perhaps after arithmetic entry by entry, the axes of a sum."""
    return all(
        tensor is not user.inputs[0]
        if user.type == "Sum"
        else user.type in _ENTRYWISE and only_summed_over(user.outputs[0])
        for user in tensor.consumers()
    )


@operation("BroadcastGradientArgs")
def broadcast_axes(node: Node, first: Any, second: Any) -> list[Any]:
    """Axes along which each of two shapes was broadcast. A size that may be 1 for one number of records is not 1.

    Where both sizes are 1, TensorFlow may name the axis or not; so it may be summed over, and nothing else be done.
    """
    if not all(map(only_summed_over, node.operation.outputs)):
        raise UndecidedError
    rank = max(len(first), len(second))
    a, b = ([1] * (rank - len(s)) + list(s) for s in (first, second))
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
        found.update(zip(own.tolist(), data.reshape((own.size, *data.shape[indices.ndim :])), strict=True))
    return np.stack([np.asarray(found[i], object) for i in range(len(found))])
