"""What a traced step computes, as a short text by which processes compare that they run the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

__all__ = ["program_of", "settings_after_noise"]

_NAMES = ("shared_name", "container", "name")
"""Of what differs with how much a process made before, and changes nothing."""


def program_of(traced: Any) -> str:
    """A digest of the operations of a traced function, with their settings and constants; of no names.

    Two functions that differ in an operation, a constant or a shape have two digests. In which order operations of the
    same kind are connected is not told: this compares programs that are meant to be equal.
    """
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    found = sorted([*map(_line, nodes), *_captured(traced.graph)])
    return hashlib.blake2b(b"\n".join(found), digest_size=16).hexdigest()


def settings_after_noise(optimizer: keras.optimizers.Optimizer, variables: Iterable[Any]) -> Any:
    """What follows the noise, without names, as JSON values: a wrapped optimizer, regularizers, constraints."""
    serialize = keras.saving.serialize_keras_object
    parts = [[serialize(getattr(v, name, None)) for name in ("regularizer", "constraint")] for v in variables]
    return _nameless([serialize(optimizer), parts])


def _line(node: Any) -> bytes:
    """A node by its operation and settings; functions that it calls stand beside it, and are called by number."""
    settings = [
        name.encode() + b"=" + value.SerializeToString(deterministic=True)
        for name, value in sorted(node.attr.items())
        if name[0] != "_" and name not in _NAMES and not value.HasField("func") and not value.list.func
    ]
    return b" ".join([node.op.encode() if not node.op.startswith("__") else b"call", *settings])


def _captured(graph: Any) -> Iterator[bytes]:
    """The constants that a graph takes from outside."""
    for outside, _ in graph.captures:
        if hasattr(outside, "numpy") and outside.dtype not in (tf.resource, tf.variant):
            yield repr((outside.dtype, outside.shape)).encode() + outside.numpy().tobytes()


def _nameless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nameless(one) for key, one in value.items() if key not in _NAMES}
    return [_nameless(one) for one in value] if isinstance(value, list | tuple) else value
