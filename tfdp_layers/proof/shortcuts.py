"""Branches that all records decide on together, and that make no difference to any.

`tf.cond(tf.reduce_all(fine), quick, careful)` does without what only some records need where none of them needs it. It
counts as `careful` once it is shown that where `fine` is true of all records, `quick` computes the same. Both are
compared operation by operation, from the results to what is handed in, with these rewritings under the assumption:

- a selection by what is known to be true (reshaped or not) is its first alternative, if that has the result's shape;
  by what is known to be false its second;
- `multiply_no_nan(x, y)` is x * y where y is known to be positive;
- identities, and "or" and "and" with what is known, fall away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.called import graph_named, results_of
from tfdp_layers.proof.frames import Frame
from tfdp_layers.proof.functional import is_functional
from tfdp_layers.proof.rules import Node
from tfdp_layers.proof.state import functions_of
from tfdp_layers.proof.values import Everyone, MixedError

_SHAPES = ("Reshape", "ExpandDims", "Squeeze", "Identity", "BroadcastTo", "StopGradient")
_PASSED = ("Identity", "StopGradient", "EnsureShape")
_IGNORED = ("_output_shapes", "_XlaMustCompile", "output_shapes", "parallel_iterations", "_lower_using_switch_merge")

Place = tuple[Frame, Any]
"""A tensor, and the frame that it is computed in."""


def general_branch(node: Node, condition: Everyone, frames: list[Frame]) -> int:
    """Which of two branches (0: taken if the condition is true) gives each record the same as both together.

    Raises: MixedError unless the other one is shown to compute the same where it is taken.
    """
    # "All are": known where the condition is true. "Any is": that none is, where it is false.
    informed = int(condition.holds == condition.negated)
    known = Known((condition.frame, condition.tensor), condition.holds)
    special, general = frames[informed], frames[1 - informed]
    for a, b in zip(*(results_of(node.operation, one.graph) for one in (special, general)), strict=True):
        if not known.same((special, a), (general, b)):
            raise MixedError("a branch on all records together, which is not shown to make no difference")
    return 1 - informed


@dataclass
class Known:
    """What is known of every record: that all entries of a tensor are true, or that all are false."""

    place: Place
    true: bool

    def __post_init__(self) -> None:
        self.proved: dict[Any, bool] = {}

    def same(self, a: Place, b: Place) -> bool:
        """Whether two tensors are equal wherever the assumption holds."""
        a, b = self.simple(a), self.simple(b)
        if alike(a, b):
            return True
        key = (id(a[0]), a[1].name, id(b[0]), b[1].name)
        if key not in self.proved:
            self.proved[key] = False  # of a circle nothing is proved
            self.proved[key] = self.computed_alike(a, b)
        return self.proved[key]

    def simple(self, place: Place) -> Place:
        """The tensor without what falls away under the assumption."""
        while True:
            frame, tensor = place[0].resolve(place[1])
            found = self.step(frame, tensor)
            if found is None:
                return frame, tensor
            place = frame, found

    def step(self, frame: Frame, tensor: Any) -> Any:
        """A tensor that this one is equal to, None if there is no simpler one."""
        operation = tensor.op
        if operation.type in _PASSED:
            return operation.inputs[0]
        if operation.type in ("Select", "SelectV2"):
            truth = self.truth(frame, operation.inputs[0])
            chosen = None if truth is None else operation.inputs[1 if truth else 2]
            return chosen if chosen is not None and same_shape(frame, chosen, tensor) else None
        if operation.type in ("LogicalOr", "LogicalAnd"):
            neutral = operation.type == "LogicalAnd"
            for one, other in (operation.inputs, reversed(list(operation.inputs))):
                if self.truth(frame, one) is neutral and same_shape(frame, other, tensor):
                    return other
        return None

    def truth(self, frame: Frame, tensor: Any) -> bool | None:
        """Whether all entries of a tensor are true, or all false, under the assumption; None if it does not say so."""
        frame, tensor = frame.resolve(tensor)
        operation = tensor.op
        if alike((frame, tensor), self.place[0].resolve(self.place[1])):
            return self.true
        if operation.type in _SHAPES:
            return self.truth(frame, operation.inputs[0])
        if operation.type == "LogicalNot":
            found = self.truth(frame, operation.inputs[0])
            return None if found is None else not found
        if operation.type in ("LogicalOr", "LogicalAnd"):
            decisive = operation.type == "LogicalOr"
            every = [self.truth(frame, one) for one in operation.inputs]
            if decisive in every:
                return decisive
            return None if None in every else not decisive
        return None

    def positive(self, place: Place) -> bool:
        """Whether all entries of a tensor are positive under the assumption, which then is that some tensor is."""
        outer, fact = self.place[0].resolve(self.place[1])
        if not self.true or fact.op.type != "Greater":
            return False
        limit = tf.get_static_value(fact.op.inputs[1])
        same = alike(reshaped_from(*place), reshaped_from(outer, fact.op.inputs[0]))
        return same and limit is not None and float(limit.min()) >= 0.0

    def computed_alike(self, a: Place, b: Place) -> bool:
        """Whether two tensors are the same output of the same operation on equal inputs."""
        one, other = a[1].op, b[1].op
        if "Placeholder" in (one.type, other.type) or not (is_functional(one) and is_functional(other)):
            return False
        kinds = [self.kind(a), self.kind(b)]
        if kinds[0] != kinds[1] or a[1].value_index != b[1].value_index or a[1].dtype != b[1].dtype:
            return False
        if len(one.inputs) != len(other.inputs) or (kinds[0] != "Mul" and attributes(one) != attributes(other)):
            return False
        if not all(self.same((a[0], x), (b[0], y)) for x, y in zip(one.inputs, other.inputs, strict=True)):
            return False
        return functions_alike(one.graph, other.graph, functions_of(one), functions_of(other))

    def kind(self, place: Place) -> str:
        """The type of an operation; `MulNoNan` by what is positive is `Mul`."""
        operation = place[1].op
        if operation.type == "MulNoNan" and self.positive((place[0], operation.inputs[1])):
            return "Mul"
        return str(operation.type)


def reshaped_from(frame: Frame, tensor: Any) -> Place:
    """The tensor whose entries this one has, in another shape."""
    frame, tensor = frame.resolve(tensor)
    while tensor.op.type in _SHAPES:
        frame, tensor = frame.resolve(tensor.op.inputs[0])
    return frame, tensor


def alike(a: Place, b: Place) -> bool:
    """Whether two tensors are one and the same, or equal constants."""
    if a[0] is b[0] and a[1].name == b[1].name:
        return True
    one, other = a[1].op, b[1].op
    if one.type != "Const" or other.type != "Const":
        return False
    return bool(one.get_attr("value").SerializeToString() == other.get_attr("value").SerializeToString())


def same_shape(frame: Frame, a: Any, b: Any) -> bool:
    """Whether two tensors of a frame have the same shape, as far as it was worked out."""
    first, second = frame.values.get(a.name), frame.values.get(b.name)
    if first is None or second is None or first.shape is None or None in first.shape:
        return False
    return first.shape == second.shape


def attributes(operation: Any) -> dict[str, Any]:
    """What an operation was made with, apart from its functions (and from how they are run)."""
    found = {}
    for name, value in operation.node_def.attr.items():
        if name not in _IGNORED and not value.HasField("func") and not value.list.func:
            found[name] = value.SerializeToString()
    return found


def functions_alike(graph: Any, other: Any, names: list[str], others: list[str]) -> bool:
    """Whether functions compute the same operation by operation, of the same inputs."""
    if len(names) != len(others):
        return False
    return all(graphs_alike(graph_named(graph, a), graph_named(other, b)) for a, b in zip(names, others, strict=True))


def graphs_alike(a: Any, b: Any) -> bool:
    """Whether two graphs have the same operations in the same order, on the same inputs."""
    first, second = a.get_operations(), b.get_operations()
    if len(first) != len(second) or len(a.inputs) != len(b.inputs):
        return False
    names = {x.name: y.name for x, y in zip(a.inputs, b.inputs, strict=True)}
    for one, other in zip(first, second, strict=True):
        if one.type != other.type or len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
            return False
        if one.type != "Placeholder" and (not is_functional(one) or attributes(one) != attributes(other)):
            return False
        if any(names.get(x.name) != y.name for x, y in zip(one.inputs, other.inputs, strict=True)):
            return False
        if not functions_alike(a, b, functions_of(one), functions_of(other)):
            return False
        for x, y in zip(one.outputs, other.outputs, strict=True):
            if names.setdefault(x.name, y.name) != y.name:
                return False
    return [names.get(t.name) for t in a.outputs] == [t.name for t in b.outputs]
