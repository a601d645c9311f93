"""Texts cut into characters: `tf.strings.unicode_split`, which counts all of them and makes a text of each.

How many characters a batch has is what its records say. So numbers that are computed from it are `Pieces`, not
`Counted`, and serve for nothing but to say that something is done with each character.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.arithmetic import computed
from tfdp_layers.proof.rules import Node, entries_of, numbers, only_rows, rule
from tfdp_layers.proof.shapes import stepped
from tfdp_layers.proof.texts import pieces, require
from tfdp_layers.proof.values import Constant, Counted, MixedError, Pieces, Value


def in_a_column(inputs: Sequence[Any]) -> bool:
    """Whether something is asked of words one below the other, as how many they are."""
    return any(isinstance(value, Pieces) and value.what == "column" for value in inputs)


@rule("UnicodeDecode")
def characters(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Where the characters of each text start, and the characters, as numbers, after those of the text before."""
    texts = only_rows(inputs[0], node.type)
    laid: dict[str, Any] = {"batch": texts.batch, "outer": texts.outer, "inner": texts.inner}
    return [Pieces(None, **laid, cut=node.key, what=what) for what in ("starts", "words")]


@pieces("ExpandDims")
def column(node: Node, inputs: Sequence[Any]) -> Value:
    """The words, one below the other."""
    words, axis = inputs
    if not isinstance(axis, Constant) or axis.entries not in ((1,), (-1,)):
        raise MixedError("words of all records in another shape")
    return dataclasses.replace(require(words, "words"), what="column")


@pieces("Shape")
def sizes(node: Node, inputs: Sequence[Any]) -> Value:
    """How many words there are in all, and 1."""
    whole = require(inputs[0], "column")
    return dataclasses.replace(whole, what="numbers", known=numbers([whole.words, 1], (2,)))


@pieces("numbers")
def of_numbers(node: Node, inputs: Sequence[Any]) -> Any:
    """Integers computed from constants and from how many words one cut gave."""
    found = [value for value in inputs if isinstance(value, Pieces)]
    for value in found:
        require(value, "numbers", found[0])
    if not all(isinstance(value, Constant | Pieces) for value in inputs):
        raise MixedError("how many words there are meets something else than constants")
    known = [value.known if isinstance(value, Pieces) else value for value in inputs]
    results: Sequence[Any] = computed(node, known) or counted_up(node, known)
    return [one if isinstance(one, Constant) else dataclasses.replace(found[0], known=one) for one in results]


def counted_up(node: Node, known: Sequence[Any]) -> list[Value]:
    """A range, or a range times one. Raises MixedError for anything else."""
    if node.type == "Range":
        start, limit, step = (entries_of(value, "a range")[0] for value in known)
        if isinstance(step, int) and step > 0:
            return [stepped(start, limit, step)]
    if node.type == "Mul":
        for one, other in (known, known[::-1]):
            if isinstance(one, Counted) and one.steps is not None and other.fill == 1.0 and other.shape == ():
                return [one]
    raise MixedError("how many words of all records there are, as a value")


@pieces("UnicodeEncode")
def texts_of_one(node: Node, inputs: Sequence[Any]) -> Value:
    """A text of each character: where those of a text start are 0, 1, 2... up to how many there are."""
    characters, starting = inputs
    whole = require(characters, "words", require(starting, "numbers"))
    if starting.known.steps != (0, 1, whole.words + 1):
        raise MixedError("characters of several records in one text")
    return whole
