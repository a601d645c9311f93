"""That what follows the noise of a step reads nothing that records write without noise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.proof.outside import numbers_held, outside
from tfdp_layers.proof.proving import handle_of, outermost, resource_key
from tfdp_layers.proof.specs import flat_specs
from tfdp_layers.proof.state import handles_written_by, written_handles


def written_by_records(model: Any) -> list[Any]:
    """The variables that a step writes with what depends on records: the metrics', the loss tracker's among them.

    Keras lists compiled metrics only once they are built, which is after the first trace.
    """
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    metrics = [*model.metrics, *(m for m in keras.tree.flatten(given) if isinstance(m, keras.metrics.Metric))]
    return [variable for metric in metrics for variable in metric.variables]


def traced_metrics(model: Any, sums: Any, each: int = 1) -> Any:
    """The update of the compiled metrics, traced for any number of records, for steps to call: see `_update_metrics`.

    Args:
        sums: of `traced_sums`, on records as the steps get them: the metrics are built for them.
        each: rows of each record, as there; metrics count rows.

    Returns: a `ConcreteFunction` of (x, y, y_pred, sample_weight, present).
    """
    x, y, weights = flat_specs(sums.structured_input_signature[0], each)
    _, losses, y_pred = keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), sums.structured_outputs)
    compiled = model._compile_metrics

    def update(x: Any, y: Any, y_pred: Any, sample_weight: Any, present: tf.Tensor) -> None:
        model._update_metrics(x, y, y_pred, sample_weight, present)

    present = losses if weights is None else tf.TensorSpec(losses.shape, tf.float32)
    try:
        if compiled is not None and not compiled.built:
            compiled.build(y, y_pred)  # makes variables, for which a function would be traced twice
        return tf.function(update, autograph=False).get_concrete_function(x, y, y_pred, weights, present)
    except (tf.errors.OpError, TypeError, NotImplementedError, AttributeError) as error:
        raise ValueError(uncomputed(y, y_pred, error)) from error


def try_on_nothing(update: Any) -> None:
    """Runs the update of metrics on two records that are empty and weigh nothing: an error in a step costs the step.

    Left out where a shape is known by the records alone.

    Args:
        update: of `traced_metrics`, after it is known to write what metrics own.

    Raises: ValueError for metrics that cannot be computed.
    """
    given, _ = update.structured_input_signature
    if any(leaf.shape.rank is None or None in leaf.shape[1:] for leaf in keras.tree.flatten(given) if leaf is not None):
        return

    def empty(leaf: Any) -> Any:
        return None if leaf is None else tf.zeros((2, *leaf.shape[1:]), leaf.dtype)

    try:
        update(*keras.tree.map_structure(empty, given))
    except tf.errors.OpError as error:
        if "assertion failed" not in str(error):  # of a metric's own, about values that real records have
            raise ValueError(uncomputed(given[1], given[2], error)) from error


def uncomputed(y: Any, y_pred: Any, error: Exception) -> str:
    """What to say of metrics that end in an error of TensorFlow's or NumPy's, which names no metric."""
    shapes = [keras.tree.map_structure(lambda t: ("records", *t.shape[1:]), part) for part in (y, y_pred)]
    return (
        f"A metric given to compile cannot be computed of labels of shape {shapes[0]} and predictions of shape"
        f" {shapes[1]} ({type(error).__name__}: {first_line(error)}). AUC, Precision and Recall compare number with"
        " number: for class numbers take 'accuracy', or one-hot labels with CategoricalCrossentropy. A function takes"
        " and returns tensors of Keras (keras.ops): scikit-learn's take arrays, after fit, of model.predict."
    )


def first_line(error: Exception) -> str:
    """What TensorFlow says of shapes and types; no record was seen yet."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200].rstrip(".")


def written_by_metrics(model: Any, update: Any) -> list[Any]:
    """The handles of all variables that the compiled metrics write, whoever owns them: with records and for results.

    Args:
        update: of `traced_metrics`.

    Raises: ValueError for metrics that take or keep numbers outside of variables.
    """

    def results() -> None:
        model.get_metrics_result()
        model.reset_metrics()

    found = []
    for graph in (update.graph, tf.function(results, autograph=False).get_concrete_function().graph):
        refuse_outside(graph.get_operations(), f"A metric of model {model.name!r}")
        written = written_handles(graph)
        found += [outer for outer, inner in graph.captures if inner.name in written]
    return found


