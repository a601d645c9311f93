"""What stands for what a branch that was not taken would have computed: whatever is in that memory.

Under XLA TensorFlow hands what a branch computes for its gradient on as results of the branch. In the other branch a
`FakeParam` stands for it, which holds anything, and which only the gradient of the branch that was taken reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfdp_layers.proof.state import source

__all__ = ["FAKE", "reads_untaken"]

FAKE = "FakeParam"
_BRANCHES = frozenset({"Case", "If", "StatelessCase", "StatelessIf"})


def reads_untaken(
    operations: Iterable[Any],
    functions_of: Callable[[Any], list[str]],
    graph_of: Callable[[Any, str], Any],
    of_branch: bool = False,
) -> bool:
    """Whether something reads it that is no branch itself.

    Args:
        functions_of: gives the names of the functions that an operation calls.
        graph_of: gives the graph of a function, by a graph that calls it and its name.
        of_branch: whether these are the operations of a branch.
    """
    for operation in operations:
        if operation.type == FAKE and not (of_branch and handed_on(operation.outputs[0])):
            return True
        branches = operation.type in _BRANCHES
        for name in functions_of(operation):
            graph = graph_of(operation.graph, name)
            fakes = [i for i, tensor in enumerate(graph.outputs) if source(tensor).op.type == FAKE]
            if fakes and not (branches and all(handed_on(operation.outputs[i]) for i in fakes)):
                return True
            if reads_untaken(graph.get_operations(), functions_of, graph_of, branches):
                return True
    return False


def handed_on(tensor: Any) -> bool:
    """Whether nothing but branches, and results of the function that it is in, get a tensor."""
    return all(
        handed_on(reader.outputs[0]) if reader.type == "Identity" else reader.type in _BRANCHES
        for reader in tensor.consumers()
    )
