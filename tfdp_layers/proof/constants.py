"""Tensors that depend neither on records nor on their number; and those that depend on their number alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tfdp_layers.proof.rules import WHOLE, Node, all_constant, numbers, rule, types
from tfdp_layers.proof.settling import fits
from tfdp_layers.proof.values import Constant, Counted, MixedError, UnknownError, Value

_KEEPS = types(
    "BroadcastTo Cast EnsureShape ExpandDims Fill Identity Reshape ReverseV2 Slice Squeeze StopGradient"
    " StridedSlice Tile Transpose Unpack Split"
)
"""Whose results have the first input's entries alone. Of indices out of range a gather may make zeros of its own."""
_SUMS = types("Add AddV2 Sub AddN")
_REAL = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})
_EXACT = 256
"""Whole numbers up to this one are exact in every type of `_REAL`."""

_FEW_BYTES = 256
_LARGEST = 4096
"""Entries of a constant up to which it is looked at."""


def constant_results(node: Node, inputs: Sequence[Any]) -> Value:
    """Of constants an operation makes constants, of numbers of records what depends on them."""
    if not node.functional:
        raise UnknownError(f"operation {node.type} may depend on anything")
    if not all_constant(inputs):
        return Counted(None)
    return Constant(None, fill=filled(node, inputs))


def equal_to_itself(node: Node) -> bool:
    """Whether it asks if a truth value, or an integer, equals itself: it does, whatever it holds and whose it is.

    `tf.recompute_grad`, by which Keras recomputes activations, waits for the gradient by such a question about its
    first entry. A number that is not one (NaN) does not equal itself, so of those the question is one about records.
    """
    if node.type != "Equal" or node.operation.inputs[0] is not node.operation.inputs[1]:
        return False
    dtype = node.operation.inputs[0].dtype
    return node.static() == () and bool(dtype.is_bool or dtype.is_integer)


def filled(node: Node, inputs: Sequence[Any]) -> float | None:
    """The number that all entries of the result are, where that is plain to see."""
    fills = [value.fill for value in inputs]
    if node.type in _KEEPS and fills:
        first = fills[1] if node.type in ("Split", "Fill") else fills[0]
        return first if first is None or node.type != "Cast" or first in (0.0, 1.0) else None
    if node.type not in ("Mul", "Neg", *_SUMS) or None in fills or not all(float(n).is_integer() for n in fills):
        return None
    whole = [int(n) for n in fills]
    if node.type == "Mul":
        return exactly(node.dtype(), math.prod(whole), whole)
    first, *others = [-n for n in whole] if node.type == "Neg" else whole
    return exactly(node.dtype(), first - sum(others) if node.type == "Sub" else first + sum(others), whole)


def exactly(dtype: tf.DType, result: int, terms: Sequence[int]) -> float | None:
    """A sum or a product of whole numbers, if it is this very number in a type, in whatever order it is computed.

    Integers are right modulo the size of their type, so a result within its limits is. Real numbers are rounded at
    every step, each type in its own way, but for small whole numbers.
    """
    small = max(abs(result), sum(map(abs, terms))) <= _EXACT and dtype in _REAL
    right = dtype.is_integer and fits(result, dtype) and abs(result) <= WHOLE
    return float(result) if small or right else None


@rule("Const", any_input=True)
def const(node: Node, inputs: Sequence[Any]) -> Value:
    """A constant of the graph."""
    proto = node.attribute("value")
    return tensor_of(proto) if proto.ByteSize() > _FEW_BYTES else known_tensor(proto.SerializeToString())


@functools.lru_cache(maxsize=4096)
def known_tensor(serialized: bytes) -> Constant | Counted:
    """The same of a small tensor; a graph holds most of its small tensors many times."""
    return tensor_of(tensor_pb2.TensorProto.FromString(serialized))


def tensor_of(proto: Any) -> Constant | Counted:
    """What is known of a constant that a protocol buffer holds."""
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    dtype = tf.as_dtype(proto.dtype)
    if math.prod(shape) > _LARGEST and len(proto.tensor_content) > 8:
        return Constant(shape)
    if not (dtype.is_integer or dtype.is_bool or dtype.is_floating):
        return Constant(shape)
    array = tf.make_ndarray(proto)
    if dtype.is_floating:
        first = float(array.flat[0]) if array.size else None
        same = first is not None and math.isfinite(first) and (array.size == 1 or bool(np.all(array == array.flat[0])))
        return Constant(shape, fill=first if same else None)
    if array.size <= _LARGEST:
        return numbers(array.ravel().tolist(), shape)
    return Constant(shape)


@rule("Placeholder", "PlaceholderWithDefault", any_input=True)
def placeholder(node: Node, inputs: Sequence[Any]) -> Value:
    """An input that nothing was said about."""
    raise UnknownError("an input of which nothing is known")


@rule("PyFunc", "EagerPyFunc", "PyFuncStateless", any_input=True)
def python(node: Node, inputs: Sequence[Any]) -> Value:
    """Python code: no graph shows what it does, and no measurement what it keeps."""
    node.prover.note_write(node, -1, "Python code may keep what it is given, and do anything with it")
    raise MixedError("Python code in the graph, which may do anything with the records")


@rule("NoOp", "ControlTrigger", "Assert", "PrintV2", any_input=True)
def nothing(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Gives nothing back. That an assertion fails, or what is printed, is a channel beside the released sums."""
    return []
