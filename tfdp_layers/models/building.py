"""All that a training creates, made before its first step; and what a trace of its step takes for given."""

from collections.abc import Hashable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.digests import digest
from tfdp_layers.batches.base import LONGEST_SUM
from tfdp_layers.certificates.arithmetic import products_setting
from tfdp_layers.certificates.certificate import stated_bounds
from tfdp_layers.instances import replaced
from tfdp_layers.models.run import Run
from tfdp_layers.noise.masks import STANDS_FOR, HiddenSeeds
from tfdp_layers.proof.models import seeds_read, state_written
from tfdp_layers.proof.proving import handle_of, resource_key
from tfdp_layers.proof.steering import handles_of
from tfdp_layers.sensitivity import SensitivityGroup
from tfdp_layers.structure import SEEDS

_NO_SETTINGS = ("built", "_lock", "_self_", "_steps_", "_releases_")
"""Beginnings of the names that Keras, TensorFlow and this library keep something else under."""


def build_for(model: Any, spec: tuple[Any, ...]) -> None:
    """Creates all variables of training, for batches like `spec`: replicas cannot do that in the step.

    Args:
        model: a compiled private model.
        spec: trees of `tf.TensorSpec` of records, labels and weights.
    """
    x, y = spec[:2]
    if not model.built:
        model.build(keras.tree.map_structure(lambda t: (None, *t.shape[1:]), x))
    if not all(layer.built for layer in model._flatten_layers()):  # an activation with weights, until it is called
        model(keras.tree.map_structure(zeros_of, x))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    compiled = model._compile_metrics
    if compiled is not None and not compiled.built and tf.distribute.has_strategy():
        x, y = keras.tree.map_structure(zeros_of, (x, y))
        model._build_metrics(y, model(x))


def zeros_of(spec: Any) -> tf.Tensor:
    """One record of zeros, of this shape and type."""
    return tf.zeros([1 if d is None else d for d in spec.shape], spec.dtype)


def settings_of(model: Any, groups: Sequence[SensitivityGroup], compiled: bool | None = None) -> Hashable:
    """What a trace of the step, or an eager step, would take from the model, the optimizer and the layers.

    A training keeps to what it began with, and a step that was traced with other settings is traced anew.

    Args:
        compiled: whether XLA compiles the step; what the model says now, if left out.
    """
    compiled = bool(model.jit_compile) if compiled is None else compiled
    names = ("use_bias", "trainable", "activation", "alignment", "backpropagate", "bound")
    layers = tuple(tuple(getattr(layer, name, None) for name in names) for layer in model._flatten_layers())
    optimizer, together = model.optimizer, int(model.steps_per_execution)
    bounds = stated_bounds(model)
    source = (id(optimizer.noise_source), optimizer.noise_source.generator)
    kept = (id(optimizer.memory), id(optimizer.workers))
    noise = (source, tuple(optimizer.stddevs(groups)), optimizer.correlation, kept)
    seeds = tuple(id(getattr(one, STANDS_FOR, one)) for one in seeds_of(model))
    step = (together, compiled, products_setting(), tf.config.functions_run_eagerly())
    trained = tuple(map(id, model.trainable_variables))  # flags of single weights, LoRA and quantization change them
    return id(optimizer), tuple(replaced(optimizer)), noise, step, layers, bounds, seeds, trained


def update_of(optimizer: Any) -> dict[str, str]:
    """The Python numbers of the wrapped Keras optimizer and its schedule, by name: an eager step takes them from there.

    But for the learning rate, which is a variable unless it is a schedule. What its own steps change is among them.
    """
    inner = optimizer.inner_optimizer
    schedule = ((f"learning_rate.{name}", number) for name, number in numbers_in(inner._learning_rate))
    return dict([*numbers_in(inner), *schedule])


def numbers_in(held: Any) -> tuple[tuple[str, str], ...]:
    """The numbers, texts and flags that an object has as attributes, also in lists and in schedules; by their names."""
    found = list[tuple[str, str]]()
    for name, value in vars(held).items() if hasattr(held, "__dict__") else ():
        several = value if isinstance(value, list | tuple) else [value]
        if name.startswith(_NO_SETTINGS):
            continue
        if several and all(isinstance(one, bool | int | float | complex | str | np.generic) for one in several):
            found.append((name, repr(value)))
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found.append((name, f"{value.shape} {digest(value).hex()}"))
        elif isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            found += [(f"{name}.{inner}", number) for inner, number in numbers_in(value)]
    return tuple(sorted(found))


def seeds_of(model: Any) -> list[Any]:
    """The variables of seeds that the random layers of a model draw from; layers that have others are refused."""
    return [variable for variable in model.non_trainable_variables if SEEDS in variable.path]


def seeds_beside(model: Any, traced: Any, replicas: Any) -> list[Any]:
    """The seeds that the traced sums draw from beside those of `seeds_of`, which get secret numbers, too.

    A generator may be in an object that Keras does not look into.

    Args:
        traced: of `traced_sums`.

    Raises: ValueError for such seeds on several devices, each of which must draw otherwise.
    """
    own = {resource_key(handle) for variable in seeds_of(model) for handle in handles_of(variable)}
    beside = [variable for variable in seeds_read(traced) if resource_key(handle_of(variable)) not in own]
    if beside and replicas is not None:
        raise ValueError(
            f"Model {model.name!r} draws random numbers of a keras.random.SeedGenerator that no layer has as an"
            " attribute: on several devices all would draw the same. Make it one, in the layer's __init__:"
            " self.generator = keras.random.SeedGenerator()."
        )
    return beside


def hidden_seeds(model: Any, replicas: Any = None) -> HiddenSeeds | None:
    """Stand-ins for the seeds of all generators that Keras knows of in a model; None where there are none."""
    found = {id(one): one for layer in model._flatten_layers() for one in layer._seed_generators}
    if not found:
        return None
    several = () if replicas is None else (replicas.strategy.num_replicas_in_sync, replicas.strategy.scope)
    return HiddenSeeds(list(found.values()), *several)


def kept_by_pieces(model: Any, traced: Any, run: Run) -> list[tuple[Any, tf.DType]]:
    """What the layers of a model write, but for seeds, which each piece of a draw finds as the draw found it.

    Args:
        traced: of `traced_sums`.

    Raises: ValueError on several devices, each of which has copies of it.
    """
    hidden = model._privacy.hidden
    seeds = [*seeds_read(traced), *(() if hidden is None else hidden.held)]
    found = state_written(traced, but=map(handle_of, seeds))
    if found and run.batches.piece is not None and run.replicas is not None:
        raise ValueError(
            f"A layer of model {model.name!r} writes variables (a counter, the vectors of SpectralNormalization), once"
            " for each piece of a drawn batch, and how many pieces there are tells how many records were drawn. On"
            " several devices that cannot be put right. Train on one device, or leave physical_batch_size out, with"
            f" batches of at most {LONGEST_SUM:,}."
        )
    return found
