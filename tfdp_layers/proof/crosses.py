"""Crosses of features: one number for each record's own values of several features, as Keras' HashedCrossing has it."""

from __future__ import annotations

import dataclasses

from tfdp_layers.proof.rules import Node, dims_of
from tfdp_layers.proof.values import Constant, Rows


def crossed(node: Node) -> Rows | None:
    """What `tf.sparse.to_dense` makes of the crosses of features that are one wide: (records, 1). None of other ones.

    Guarantee: row by row. Assumes that SparseCross goes over the rows in their order, and gives each row a cross of
    every choice of one value of each of its features: of features one wide, one, at (row, 0).
    """
    if node.type != "SparseToDense":
        return None
    values, op = node.frame.values, node.operation.inputs[0].op
    if (
        op.type != "SparseCross"
        or op.get_attr("N") != 0
        or not isinstance(values[node.operation.inputs[3].name], Constant)
    ):
        return None
    if [tensor.name for tensor in node.operation.inputs][:3] != [op.outputs[place].name for place in (0, 2, 1)]:
        return None
    features = [values[tensor.name] for tensor in op.inputs]
    if not features or not all(isinstance(one, Rows) and dims_of(one)[1:] == (1,) for one in features):
        return None
    if len({one.layout for one in features}) != 1:
        return None
    return dataclasses.replace(features[0], within=None, runs=None, fill=None)
