"""Products of matrices, and sums of products over labelled axes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tfdp_layers.proof.elementwise import merged_size, require_alike
from tfdp_layers.proof.rules import Node, dims_of, refused_kind, rule, same_batch, summed
from tfdp_layers.proof.sizes import Number
from tfdp_layers.proof.values import Constant, MixedError, Rows, Total, UnknownError, Value


def contracted(labels: Sequence[str], result: str, inputs: Sequence[Any]) -> Value:
    """A product of entries with equal labels, summed over the labels that the result lacks.

    Guarantee: linear in each factor, so a sum over records times constants is additive. Where the records have one
    label in all factors that have them: row by row if the result has the label, a sum over records if it does not.
    Two labels of records in one product would make pairs of them.
    """
    totals = [v for v in inputs if isinstance(v, Total)]
    if totals:
        if len(totals) > 1 or any(not isinstance(v, Total | Constant) for v in inputs):
            raise MixedError("a product of a sum over records with another, or with rows")
        return Total(None, batch=totals[0].batch)
    rows = [(own, v) for own, v in zip(labels, inputs, strict=True) if isinstance(v, Rows)]
    other = next((v for v in inputs if not isinstance(v, Rows | Constant)), None)
    if other is not None:
        raise refused_kind(other, "a product")
    batch = same_batch([v for _, v in rows])
    found = {(own[v.axis], v.outer, v.inner) for own, v in rows}
    if len(found) > 1:
        raise MixedError("a product of records with each other")
    label, outer, inner = found.pop()
    sizes: dict[str, list[Number | None]] = {}
    for own, value in zip(labels, inputs, strict=True):
        fits(own, label, value, batch.static)
        for one, size in zip(own, value.shape or (), strict=False):
            sizes.setdefault(one, []).append(size)
    shape = tuple(merged_size(sizes[one]) if one in sizes else None for one in result)
    if label in result:
        return Rows(shape, batch=batch, axis=result.index(label), outer=outer, inner=inner)
    return summed(rows[0][1], shape)


def fits(own: str, label: str, value: Any, static: int | None) -> None:
    """Raises unless a factor has the label of the records once, as rows, or is alike for all of them."""
    if own.count(label) > 1:
        raise MixedError("the diagonal of records with each other")
    if isinstance(value, Constant) and label in own:
        require_alike(value, dims_of(value)[own.index(label)], static)


def matrices(ranks: Sequence[int], turned: Sequence[bool]) -> list[str]:
    """Labels of two stacks of matrices, the second turned or not, with the axes in front aligned from the right."""
    front = string.ascii_uppercase[: max(ranks) - 2]
    own = [front[len(front) - (rank - 2) :] for rank in ranks]
    first, second = ("ji" if turned[0] else "ij"), ("kj" if turned[1] else "jk")
    return [own[0] + first, own[1] + second, front + "ik"]


@rule("MatMul")
def matrix_product(node: Node, inputs: Sequence[Any]) -> Value:
    """The product of two matrices, each turned or not."""
    *labels, result = matrices([2, 2], [node.attribute("transpose_a"), node.attribute("transpose_b")])
    return contracted(labels, result, inputs)


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def stacked_products(node: Node, inputs: Sequence[Any]) -> Value:
    """Products of stacks of matrices, with broadcasting in front."""
    ranks = [rank_of(node, i) for i in range(2)]
    *labels, result = matrices(ranks, [node.attribute("adj_x"), node.attribute("adj_y")])
    return contracted(labels, result, inputs)


def rank_of(node: Node, index: int) -> int:
    shape = node.operation.inputs[index].shape
    if shape.rank is None:
        raise UnknownError("a rank is not known")
    return int(shape.rank)


@rule("Einsum")
def einsum(node: Node, inputs: Sequence[Any]) -> Value:
    """Sums of products by an equation; an ellipsis stands for axes that are broadcast from the right."""
    equation = node.attribute("equation").decode().replace(" ", "")
    left, result = equation.split("->")
    labels, dots = left.split(","), ""
    free = [one for one in string.ascii_uppercase + string.ascii_lowercase if one not in equation]
    ranks = [rank_of(node, i) for i in range(len(labels))]
    widths = [rank - len(own.replace("...", "")) for own, rank in zip(labels, ranks, strict=True)]
    dots = "".join(free[: max(widths)])
    own = [one.replace("...", dots[len(dots) - width :]) for one, width in zip(labels, widths, strict=True)]
    if any("..." not in one and width for one, width in zip(labels, widths, strict=True)):
        raise UnknownError("an equation that does not fit")
    return contracted(own, result.replace("...", dots), inputs)
