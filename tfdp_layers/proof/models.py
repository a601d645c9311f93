"""Proofs of the released sums of private models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.proof.metrics import written_by_records
from tfdp_layers.proof.outside import numbers_held
from tfdp_layers.proof.proving import prove, resource_key
from tfdp_layers.proof.reads import variables_of
from tfdp_layers.proof.replicas import as_first_replica
from tfdp_layers.proof.report import Report
from tfdp_layers.proof.specs import flat_specs
from tfdp_layers.proof.state import written_handles

STATE = "seed_generator_state"
"""In the name of every variable that a `keras.random.SeedGenerator` makes."""


def prove_sums(model: Any, x_spec: Any, y_spec: Any, sample_weight_spec: Any = None) -> Report:
    """Proves that what a private model would release, before its noise, is additive over the records: see `prove`.

    Args:
        model: a compiled private model.
        x_spec, y_spec, sample_weight_spec: trees of `tf.TensorSpec` whose axis 0 is unknown.
    """
    return prove_traced(model, traced_sums(model, x_spec, y_spec, sample_weight_spec))


def traced_sums(model: Any, x_spec: Any, y_spec: Any, sample_weight_spec: Any = None, each: int = 1) -> Any:
    """The bounded sums of a private model, traced for any number of records: a function of (x, y, sample_weight).

    Steps call this very function, which is never traced again, on every replica, too (`OnReplicas`): what is proved of
    it holds for them.

    Args:
        each: rows of each record; above 1 the specs are of (records, each, ...): see `_sums_and_losses`.

    Returns: a `ConcreteFunction` to what `_sums_and_losses` returns.
    Raises: ValueError where one replica asks others.
    """
    model._require_private()
    if not model.built:
        model.build(keras.tree.map_structure(lambda spec: (None, *spec.shape[1:]), flat_specs(x_spec, each)))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._privacy.records = flat_specs(x_spec, each)
    model._groups()  # certified beforehand: within the trace it would name operations anew

    def sums_and_losses(x: Any, y: Any, sample_weight: Any) -> Any:
        return model._sums_and_losses(x, y, sample_weight, each)

    function = tf.function(sums_and_losses, autograph=False, jit_compile=model.jit_compile or None)
    with as_first_replica(model._distribute_strategy) as checked:
        return checked(function.get_concrete_function(x_spec, y_spec, sample_weight_spec))


def variables_read(traced: Any) -> Any:
    """The variables that `traced_sums` reads: those of a layer that a Lambda hides from Keras among them."""
    return variables_of(traced.graph)


def constants_read(traced: Any) -> list[np.ndarray]:
    """The numbers that `traced_sums` holds by itself: arrays that a layer, a loss or a lambda was given."""
    return numbers_held(traced.graph)


def seeds_read(traced: Any) -> list[Any]:
    """The states of Keras' generators that `traced_sums` draws from, whoever holds them: `CountedStep` hides them."""
    return list(filter(is_seed, variables_read(traced)))


def is_seed(held: Any) -> bool:
    """Whether a variable of TensorFlow is the state of a generator of Keras: each step finds secret numbers there."""
    return STATE in held.name and held.dtype == tf.int64 and tuple(held.shape) == (2,)


def state_written(traced: Any, but: Iterable[Any]) -> list[tuple[Any, tf.DType]]:
    """The variables that `traced_sums` writes, as handles and types: counters, power iterations, whoever holds them.

    Args:
        but: handles of variables that are left out.
    """
    left, found = set(map(resource_key, but)), list[tuple[Any, tf.DType]]()
    written = written_handles(traced.graph)
    for outer, inner in traced.graph.captures:
        data = getattr(outer, "_handle_data", None)
        if inner.name in written and data is not None and data.is_set and resource_key(outer) not in left:
            found.append((outer, tf.dtypes.as_dtype(data.shape_and_type[0].dtype)))
    return found


def prove_traced(model: Any, traced: Any, written: Iterable[Any] = ()) -> Report:
    """Proves that the sums of `traced_sums` are additive over the records.

    Args:
        written: more that records may have written: see `examined_metrics`.
    """
    sums, written = traced.structured_outputs[0], [*written_by_records(model), *written]
    return prove(traced, sums=sums, may_write=written, layers=layer_names(model), secret=seeds_read(traced))


def layer_names(model: Any) -> Iterator[str]:
    """The names of all layers within a model, as they stand in the names of operations."""
    return (layer.name for layer in model._flatten_layers(include_self=False))
