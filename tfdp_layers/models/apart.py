"""What each replica adds to a step, it computes from its own records: looked for in the graph of every such step."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.state import functions_of
from tfdp_layers.proof.values import UnknownError

_BETWEEN_DEVICES = ("Collective", "Nccl", "_Recv", "Recv", "_HostRecv", "CrossReplica", "AllToAll", "XlaAllReduce")


def refuse_meeting(parts: Sequence[tuple[Any, Any]]) -> None:
    """Raises ValueError where the sums of one replica are computed from the records of another.

    The sums of a model are proved where it runs alone. On replicas a layer or a loss may ask the others
    (`tf.distribute.get_replica_context().all_reduce`), which gives itself where there are none: then a record would
    move as many contributions as there are replicas. Looked at are all operations that the sums are computed by, for
    the tensors of other replicas' records, and for operations that move tensors between devices.

    Args:
        parts: of each replica, its records and its sums: trees of tensors of one graph.
    """
    own = [{leaf.name for leaf in keras.tree.flatten(data) if tf.is_tensor(leaf)} for data, _ in parts]
    for number, (_, sums) in enumerate(parts):
        others = set().union(*(leaves for other, leaves in enumerate(own) if other != number))
        for tensor in _computed_from(keras.tree.flatten(sums)):
            if tensor.name in others or _moves_between(tensor.op):
                raise ValueError(
                    f"On several devices, what a record adds depends on the records of other devices, by way of"
                    f" {tensor.op.name!r} ({tensor.op.type}): one record would move several contributions, and no bound"
                    " holds. Leave out all_reduce, all_gather and merge_call of tf.distribute in layers and losses, or"
                    " train on one device."
                )


def _computed_from(tensors: Sequence[Any]) -> Iterator[Any]:
    """These tensors, and all that they are computed from in their graph."""
    left, seen = [t for t in tensors if tf.is_tensor(t)], set[str]()
    while left:
        tensor = left.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        yield tensor
        left.extend(tensor.op.inputs)


def _moves_between(operation: Any) -> bool:
    """Whether an operation, or one in a function that it calls, moves tensors between devices."""
    if operation.type.startswith(_BETWEEN_DEVICES):
        return True
    for name in functions_of(operation):
        try:
            inner = graph_named(operation.graph, name)
        except UnknownError:
            return True
        if any(_moves_between(one) for one in inner.get_operations()):
            return True
    return False
