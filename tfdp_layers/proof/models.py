"""Proofs of the released sums of private models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.proving import handle_of, prove, resource_key
from tfdp_layers.proof.report import Report
from tfdp_layers.proof.state import written_handles


def prove_sums(model: Any, x_spec: Any, y_spec: Any, sample_weight_spec: Any = None) -> Report:
    """Proves that what a private model would release, before its noise, is additive over the records: see `prove`.

    Args:
        model: a compiled private model.
        x_spec, y_spec, sample_weight_spec: trees of `tf.TensorSpec` whose axis 0 is unknown.
    """
    return prove_traced(model, traced_sums(model, x_spec, y_spec, sample_weight_spec))


def traced_sums(model: Any, x_spec: Any, y_spec: Any, sample_weight_spec: Any = None) -> Any:
    """The bounded sums of a private model, traced for any number of records: a function of (x, y, sample_weight).

    Steps call this very function, which is never traced again: what is proved of it holds for them.

    Returns: a `ConcreteFunction` to what `_sums_and_losses` returns.
    """
    model._require_private()
    if not model.built:
        model.build(keras.tree.map_structure(lambda spec: (None, *spec.shape[1:]), x_spec))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._groups()  # certified beforehand: within the trace it would name operations anew

    def sums_and_losses(x: Any, y: Any, sample_weight: Any) -> Any:
        return model._sums_and_losses(x, y, sample_weight)

    function = tf.function(sums_and_losses, autograph=False, jit_compile=model.jit_compile or None)
    return function.get_concrete_function(x_spec, y_spec, sample_weight_spec)


def prove_traced(model: Any, traced: Any, written: Iterable[Any] = ()) -> Report:
    """Proves that the sums of `traced_sums` are additive over the records.

    Args:
        written: more that records may have written: see `written_by_metrics`.
    """
    sums = traced.structured_outputs[0]
    return prove(traced, sums=sums, may_write=[*written_by_records(model), *written], layers=layer_names(model))


def written_by_records(model: Any) -> list[Any]:
    """The variables that a step writes with what depends on records: the metrics', the loss tracker's among them.

    Keras lists compiled metrics only once they are built, which is after the first trace.
    """
    compiled = model._compile_metrics
    given = [] if compiled is None else [compiled._user_metrics, compiled._user_weighted_metrics]
    metrics = [*model.metrics, *(m for m in keras.tree.flatten(given) if isinstance(m, keras.metrics.Metric))]
    return [variable for metric in metrics for variable in metric.variables]


def written_by_metrics(model: Any, traced: Any) -> list[Any]:
    """The handles of all variables that the update of the compiled metrics writes, whoever owns them.

    Args:
        traced: of `traced_sums`, on records as the steps get them: the metrics are built for them.
    """
    x, y, weights = traced.structured_input_signature[0]
    _, losses, y_pred = keras.tree.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs)

    def update(x: Any, y: Any, weights: Any, losses: Any, y_pred: Any) -> None:
        model._update_metrics(x, y, y_pred, weights, tf.ones_like(losses))

    function = tf.function(update, autograph=False).get_concrete_function(x, y, weights, losses, y_pred)
    written = written_handles(function.graph)
    return [outer for outer, inner in function.graph.captures if inner.name in written]


def refuse_steered(model: Any, written: Iterable[Any]) -> None:
    """Raises ValueError where what follows the noise of a step reads a variable that records write without noise.

    That is: learning rates (also schedules and functions), regularizers, constraints, and the optimizer's own state.

    Args:
        written: of `written_by_metrics`, beside `written_by_records`.
    """
    inner, trained = model.optimizer.inner_optimizer, model.trainable_variables

    def after_noise() -> None:
        tf.convert_to_tensor(inner.learning_rate)
        model._regularizer_gradients()
        for variable in trained:
            if variable.constraint is not None:
                variable.constraint(variable)

    graph = tf.function(after_noise, autograph=False).get_concrete_function().graph
    read = [outer for outer, within in graph.captures if within.dtype == tf.resource]
    private = {resource_key(handle_of(v)) for v in [*written_by_records(model), *written]}
    found = next((v for v in [*read, *model.optimizer.variables] if resource_key(handle_of(v)) in private), None)
    if found is not None:
        raise ValueError(
            f"A learning rate, regularizer or constraint of model {model.name!r}, or its optimizer's state, depends on"
            " a variable that a metric writes from the records, without noise: the released weights would tell it."
            " Compute it from constants, the weights, or the number of steps."
        )


def layer_names(model: Any) -> Iterator[str]:
    """The names of all layers within a model, as they stand in the names of operations."""
    return (layer.name for layer in model._flatten_layers(include_self=False))
