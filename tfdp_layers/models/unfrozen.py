"""Weights to train that the wrapped optimizer does not know: of layers unfrozen, or given LoRA, after `compile`."""

from typing import Any

__all__ = ["refuse_unfrozen"]


def refuse_unfrozen(model: Any) -> None:
    """Raises ValueError where Keras' optimizer would refuse a weight in the first step, which is paid for by then.

    An optimizer keeps to the weights that it was built for, in the first `fit` behind a `compile`. Fewer of them, where
    layers were frozen since, are no fault. Called before anything is reserved.

    Args:
        model: a compiled and built private model, whose optimizer is built, too.
    """
    optimizer = model.optimizer.inner_optimizer
    if not optimizer.built:  # another one since the last fit: it is built in the step
        return
    known = optimizer._trainable_variables_indices
    unknown = [variable for variable in model.trainable_variables if optimizer._var_key(variable) not in known]
    if not unknown:
        return
    afresh = (
        " Nothing was charged. Compile the model again, with a new optimizer:"
        f" model.compile(tfdp.optimizers.{type(model.optimizer).__name__}(...), loss=...). Its ledger stays."
    )
    own = {optimizer._var_key(variable) for variable in model.variables}
    if known and not own.intersection(known):
        raise ValueError(
            f"The optimizer of model {model.name!r} ({type(optimizer).__name__}) was built for the weights of another"
            f" model, and Keras' optimizers train no others than those.{afresh}"
        )
    layer = _layer_of(model, unknown[0])
    named = f"Layer {layer.name!r} ({type(layer).__name__})"
    raise ValueError(
        f"{named} became trainable after compile: the optimizer ({type(optimizer).__name__}) was built without its"
        f" {unknown[0].name!r}, and Keras' optimizers train no other weights than those that they were built for."
        f"{afresh}"
    )


def _layer_of(model: Any, variable: Any) -> Any:
    """The innermost layer that holds a weight."""
    holders = [layer for layer in model._flatten_layers() if any(one is variable for one in layer.variables)]
    return min(holders, key=lambda layer: len(layer.variables))
