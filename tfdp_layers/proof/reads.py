"""What a graph that is being traced, or was, reads from outside of itself: variables, and tensors that it caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.proving import outermost, resource_key
from tfdp_layers.structure import held_by

__all__ = ["Behind", "copies_held", "holds_numbers", "is_counter", "numbers_caught", "same_as", "variables_of"]

_NO_VALUES = (tf.resource, tf.variant)


class Behind:
    """A variable of which nothing but the handle is known, for whoever looks at what variables hold now."""

    def __init__(self, handle: Any, dtype: tf.DType, shape: tf.TensorShape) -> None:
        self.handle, self.dtype, self.shape = handle, dtype, shape
        self.name = self.path = "a variable of which a step has the handle alone"

    def value(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype)

    def numpy(self) -> np.ndarray:
        with tf.init_scope():
            return np.asarray(self.value().numpy())

    def __getitem__(self, place: Any) -> np.ndarray:
        return np.asarray(self.numpy()[place])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)


def variables_of(graph: Any) -> list[Any]:
    """TensorFlow's variables that a graph, or one around it, was seen to read or write, and `Behind` its other handles.

    How TensorFlow lists variables before a graph is whole is not public; where it does otherwise, handles are left.
    """
    found = {resource_key(variable.handle): variable for variable in _watched(graph)}
    caught = {resource_key(one): one for one in _caught(graph) if one.dtype == tf.resource}
    return [*found.values(), *(b for key, one in caught.items() if key not in found for b in _behind(one))]


def numbers_caught(graph: Any) -> list[np.ndarray]:
    """The real numbers of eager tensors that a graph caught."""
    return [np.asarray(one) for one in _caught(graph) if hasattr(one, "numpy") and holds_numbers(one.dtype)]


def holds_numbers(dtype: tf.DType) -> bool:
    """Whether weights are of this type: real numbers, and the whole ones of 8 bits that quantized weights are."""
    return bool(dtype.is_floating or (dtype.is_integer and dtype.size == 1))


def same_as(variables: Iterable[Any]) -> Callable[[Any], bool]:
    """A function that says whether a variable is one of these: also by its handle alone, and of replicas any copy."""
    these = [copy for one in variables for copy in copies_held(one)]
    ids, keys = set(map(id, these)), {resource_key(one.handle) for one in these if isinstance(one, Behind)}
    every = set[int]()

    def among(variable: Any) -> bool:
        if isinstance(variable, Behind):
            if not every:
                every.update(resource_key(one.handle) for one in these if hasattr(one, "handle"))
            return resource_key(variable.handle) in every
        copies = copies_held(variable)
        return any(id(one) in ids for one in copies) or bool(
            keys and any(resource_key(one.handle) in keys for one in copies if hasattr(one, "handle"))
        )

    return among


def copies_held(variable: Any) -> list[Any]:
    """The object that holds a variable's numbers, and of replicas each one's."""
    held = held_by(variable)
    return [held, *getattr(held, "values", ())]


def is_counter(variable: Any, keys: Set[int]) -> bool:
    """Whether it is one whole number that a function writes, a count of its calls say.

    Args:
        keys: of all that this function writes: `steering.keys_written`.
    """
    if holds_numbers(variable.dtype) or not variable.dtype.is_integer or variable.shape.num_elements() != 1:
        return False
    return any(resource_key(one.handle) in keys for one in copies_held(variable))


def _watched(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield from getattr(graph, "_watched_variables", ())
        yield from getattr(graph, "variables", ())
        graph = getattr(graph, "outer_graph", None)


def _caught(graph: Any) -> Iterable[Any]:
    return (outermost(outer) for outer, _ in graph.captures)


def _behind(handle: Any) -> list[Behind]:
    """The variable with this handle; none for what is no such variable, or one of resources."""
    data = getattr(handle, "_handle_data", None)
    held = list(data.shape_and_type) if data is not None and data.is_set else []
    if tf.is_symbolic_tensor(handle) or len(held) != 1 or tf.dtypes.as_dtype(held[0].dtype) in _NO_VALUES:
        return []
    return [Behind(handle, tf.dtypes.as_dtype(held[0].dtype), tf.TensorShape(held[0].shape))]
