"""Gradients that a model takes by itself, as of a gradient penalty: through ordinary layers they lose their weights."""

from typing import Any

import tensorflow as tf

from tfdp_layers.caller import warn

_TAPE = "gradient_tape/"
"""In the names of operations that a tape makes."""


def operations_now() -> int:
    """How many operations the graph has that is being traced; 0 of an eager call."""
    return 0 if tf.executing_eagerly() else len(tf.compat.v1.get_default_graph().get_operations())


def slope_since(start: int) -> str | None:
    """The name of the first operation, from this one on, by which a tape takes a gradient through a layer's weights.

    Layers whose gradients are recorded compute with weights as constants, and note what meets them in their own call.
    What a tape around the call makes of the constants, nothing notes. A tape within the call of a layer with weights of
    its own is followed (`observed`): it gets them as values, behind an `Identity`.
    """
    if tf.executing_eagerly():
        return None
    constants: set[Any] = set()
    for op in tf.compat.v1.get_default_graph().get_operations()[start:]:
        known = [t for t in op.inputs if t.ref() in constants]
        if op.type == "StopGradient" and op.inputs[0].op.type == "ReadVariableOp":
            constants.add(op.outputs[0].ref())
        elif known and _TAPE in op.name:
            return str(op.name)
        elif known and op.type != "Identity" and all(t.ref() in constants or t.op.type == "Const" for t in op.inputs):
            constants.update(tensor.ref() for tensor in op.outputs)
    return None


def warn_of_slopes(start: int) -> None:
    """Warns of such an operation: the model would train otherwise than its loss says, without a word."""
    found = slope_since(start)
    if found is not None:
        warn(
            f"The model takes a gradient through an ordinary layer (operation {found!r}), as of a gradient penalty."
            " What a record adds to that layer's weights by way of it is left out: training is private, and not that of"
            " the loss. Write one layer whose call holds the weights and the gradient: there it is followed exactly."
        )
