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

__all__ = [
    "SCALES",
    "UNREADABLE",
    "carry_restores",
    "copy_restores",
    "private_in",
    "releases_brought",
    "releases_waiting",
    "settle_restored",
    "trained_by_private",
]

UNREADABLE = 2**62
"""How many releases a checkpoint counts whose files are gone: more than any ledger."""
_UID, _SETTLED, _BROUGHT = "_self_update_uid", "_tfdp_settled_restore", "_tfdp_brought"
"""Of a variable, or a layer: by which restore TensorFlow wrote to it last; by which one it holds nothing unpaid; by
which one it got how many private releases."""
_UNKNOWN = -1
"""What a checkpoint of a private training brought that its optimizer did not train: another one may have, before."""
SCALES = "dynamic_scale"
"""What an optimizer of Keras keeps that wraps another to scale losses: no private one does."""
_counted: dict[int, int] = {}
"""What a checkpoint counts that was alive when somebody looked, by the number of its restore."""
_told: dict[int, int] = {}
"""How many objects a checkpoint had been restored into when `trained_by_private` gave its weights."""
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
    held = [one for one in weights if isinstance(one, keras.Variable) and _restore(one) >= 0 and _unsettled(one)]
    if any(_brought(one) is None for one in held):
        for one in _alive(again=True):
            _examine(one)
    found: dict[int, list[int | None]] = {}
    for one in held:
        found.setdefault(_restore(one), []).append(_brought(one))
    return {restore: _most(numbers) for restore, numbers in found.items()}


def _most(numbers: list[int | None]) -> int | None:
    """The largest; None where none is larger than 0 and one is not known."""
    most = max((one for one in numbers if one is not None), default=0)
    return most if most > 0 or not {None, _UNKNOWN} & set(numbers) else None


def carry_restores(layers: Iterable[Any]) -> None:
    """Lets weights say so that took the place of all that a checkpoint was restored into: `quantize` replaces them."""
    for layer in layers:
        weights = [] if layer._layers else [one for one in layer.weights if isinstance(one, keras.Variable)]
        if _restore(layer) >= 0 and _unsettled(layer) and all(_restore(one) < 0 for one in weights):
            for one in weights:
                setattr(one, _UID, _restore(layer))


def copy_restores(weights: Iterable[Any], copies: Iterable[Any]) -> None:
    """Lets what was computed from weights say which checkpoint these were restored from, if nobody settled that.

    Args:
        copies: one of each of the weights, or others, which were computed from all of these.
    """
    held, made = list(weights), list(copies)
    restored = [one for one in held if isinstance(one, keras.Variable) and _restore(one) >= 0 and _unsettled(one)]
    sources = held if len(held) == len(made) else restored[-1:] * len(made)
    for one, copy in zip(sources, made, strict=False):
        if any(one is kept for kept in restored) and isinstance(copy, keras.Variable):
            setattr(copy, _UID, _restore(one))
            setattr(copy, _BROUGHT, getattr(one, _BROUGHT, (-1, None)))


def trained_by_private() -> Iterator[tuple[int, list[Any]]]:
    """Of each checkpoint of a private training that is alive: how many releases it counts, and the weights that hold
    it, in whichever model, and that it trained; once, unless it was restored into more since."""
    for one in _alive():
        uid, there = int(one.restore_uid), dict(one.object_by_proto_id)
        if _told.get(uid) != len(there) and (releases := _examine(one)):
            _told[uid] = len(there)
            mine = [kept for kept in there.values() if isinstance(kept, keras.Variable) and _restore(kept) == uid]
            yield releases, [kept for kept in mine if (_brought(kept) or 0) > 0 and _unsettled(kept)]


def settle_restored(weights: Iterable[Any], restores: Collection[int] | None = None) -> None:
    """Says that what these weights hold now is paid for, or public, whichever checkpoint was restored into them.

    Args:
        restores: the numbers of those of which this is true; None: of all.
    """
    for one in weights:
        if restores is None or _restore(one) in restores:
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
    return {"inner_optimizer", "_iterations"} <= parts and SCALES not in parts


def _restore(variable: Any) -> int:
    return int(getattr(variable, _UID, -1))


def _unsettled(variable: Any) -> bool:
    return bool(getattr(variable, _SETTLED, -1) != _restore(variable))


def _brought(variable: Any) -> int | None:
    """How many private releases its last restore brought; None where nobody examined that."""
    restore, releases = getattr(variable, _BROUGHT, (-1, None))
    return releases if restore == _restore(variable) else None


def _alive(again: bool = False) -> list[Any]:
    """Checkpoints that something waits for. Where none is, their class has no more references than it had then.

    Args:
        again: looks in any case: other references to the class may have come and gone.
    """
    if _without and not again and sys.getrefcount(Coordinator) <= _without[0]:
        return []
    found = [one for one in gc.get_referrers(Coordinator) if type(one) is Coordinator]
    without = sys.getrefcount(Coordinator) - len(found)
    _without[:] = [min([without, *_without])]
    return found


def _examine(checkpoint: Any) -> int:
    """How many private releases it counts: of each variable that it was restored into, this says whether it has them.

    Of those that this private optimizer did not train, a frozen backbone or a clone, nobody can say what they cost.
    """
    uid, nodes = int(checkpoint.restore_uid), checkpoint.object_graph_proto.nodes
    if uid not in _counted:
        private = [node for node, one in enumerate(nodes) if private_in(one)]
        _counted[uid] = max((_count(checkpoint, node) for node in private), default=0)
    trained, rest = set(_named(nodes, "_trainable_variables")), _UNKNOWN if _counted[uid] else 0
    for node, one in dict(checkpoint.object_by_proto_id).items():
        if isinstance(one, keras.Variable) and _restore(one) == uid:
            setattr(one, _BROUGHT, (uid, _counted[uid] if node in trained or not trained else rest))
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
