"""Walks a graph, and says of each tensor how it depends on the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from tfdp_layers.proof.arithmetic import computed
from tfdp_layers.proof.called import graph_named, graph_run, results_of
from tfdp_layers.proof.characters import in_a_column
from tfdp_layers.proof.constants import constant_results, equal_to_itself
from tfdp_layers.proof.crosses import crossed
from tfdp_layers.proof.frames import CALL, Frame
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.order import LOOSE, is_loose, writes_anything
from tfdp_layers.proof.rules import ANY_INPUT, MAKERS, OWN, REPEATED, RULES, Node, numbers
from tfdp_layers.proof.settling import settle
from tfdp_layers.proof.singles import of_one_record
from tfdp_layers.proof.state import functions_of, wrote
from tfdp_layers.proof.texts import clamped, of_pieces
from tfdp_layers.proof.told import TOLD, not_shown
from tfdp_layers.proof.unwritten import unwritten
from tfdp_layers.proof.values import (
    Batch,
    Constant,
    Counted,
    Handle,
    Pieces,
    RefusalError,
    Refused,
    Single,
    UnknownError,
    Value,
)

_NUMBERS = {Constant, Counted}
_FAILURES = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class Write:
    """State that is written with what depends on records: never mind whether it is allowed.

    `rounds`: it only tells how many rounds a loop over records had.
    """

    variable: int
    fault: Refused
    rounds: bool = False


@dataclass
class Prover:
    """What is known while a graph is interpreted.

    Attributes:
        batches: all that were met, to recognise sizes by.
        tainted: variables that may hold what records wrote: reading them is refused.
        writes: by operation, those that depend on records.
        draws: by operation, random numbers that need a fresh seed; see `randomness`.
        frames: the last frame of each path.
        resets: variables that are written otherwise than by adding constants.
        counting: variables that hold how many rounds a loop over records had.
        fresh: integers that were drawn at random, and the frames they were drawn in.
        streams: by the seed of a stateful generator, what is drawn from it.
        captured: by key, the handles that are captured from outside of all functions.
        doubts: by operation, static shapes that are not shown to be true; see `told`.
        secret: by key, the variables whose seeds nobody knows; None where that is not asked.
        compiled: whether XLA compiles what is interpreted.
    """

    batches: list[Batch] = field(default_factory=list)
    tainted: set[int] = field(default_factory=set)
    writes: dict[str, Write] = field(default_factory=dict)
    draws: dict[str, Any] = field(default_factory=dict)
    frames: dict[str, Frame] = field(default_factory=dict)
    resets: set[int] = field(default_factory=set)
    counting: set[int] = field(default_factory=set)
    fresh: dict[Any, Any] = field(default_factory=dict)
    streams: dict[Any, Any] = field(default_factory=dict)
    captured: dict[int, Any] = field(default_factory=dict)
    doubts: dict[str, Refused] = field(default_factory=dict)
    secret: Set[int] | None = None
    compiled: bool = False
    operations: int = 0

    def know(self, batch: Batch) -> Batch:
        if batch not in self.batches:
            self.batches.append(batch)
        return batch

    def run(self, frame: Frame) -> None:
        """Interprets every operation of the frame whose outputs are not known yet."""
        self.frames[frame.path] = frame
        for operation in ordered(frame.graph, frame.values):
            self.operations += 1
            inputs = [frame.values[tensor.name] for tensor in operation.inputs]
            node = Node(operation, frame, self)
            outputs = operation.outputs
            for i, (tensor, value) in enumerate(zip(outputs, self.results(node, inputs), strict=True)):
                frame.values[tensor.name] = value if isinstance(value, Refused) else self.settled(node, value, i)

    def results(self, node: Node, inputs: Sequence[Value]) -> Sequence[Value]:
        """A value for each output; refusals name the operation."""
        count = len(node.operation.outputs)
        fault, loose = None, is_loose(node.frame, node.operation)
        try:
            found = self.evaluate(node, inputs)
            if loose:
                if writes_anything(node.frame, node.operation):
                    self.note_write(node, -1, LOOSE, mixed=False)
                raise UnknownError(LOOSE)
            listed = list(found) if isinstance(found, list | tuple) else [found] * count
            if len(listed) != count:
                raise UnknownError(f"the rule of {node.type} gives {len(listed)} results")
        except RefusalError as refusal:
            fault = self.refused(node, str(refusal), refusal.mixed)
        except _FAILURES as error:
            fault = self.refused(node, f"the rule of {node.type} does not fit: {error}", False)
        results = listed if fault is None else [fault] * count
        wrote(node, inputs, fault)
        self.believe(node, inputs, results)
        return results

    def believe(self, node: Node, inputs: Sequence[Value], results: Sequence[Value]) -> None:
        """Notes a shape that an operation is told, where nothing shows that it is true."""
        names = functions_of(node.operation)
        if not names and node.type not in TOLD:
            return
        try:
            functions = [graph_named(node.operation.graph, name) for name in names]
            tensor = not_shown(node, inputs, results, functions)
        except (RefusalError, *_FAILURES):
            self.doubts[node.key] = self.refused(node, "functions that do not fit their call", False)
            return
        if tensor is not None:
            reason = f"a shape that TensorFlow is told and does not check: {tensor.name} {tensor.shape}"
            self.doubts[node.key] = self.refused(node, reason, False)

    def evaluate(self, node: Node, inputs: Sequence[Value]) -> Any:
        kinds = {type(value) for value in inputs}
        if node.type in ANY_INPUT and not (Pieces in kinds and in_a_column(inputs)):
            return RULES[node.type](node, inputs)
        if read := unwritten(node.operation):
            raise UnknownError(f"{node.type}{read}")
        if not node.functional and node.type not in RULES:
            return self.without_rule(node, inputs)
        if equal_to_itself(node):
            return numbers([1], ())
        if (known := clamped(node, inputs)) is not None:
            return known
        if (rows := crossed(node)) is not None:
            return rows
        if Refused in kinds:
            return worst_of(inputs)
        if Pieces in kinds:
            return of_pieces(node, inputs)
        if node.type in OWN:
            return RULES[node.type](node, inputs)
        if Single in kinds:
            return of_one_record(node, inputs)
        if kinds <= _NUMBERS:
            if (entries := computed(node, inputs)) is not None:
                return entries
            if (Counted not in kinds or node.type not in MAKERS) and node.functional:
                return constant_results(node, inputs)
        if node.type in RULES:
            return RULES[node.type](node, inputs)
        raise UnknownError(f"no rule for operation {node.type}")

    def without_rule(self, node: Node, inputs: Sequence[Value]) -> Any:
        """What is no function of its inputs, and no rule knows: it may keep what it is given, and give back anything.

        In a loop over records it may keep how often it was run.
        """
        handles = [value.key for value in inputs if isinstance(value, Handle)]
        if node.frame.walks() and handles and node.type not in READS:
            self.note_write(node, next((key for key in handles if key not in self.tainted), handles[0]), REPEATED)
        elif (
            node.frame.walks()
            or node.frame.reason()
            or not all(isinstance(v, Constant | Handle) for v in inputs)
            or any(value.HasField("func") or value.list.func for value in node.operation.node_def.attr.values())
        ):
            self.note_write(node, -1, f"operation {node.type} may keep what it is given", mixed=False)
        raise UnknownError(f"no rule for operation {node.type}")

    def settled(self, node: Node, value: Value, index: int) -> Value:
        try:
            return settle(value, node.operation.outputs[index], f"{node.key}:{index}", self.batches)
        except RefusalError as refusal:
            return self.refused(node, str(refusal), refusal.mixed)

    def refused(self, node: Node, reason: str, mixed: bool) -> Refused:
        name, kind = node.operation.name, node.type
        return Refused(None, mixed=mixed, reason=reason, operation=name, type=kind, place=node.key)

    def note_write(self, node: Node, variable: int, reason: str, *, mixed: bool = True, rounds: bool = False) -> None:
        """Notes that state is written with what depends on records, or because of them."""
        self.writes[node.key] = Write(variable, self.refused(node, reason, mixed), rounds)

    def note(self, node: Node, variable: int, value: Value) -> None:
        """Notes a write if what is written, or whether it is, depends on records."""
        if isinstance(value, Refused):
            self.writes[node.key] = Write(variable, value)
        elif not isinstance(value, Constant):
            self.note_write(node, variable, "state is written with what depends on records")
        elif node.frame.reason():
            self.note_write(node, variable, f"state is written because of {node.frame.reason()}")

    def overwritten(self, variable: int) -> None:
        """Forgets that a variable told how many rounds there were, now that it holds a constant."""
        told = {key for key, write in self.writes.items() if write.variable == variable and write.rounds}
        self.writes = {key: write for key, write in self.writes.items() if key not in told}
        self.counting.discard(variable)

    def enter(
        self, node: Node, name: str, function: Any, inputs: Sequence[Value], kind: str = CALL, **options: Any
    ) -> tuple[Frame, list[Value]]:
        """Interprets a function on these values: its frame, and its results.

        No operation has "|" in its name, so that none is taken for one of another function.
        """
        frame = Frame(f"{node.key}|{name}", kind, function, parent=node.frame, **options)
        frame.values = {tensor.name: value for tensor, value in zip(function.inputs, inputs, strict=True)}
        self.run(frame)
        return frame, [frame.values[tensor.name] for tensor in results_of(node.operation, function)]


def worst_of(values: Sequence[Value]) -> Refused:
    """The first refused value, of which there is one, mixed ones before unknown ones, without its shape."""
    refused = [value for value in values if isinstance(value, Refused)]
    return dataclasses.replace(min(refused, key=lambda value: not value.mixed), shape=None)


def ordered(graph: Any, known: dict[str, Value]) -> Iterator[Any]:
    """Operations in an order in which inputs come first; those whose outputs are known already are left out.

    Nearly the order of creation, in which state is read and written; but a loop whose gradient was taken has inputs
    that were made after it.
    """
    done: set[str] = set()
    for root in graph.get_operations():
        stack = [root]
        while stack:
            operation = stack[-1]
            if operation.name in done or (operation.outputs and all(t.name in known for t in operation.outputs)):
                stack.pop()
                continue
            missing = [t.op for t in operation.inputs if t.name not in known]
            if missing:
                stack += missing
                continue
            stack.pop()
            done.add(operation.name)
            yield operation


def function_graph(node: Node, attribute: str) -> Any:
    """The graph of a function that an operation calls. Raises UnknownError where it is not to be had."""
    return graph_run(node.operation.graph, node.attribute(attribute).name)
