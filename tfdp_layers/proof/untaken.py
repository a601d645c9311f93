"""What stands for what a branch that was not taken would have computed: whatever is in that memory.

Under XLA TensorFlow hands what a branch computes for its gradient on as results of the branch. In the other branch a
`FakeParam` stands for it, which holds anything, and which only the gradient of the branch that was taken reads: a
branch decided by the same tensor, on its other side. Every way that it may take is followed, into functions and out of
them; anything else that gets it may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tfdp_layers.proof.called import results_of
from tfdp_layers.proof.state import functions_of

__all__ = ["FAKE", "reads_untaken"]

FAKE = "FakeParam"
_BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

GraphOf: TypeAlias = "Callable[[Any, str], Any]"
Side: TypeAlias = "tuple[str, int, str, str, int]"
"""Of a branch: how it is decided, among how many, by which tensor of which function, and which of them it is."""


@dataclass(eq=False)
class Scope:
    """A function at the place that it is called from; the outermost graph has no operation.

    Attributes:
        operation: that calls it, in the graph of `parent`.
        number: which of the operation's functions it is.
        inner: by operation, the functions that it calls.
    """

    graph: Any
    graph_of: GraphOf
    parent: Scope | None = None
    operation: Any = None
    number: int = 0
    inner: dict[str, list[Scope]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "" if self.parent is None else f"{self.parent.path}|{self.operation.name}|{self.number}"

    @property
    def is_branch(self) -> bool:
        return self.operation is not None and self.operation.type in _BRANCHES

    def called(self, operation: Any) -> list[Scope]:
        """The functions that an operation calls, in the order of its attributes."""
        if operation.name not in self.inner:
            graphs = [self.graph_of(operation.graph, name) for name in functions_of(operation)]
            self.inner[operation.name] = [
                Scope(graph, self.graph_of, self, operation, number) for number, graph in enumerate(graphs)
            ]
        return self.inner[operation.name]

    def outer(self, place: int) -> Any:
        """The tensor that the function is given at a place."""
        return self.operation.inputs[place + self.is_branch]

    def side(self, sides: frozenset[Side] = frozenset()) -> Side:
        """Of a branch, which one it is, where all of these are taken."""
        assert self.parent is not None
        home, condition = self.parent.source(self.operation.inputs[0], sides)
        kind, count = self.operation.type.removeprefix("Stateless"), len(self.parent.called(self.operation))
        return kind, count, home.path, condition.name, self.number

    def source(self, tensor: Any, sides: frozenset[Side] = frozenset()) -> tuple[Scope, Any]:
        """The tensor of which this one is a copy, handed in or given back by functions, and where it is computed.

        Of branches those that are taken give back.
        """
        scope: Scope = self
        while True:
            operation = tensor.op
            place = named(tensor, scope.graph.inputs) if scope.parent is not None else None
            inner = scope.called(operation) if operation.type in _BRANCHES | _CALLS else []
            taken = next((one for one in inner if not one.is_branch or one.side() in sides), None)
            if operation.type == "Identity":
                tensor = operation.inputs[0]
            elif taken is not None:
                scope, tensor = taken, taken.graph.outputs[tensor.value_index]
            elif place is not None and (scope.is_branch or scope.operation.type in _CALLS):
                scope, tensor = scope.parent, scope.outer(place)  # type: ignore[assignment]
            else:
                return scope, tensor


def reads_untaken(
    operations: Iterable[Any], functions_in: Callable[[Any], list[str]], graph_of: GraphOf, scope: Scope | None = None
) -> bool:
    """Whether something may read it where it holds anything.

    Args:
        operations: of one graph.
        functions_in: gives the names of all functions in the attributes of an operation.
        graph_of: gives the graph of a function, by a graph that calls it and its name.
        scope: the function that these are the operations of; the outermost graph if left out.
    """
    for operation in operations:
        scope = scope or Scope(operation.graph, graph_of)
        if operation.type == FAKE and read(scope, operation.outputs[0], frozenset()):
            return True
        names = functions_in(operation)
        inner = scope.called(operation) if names else []
        followed = {id(one.graph) for one in inner}
        others = [graph for graph in (graph_of(operation.graph, name) for name in names) if id(graph) not in followed]
        if any(holds_any(graph, functions_in, graph_of) for graph in others):
            return True
        if any(reads_untaken(one.graph.get_operations(), functions_in, graph_of, one) for one in inner):
            return True
    return False


def holds_any(graph: Any, functions_in: Callable[[Any], list[str]], graph_of: GraphOf) -> bool:
    """Whether there is one in a function, or in one that it calls."""
    return any(
        operation.type == FAKE
        or any(holds_any(graph_of(graph, name), functions_in, graph_of) for name in functions_in(operation))
        for operation in graph.get_operations()
    )


def read(scope: Scope, tensor: Any, sides: frozenset[Side]) -> bool:
    """Whether something may read a tensor that holds anything where all of these branches are taken."""
    if any(reader_reads(scope, reader, tensor, sides) for reader in tensor.consumers()):
        return True
    ends = getattr(scope.graph, "outputs", ()) if scope.operation is None else results_of(scope.operation, scope.graph)
    for place in places(tensor, ends):
        own = sides | {scope.side(sides)} if scope.is_branch else sides
        handed = scope.operation is not None and (scope.is_branch or scope.operation.type in _CALLS)
        if not handed or read(scope.parent, scope.operation.outputs[place], own):  # type: ignore[arg-type]
            return True
    return False


def reader_reads(scope: Scope, reader: Any, tensor: Any, sides: frozenset[Side]) -> bool:
    """Whether an operation, or one that it hands the tensor to, may read it."""
    if reader.type == "Identity":
        return read(scope, reader.outputs[0], sides)
    given = list(places(tensor, reader.inputs))
    if reader.type not in _BRANCHES | _CALLS or (reader.type in _BRANCHES and 0 in given):
        return True
    return any(
        read(inner, inner.graph.inputs[place - inner.is_branch], sides)
        for inner in scope.called(reader)
        if not (inner.is_branch and excluded(inner.side(sides), sides))
        for place in given
    )


def excluded(side: Side, sides: frozenset[Side]) -> bool:
    """Whether a branch is not taken where all of these are: another one, of as many, by the same tensor."""
    return any(one[:-1] == side[:-1] and one[-1] != side[-1] for one in sides)


def places(tensor: Any, among: Iterable[Any]) -> Iterator[int]:
    """Where a tensor is in a list."""
    return (i for i, one in enumerate(among) if one.name == tensor.name)


def named(tensor: Any, among: Iterable[Any]) -> int | None:
    return next(places(tensor, among), None)
