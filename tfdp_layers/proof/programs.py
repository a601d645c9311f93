"""What a traced step computes, as a short text by which processes compare that they run the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.held import contents_of, refuse_made_inside

__all__ = ["program_of", "settings_after_noise"]

_NAMES = ("shared_name", "container", "name")
"""Of what differs with how much a process made before, and changes nothing."""


def program_of(traced: Any) -> str:
    """A digest of the operations of a traced function, how they are connected, their settings and constants; no names.

    Two functions that differ in an operation, in what it is computed from, in what it runs after, in a constant or in a
    shape have two digests, and so have two whose lookup tables hold other pairs. In which order they were traced is not
    told. Variables are told by their places among all that is captured: what they hold is compared at every step. What
    operations compute is left to TensorFlow, whose version is told.

    Raises: ValueError where it reads what can be compared neither way: see `contents_of`.
    """
    graph = traced.graph
    refuse_made_inside(graph)
    written = graph.as_graph_def()
    terms = _Terms(written.library.function)
    captured = {inner.name: outer for outer, inner in graph.captures}
    given = {
        one.name.split(":")[0]: contents_of(captured.get(one.name), graph, one) or b"input %d" % place
        for place, one in enumerate(graph.inputs)
    }
    found = terms.of(written.node, given)
    outputs = [_term(found, one.name) for one in graph.outputs]
    return _digest(tf.__version__.encode(), *outputs, b"all", *sorted(found.values())).hex()


def settings_after_noise(optimizer: keras.optimizers.Optimizer, variables: Iterable[Any]) -> Any:
    """What follows the noise, without names, as JSON values: a wrapped optimizer, regularizers, constraints."""
    serialize = keras.saving.serialize_keras_object
    parts = [[serialize(getattr(v, name, None)) for name in ("regularizer", "constraint")] for v in variables]
    return _nameless([serialize(optimizer), parts])


class _Terms:
    """Digests of nodes, made of those of what they are computed from and run after; of functions by what they do.

    Args:
        functions: of a graph's library.
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        self._functions = {one.signature.name: one for one in functions}
        self._told: dict[str, bytes] = {}

    def of(self, nodes: Iterable[Any], given: dict[str, bytes]) -> dict[str, bytes]:
        """The digests of all nodes by name, from those of the inputs."""
        found, by_name, begun = dict(given), {node.name: node for node in nodes}, set[str]()
        left = list(by_name)
        while left:
            node = by_name.get(left[-1])
            if node is None or node.name in found:
                left.pop()
                continue
            begun.add(node.name)  # what comes back to it is a loop, and told by its operation alone
            before = [name for name in map(_node, node.input) if name not in found and name not in begun]
            if before:
                left += before
                continue
            given_to = [_term(found, one) for one in node.input if one[0] != "^"]
            after = sorted(_term(found, one) for one in node.input if one[0] == "^")
            found[node.name] = _digest(*self._line(node), *given_to, b"after", *after)
        return found

    def _line(self, node: Any) -> Iterator[bytes]:
        """A node by its operation, its settings, and what the functions do that it calls."""
        yield node.op.encode() if node.op not in self._functions else self._function(node.op)
        for name, value in sorted(node.attr.items()):
            called = [value.func] if value.HasField("func") else value.list.func
            if called:
                yield b" ".join([name.encode(), *(self._function(one.name) for one in called)])
            elif name[0] != "_" and name not in _NAMES:
                yield name.encode() + b"=" + value.SerializeToString(deterministic=True)

    def _function(self, name: str) -> bytes:
        written = self._functions.get(name)
        if written is None:
            return name.encode()
        if name not in self._told:
            arguments = {one.name: b"input %d" % place for place, one in enumerate(written.signature.input_arg)}
            found = self.of(written.node_def, arguments)
            outputs = [_term(found, written.ret[one.name]) for one in written.signature.output_arg]
            self._told[name] = _digest(*outputs, b"all", *sorted(found.values()))
        return self._told[name]


def _node(source: str) -> str:
    """The name of the node that an input is of."""
    return source.lstrip("^").split(":")[0]


def _term(found: dict[str, bytes], source: str) -> bytes:
    """An input of a node, or an output of a graph, as a digest."""
    which = source.partition(":")[2] or "0"
    return found.get(_node(source), b"loop") + b":" + which.encode()


def _digest(*parts: bytes) -> bytes:
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(b"%d " % len(part) + part)
    return whole.digest()


def _nameless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nameless(one) for key, one in value.items() if key not in _NAMES}
    return [_nameless(one) for one in value] if isinstance(value, list | tuple) else value
