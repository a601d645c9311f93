"""State outside of the graph: variables that are read and written.

A variable that the caller lets records write (the loss tracker, metrics) is refused where it is read. Any other may be
written with constants alone, and whether and how often it is written may not depend on records or their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.rules import REPEATED, Node, only_rows, rule
from tfdp_layers.proof.values import (
    Constant,
    Counted,
    Handle,
    MixedError,
    RefusalError,
    Refused,
    Rows,
    UnknownError,
    Value,
)

_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_SCATTERS = tuple(f"ResourceScatter{kind}" for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update"))
CALLED_BY = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body", "cond"),
    "StatelessWhile": ("body", "cond"),
}
_COUNTERS = (tf.int32, tf.int64, tf.uint32, tf.uint64)


def variable_of(value: Any) -> int:
    if not isinstance(value, Handle):
        raise UnknownError("it is not known which variable this is")
    return value.key


@rule("ReadVariableOp", any_input=True)
def read(node: Node, inputs: Sequence[Any]) -> Value:
    """What a variable holds: a constant, unless records wrote it, or a loop over records writes it in every round."""
    key, shape = variable_of(inputs[0]), node.static()
    if key in node.prover.tainted:
        raise MixedError("a variable that records may have written is read")
    if key in node.prover.counting or any(key in walk.written for walk in node.frame.walks()):
        return Counted(shape, entries=followed(node, key))
    return Constant(shape, entries=followed(node, key))


def followed(node: Node, key: int) -> Any:
    """The entries of a variable of few integers, as what it held before and what was added since; else None."""
    shape = node.static()
    if node.dtype() not in _COUNTERS or shape is None or None in shape or math.prod(shape) > 8:  # type: ignore[arg-type]
        return None
    return node.frame.segment(key, math.prod(shape)).entries()  # type: ignore[arg-type]


@rule(*_WRITES, any_input=True)
def write(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Writes a variable; notes it if it depends on records."""
    key, value, walking = variable_of(inputs[0]), inputs[1], bool(node.frame.walks())
    grown = growth(node, inputs)
    if walking and (isinstance(value, Constant) or grown is not None) and not node.frame.reason():
        node.prover.note_write(node, key, REPEATED, rounds=True)
        node.prover.counting.add(key)
    else:
        node.prover.note(node, key, value)
        if isinstance(value, Constant) and node.type == "AssignVariableOp" and node.frame.home.parent is None:
            node.prover.overwritten(key)
    return []


def growth(node: Node, inputs: Sequence[Any]) -> tuple[int, ...] | None:
    """By how much an operation puts up a variable of few integers; None if that is not known, or it is put down."""
    if node.type not in ("AssignVariableOp", "AssignAddVariableOp"):
        return None
    key, value, segments = variable_of(inputs[0]), inputs[1], node.frame.home.segments
    entries = value.entries if isinstance(value, Constant | Counted) else None
    if entries is None or (key in segments and len(segments[key].base) != len(entries)):
        return None
    by = entries
    if node.type == "AssignVariableOp":
        if key not in segments:
            return None
        by = tuple(a - b for a, b in zip(entries, segments[key].entries(), strict=True))
    return by if all(isinstance(n, int) and n >= 0 for n in by) else None  # type: ignore[return-value]


def wrote(node: Node, inputs: Sequence[Any], fault: Refused | None) -> None:
    """Forgets what was known of the variables that an operation writes: of every one that does not merely read.

    Called behind every operation, with a rule or without. What is added to a variable of few integers is followed,
    since seeds must show that they change; all else sets it to something that nothing is known of. What a function
    writes is left to its own operations, which are interpreted, unless a fault ended that before all of them were.
    """
    if node.type in READS or (node.functional and node.type not in CALLED_BY):
        return
    keys = [value.key for value in inputs if isinstance(value, Handle)]
    if node.type in CALLED_BY:
        keys = [] if fault is None else left_out(node, keys, fault)
    elif len(keys) < sum(tensor.dtype == tf.resource for tensor in node.operation.inputs):
        node.prover.note_write(node, -1, "it is not known which variable is written", mixed=False)
    by = growth(node, inputs) if fault is None and inputs and isinstance(inputs[0], Handle) else None
    for key in keys:
        if by is None:
            node.prover.resets.add(key)
        node.frame.wrote(key, by)


