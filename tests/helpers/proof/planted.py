"""Planted bugs: a rule that, where it refuses, vouches for its result instead."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdp_layers.proof.rules import RULES
from tfdp_layers.proof.values import Batch, Constant, RefusalError, Rows, Total, Value

CLAIMS = ("rows", "rows of axis 0", "total", "constant")


def main_batch(node: Any) -> Batch:
    return node.prover.batches[0]  # type: ignore[no-any-return]


def claimed(claim: str, node: Any, inputs: Sequence[Any]) -> Value:
    """What a rule without a conscience says of a result."""
    first = next((v for v in inputs if isinstance(v, Rows)), None)
    if claim == "rows":
        batch, axis = (main_batch(node), 0) if first is None else (first.batch, first.axis)
        return Rows(None, batch=batch, axis=axis)
    if claim == "rows of axis 0":
        return Rows(None, batch=main_batch(node))
    return Total(None, batch=main_batch(node)) if claim == "total" else Constant(None)


def lenient(function: Callable[..., Any], claim: str) -> Callable[..., Any]:
    def rule(node: Any, inputs: Sequence[Any]) -> Any:
        try:
            return function(node, inputs)
        except RefusalError:
            return [claimed(claim, node, inputs)] * len(node.operation.outputs)

    return rule


@contextlib.contextmanager
def planted(name: str, claim: str) -> Iterator[None]:
    """Inside the block, one rule refuses nothing."""
    saved = dict(RULES)
    RULES.update({kind: lenient(f, claim) for kind, f in saved.items() if name_of(f) == name})
    try:
        yield
    finally:
        RULES.update(saved)


def name_of(function: Any) -> str:
    """Of a rule: module and function."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def rule_names() -> list[str]:
    return sorted({name_of(function) for function in RULES.values()})
