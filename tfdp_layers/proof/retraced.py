"""Whether two traces of one function compute the same, where one was traced for a number of records, one for any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client.pywrap_tf_session import TF_TryEvaluateConstant_wrapper as evaluated

from tfdp_layers.proof.called import graph_named, results_of
from tfdp_layers.proof.functional import is_functional
from tfdp_layers.proof.proving import outermost, resource_key
from tfdp_layers.proof.rules import types
from tfdp_layers.proof.values import UnknownError

__all__ = ["same_computation"]

_SHAPES = frozenset(types("Shape ShapeN Size Rank"))
_SILENT = frozenset(types("Assert PrintV2 NoOp"))
"""Operations without results: as in a proof, whether an assertion fails is nothing that is released."""
_OLD_LOOPS = frozenset(types("Switch RefSwitch Merge Enter Exit NextIteration LoopCond"))
_LEFT_OUT = frozenset(types("shape output_shapes num_elements seed seed2 config_proto"))
"""Attributes that say how large tensors are, or which numbers a generator gives: neither is about what records hold."""
_CALLS = frozenset(types("PartitionedCall StatefulPartitionedCall"))
_BRANCHES = frozenset(types("If StatelessIf Case StatelessCase"))
_LOOPS = frozenset(types("While StatelessWhile"))
_NO_NUMBERS = (tf.string, tf.variant, tf.resource)
_LARGEST = 4096
"""Entries up to which constants are compared by what they hold; larger ones only as they stand in the graphs."""

Key = tuple[Any, ...]


class _DifferentError(Exception):
    """Something that is not followed, so that nothing is the same as it."""


def same_computation(fixed: Any, free: Any, outputs: Callable[[Any], Sequence[Any]]) -> bool:
    """Whether two graphs compute the same of as many records as one of them was traced for.

    Guarantee: if true, then for this number of records both run the same operations on the same operands, in the same
    order as far as they keep state, once each is replaced by its value that depends on the sizes of axes alone.
    Otherwise nothing is said. Random numbers count as the same if the same kind of draw is made of the same operands,
    as the same draw of its kind in the graph.

    Args:
        fixed: a `FuncGraph` whose inputs have known sizes along axis 0, or not.
        free: one that was traced of the same inputs, with unknown sizes there.
        outputs: the tensors of a graph that are compared.

    Raises: what TensorFlow raises for a graph that it cannot copy.
    """
    terms: dict[Key, int] = {}
    try:
        copy, tensors = _of_sizes(free, fixed)
        first = _Terms(terms, fixed, fixed, _inputs(terms, fixed, {}))
        second = _Terms(terms, copy, free, _inputs(terms, free, tensors))
        one, other = first.of(outputs(fixed)), second.of([tensors[tensor.name] for tensor in outputs(free)])
        return one == other and first.stateful == second.stateful
    except (_DifferentError, UnknownError):  # also a function that is not to be had
        return False


def _of_sizes(free: Any, fixed: Any) -> tuple[Any, dict[str, Any]]:
    """The graph again, with inputs of the sizes of the other one's; its tensors, by the names that they had."""
    if len(_arguments(free)) != len(_arguments(fixed)):
        raise _DifferentError
    sizes = {one.name: other.shape for one, other in zip(_arguments(free), _arguments(fixed), strict=True)}
    graph = tf.Graph()
    with graph.as_default():
        given = {one.name: tf.compat.v1.placeholder(one.dtype, sizes.get(one.name, one.shape)) for one in free.inputs}
        tf.graph_util.import_graph_def(free.as_graph_def(), input_map=given, name="copy")
    tensors = {
        one.name: given.get(one.name) if one.name in given else graph.get_tensor_by_name(f"copy/{one.name}")
        for operation in free.get_operations()
        for one in operation.outputs
    }
    return graph, tensors


def _arguments(graph: Any) -> list[Any]:
    captured = {inner.name for _, inner in graph.captures}
    return [one for one in graph.inputs if one.name not in captured]


