"""What a forward pass of training does besides its output: states it writes, losses that it adds."""

from collections import Counter
from typing import Any

import tensorflow as tf

__all__ = ["refuse_leaks", "refuse_shared_weights"]

_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")


def refuse_leaks(model: Any, x: Any, rows: int) -> None:
    """Raises ValueError where a training pass gives out more of the records than the gradient that is clipped.

    That is a state computed from records and written without noise (moving averages of batch normalization, stateful
    recurrent layers), or a loss that a layer adds, which DPModel does not clip and which may be over the whole batch.
    It is looked for in the traced pass, whatever the layers are called.

    Args:
        x: inputs, (records, ...) each.
        rows: of a batch.
    """
    found: list[int] = []

    def forward(inputs: Any) -> tf.Tensor:
        outputs = model(inputs, training=True)
        found.append(len(model.losses))
        return outputs

    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec((rows, *leaf.shape[1:]), leaf.dtype), x)
    graph = tf.function(forward, autograph=False).get_concrete_function(spec).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    written = sorted({node.name for node in nodes if node.op.startswith(_WRITES)})
    if written:
        raise ValueError(
            f"A training pass writes a state of the model ({written[0]}): it is computed from records without noise,"
            " and with batch normalization records mix besides. Use keras.layers.GroupNormalization, stateless"
            " recurrent layers, or freeze that layer (layer.trainable = False)."
        )
    regularizers = sum(len(layer._callable_losses) for layer in [model, *model._flatten_layers(include_self=False)])
    if found[-1] > regularizers:
        raise ValueError(
            "A layer adds a loss of its inputs (add_loss, activity_regularizer): tensorflow-privacy clips it with no"
            " record, or not at all. Leave it out, or put it into the loss of each record; kernel_regularizer is fine."
        )


def refuse_shared_weights(model: Any) -> None:
    """Raises ValueError where a functional model that clips by `layer_registry` uses a weight more than once.

    tensorflow-privacy 0.9 adds the squared norms of the uses, and the gradient is their sum: of k uses that pull one
    way, what it clips to C has norm sqrt(k) C.
    """
    shared = [name for (_, name), count in _uses(model).items() if count > 1]
    if shared:
        raise ValueError(
            f"The weight {shared[0]} is used more than once, and with layer_registry tensorflow-privacy computes too"
            " small a norm for it: a record moves the sum by more than l2_norm_clip. Leave layer_registry out."
        )


def _uses(model: Any) -> Counter[tuple[int, str]]:
    """How often each trained weight is used, by its id and name."""
    found: Counter[tuple[int, str]] = Counter()
    for node in (node for nodes in model._nodes_by_depth.values() for node in nodes if not node.is_input):
        if hasattr(node.layer, "_nodes_by_depth"):
            found += _uses(node.layer)
        else:
            found.update((id(weight), weight.name) for weight in node.layer.trainable_weights)
    return found
