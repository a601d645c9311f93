"""Records read from strings: serialized examples, fields of lines, bytes; and numbers put between sorted edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.elementwise import of_rows
from tfdp_layers.proof.rules import Node, dims_of, only_rows, require_constants, rule
from tfdp_layers.proof.values import MixedError, Rows, Value

_LISTS = "lists of several lengths, as long as the longest of the batch, or laid out one after the other"


@rule("ParseExampleV2")
def parsed(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Of each serialized example its own features, those of one length: (examples, ...). Of others nothing is said.

    What is not to be read, or is missing without a default, makes the operation fail, whatever else is in the batch.
    """
    examples, *others = inputs
    require_constants(others, "a default or a name of a feature")
    rows = only_rows(examples, node.type)
    dense = node.attribute("num_sparse") * 3, len(node.attribute("Tdense"))
    return [
        of_one_length(node, rows, i) if dense[0] <= i < sum(dense) else node.prover.refused(node, _LISTS, False)
        for i in range(len(node.operation.outputs))
    ]


def of_one_length(node: Node, rows: Rows, index: int) -> Value:
    """A dense feature, behind the axes of the examples; refused where its length is that of the longest list."""
    own = (node.static(index) or (None, None))[len(dims_of(rows)) :]
    if None in own:
        return node.prover.refused(node, _LISTS, False)  # type: ignore[no-any-return]
    return behind(rows, own)


def behind(rows: Rows, sizes: Sequence[int | None]) -> Rows:
    """So many numbers of each entry, along axes behind those that there are."""
    shape = (*dims_of(rows), *sizes)
    return Rows(shape, batch=rows.batch, axis=rows.axis, outer=rows.outer, inner=rows.inner)


@rule("DecodeCSV")
def fields(node: Node, inputs: Sequence[Any]) -> Value:
    """Of each line its own fields."""
    lines, *defaults = inputs
    require_constants(defaults, "a default of a field")
    return of_rows(node, [only_rows(lines, node.type)])


@rule("DecodePaddedRaw")
def of_bytes(node: Node, inputs: Sequence[Any]) -> Value:
    """The bytes of each string as numbers, cut off or filled up with zeros to one length, which is a constant."""
    strings, length = inputs
    require_constants([length], "how many bytes are read")
    return behind(only_rows(strings, node.type), [None])


@rule("LowerBound", "UpperBound")
def between(node: Node, inputs: Sequence[Any]) -> Value:
    """Where the numbers of each row stand among the edges in the same row, of which there are as many.

    Records are within the rows, and the edges constants (`tf.searchsorted` makes one row of numbers along one axis), or
    each record has rows of its own.
    """
    edges, numbers = inputs
    rows = only_rows(numbers, node.type)
    own = isinstance(edges, Rows) and (edges.axis, edges.layout) == (rows.axis, rows.layout) and rows.axis == 0
    if not own:
        require_constants([edges], "an edge")
    if rows.axis != 1 and not own:
        raise MixedError("edges for each place in the batch")
    return dataclasses.replace(rows, within=None, runs=None, fill=None)