class _Terms:
    """A number for each tensor of a graph, the same for two that are computed alike.

    Attributes:
        ids: by the names of tensors.
        stateful: the numbers of operations that keep state, in their order.
    """

    def __init__(self, terms: dict[Key, int], graph: Any, source: Any, ids: dict[str, int], outer: Any = None) -> None:
        """Interprets the graph.

        Args:
            source: the graph as it was traced, which knows its functions.
            ids: of its inputs; those of all others are put to it.
            outer: what calls this graph as a function.
        """
        self._terms, self._source, self.ids = terms, source, ids
        self._drawn: dict[str, int] = {} if outer is None else outer._drawn
        self._depth: int = 0 if outer is None else outer._depth + 1
        self._values: set[str] = set()
        self.stateful: list[int] = []
        for operation in graph.get_operations():
            if not operation.outputs or not all(one.name in self.ids for one in operation.outputs):
                self._add(operation)

    def of(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.ids[one.name] for one in tensors)

    def number(self, *key: Any) -> int:
        return self._terms.setdefault(key, len(self._terms))

    def _add(self, operation: Any) -> None:
        kind, outputs = str(operation.type), operation.outputs
        if kind in _SILENT:
            return
        if kind in _OLD_LOOPS or not all(one.name in self.ids for one in operation.inputs):
            raise _DifferentError
        values = [self._value(one) for one in outputs]
        if outputs and all(value is not None for value in values):
            found = [self.number("value", v.dtype.name, v.shape, v.tobytes()) for v in values if v is not None]
        elif kind in _CALLS:
            found = list(self._called(operation, "f", self.of(operation.inputs)))
        elif kind in _LOOPS:
            found = self._loop(operation)
        else:
            found = self._computed(operation, kind)
        self.ids.update((one.name, number) for one, number in zip(outputs, found, strict=True))

    def _computed(self, operation: Any, kind: str) -> list[int]:
        """An operation of what is known of its inputs, and, if it keeps state, of how many like it there were."""
        given, stateful = self.of(operation.inputs), not is_functional(operation)
        place = self._drawn[kind] = self._drawn.get(kind, 0) + stateful
        whole = self.number(kind, given, self._attributes(operation, given[1:]), place)
        if stateful:
            self.stateful.append(whole)
        return [self.number("output", whole, i) for i in range(len(operation.outputs))]

    def _value(self, tensor: Any) -> np.ndarray | None:
        """What a tensor is, if it depends on constants and on known sizes alone; None for others, and for large ones.

        Texts are compared as they stand in the graph.
        """
        operation, size = tensor.op, tensor.shape.num_elements()
        one_size = operation.type == "StridedSlice" and operation.inputs[0].op.type == "Shape"
        plain = operation.type == "Const" or operation.type in _SHAPES or one_size
        known = len(operation.inputs) > 0 and all(one.name in self._values for one in operation.inputs)
        if not is_functional(operation) or not (plain or known) or tensor.dtype in _NO_NUMBERS:
            return None
        found = None if size is None or size > _LARGEST else evaluated(operation.graph._c_graph, tensor._as_tf_output())
        if found is None:
            return None
        self._values.add(tensor.name)
        return np.asarray(found, tensor.dtype.as_numpy_dtype)

    def _attributes(self, operation: Any, given: Sequence[int]) -> Key:
        """The attributes, but for sizes, seeds and TensorFlow's own; functions by what they compute of these inputs."""
        found: list[Any] = []
        for name, value in sorted(operation.node_def.attr.items()):
            functions = value.HasField("func") or len(value.list.func) > 0
            if functions and operation.type not in _BRANCHES:
                raise _DifferentError
            if functions:
                found.append((name, self._called(operation, name, given), tuple(self.stateful)))
            elif not name.startswith("_") and name not in _LEFT_OUT:
                found.append((name, value.SerializeToString()))
        return tuple(found)

    def _called(self, operation: Any, attribute: str, given: Sequence[int]) -> tuple[int, ...]:
        """What a function, or each of several, gives of these inputs; what keeps state in it is put to that of this."""
        value = operation.node_def.attr[attribute]
        results: tuple[int, ...] = ()
        for one in [value.func] if value.HasField("func") else value.list.func:
            graph = graph_named(self._source, one.name)
            ids = {tensor.name: number for tensor, number in zip(graph.inputs, given, strict=True)}
            inner = _Terms(self._terms, graph, graph, ids, self)
            self.stateful.append(self.number("function", len(inner.stateful)))
            self.stateful += inner.stateful
            results += inner.of(results_of(operation, graph))
        return results

    def _loop(self, operation: Any) -> list[int]:
        """A loop: what it hands on from round to round as it is, is what it was before the first one."""
        body, given = graph_named(self._source, operation.get_attr("body").name), self.of(operation.inputs)
        kept = [_itself(one) is other for one, other in zip(body.outputs, body.inputs, strict=True)]
        turns = [i for i, same in enumerate(kept) if not same]
        inner = [n if kept[i] else self.number("round", self._depth, turns.index(i)) for i, n in enumerate(given)]
        goes_on = self._called(operation, "cond", inner)
        after = self._called(operation, "body", inner)
        whole = self.number("loop", tuple(given[i] for i in turns), goes_on, tuple(after[i] for i in turns))
        return [n if kept[i] else self.number("output", whole, turns.index(i)) for i, n in enumerate(given)]


def _itself(tensor: Any) -> Any:
    """What a tensor is the same as."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _inputs(terms: dict[Key, int], source: Any, tensors: dict[str, Any]) -> dict[str, int]:
    """The numbers of a graph's inputs: arguments by their places, what is captured by what it is.

    Args: tensors: where they are in its copy.
    """
    keys = {one.name: ("argument", place) for place, one in enumerate(_arguments(source))}
    for found, inner in source.captures:
        outer = outermost(found)
        keys[inner.name] = ("captured", resource_key(outer) if outer.dtype == tf.resource else id(outer))
    names = {name: tensors[name].name if tensors else name for name in keys}
    return {names[name]: terms.setdefault(key, len(terms)) for name, key in keys.items()}
