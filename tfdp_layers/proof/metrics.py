"""What the metrics of a private model write: they see records, and nothing of theirs carries noise."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.outside import refuse_outside
from tfdp_layers.proof.proving import handle_of, resource_key
from tfdp_layers.proof.specs import flat_specs
from tfdp_layers.proof.state import written_handles


def examined_metrics(model: Any, sums: Any, each: int = 1) -> tuple[Any, list[Any]]:
    """The update of the compiled metrics, for compiled steps to call, and what all of them write.

    Eager steps run the metrics' own Python each time, which may be such as nothing can be traced of: what can be is
    looked at all the same, before anything is spent; the rest is left to `Crossings`, which compares values.

    Args:
        sums, each: as `traced_metrics` takes them.

    Returns: of `traced_metrics`, None for eager steps; and the handles of all variables that metrics write, whoever
        owns them: with records, for results, and where they are reset.

    Raises: ValueError for metrics that write what is not their own; in compiled steps also for those that cannot be
        computed, or take or keep numbers outside of variables.
    """
    if not model.run_eagerly:
        update = traced_metrics(model, sums, each)
        functions = [update, *(trace() for trace in results_of(model))]
        for function in functions:
            refuse_outside(function.graph.get_operations(), f"A metric of model {model.name!r}")
    else:
        update, functions = None, []
        traces: list[Callable[[], Any]] = [functools.partial(traced_metrics, model, sums, each), *results_of(model)]
        for trace in traces:
            with without_tensors(model), contextlib.suppress(Exception):  # whatever Python raises without numbers
                functions.append(trace())
    written = [handle for function in functions for handle in handles_written(function.graph)]
    refuse_foreign_writes(model, written)
    return update, written


def written_by_records(model: Any) -> list[Any]:
    """The variables that a step writes with what depends on records: the metrics', the loss tracker's among them."""
    return [variable for metric in metrics_of(model) for variable in metric.variables]


def metrics_of(model: Any) -> list[Any]:
    """The metrics that a step updates; Keras lists compiled ones only once they are built, after the first trace."""
    return [*model.metrics, *given_metrics(model)]


def given_metrics(model: Any) -> list[Any]:
    """The metrics that `compile` was given as objects, which may be another model's, too."""
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    return [one for one in keras.tree.flatten(given) if isinstance(one, keras.metrics.Metric)]


@contextlib.contextmanager
def without_tensors(model: Any) -> Iterator[None]:
    """Takes out of metrics' own lists and dicts what a trace put there: its tensors have no numbers."""
    held = [one for metric in metrics_of(model) for one in vars(metric).values() if isinstance(one, list | dict)]
    kept = [dict(one) if isinstance(one, dict) else list(one) for one in held]
    yield
    for one, before in zip(held, kept, strict=True):
        values = one.values() if isinstance(one, dict) else one
        if any(tf.is_symbolic_tensor(leaf) for leaf in values):
            one.clear()
            (one.update if isinstance(one, dict) else one.extend)(before)


def traced_metrics(model: Any, sums: Any, each: int = 1) -> Any:
    """The update of the compiled metrics, traced for any number of records, for steps to call: see `_update_metrics`.

    Args:
        sums: of `traced_sums`, on records as the steps get them: the metrics are built for them.
        each: rows of each record, as there; metrics count rows.

    Returns: a `ConcreteFunction` of (x, y, y_pred, sample_weight, present).
    """
    x, y, weights = flat_specs(sums.structured_input_signature[0], each)
    _, losses, y_pred = keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), sums.structured_outputs)

    def update(x: Any, y: Any, y_pred: Any, sample_weight: Any, present: tf.Tensor) -> None:
        model._update_metrics(x, y, y_pred, sample_weight, present)

    present = losses if weights is None else tf.TensorSpec(losses.shape, tf.float32)
    try:
        model._build_metrics(y, y_pred)  # makes variables, for which a function would be traced twice
        return tf.function(update, autograph=False).get_concrete_function(x, y, y_pred, weights, present)
    except (tf.errors.OpError, TypeError, NotImplementedError, AttributeError) as error:
        raise ValueError(uncomputed(y, y_pred, error)) from error


def results_of(model: Any) -> list[Callable[[], Any]]:
    """What traces the metrics' results, and their reset: to a `ConcreteFunction` each."""

    def results() -> None:
        model.get_metrics_result()

    def reset() -> None:
        model.reset_metrics()

    return [tf.function(function, autograph=False).get_concrete_function for function in (results, reset)]


def handles_written(graph: Any) -> list[Any]:
    """The handles of all variables outside of a graph that it writes."""
    written = written_handles(graph)
    return [outer for outer, inner in graph.captures if inner.name in written]


def refuse_foreign_writes(model: Any, written: Iterable[Any]) -> None:
    """Raises ValueError where a metric writes a variable that is not its own: weights would tell what it saw.

    Args:
        written: their handles.
    """
    own = {resource_key(handle_of(v)) for v in written_by_records(model)}
    if any(resource_key(handle_of(v)) not in own for v in written):
        raise foreign(model.name)


def foreign(name: str) -> ValueError:
    return ValueError(
        f"A metric of model {name!r} writes a variable that is not its own, with what it computes from the records,"
        " without noise: whoever reads that variable would know it. Let metrics write what their add_weight made."
    )


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
