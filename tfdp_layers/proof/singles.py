"""Functions of one record: what a loop over records computes from the row of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.rules import RULES, Node, refused_kind
from tfdp_layers.proof.values import Carried, Constant, MixedError, Rows, Single, Value
from tfdp_layers.proof.walks import packed


def of_one_record(node: Node, inputs: Sequence[Any]) -> Value:
    """What an operation makes of one record and constants is of that record, whatever it does.

    Of those that are no functions of their inputs (`functional`) only random ones have rules, and are drawn afresh in
    every round.
    """
    singles = [value for value in inputs if isinstance(value, Single)]
    if any(isinstance(value, Carried) for value in inputs):
        return RULES["AddV2"](node, inputs)  # type: ignore[return-value]
    others = [value for value in inputs if not isinstance(value, Single | Constant)]
    if others:
        raise (
            refused_kind(others[0], "with one record")
            if not isinstance(others[0], Rows)
            else MixedError("records meet")
        )
    if len({(value.batch, value.place, value.loop) for value in singles}) == 1:
        return Single(None, batch=singles[0].batch, place=singles[0].place, loop=singles[0].loop)
    if node.type == "Pack" and node.attribute("axis") == 0 and len(singles) == len(inputs):
        found = packed(node.frame.walk(), singles)
        for batch in (found.batch, found.batch.parent):
            if batch is not None:
                node.prover.know(batch)
        return found
    raise MixedError("records of the batch meet")
