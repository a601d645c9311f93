"""Whether weights were trained without privacy before: then what they tell of those records is in no statement."""

from collections.abc import Iterable
from typing import Any

import keras

from tfdp_layers.caller import warn
from tfdp_layers.certificates.constants import undeclared_steps
from tfdp_layers.certificates.ordinary import instances_of, mark_private, optimizers_on, tell, undeclared, untold
from tfdp_layers.optimizers.base import PrivateOptimizer

__all__ = ["warn_of_earlier", "warn_of_features", "warn_of_ordinary", "warn_of_unseen"]

_BEGINS = "the private training begins from its weights"
_ANOTHER = "begin from other weights (a new model, or a public one) and train on them privately alone"
_TRAINED = "make_private, compile and fit"


def warn_of_earlier(models: Iterable[Any]) -> None:
    """Warns of the first of these layers that is a model which took steps of an ordinary optimizer.

    A training on public data is fine, and nobody can see which it was. One on the private records, to begin from good
    weights, leaves in them whatever it learned of these.
    """
    for one in models:
        if undeclared_steps(one) and not isinstance(one.optimizer, PrivateOptimizer):
            _warn(one.optimizer, f"Model {one.name!r}")
            return


def warn_of_ordinary(
    name: str, weights: Iterable[Any], use: str = _BEGINS, instead: str = _ANOTHER, before: str = _TRAINED
) -> None:
    """Warns of steps of an ordinary optimizer on these weights, whichever model or loop took them, once.

    Args:
        name: of the model that holds the weights.
        use, instead, before: what they are used for, what to do otherwise, and before what to declare.
    """
    new = [one for one in optimizers_on(weights) if untold(one)]
    for one in new[:1]:
        owner = next((model for model in instances_of(keras.Model) if getattr(model, "optimizer", None) is one), None)
        _warn(one, f"A loop around model {name!r}" if owner is None else f"Model {owner.name!r}", use, instead, before)
    for one in new:
        tell(one)


def warn_of_unseen(model: Any) -> None:
    """Asks again, as a private training of a model opens, what `make_private` and `compile` asked.

    Since then other models that hold its layers could train them: the one that it was made from, one around it. Not
    where all weights are what a private training left: the search for optimizers takes a tenth of a second.
    """
    mark_private(model.optimizer.inner_optimizer)
    if not model._privacy.as_left:
        warn_of_ordinary(model.name, model.weights)


def warn_of_features(prefix: Any) -> None:
    """Warns of a layer, or a model, whose weights an ordinary optimizer trained, and which is to make features."""
    if prefix.weights:
        use, instead = "features are computed by its weights", "take a prefix with other weights, public ones"
        warn_of_ordinary(prefix.name, prefix.weights, use, instead, "features")


def _warn(optimizer: Any, who: str, use: str = _BEGINS, instead: str = _ANOTHER, before: str = _TRAINED) -> None:
    """Says what an ordinary optimizer did."""
    steps = undeclared(optimizer)
    warn(
        f"{who} took {steps:,} step{'s' * (steps > 1)} of an ordinary optimizer ({type(optimizer).__name__}), and"
        f" {use}. What they tell of the records that they saw is in no statement: if those were private ones,"
        f" {instead}. If they were public, nothing is lost; to declare that, and see this line no more:"
        f" tfdp.public(that model), before {before}."
    )
    tell(optimizer)
