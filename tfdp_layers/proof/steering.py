"""That what follows the noise of a step reads nothing that records write without noise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.metrics import foreign, written_by_records
from tfdp_layers.proof.outside import numbers_held, refuse_outside
from tfdp_layers.proof.proving import handle_of, outermost, resource_key
from tfdp_layers.proof.reads import variables_of
from tfdp_layers.proof.replicas import copies_of
from tfdp_layers.proof.state import handles_written_by, written_handles


def keys_written(function: Any) -> set[int]:
    """Which variables a traced function writes: their keys, and those of their copies on other replicas."""
    written = written_handles(function.graph)
    handles = (outer for outer, inner in function.graph.captures if inner.name in written)
    return {resource_key(copy) for handle in handles for copy in copies_of(handle)}


def refuse_steered(model: Any, written: Iterable[Any]) -> tuple[list[Any], list[np.ndarray]]:
    """Raises ValueError where what follows the noise of a step reads a variable that records write without noise.

    That is: learning rates (also schedules and functions), regularizers, constraints, and the optimizer's own state.
    It looks before anything is spent; `Crossings` looks again at each step that is traced.

    Args:
        written: of `examined_metrics`, beside `written_by_records`.

    Returns: the variables that are read there, and the numbers that stand there as constants.
    """
    inner, trained = model.optimizer.inner_optimizer, model.trainable_variables

    def after_noise() -> None:
        tf.convert_to_tensor(inner.learning_rate)
        model._regularizer_gradients()
        for variable in trained:
            if variable.constraint is not None:
                variable.constraint(variable)

    graph = tf.function(after_noise, autograph=False).get_concrete_function().graph
    refuse_outside(graph.get_operations(), f"A learning rate, regularizer or constraint of model {model.name!r}")
    read = [outer for outer, within in graph.captures if within.dtype == tf.resource]
    private = {resource_key(handle_of(v)) for v in written}
    private |= {resource_key(handle) for v in written_by_records(model) for handle in handles_of(v)}
    own = [handle for v in model.optimizer.variables for handle in handles_of(v)]
    if any(resource_key(handle_of(v)) in private for v in [*read, *own]):
        raise steered(model.name)
    return variables_of(graph), numbers_held(graph)


def steered(name: str) -> ValueError:
    return ValueError(
        f"A learning rate, regularizer or constraint of model {name!r}, or its optimizer's state, depends on a variable"
        " that a metric writes from the records, without noise: the released weights would tell it. Compute it from"
        " constants, the weights, or the number of steps."
    )


def moved(name: str, variable: str) -> ValueError:
    return ValueError(
        f"Python code of model {name!r} that sees records (a metric, a loss or a layer) changed variable {variable!r},"
        " without noise: releases read it, or the model holds it and is saved with it. Let metrics write what their"
        " add_weight made alone, and losses and layers nothing that depends on records."
    )


class Crossings:
    """What the parts of one step write and read, taken from the operations that each of them made in the graph.

    So it holds for the graph that runs, however often a step is traced, on one device or on replicas. An eager step
    has no graph: there the values of `kept` are compared around the parts that see records.

    Args:
        name: the model's, for errors.
        kept: to the variables that no record may move: what releases move or read, and what layers hold.
        own: to those that records may write, where not all that they write was examined beforehand: on replicas.
        examined: of `keys_written`: what the sums write was proved or measured to depend on no record.
        hidden: to the variables of metrics: while an eager release runs, which may be any Python, they hold zeros.
        ended: whether the training is told to stop.
        pay: called with what a release reads, before it is made, for all of it may have been released: the variables,
            and the numbers that it holds by itself.
    """

    def __init__(
        self,
        name: str,
        kept: Callable[[], Iterable[Any]],
        own: Callable[[], Iterable[Any]] | None = None,
        examined: Set[int] = frozenset(),
        hidden: Callable[[], Iterable[Any]] = lambda: (),
        ended: Callable[[], bool] = lambda: False,
        pay: Callable[[list[Any], list[np.ndarray]], None] = lambda variables, numbers: None,
    ) -> None:
        self._name, self._kept, self._own, self._examined = name, kept, own, examined
        self._hidden, self._ended, self._pay = hidden, ended, pay
        self._written: set[int] = set()
        self._read: set[int] = set()

    @contextlib.contextmanager
    def of_records(self) -> Iterator[None]:
        """Inside, records may be read, and nothing written that a release reads.

        Raises: ValueError at its end, where a release that came before reads what was written here.
        """
        if tf.executing_eagerly():
            watched, ended = self._watched(), self._ended()
            before = values(watched)
            yield
            for variable, old, new in zip(watched, before, values(watched), strict=True):
                if old != new:
                    raise moved(self._name, getattr(variable, "path", variable.name))
            if self._ended() and not ended:
                raise ValueError(
                    f"Code of model {self._name!r} that sees records, such as a metric's, ended the training: when it"
                    " ends would tell what it saw, which carries no noise. Leave model.stop_training to callbacks that"
                    " decide by public numbers."
                )
            return
        with made_here() as operations:
            yield
        if self._own is not None:
            refuse_outside(operations, f"A metric of model {self._name!r}")
        written = {resource_key(outermost(t)) for t in handles_written_by(operations)} - self._examined
        if self._own is not None and written - {resource_key(h) for v in self._own() for h in handles_of(v)}:
            raise foreign(self._name)
        self._written |= written
        self._refuse()

    @contextlib.contextmanager
    def of_release(self) -> Iterator[None]:
        """Inside, noise is added and weights move. Raises as `of_records`."""
        if tf.executing_eagerly():
            with zeroed(self._hidden()):
                yield
            return
        with made_here() as operations:
            yield
        handles = (t for operation in operations for t in operation.inputs if t.dtype == tf.resource)
        read = {resource_key(outermost(t)) for t in handles}
        self._read |= read
        self._refuse()
        graph = tf.compat.v1.get_default_graph()
        variables = {resource_key(one.handle): one for one in variables_of(graph)}
        self._pay([one for key, one in variables.items() if key in read], numbers_held(graph, operations))

    def _watched(self) -> list[Any]:
        kept = list(self._kept())
        return [v for v in kept if resource_key(handle_of(v)) not in self._examined] if self._examined else kept

    def _refuse(self) -> None:
        if self._written & self._read:
            raise steered(self._name)


@contextlib.contextmanager
def zeroed(variables: Iterable[Any]) -> Iterator[None]:
    """Inside, these variables hold zeros."""
    held = [(variable, variable.numpy()) for variable in variables]
    try:
        for variable, value in held:
            variable.assign(np.zeros_like(value))
        yield
    finally:
        for variable, value in held:
            variable.assign(value)


@contextlib.contextmanager
def made_here() -> Iterator[list[Any]]:
    """The operations that are made inside, in the graph that is being traced.

    Not those between processes: they hold a token in common, which orders them and carries no number. An eager call
    makes none.
    """
    made: list[Any] = []
    if tf.executing_eagerly():
        yield made
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield made
    made.extend(one for one in graph.get_operations()[before:] if not one.type.startswith("Collective"))


def handles_of(variable: Any) -> list[Any]:
    """The handle of a variable, or of each of its copies on replicas."""
    copies = getattr(variable.value, "values", None)
    return [handle_of(variable)] if copies is None else [copy.handle for copy in copies]


def values(variables: Iterable[Any]) -> list[bytes]:
    """What variables hold, NaN included; of texts, too."""
    arrays = [np.asarray(variable.numpy()) for variable in variables]
    return [repr(a.tolist()).encode() if a.dtype.hasobject else a.tobytes() for a in arrays]
