"""Steps that ordinary optimizers took on weights, which no ledger counts: whose they are, and which were declared."""

import gc
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from tfdp_layers.proof.reads import same_as

__all__ = [
    "Steps",
    "declare",
    "instances_of",
    "mark_private",
    "optimizers_on",
    "steps_of",
    "tell",
    "undeclared",
    "untold",
]

_DECLARED, _TOLD, _PRIVATE, _STEPS = "_steps_declared_public", "_steps_told_of", "_steps_are_private", "_steps_noted"


class Steps:
    """Steps that an ordinary optimizer took: whoever notes them learns by this if they are declared public later.

    A plain object, which outlives the optimizer.
    """

    declared = False


def undeclared(optimizer: Any) -> int:
    """How many steps an optimizer took; 0 if none, or if it was declared that so many were on public data."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return 0
    steps = _steps(optimizer)
    return 0 if vars(optimizer).get(_DECLARED) == steps else steps


def declare(optimizer: Any) -> None:
    """Declares the steps that an optimizer took so far. It is not saved, and one step more is not declared."""
    vars(optimizer)[_DECLARED] = _steps(optimizer)
    steps_of(optimizer).declared = True
    del vars(optimizer)[_STEPS]


def steps_of(optimizer: Any) -> Steps:
    """The steps that an optimizer took since it was declared what others were, to be kept by who uses its weights."""
    found: Steps = vars(optimizer).setdefault(_STEPS, Steps())
    return found


def tell(optimizer: Any) -> None:
    """Notes that a warning named the steps that an optimizer took so far."""
    vars(optimizer)[_TOLD] = _steps(optimizer)


def untold(optimizer: Any) -> bool:
    """Whether an optimizer took steps that were neither declared nor named by a warning."""
    steps = undeclared(optimizer)
    return steps > 0 and vars(optimizer).get(_TOLD) != steps


def mark_private(optimizer: Any) -> None:
    """Notes that the steps of an ordinary optimizer are those of a private one, which wraps it."""
    vars(optimizer)[_PRIVATE] = True


def optimizers_on(weights: Iterable[Any]) -> list[Any]:
    """The ordinary optimizers that took undeclared steps on some of these weights.

    Any model that holds a layer may train it, and so may a loop without one: neither layer nor weight knows of these.
    Optimizers know their weights. Those that are alive are found; one that nothing holds any more is not.
    """
    wanted = same_as(weights)
    every = instances_of(keras.optimizers.Optimizer)
    wrapped = {id(getattr(one, "inner_optimizer", None)) for one in every}
    found = []
    for one in every:
        if id(one) in wrapped or hasattr(type(one), "release") or vars(one).get(_PRIVATE):  # private, or a part of one
            continue
        trained = getattr(one, "_trainable_variables", ())
        if undeclared(one) and any(map(wanted, trained)):
            found.append(one)
    return found


def instances_of(kind: type) -> list[Any]:
    """All living instances of a class and of those that derive from it. It takes some 0.05 seconds."""
    kinds: set[type] = {kind}
    unseen = [kind]
    while unseen:
        derived: Any = unseen.pop().__subclasses__()
        unseen += [one for one in derived if one not in kinds]
        kinds.update(derived)
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]


def _steps(optimizer: Any) -> int:
    return int(np.max(np.asarray(optimizer.iterations)))