def keys_written(function: Any) -> set[int]:
    """Which variables a traced function writes: their keys."""
    written = written_handles(function.graph)
    return {resource_key(outer) for outer, inner in function.graph.captures if inner.name in written}


def refuse_foreign_writes(model: Any, written: Iterable[Any]) -> None:
    """Raises ValueError where a metric writes a variable that is not its own: weights would tell what it saw.

    Args:
        written: of `written_by_metrics`.
    """
    own = {resource_key(handle_of(v)) for v in written_by_records(model)}
    if any(resource_key(handle_of(v)) not in own for v in written):
        raise foreign(model.name)


def foreign(name: str) -> ValueError:
    return ValueError(
        f"A metric of model {name!r} writes a variable that is not its own, with what it computes from the records,"
        " without noise: whoever reads that variable would know it. Let metrics write what their add_weight made."
    )


def refuse_steered(model: Any, written: Iterable[Any]) -> tuple[list[Any], list[np.ndarray]]:
    """Raises ValueError where what follows the noise of a step reads a variable that records write without noise.

    That is: learning rates (also schedules and functions), regularizers, constraints, and the optimizer's own state.
    It looks before anything is spent; `Crossings` looks again at each step that is traced.

    Args:
        written: of `written_by_metrics`, beside `written_by_records`.

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
    return list(graph.variables), numbers_held(graph)


def refuse_outside(operations: Iterable[Any], who: str) -> None:
    """Raises ValueError where operations take or keep numbers that no variable holds: see `proof.outside`.

    Args:
        who: what they are part of, to name it.
    """
    kind = outside(operations)
    if kind is not None:
        raise ValueError(
            f"{who} runs Python code (tf.py_function or tf.numpy_function), or takes or keeps numbers outside of"
            f" variables, or may (operation {kind}), in every step: whether numbers of the records without noise, as"
            " metrics hold them, go that way into the released weights cannot be seen. Write it in TensorFlow"
            " operations on variables; what needs Python can be computed from the trained model after fit."
        )


def steered(name: str) -> ValueError:
    return ValueError(
        f"A learning rate, regularizer or constraint of model {name!r}, or its optimizer's state, depends on a variable"
        " that a metric writes from the records, without noise: the released weights would tell it. Compute it from"
        " constants, the weights, or the number of steps."
    )


class Crossings:
    """What the parts of one step write and read, taken from the operations that each of them made in the graph.

    So it holds for the graph that runs, however often a step is traced, on one device or on replicas. An eager step
    has no graph: there the values of what the optimizer writes are compared around the parts that see records.

    Args:
        name: the model's, for errors.
        kept: to the variables that only a release may move, or that it reads.
        own: to those that records may write, where not all that they write was examined beforehand: on replicas.
        examined: of `keys_written`: what the sums write was proved or measured to depend on no record.
        hidden: to the variables of metrics: while an eager release runs, which may be any Python, they hold zeros.
        ended: whether the training is told to stop.
        pay: called with the numbers that a release holds by itself, before it is made: they may have been released.
    """

    def __init__(
        self,
        name: str,
        kept: Callable[[], Iterable[Any]],
        own: Callable[[], Iterable[Any]] | None = None,
        examined: Set[int] = frozenset(),
        hidden: Callable[[], Iterable[Any]] = lambda: (),
        ended: Callable[[], bool] = lambda: False,
        pay: Callable[[list[np.ndarray]], None] = lambda numbers: None,
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
            before, ended = values(self._watched()), self._ended()
            yield
            if values(self._watched()) != before:
                raise steered(self._name)
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
        self._read |= {resource_key(outermost(t)) for t in handles}
        self._refuse()
        self._pay(numbers_held(tf.compat.v1.get_default_graph(), operations))

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
    """What variables hold, NaN included."""
    return [np.asarray(variable.numpy()).tobytes() for variable in variables]
