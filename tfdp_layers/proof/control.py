"""Calls, branches and loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.called import graph_run
from tfdp_layers.proof.frames import BRANCH, LOOP, Frame
from tfdp_layers.proof.interpreter import function_graph
from tfdp_layers.proof.joining import joined
from tfdp_layers.proof.record_loops import over_records, walk_of
from tfdp_layers.proof.rules import Node, rule, unknown_numbers
from tfdp_layers.proof.shortcuts import general_branch
from tfdp_layers.proof.sizes import symbol
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Counted,
    Everyone,
    MixedError,
    Refused,
    Rows,
    Single,
    UnknownError,
    Value,
)

_ROUNDS = 40
"""Of a loop until what is known of its values must have settled."""


@rule("PartitionedCall", "StatefulPartitionedCall", any_input=True)
def call(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """A function, interpreted with what is known of its inputs; compiled by XLA or not."""
    graph, prover = function_graph(node, "f"), node.prover
    outside, around = outside_of(graph, node.operation.inputs), prover.compiled
    prover.compiled = around or bool(node.attribute("_XlaMustCompile"))
    try:
        return prover.enter(node, "f", graph, inputs, outside=outside)[1]
    finally:
        prover.compiled = around


def outside_of(graph: Any, tensors: Sequence[Any]) -> dict[str, Any]:
    return {inner.name: outer for inner, outer in zip(graph.inputs, tensors, strict=True)}


@rule("If", "StatelessIf", any_input=True)
def branch(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """One of two functions; a condition that is no scalar is true if it has entries.

    Guarantee: a constant decides, or one record for itself, or both give each record the same (`shortcuts`).
    """
    condition, values = inputs[0], inputs[1:]
    names = ["then_branch", "else_branch"]
    if isinstance(condition, Constant) and condition.shape == () and condition.entries in ((0,), (1,)):
        return taken(node, names[1 - condition.entries[0]], values, "")[1]  # type: ignore[index, operator]
    because = decided_by_records(condition)
    both = [taken(node, name, values, because) for name in names]
    pairs = list(zip(both[0][1], both[1][1], strict=True))
    if isinstance(condition, Constant):
        return [named(node, joined(a, b), i) for i, (a, b) in enumerate(pairs)]
    if isinstance(condition, Single):
        return [named(node, decided_by_one(node, condition, a, b), i) for i, (a, b) in enumerate(pairs)]
    if isinstance(condition, Everyone):
        return both[general_branch(node, condition, [frame for frame, _ in both])][1]
    if isinstance(condition, Refused):
        return [dataclasses.replace(condition, shape=None)] * len(node.operation.outputs)
    raise MixedError(because)


def taken(node: Node, attribute: str, values: Sequence[Any], because: str) -> tuple[Frame, list[Value]]:
    graph = function_graph(node, attribute)
    outside = outside_of(graph, node.operation.inputs[1:])
    return node.prover.enter(node, attribute, graph, values, BRANCH, outside=outside, because=because)


def decided_by_records(condition: Value) -> str:
    """Why records decide which branch is taken; "" if a constant does."""
    if isinstance(condition, Constant):
        return ""
    if isinstance(condition, Counted):
        return "a branch on the number or the places of the records"
    if isinstance(condition, Refused):
        return condition.reason
    return "a branch on what one record holds" if isinstance(condition, Single) else "a branch on all records together"


def decided_by_one(node: Node, condition: Single, a: Value, b: Value) -> Value:
    """A result of a branch that one record decided on: of that record, as long as nothing else comes in."""
    found = joined(a, b)
    if isinstance(found, Constant):
        return dataclasses.replace(condition, shape=found.shape, fill=None)
    who = found.put if isinstance(found, Carried) else found
    if isinstance(who, Single) and (who.batch, who.place, who.loop) == (
        condition.batch,
        condition.place,
        condition.loop,
    ):
        return found
    return (
        found
        if isinstance(found, Refused)
        else node.prover.refused(node, "a branch on what another record holds", True)
    )


def named(node: Node, value: Value, index: int) -> Value:
    """The value with names for what differs between branches or rounds."""
    if isinstance(value, Refused) and not value.operation:
        return dataclasses.replace(value, operation=node.operation.name, type=node.type, place=node.key)
    key = f"{node.key}:{index}"
    if isinstance(value, Constant | Counted | Rows | Single) and value.shape is not None and None in value.shape:
        sizes = [symbol(f"{key} axis {i}", least=0) if n is None else n for i, n in enumerate(value.shape)]
        value = dataclasses.replace(value, shape=tuple(sizes))
    if isinstance(value, Constant | Counted) and value.entries is None and is_integer(node, index):
        return dataclasses.replace(value, entries=unknown_numbers(key, value.shape, type(value)).entries)
    return value


def is_integer(node: Node, index: int) -> bool:
    dtype = node.dtype(index)
    return bool(dtype.is_integer or dtype.is_bool)


@rule("Case", "StatelessCase", any_input=True)
def case(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """One of several functions, which a constant decides on."""
    condition, values = inputs[0], inputs[1:]
    because, results = decided_by_records(condition), []
    for i, function in enumerate(node.attribute("branches")):
        graph = graph_run(node.operation.graph, function.name)
        outside = outside_of(graph, node.operation.inputs[1:])
        results.append(node.prover.enter(node, str(i), graph, values, BRANCH, outside=outside, because=because)[1])
    if isinstance(condition, Refused):
        return [dataclasses.replace(condition, shape=None)] * len(node.operation.outputs)
    if because:
        raise MixedError(because)
    every = results[0]
    for other in results[1:]:
        every = [joined(a, b) for a, b in zip(every, other, strict=True)]
    return [named(node, value, i) for i, value in enumerate(every)]


@rule("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge", any_input=True)
def old_control_flow(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """What TensorFlow 1 branched by: what is run depends on control edges, which are not looked at."""
    raise UnknownError("control flow of TensorFlow 1")


@rule("While", "StatelessWhile", any_input=True)
def loop(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """A loop: over records (`record_loops`), or of a number of rounds that is a constant.

    Guarantee: of the latter, what is said of a value holds before every round; it is found by going round until it
    settles.
    """
    body, condition = function_graph(node, "body"), function_graph(node, "cond")
    walk = walk_of(node, body, condition, inputs)
    if walk is not None:
        return over_records(node, walk, body, inputs)
    state = list(inputs)
    outside = unchanged(body, node.operation.inputs)
    for _ in range(_ROUNDS):
        counting = set(node.prover.counting)
        found = node.prover.enter(node, "body", body, state, LOOP, outside=outside)[1]
        new = [named(node, joined(a, b), i) if a != b else a for i, (a, b) in enumerate(zip(state, found, strict=True))]
        if new == state and counting == node.prover.counting:
            break
        state = new
    else:
        raise UnknownError("what is known of a loop's values does not settle")
    return decided_loop(node, condition, body, state, outside)


def decided_loop(node: Node, condition: Any, body: Any, state: list[Value], outside: dict[str, Any]) -> list[Value]:
    """The values after the loop, if a constant (or one record) decides on the number of its rounds."""
    decision = node.prover.enter(node, "cond", condition, state, LOOP)[1][0]
    if isinstance(decision, Constant):
        return state
    because = decided_by_records(decision).replace("branch", "number of rounds")
    # Once more, for what they write.
    node.prover.enter(node, "cond", condition, state, LOOP, because=because)
    node.prover.enter(node, "body", body, state, LOOP, outside=outside, because=because)
    if isinstance(decision, Refused):
        return [dataclasses.replace(decision, shape=None)] * len(state)
    if not isinstance(decision, Single):
        raise MixedError(because)
    kept = [tensor.name in outside for tensor in body.inputs]
    return [v if same else decided_by_one(node, decision, v, v) for v, same in zip(state, kept, strict=True)]


def unchanged(body: Any, tensors: Sequence[Any]) -> dict[str, Any]:
    """The outer tensors of those inputs that the body passes on as they are."""
    found = {}
    for inner, result, outer in zip(body.inputs, body.outputs, tensors, strict=True):
        if passed_on(result).name == inner.name:
            found[inner.name] = outer
    return found


def passed_on(tensor: Any) -> Any:
    """The tensor that this one is, behind identities."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