def left_out(node: Node, keys: list[int], fault: Refused) -> list[int]:
    """The variables that functions may write, of which a fault left out some operations; notes them, for it is not
    known what is written, nor whether records decide on it.

    Args:
        keys: of the variables that are handed in.
    """
    try:
        found = [node.frame.values[tensor.name] for tensor in handles_written_by([node.operation])]
    except (RefusalError, ValueError):
        written = keys
    else:
        written = [value.key if isinstance(value, Handle) else -1 for value in found]
    for key in set(written) - node.prover.tainted:
        node.prover.note_write(node, key, fault.reason, mixed=fault.mixed)
    return written


@rule(*_SCATTERS, any_input=True)
def scatter(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Writes rows of a variable; in a loop over records they tell how many rounds there were, whatever is written."""
    key = variable_of(inputs[0])
    if node.frame.walks():
        node.prover.note_write(node, key, REPEATED, rounds=True)
        node.prover.counting.add(key)
    for value in inputs[1:]:
        node.prover.note(node, key, value)
    return []


@rule("ResourceGather", any_input=True)
def gather(node: Node, inputs: Sequence[Any]) -> Value:
    """Rows of a variable by indices: those of each record's own."""
    key, indices = variable_of(inputs[0]), inputs[1]
    if key in node.prover.tainted or key in node.prover.counting:
        raise MixedError("a variable that records may have written is read")
    if isinstance(indices, Constant) and not any(key in walk.written for walk in node.frame.walks()):
        return Constant(None)
    rows = only_rows(indices, "indices")
    if node.attribute("batch_dims", 0):
        raise UnknownError("indices for each row of a variable")
    rest = node.rank() - len(rows.shape or ())
    shape = (*(rows.shape or ()), *[None] * rest)
    return Rows(shape, batch=rows.batch, axis=rows.axis, outer=rows.outer, inner=rows.inner)


@rule("VarIsInitializedOp", any_input=True)
def is_initialized(node: Node, inputs: Sequence[Any]) -> Value:
    """Whether a variable holds anything: a constant, since initial values are."""
    return Constant(())


def written_in(node: Node, graph: Any, inputs: Sequence[Any]) -> set[int]:
    """The variables that a function writes, or one that it calls; by what is known of its inputs."""
    found = set()
    for tensor in written_handles(graph):
        place = next((i for i, inner in enumerate(graph.inputs) if inner.name == tensor), None)
        if place is not None and isinstance(inputs[place], Handle):
            found.add(inputs[place].key)
    return found


def written_handles(graph: Any) -> set[str]:
    """The names of the handles, among a graph's tensors, that it writes to, or may: all that do not merely read do."""
    return {tensor.name for tensor in handles_written_by(graph.get_operations())}


def handles_written_by(operations: Iterable[Any]) -> Iterator[Any]:
    """The handles that operations of one graph write to, or may; and the functions that they call.

    One that is not to be had may write to all that it is given.
    """
    for operation in operations:
        if operation.type not in READS and operation.type not in CALLED_BY:
            for tensor in operation.inputs:
                if tensor.dtype == tf.resource:
                    yield from sources(tensor)
        for name in functions_of(operation):
            try:
                inner = graph_named(operation.graph, name)
            except UnknownError:
                yield from (one for t in operation.inputs if t.dtype == tf.resource for one in sources(t))
                continue
            tensors = list(operation.inputs)[len(operation.inputs) - len(inner.inputs) :]
            own = written_handles(inner)
            for one, outer in zip(inner.inputs, tensors, strict=True):
                if one.name in own:
                    yield from sources(outer)


def functions_of(operation: Any) -> list[str]:
    """The names of the functions that an operation calls."""
    attributes = CALLED_BY.get(operation.type, ())
    found = [operation.get_attr(attribute) for attribute in attributes]
    return [one.name for each in found for one in (each if isinstance(each, list) else [each])]


def sources(tensor: Any) -> list[Any]:
    """The tensors that a handle may be a copy of: what an operation makes of handles (a function that is called, a
    list of them) may be any of these.
    """
    found, todo = {}, [tensor]
    while todo:
        one = source(todo.pop())
        if one.name not in found:
            found[one.name] = one
            todo += [given for given in one.op.inputs if given.dtype in (tf.resource, tf.variant)]
    return list(found.values())


def source(tensor: Any) -> Any:
    """The tensor of which this one is a copy."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
