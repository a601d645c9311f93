"""Checkpoints of TensorFlow that were restored into weights: how many private releases those hold, and of which."""

import contextlib
import gc
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint.checkpoint import _CheckpointRestoreCoordinator as Coordinator

__all__ = ["UNREADABLE", "private_in", "releases_brought", "releases_waiting", "settle_restored", "trained_by_private"]

UNREADABLE = 2**62
"""How many releases a checkpoint counts whose files are gone: more than any ledger."""
_UID, _SETTLED, _BROUGHT = "_self_update_uid", "_tfdp_settled_restore", "_tfdp_brought"
"""Of a variable: by which restore TensorFlow wrote to it last; by which one it holds nothing unpaid; by which one it
got how many private releases."""
_SCALES = "dynamic_scale"
"""What an optimizer of Keras keeps that wraps another to scale losses: no private one does."""
_counted: dict[int, int] = {}
"""What a checkpoint counts that was alive when somebody looked, by the number of its restore."""
_without: list[int] = []
"""How many references to their class there are beside those of checkpoints that are alive."""


def releases_brought(weights: Iterable[Any]) -> dict[int, int | None]:
    """How many private releases the checkpoints count that weights hold now, by the numbers of their restores.

    A checkpoint is alive as long as something waits for the rest of it, as a model that has no private optimizer yet:
    that of a private training is, whichever Keras model, or optimizer, took it. None where nobody can say any more:
    all of it was taken, or what waited is gone.

    Args:
        weights: Keras variables; others say nothing.
    """
    found: dict[int, int | None] = {}
    held = [one for one in weights if isinstance(one, keras.Variable) and _restore(one) >= 0 and _unsettled(one)]
    if any(_brought(one) is None for one in held):
        for one in _alive():
            _examine(one)
    for one in held:
        found[_restore(one)] = max(
            (n for n in (found.get(_restore(one)), _brought(one)) if n is not None), default=None
        )
    return found


def trained_by_private() -> Iterator[tuple[int, list[Any]]]:
    """Of each checkpoint of a private training that is alive: how many releases it counts, and the weights that hold
    it, in whichever model, and that it trained."""
    for one in _alive():
        if releases := _examine(one):
            there = [kept for kept in dict(one.object_by_proto_id).values() if isinstance(kept, keras.Variable)]
            mine = [kept for kept in there if _restore(kept) == one.restore_uid and _unsettled(kept)]
            yield releases, [kept for kept in mine if _brought(kept)]


def settle_restored(weights: Iterable[Any], restores: Collection[int] | None = None) -> None:
    """Says that what these weights hold now is paid for, or public, whichever checkpoint was restored into them.

    Args:
        restores: the numbers of those of which this is true; None: of all.
    """
    for one in weights:
        if isinstance(one, keras.Variable) and (restores is None or _restore(one) in restores):
            setattr(one, _SETTLED, _restore(one))


def releases_waiting(waiting: Any) -> int:
    """How many releases the optimizer counts whose place in a checkpoint this is; 0 of one that is not private."""
    checkpoint = waiting.checkpoint
    return (
        _count(checkpoint, waiting.proto_id) if private_in(checkpoint.object_graph_proto.nodes[waiting.proto_id]) else 0
    )


def private_in(node: Any) -> bool:
    """Whether a node of a checkpoint is a private optimizer: one that wraps another, and not to scale losses."""
    parts = {one.local_name for one in node.children}
    return {"inner_optimizer", "_iterations"} <= parts and _SCALES not in parts


def _restore(variable: Any) -> int:
    return int(getattr(variable, _UID, -1))


def _unsettled(variable: Any) -> bool:
    return bool(getattr(variable, _SETTLED, -1) != _restore(variable))


def _brought(variable: Any) -> int | None:
    """How many private releases its last restore brought; None where nobody examined that."""
    restore, releases = getattr(variable, _BROUGHT, (-1, None))
    return releases if restore == _restore(variable) else None


def _alive() -> list[Any]:
    """Checkpoints that something waits for. Where none is, their class has no more references than it had then."""
    if _without and sys.getrefcount(Coordinator) <= _without[0]:
        return []
    found = [one for one in gc.get_referrers(Coordinator) if type(one) is Coordinator]
    _without[:] = [sys.getrefcount(Coordinator) - len(found)]
    return found


def _examine(checkpoint: Any) -> int:
    """How many private releases it counts: of each variable that it was restored into, this says whether it has them.

    Those of which no private optimizer made steps, of a frozen backbone say, have none: others may hold them, public.
    """
    uid, nodes = int(checkpoint.restore_uid), checkpoint.object_graph_proto.nodes
    if uid not in _counted:
        private = [node for node, one in enumerate(nodes) if private_in(one)]
        _counted[uid] = max((_count(checkpoint, node) for node in private), default=0)
    trained = set(_named(nodes, "_trainable_variables"))
    for node, one in dict(checkpoint.object_by_proto_id).items():
        if isinstance(one, keras.Variable) and _restore(one) == uid:
            setattr(one, _BROUGHT, (uid, _counted[uid] if node in trained or not trained else 0))
    return _counted[uid]


def _count(checkpoint: Any, node: int) -> int:
    nodes = checkpoint.object_graph_proto.nodes
    with contextlib.suppress(Exception):  # the files may be gone: then nobody knows how many
        found = tf.train.load_checkpoint(checkpoint.save_path_string)
        (iterations,) = (one.node_id for one in nodes[node].children if one.local_name == "_iterations")
        (key,) = (one.checkpoint_key for one in nodes[iterations].attributes)
        return int(np.max(found.get_tensor(key)))
    return UNREADABLE


def _named(nodes: Any, name: str) -> Iterator[int]:
    """The nodes in lists of this name that private optimizers, and those that they wrap, keep."""
    for node in filter(private_in, nodes):
        inner = [nodes[one.node_id] for one in node.children if one.local_name == "inner_optimizer"]
        for one in (node, *inner):
            for part in one.children:
                if part.local_name == name:
                    yield from (item.node_id for item in nodes[part.node_id].children)
