"""Steps that ordinary optimizers took on weights, which no ledger counts: whose they are, and which were declared."""

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting.digests import numbers_of
from tfdp_layers.proof.reads import same_as
from tfdp_layers.structure import held_by

__all__ = [
    "Steps",
    "declare",
    "instances_of",
    "keep_steps",
    "loading_own",
    "optimizers_on",
    "stepping_privately",
    "steps_kept",
    "steps_of",
    "tell",
    "undeclared",
    "untold",
]

_DECLARED, _TOLD, _STEPS = "_steps_declared_public", "_steps_told_of", "_steps_noted"

_PRIVATE, _BEFORE = "_steps_of_private_trainings", "_steps_before_this_training"
"""Of an optimizer that a private one wraps: how many steps private trainings took, those of a file included; and, while
one runs, how many were ordinary as it began."""

_SEEN = "_releases_seen"
"""Of a private optimizer: how many of its releases are among the steps of `_PRIVATE`."""

_KEPT = "_tfdp_steps"
"""Of a variable: the `Steps` that statements of a private model name, of which it is a weight."""


class Steps:
    """Steps that an ordinary optimizer took: whoever notes them learns by this if they are declared public later.

    A plain object, which outlives the optimizer.
    """

    declared = False


def undeclared(optimizer: Any) -> int:
    """How many steps an optimizer took; 0 if none, or if it was declared that so many were on public data."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return 0
    steps = _ordinary(optimizer)
    return 0 if _kept(optimizer).get(_DECLARED) == steps else steps


def declare(optimizer: Any) -> None:
    """Declares the steps that an optimizer took so far. It is not saved, and one step more is not declared."""
    kept = _kept(optimizer)
    kept[_DECLARED] = _ordinary(optimizer)
    steps_of(optimizer).declared = True
    del kept[_STEPS]


def steps_of(optimizer: Any) -> Steps:
    """The steps that an optimizer took since it was declared what others were, to be kept by who uses its weights."""
    found: Steps = _kept(optimizer).setdefault(_STEPS, Steps())
    return found


def tell(optimizer: Any) -> None:
    """Notes that a warning named the steps that an optimizer took so far."""
    _kept(optimizer)[_TOLD] = _ordinary(optimizer)


def untold(optimizer: Any) -> bool:
    """Whether an optimizer took steps that were neither declared nor named by a warning."""
    steps = undeclared(optimizer)
    return steps > 0 and _kept(optimizer).get(_TOLD) != steps


def keep_steps(weights: Iterable[Any], steps: Iterable[Steps]) -> None:
    """Has steps that statements of a private model name go with its weights: another model may read these later."""
    new = set(steps)
    for held in map(held_by, weights) if new else ():
        setattr(held, _KEPT, getattr(held, _KEPT, set()) | new)


def steps_kept(variables: Iterable[Any]) -> set[Steps]:
    """What `keep_steps` left with these variables; their optimizers may be gone by now."""
    return {steps for one in variables for steps in getattr(held_by(one), _KEPT, ())}


@contextlib.contextmanager
def stepping_privately(private: Any) -> Iterator[None]:
    """Inside, the steps of the optimizer that a private one wraps are those of a private training.

    What it took before, alone, in a loop or a model of its own, stays ordinary: a step is private, not an optimizer.
    """
    inner = private.inner_optimizer
    _accept_restored(private)
    vars(inner)[_BEFORE] = before = _ordinary(inner)
    try:
        yield
    finally:
        vars(inner).pop(_BEFORE, None)
        _leave_ordinary(inner, before)
        vars(private)[_SEEN] = _number(private.releases)


def _accept_restored(private: Any) -> None:
    """Counts as steps of private trainings what a checkpoint brought: it restores the count of releases, too."""
    kept, made = vars(private.inner_optimizer), _number(private.releases)
    count = kept.get(_PRIVATE, 0) + made - vars(private).get(_SEEN, 0)
    if count < 0:  # iterations were set back since the checkpoint was written
        count = made
    kept[_PRIVATE] = min(count, _steps(private.inner_optimizer))
    vars(private)[_SEEN] = made


@contextlib.contextmanager
def loading_own(private: Any) -> Iterator[None]:
    """Inside, a file may bring all that a private optimizer keeps: what it brings are steps of private trainings.

    What the optimizer took before, alone, stays ordinary: weights may hold it still.
    """
    _accept_restored(private)
    before = _ordinary(private.inner_optimizer)
    yield
    _leave_ordinary(private.inner_optimizer, before)
    vars(private)[_SEEN] = _number(private.releases)


def optimizers_on(weights: Iterable[Any]) -> list[Any]:
    """The ordinary optimizers that took undeclared steps on some of these weights.

    Any model that holds a layer may train it, and so may a loop without one: neither layer nor weight knows of these.
    Optimizers know their weights. Those that are alive are found; one that nothing holds any more is not.
    """
    wanted = same_as(weights)
    every = instances_of(keras.optimizers.Optimizer)
    private = [one for one in every if hasattr(type(one), "release") and hasattr(one, "inner_optimizer")]
    for one in private:
        _accept_restored(one)
    known = {id(one) for one in private}
    others = [one for one in every if id(one) not in known]
    there = [one for one in others if any(map(wanted, getattr(one, "_trainable_variables", ())))]
    found = [one for one in there if undeclared(one)]
    outer = [(one.inner_optimizer, _ordinary(one)) for one in there if hasattr(one, "inner_optimizer")]
    return [one for one in found if not any(part is one and took >= undeclared(one) for part, took in outer)]


def instances_of(kind: type) -> list[Any]:
    """All living instances of a class and of those that derive from it. It takes some 0.05 seconds."""
    kinds: set[type] = {kind}
    unseen = [kind]
    while unseen:
        derived: Any = unseen.pop().__subclasses__()
        unseen += [one for one in derived if one not in kinds]
        kinds.update(derived)
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]


def _ordinary(optimizer: Any) -> int:
    """How many steps an optimizer took outside of private trainings; before it knows weights, it took none.

    Where its iterations were set to less than private trainings took, all that follow are outside of these.
    """
    kept, steps = _kept(optimizer), _steps(optimizer)
    if _BEFORE in kept:
        return int(kept[_BEFORE])
    if not _counting(optimizer).built:
        return 0
    kept[_PRIVATE] = min(kept.get(_PRIVATE, 0), steps)
    return steps - int(kept[_PRIVATE])


def _leave_ordinary(optimizer: Any, before: int) -> None:
    """Says that so many of the steps are ordinary, or all where there are fewer by now, declared and told as before."""
    kept, steps = _kept(optimizer), _steps(optimizer)
    left = min(before, steps)
    for name in (_DECLARED, _TOLD):
        if kept.pop(name, None) == before:
            kept[name] = left
    kept[_PRIVATE] = steps - left


def _kept(optimizer: Any) -> dict[str, Any]:
    """Where it is noted what an optimizer took."""
    return vars(_counting(optimizer))


def _counting(optimizer: Any) -> Any:
    """Whose iterations those of an optimizer are: loss scaling counts none of its own."""
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def _steps(optimizer: Any) -> int:
    """How many steps an optimizer counts; at least one where it holds what it makes of gradients.

    Whoever starts a schedule anew sets `iterations` back, and the weights are trained all the same.
    """
    return _number(optimizer.iterations) or int(_holds_gradients(_counting(optimizer)))


def _holds_gradients(optimizer: Any) -> bool:
    """Whether momentum, averages or the like are no longer what an optimizer begins with: one number, everywhere."""
    slots = map(numbers_of, map(held_by, optimizer.variables))
    return any(slot.dtype.kind not in "biuOSU" and slot.size > 1 and bool(np.ptp(slot)) for slot in slots)


def _number(variable: Any) -> int:
    return int(np.max(np.asarray(variable)))
