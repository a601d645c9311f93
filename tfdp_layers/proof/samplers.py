"""Random numbers whose parameters may be of records: gamma numbers, and one or two classes for each row.

Guarantee: as of `randomness`; what is drawn by a record's parameters is of that record alone.

Assumes that kernels keep random numbers for each number (of classes, for each row) whatever the parameters are, in the
order in which these stand, and that what rejects some and takes others stays within those: for gamma numbers TensorFlow
2.21 keeps 256 times four for each, and rejects one in two or fewer.

Not so: three classes or more for a row, of which TensorFlow's threads draw some from numbers of earlier rows, by how
many rows there are; and binomial numbers, of which large and small ones keep another room each, and meet. Poisson
numbers were not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.elementwise import of_rows
from tfdp_layers.proof.randomness import apart, looped, require_numbers, seeded
from tfdp_layers.proof.rules import Node, dims_of, entries_of, integers_of, refused_kind, require_constants, rule, types
from tfdp_layers.proof.shapes import filled_with
from tfdp_layers.proof.values import Constant, Counted, MixedError, Rows, UnknownError, Value

_SAMPLED = types("StatelessRandomGammaV2 StatelessRandomGammaV3")
_MOST_CLASSES = 2


@rule(*_SAMPLED, own=True)
def sampled(node: Node, inputs: Sequence[Any]) -> Value:
    """The same, of parameters for each number, which are broadcast to the shape from the right.

    Each number that is drawn has random numbers of its own, as many as it may need whatever the parameters are.
    """
    seeds, (shape, *parameters) = apart(node, inputs)
    require_numbers([*seeds, shape])
    value = filled_with(node, entries_of(shape, "the shape"), None)
    require_rows_or_constants(node, parameters)
    if isinstance(value, Rows) or not all(isinstance(one, Constant) for one in parameters):
        if isinstance(value, Counted):
            raise refused_kind(value, "the shape of random numbers")
        value = of_rows(node, [value, *parameters])
    return seeded(node, seeds, value, tuple(dims_of(one) for one in parameters))


@rule("StatelessMultinomial", own=True)
def classes(node: Node, inputs: Sequence[Any]) -> Value:
    """Classes drawn for each row of logits, (rows, classes), so many for each; each with random numbers of its own."""
    logits, number, seed = inputs
    require_numbers([number, seed])
    require_rows_or_constants(node, [logits])
    (count,) = integers_of(number, "how many classes are drawn")
    if count > _MOST_CLASSES:
        raise UnknownError(f"{count} classes are drawn for each row, which TensorFlow draws from numbers of other rows")
    shape = (dims_of(logits)[0], count)
    if isinstance(logits, Constant):
        return seeded(node, [seed], Constant(shape), (dims_of(logits),))
    if logits.axis != 0:
        raise MixedError("classes drawn by what records hold together")
    value = Rows(shape, batch=logits.batch, axis=0, outer=logits.outer, inner=logits.inner)
    return seeded(node, [seed], value, (dims_of(logits),))


def require_rows_or_constants(node: Node, parameters: Sequence[Any]) -> None:
    """Raises unless parameters are of records or of none; in loops, of none."""
    for value in parameters:
        if not isinstance(value, Rows | Constant):
            raise refused_kind(value, "a parameter of random numbers")
    if looped(node.frame) or node.frame.walks():
        require_constants(parameters, "a parameter of random numbers in a loop")
