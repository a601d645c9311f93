"""Random numbers that are drawn once for several records: one sign, one mask, one strength of a change for all rows.

On one device that computes a draw of records at once all of them meet the same number, which is a constant of the step.
Where several replicas or pieces share a draw of records each draws a number of its own: what a record adds then depends
on which of them it is in, and that depends on the other records.

Guarantee: of the values that the proof follows, each that depends on a stateful random operation or on the numbers of a
hidden generator is, where it meets records, of random numbers drawn for each record; else it is found here. What serves
as a seed of such numbers is not found, nor are random numbers of a seed that never changes.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.called import results_of
from tfdp_layers.proof.frames import Frame
from tfdp_layers.proof.functional import READS
from tfdp_layers.proof.randomness import apart
from tfdp_layers.proof.rules import Node
from tfdp_layers.proof.state import CALLED_BY
from tfdp_layers.proof.values import Constant, Counted, Handle, ListOf, Refused, Value

_STATEFUL = (
    *("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "Rng", "Stateful"),
    *("FractionalAvgPool", "FractionalMaxPool"),
)
_SHUFFLE = "RandomShuffle"
_REASON = "random numbers that are drawn once for several records"


def common_draws(prover: Any) -> list[Refused]:
    """The random operations, one entry each, whose numbers several records meet.

    Args:
        prover: a `Prover`, after its run.
    """
    found = _Common(prover)
    while found.goes_on():
        pass
    return list(found.faults.values())


class _Common:
    """Marks what depends on random numbers that are no record's own, from function to function.

    Attributes:
        marks: by frame and tensor, what it depends on; without an operation, on a generator's numbers alone.
        steered: by frame, what decides whether it is entered.
        faults: by operation, those that several records meet.
    """

    def __init__(self, prover: Any) -> None:
        self._frames: list[Frame] = list(prover.frames.values())
        self._prover, self._secret = prover, prover.secret or set()
        self.marks: dict[tuple[str, str], Refused] = {}
        self.steered: dict[str, Refused] = {}
        self.faults: dict[str, Refused] = {}
        self._called: dict[str, list[Frame]] = defaultdict(list)
        for frame in self._frames:
            self._called[frame.path.rpartition("|")[0]].append(frame)
        self._by_path = {frame.path: frame for frame in self._frames}
        every = [(frame, operation) for frame in self._frames for operation in frame.graph.get_operations()]
        self._calls = [(frame, one) for frame, one in every if one.type in CALLED_BY]
        self._looked = [(frame, one) for frame, one in every if one.type.startswith(_STATEFUL) or one.type in READS]

    def goes_on(self) -> bool:
        """Looks at all calls, and at what takes what was marked since; whether anything was marked anew."""
        marks, steered = len(self.marks), len(self.steered)
        for frame, operation in [*self._looked, *self._calls]:
            self._look(Node(operation, frame, self._prover))
        taken = [(self._by_path[path], name) for path, name in list(self.marks)[marks:]]
        self._looked = [(frame, one) for frame, name in taken for one in _consumers(frame, name)]
        entered = [self._by_path[path] for path in list(self.steered)[steered:]]
        self._looked += [(frame, one) for frame in entered for one in frame.graph.get_operations()]
        return len(self.marks) + len(self.steered) > marks + steered

    def _look(self, node: Node) -> None:
        if node.type in CALLED_BY:
            self._call(node)
            return
        given = self._first(node, node.operation.inputs)
        self._write(node, given or self.steered.get(node.frame.path))
        source = given or self._source(node)
        if source is None:
            return
        for tensor in node.operation.outputs:
            value = node.frame.values.get(tensor.name)
            if not draws(node):
                self._meet(node, tensor, value, source)
            elif (parameter := self._first(node, no_seeds(node))) is not None:
                self._meet(node, tensor, value, parameter)
            elif not own_numbers(node, value):
                self._meet(node, tensor, value, self._refused(node))

    def _call(self, node: Node) -> None:
        """Into and out of the functions that an operation calls."""
        operation, steers = node.operation, None
        if "If" in node.type or "Case" in node.type:
            steers = self._mark(node.frame, operation.inputs[0])
        for frame in self._called[node.key]:
            graph = frame.graph
            outer = list(operation.inputs)[len(operation.inputs) - len(graph.inputs) :]
            decides = frame.path.endswith("|cond")
            for inner, tensor in zip(graph.inputs, outer, strict=True):
                self._pass(self._mark(node.frame, tensor), frame, inner)
            if decides:
                steers = steers or self._mark(frame, graph.outputs[0])
            for i, result in enumerate(() if decides else results_of(operation, graph)):
                mark = self._mark(frame, result)
                self._pass(mark, node.frame, operation.outputs[i])
                if "While" in node.type:
                    self._pass(mark, frame, graph.inputs[i])
        self._steer(node, steers or self.steered.get(node.frame.path), steers)

    def _steer(self, node: Node, entered: Refused | None, steers: Refused | None) -> None:
        """What a random number decides: which functions are entered, or how often, and so what comes of them."""
        frames = self._called[node.key]
        if entered is not None:
            for frame in frames:
                self.steered.setdefault(frame.path, entered)
        kept = {
            i
            for frame in frames
            for i, t in enumerate(frame.graph.inputs)
            if "While" in node.type and t.name in frame.outside
        }
        for i, tensor in enumerate(node.operation.outputs if steers is not None else ()):
            if i not in kept:
                self._meet(node, tensor, node.frame.values.get(tensor.name), steers)  # type: ignore[arg-type]

    def _first(self, node: Node, tensors: Sequence[Any]) -> Refused | None:
        return next(filter(None, (self._mark(node.frame, tensor) for tensor in tensors)), None)

    def _mark(self, frame: Frame, tensor: Any) -> Refused | None:
        return self.marks.get((frame.path, tensor.name))

    def _pass(self, mark: Refused | None, frame: Frame, tensor: Any) -> None:
        if mark is not None and not known(frame.values.get(tensor.name)):
            self.marks.setdefault((frame.path, tensor.name), mark)

    def _write(self, node: Node, source: Refused | None) -> None:
        """What is written into a variable is read by other steps, whose records meet it."""
        if source is None or node.type in READS:
            return
        for tensor in node.operation.inputs:
            value = node.frame.values.get(tensor.name)
            if isinstance(value, Handle) and value.key not in self._secret:
                self._fault(node, source)

    def _source(self, node: Node) -> Refused | None:
        """What an operation draws from, where it draws itself; or reads, of the numbers of a hidden generator."""
        if node.type.startswith(_STATEFUL):
            return self._refused(node)
        handles = [node.frame.values.get(tensor.name) for tensor in node.operation.inputs if node.type in READS]
        if any(isinstance(value, Handle) and value.key in self._secret for value in handles):
            return Refused(None, mixed=False, reason=_REASON) if node.type != "Identity" else None
        return None

    def _meet(self, node: Node, tensor: Any, value: Value | None, source: Refused) -> None:
        """Marks a result that is of no record; one that is of records has met the numbers."""
        unknown = isinstance(value, Refused) and (draws(node) or not source.operation)
        if unknown or isinstance(value, Constant | Counted | ListOf):
            self._pass(source, node.frame, tensor)
        elif value is not None and not isinstance(value, Handle):
            self._fault(node, source)

    def _fault(self, node: Node, source: Refused) -> None:
        fault = source if source.operation else self._refused(node)
        self.faults.setdefault(fault.place, fault)

    def _refused(self, node: Node) -> Refused:
        return dataclasses.replace(self._prover.refused(node, _REASON, False), shape=None)


def _consumers(frame: Frame, name: str) -> Any:
    return frame.graph.get_tensor_by_name(name).consumers()


def draws(node: Node) -> bool:
    """Whether an operation gives random numbers: what makes keys of seeds does not."""
    named = "Random" in node.type or "TruncatedNormal" in node.type or "Multinomial" in node.type
    return named and "GetKeyCounter" not in node.type and "GetAlg" not in node.type


def no_seeds(node: Node) -> list[Any]:
    """The inputs of a random operation that are its shape and its parameters."""
    return apart(node, list(node.operation.inputs))[1]


def own_numbers(node: Node, value: Value | None) -> bool:
    """Whether what is drawn is each record's own; or it is not known, since the shape is not."""
    if node.type == _SHUFFLE or isinstance(value, Constant | Counted | ListOf):
        return False
    shape = node.frame.values.get(node.operation.inputs[0].name)
    return not isinstance(value, Refused) or not isinstance(shape, Constant)


def known(value: Value | None) -> bool:
    """Whether it is known which numbers these are: so they depend on nothing."""
    if not isinstance(value, Constant | Counted):
        return False
    return value.fill is not None or (value.entries is not None and all(isinstance(n, int) for n in value.entries))
