"""What a step of tensorflow-privacy releases, read from the optimizer or model that makes it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfdp_layers.instances import replaced
from tfdp_layers.tf_privacy.guard import step_of

__all__ = ["Mechanism", "mechanism_of"]

_OPTIMIZERS = {
    "tensorflow_privacy.privacy.optimizers.dp_optimizer_keras": "make_keras_generic_optimizer_class",
    "tensorflow_privacy.privacy.optimizers.dp_optimizer_keras_vectorized": "make_vectorized_keras_optimizer_class",
}
_MODELS = ("tensorflow_privacy.privacy.keras_models.dp_keras_model", "make_dp_model_class")
_USE = (
    "Use DPModel or DPSequential, or one of DPKerasSGDOptimizer, DPKerasAdamOptimizer, DPKerasAdagradOptimizer, their"
    " Vectorized kin, and GenericDP... around a GaussianSumQuery."
)


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism of one step, all weights together.

    Attributes:
        bound: L2 norm to which the gradient of one microbatch is clipped.
        stddev: of the noise on the sum over microbatches, same units.
        microbatches: of a batch; None: as many as it has rows.
        owner: the optimizer or model that says so.
        own_clipping: whether the model clips, whatever its optimizer is.
    """

    bound: float
    stddev: float
    microbatches: int | None
    owner: Any = field(compare=False, repr=False, default=None)
    own_clipping: bool = False


def mechanism_of(model: Any) -> Mechanism:
    """Reads what a step of a compiled model releases: nothing of it is taken from the caller.

    Guarantee: numbers are those in float32 that the step computes with, if it was traced with them. That its sum keeps
    to them is tensorflow-privacy's own claim. An optimizer or model that is not exactly one of tensorflow-privacy's
    Gaussian ones may do anything, and is refused.

    Raises: ValueError, naming the fix.
    """
    optimizer: Any = model.optimizer
    model_class = next((base for base in type(model).__mro__ if _is_dp_model(base)), None)
    if model_class is not None:
        if any(_is_dp_optimizer(base) for base in type(optimizer).__mro__):
            raise ValueError(
                "A DPModel adds the noise itself, and its optimizer is tensorflow-privacy's as well: the step would"
                " fail. Compile it with an ordinary Keras optimizer."
            )
        _refuse_changed_methods(model, model_class)
        return _gaussian(model._l2_norm_clip, model._noise_multiplier, model._num_microbatches, model, True)
    if not _is_dp_optimizer(type(optimizer)):
        raise ValueError(
            f"The model is {type(model).__name__} with the optimizer {type(optimizer).__name__}"
            f" ({type(optimizer).__module__}): it is not known that tensorflow-privacy clips and adds Gaussian noise in"
            f" its step. {_USE}"
        )
    _refuse_own_step(model)
    query = getattr(optimizer, "_dp_sum_query", None)
    _refuse_replaced(optimizer)
    _refuse_replaced(query)
    if type(query).__name__ != "GaussianSumQuery" or not type(query).__module__.startswith("tensorflow_privacy."):
        raise ValueError(
            f"The optimizer sums by {type(query).__name__}: only a GaussianSumQuery is accounted here, not trees"
            f" (DPFTRLTreeAggregationOptimizer) or adaptive clips. {_USE}"
        )
    if hasattr(optimizer, "_noise_multiplier"):  # the vectorized ones compute with these, and with the query never
        clip, noise = optimizer._l2_norm_clip, optimizer._noise_multiplier
        return _gaussian(clip, noise, optimizer._num_microbatches, optimizer)
    state = optimizer._global_state
    return _mechanism(state.l2_norm_clip, state.stddev, optimizer._num_microbatches, optimizer)


def _gaussian(clip: Any, noise_multiplier: Any, microbatches: Any, owner: Any, own_clipping: bool = False) -> Mechanism:
    return _mechanism(clip, float(clip) * float(noise_multiplier), microbatches, owner, own_clipping)


def _mechanism(clip: Any, stddev: Any, microbatches: Any, owner: Any, own_clipping: bool = False) -> Mechanism:
    bound, stddev = float(np.float32(clip)), float(np.float32(stddev))
    if not 0.0 < bound < np.inf or not 0.0 <= stddev < np.inf:
        raise ValueError(
            f"l2_norm_clip must be a finite number above 0, and the noise finite. Received: l2_norm_clip={bound!r} and"
            f" noise of standard deviation {stddev!r}."
        )
    return Mechanism(bound, stddev, None if microbatches is None else int(microbatches), owner, own_clipping)


def _is_dp_optimizer(cls: type) -> bool:
    maker = _OPTIMIZERS.get(cls.__module__)
    return maker is not None and cls.__qualname__ == f"{maker}.<locals>.DPOptimizerClass"


def _is_dp_model(cls: type) -> bool:
    named = cls.__module__ == _MODELS[0] and cls.__qualname__ == f"{_MODELS[1]}.<locals>.DPModelClass"
    return named and "_reduce_per_example_grads" in vars(cls)  # and not one that `with_ledger` named so


def _refuse_changed_methods(model: Any, dp_class: type) -> None:
    """Raises ValueError where a subclass, or the object itself, clips or adds noise otherwise than DPModel does."""
    for name, method in vars(dp_class).items():
        if not callable(method) or name in ("__init__", "train_step"):
            continue
        if getattr(type(model), name) is not method or name in vars(model):
            raise ValueError(f"{type(model).__name__}.{name} is not DPModel's own: what the step releases is unknown.")
    step = step_of(model)  # with use_xla, a tf.function of the bound method
    step = getattr(step, "python_function", step)
    if getattr(step, "__func__", None) is not vars(dp_class)["train_step"]:
        raise ValueError(f"{type(model).__name__}.train_step is not DPModel's own: what it releases is unknown.")


def _refuse_replaced(thing: Any) -> None:
    """Raises ValueError where a method was put on an optimizer, or on its query: what it releases is unknown."""
    for name in replaced(thing):
        raise ValueError(
            f"{type(thing).__name__} has a {name}() that was put on the object: whether it clips, and adds the noise"
            f" that it states, is unknown. {_USE}"
        )


def _refuse_own_step(model: Any) -> None:
    """Raises ValueError where a step of the user's own may go around the optimizer's clipping and noise."""
    import keras

    if getattr(step_of(model), "__func__", None) is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which may go around the optimizer's clipping and"
            " noise. Leave train_step to Keras."
        )
