"""Recognises loops over records, and interprets one round for all: see `walks` for what that guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.constants import const
from tfdp_layers.proof.frames import LOOP, RECORDS, Frame
from tfdp_layers.proof.rules import Node
from tfdp_layers.proof.settling import batch_of
from tfdp_layers.proof.sizes import Number, symbol, varies
from tfdp_layers.proof.state import written_handles, written_in
from tfdp_layers.proof.values import (
    Carried,
    Constant,
    Counted,
    MixedError,
    RefusalError,
    Refused,
    Value,
)
from tfdp_layers.proof.walks import Walk, after


def walk_of(node: Node, body: Any, condition: Any, inputs: Sequence[Any]) -> Walk | None:
    """The loop over records that this loop is, None if it is none.

    It is one if it goes on as long as each of some counters is below one and the same number, which depends on the
    number of records; the counters start from 0 and go up by one and the same constant.
    """
    counters = {i: step for i in range(len(inputs)) if (step := step_of(body, i, inputs[i])) is not None}
    kept = {i for i in range(len(inputs)) if behind(body.outputs[i]).name == body.inputs[i].name}
    found = limits(node, condition, inputs, counters, kept)
    if not found:
        return None
    steps, bounds = {counters[i] for i, _ in found}, {number for _, number in found}
    if len(steps) != 1 or len(bounds) != 1 or not varies(next(iter(bounds))):
        return None
    step, limit = steps.pop(), bounds.pop()
    place = symbol(f"{node.key} place", varies=True, least=0, most=limit - 1)
    whole = batch_of(limit, node.prover.batches)
    single = whole[0] if whole is not None and whole[1] == 1 and step == 1 else None
    if written_handles(condition):
        return None  # It is run once more than the body, so it is interpreted as any other loop.
    written = written_in(node, body, inputs)
    return Walk(node.key, place, step, limit, single, frozenset(written))


def behind(tensor: Any) -> Any:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def step_of(body: Any, index: int, start: Value) -> int | None:
    """By how much a round of the body puts up a counter that starts from 0; None if it is no such counter."""
    result, own = behind(body.outputs[index]), body.inputs[index].name
    if (
        result.op.type not in ("Add", "AddV2")
        or not isinstance(start, Constant)
        or start.entries != (0,)
        or start.shape
    ):
        return None
    a, b = (behind(tensor) for tensor in result.op.inputs)
    if a.name != own:
        a, b = b, a
    if a.name != own or b.op.type != "Const" or not b.dtype.is_integer or b.shape.rank != 0:
        return None
    step = const(Node(b.op, None, None), []).entries  # type: ignore[union-attr]
    return step[0] if step is not None and isinstance(step[0], int) and step[0] > 0 else None


def limits(
    node: Node, condition: Any, inputs: Sequence[Any], counters: dict[int, int], kept: set[int]
) -> list[tuple[int, Number]]:
    """(counter, number) for each comparison "counter < number" of a condition that is nothing but those; else []."""
    state = [value if i in kept else Refused(None, mixed=False, reason="") for i, value in enumerate(inputs)]
    frame = Frame(f"{node.key}|limits", LOOP, condition, parent=node.frame)
    frame.values = {tensor.name: value for tensor, value in zip(condition.inputs, state, strict=True)}
    node.prover.run(frame)
    places = {tensor.name: i for i, tensor in enumerate(condition.inputs)}
    found, todo = [], [condition.outputs[0]]
    while todo:
        tensor = behind(todo.pop())
        if tensor.op.type == "LogicalAnd":
            todo += list(tensor.op.inputs)
            continue
        if tensor.op.type != "Less":
            return []
        counter, number = behind(tensor.op.inputs[0]), frame.values[tensor.op.inputs[1].name]
        index = places.get(counter.name)
        if index not in counters or not isinstance(number, Constant | Counted) or number.entries is None:
            return []
        found.append((index, number.entries[0]))
    return found  # type: ignore[return-value]


def over_records(node: Node, walk: Walk, body: Any, inputs: Sequence[Any]) -> list[Value]:
    """The values after the loop, from one round that stands for all."""
    state, outside = [], {}
    for i, value in enumerate(inputs):
        kept = behind(body.outputs[i]).name == body.inputs[i].name
        step = step_of(body, i, value)
        if kept:
            outside[body.inputs[i].name] = node.operation.inputs[i]
            state.append(value)
        elif step == walk.step:
            state.append(Counted((), entries=(walk.place,)))
        elif step is not None:
            state.append(Counted((), entries=(symbol(f"{node.key} counter {i}", varies=True),)))
        else:
            # Of a shape that TensorFlow does not know either, adding may make another one in every round.
            shape = value.shape if body.inputs[i].shape.is_fully_defined() else None
            state.append(Carried(shape, loop=walk.key, index=i, start=value))
    found = node.prover.enter(node, "body", body, state, RECORDS, outside=outside, loop=walk)[1]
    return [
        value if body.inputs[i].name in outside else ended(node, walk, i, found[i]) for i, value in enumerate(inputs)
    ]


def ended(node: Node, walk: Walk, index: int, value: Value) -> Value:
    """A value after the last round."""
    if isinstance(value, Refused):
        return value
    try:
        if isinstance(value, Carried) and (value.loop, value.index) != (walk.key, index):
            raise MixedError("values that a loop over records carries change places")
        return after(walk, value)
    except RefusalError as refusal:
        return node.prover.refused(node, str(refusal), refusal.mixed)
