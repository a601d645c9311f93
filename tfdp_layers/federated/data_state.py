"""What the data of a party read and keep beside their records: a pipeline runs its code in the turns, too."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from tfdp_layers.federated.step_state import READS, Kept

__all__ = ["DataState"]


class DataState:
    """What the data of a party keep from one turn to the next, as far as others may read it.

    A pipeline that shuffles, caches in memory or draws random numbers keeps nothing of anybody else's: each party has
    its own. What `.cache` leaves in a file is read by all that name it; a shuffle whose order goes on from epoch to
    epoch, by a known seed, by all that go through it.

    Args:
        given: records, labels, sample weights and validation data, as `fit` takes them.

    Attributes:
        variables: all that functions of pipelines read or write; a generator's next seed is written there.
        read: the handles of these, and of all other resources that they read or write, tables say, by their keys.
        written: the keys of those that may be written with what elements hold.
        reasons: why others may not read what is at a key, whatever is known of the rest.
        cached: the files that pipelines cache in.
        elsewhere: why it is not known that nothing else is kept; None where it is.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        import keras

        self.variables: list[Kept] = []
        self.read: dict[Any, Any] = {}
        self.written: set[int] = set()
        self.reasons: dict[Any, str] = {}
        self.cached: set[str] = set()
        self.elsewhere: str | None = None
        for one in keras.tree.flatten(given):
            if (pipeline := _pipeline_of(one)) is not None:
                self._look(pipeline)
            if pipeline is not one and not _is_array(one):
                name = type(one).__name__
                self.elsewhere = self.elsewhere or f"the Python code of its data, a {name!r}, runs in each turn"

    def _look(self, dataset: Any) -> None:
        from tfdp_layers.batches.steps import graphs_of, kind, number, steps

        for step in steps(dataset):
            if kind(step) == "Cache" and (name := number(step, "_filename")):
                self.cached.add(os.fsdecode(name))
            if _draws_on(step):
                key = ("step", id(step))
                self.read[key] = step
                self.reasons[key] = (
                    f"{kind(step)} of its pipeline draws by a known seed (its own or the global one), and goes on with"
                    " each epoch of whoever reads it: how many epochs the other one made would show"
                )
            reason = next(_kept_unseen(step), None)
            for graph in graphs_of(step):
                kept = _keeps(graph)
                self._note_captures(graph, bool(kept))
                reason = reason or kept
            self.elsewhere = self.elsewhere or (reason and f"{kind(step)} of its pipeline {reason}")

    def _note_captures(self, graph: Any, keeps: bool) -> None:
        import tensorflow as tf

        from tfdp_layers.proof.proving import resource_key
        from tfdp_layers.proof.state import written_handles

        written = written_handles(graph) if keeps else ()
        for outer, inner in graph.captures:
            if outer.dtype == tf.resource:
                key, data = resource_key(outer), getattr(outer, "_handle_data", None)
                self.read[key] = outer
                if data is not None and data.is_set:
                    self.variables.append(Kept(outer, key))
                if inner.name in written:
                    self.written.add(key)


def _pipeline_of(part: Any) -> Any:
    """The pipeline that a part of the data is, was declared as, or was read from; None of others."""
    import tensorflow as tf

    from tfdp_layers.batches.arrays import PrivateBatches
    from tfdp_layers.batches.declared import DeclaredBatches

    pipeline = part._dataset if isinstance(part, DeclaredBatches) else part
    if isinstance(part, PrivateBatches):
        pipeline = part._store.pipeline and part._store.pipeline()
    return pipeline if isinstance(pipeline, tf.data.Dataset) else None


def _draws_on(step: Any) -> bool:
    """Whether a step draws random numbers by a known seed, and others in each epoch of all that read it."""
    from tfdp_layers.batches.steps import number

    again = any(number(step, name) for name in ("_reshuffle_each_iteration", "_rerandomize"))
    return bool(again) and any(number(step, name) for name in ("_seed", "_seed2"))


def _is_array(leaf: Any) -> bool:
    """Whether a part of the data is given as numbers, texts or arrays, and not by code that gives them."""
    from tfdp_layers.batches.arrays import PrivateBatches
    from tfdp_layers.batches.declared import DeclaredBatches
    from tfdp_layers.batches.stores import ArrayStore

    if isinstance(leaf, PrivateBatches | DeclaredBatches):
        return isinstance(leaf, DeclaredBatches) or isinstance(leaf._store, ArrayStore)
    return leaf is None or isinstance(leaf, bool | int | float | str | bytes) or hasattr(leaf, "shape")


def _keeps(graph: Any) -> str | None:
    """What a function of a pipeline does that may keep what its elements hold where others read it."""
    from tfdp_layers.batches.effects import keeps_elsewhere, keeps_records, keeps_within

    if keeps_records(graph) or keeps_within(graph):
        return "writes a variable, a table or a queue"
    found = keeps_elsewhere(graph)
    return found and f"has the operation {found}"


def _kept_unseen(step: Any) -> Iterator[str]:
    """Why a step may keep what no handle shows: its functions run Python, or it takes a data set that may."""
    from tfdp_layers.batches.effects import is_kept
    from tfdp_layers.batches.places import UNKNOWN, nodes_behind, nodes_held, nodes_within
    from tfdp_layers.batches.steps import kind
    from tfdp_layers.proof.outside import PYTHON

    yield from ("runs Python code" for node in nodes_within(step) if node.op in PYTHON)
    made = nodes_behind(step._variant_tensor) if kind(step) == "Variant" else ()  # by .enumerate, say
    for node in (*made, *nodes_held(step)):
        if node.op in PYTHON or node.op in READS or node.op == UNKNOWN or is_kept(node.op) or "Rng" in node.op:
            yield f"takes a data set that may keep numbers (operation {node.op})"
