"""Whether weights were trained without privacy before: then what they tell of those records is in no statement."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from tfdp_layers.accounting.left import are_changed, are_watched
from tfdp_layers.caller import warn
from tfdp_layers.certificates.constants import undeclared_steps
from tfdp_layers.certificates.ordinary import (
    Steps,
    instances_of,
    keep_steps,
    optimizers_on,
    steps_kept,
    steps_of,
    tell,
    undeclared,
    untold,
)
from tfdp_layers.models.beside import CHANGED_BETWEEN, are_trained
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.structure import held_by

__all__ = [
    "begin_from",
    "note_of_ordinary",
    "warn_of_earlier",
    "warn_of_features",
    "warn_of_ordinary",
    "warn_of_read",
    "warn_of_unseen",
]

_NOTE = (
    "Weights of this model, or of one that its steps read, took steps of an ordinary optimizer, without noise, before"
    " its private training. What they tell of the records that these steps saw is not in this statement; if those were"
    " public, nothing is lost (tfdp.public of the model that was trained, before fit, says so)."
)

_BEGINS = "the private training begins from its weights"
_ANOTHER = "begin from other weights (a new model, or a public one) and train on them privately alone"
_TRAINED = "make_private, compile and fit"
_READ = "steps of the private training read its weights (in a loss, a regularizer or a Lambda, say)"
_TEACHER = "read a model that was trained privately (with make_private), or on public data alone"


def warn_of_earlier(models: Iterable[Any]) -> set[Steps]:
    """Warns of the first of these layers that is a model which took steps of an ordinary optimizer.

    A training on public data is fine, and nobody can see which it was. One on the private records, to begin from good
    weights, leaves in them whatever it learned of these.

    Returns: these steps, for `note_of_ordinary`.
    """
    for one in models:
        if undeclared_steps(one) and not isinstance(one.optimizer, PrivateOptimizer):
            _warn(one.optimizer, f"Model {one.name!r}")
            return {steps_of(one.optimizer)}
    return set()


def warn_of_ordinary(
    name: str | None,
    weights: Iterable[Any],
    use: str = _BEGINS,
    instead: str = _ANOTHER,
    before: str = _TRAINED,
    known: Callable[[Any], int] = lambda _: 0,
) -> set[Steps]:
    """Warns of steps of an ordinary optimizer on these weights, whichever model or loop took them, once.

    Args:
        name: of the model that holds the weights; None where that is not known.
        use, instead, before: what they are used for, what to do otherwise, and before what to declare.
        known: of an optimizer, how many of its steps are no news; it is asked about where it took more.

    Returns: these steps, those that a warning named before, too, for `note_of_ordinary`.
    """
    found = [one for one in optimizers_on(weights) if undeclared(one) > known(one)]
    new = [one for one in found if untold(one)]
    for one in new[:1]:
        owner = next((model for model in instances_of(keras.Model) if getattr(model, "optimizer", None) is one), None)
        loop = "A model in a loop" if name is None else f"A loop around model {name!r}"
        _warn(one, loop if owner is None else f"Model {owner.name!r}", use, instead, before)
    for one in new:
        tell(one)
    return set(map(steps_of, found))


def begin_from(model: Any, steps: set[Steps]) -> None:
    """Has statements of a private model say that its weights took these steps, and those of whatever reads them."""
    model._privacy.earlier |= steps
    keep_steps(model.weights, model._privacy.earlier)


def warn_of_unseen(model: Any) -> None:
    """Asks again, as a private training opens, what `make_private` and `compile` asked; of what its steps read, too.

    Since then other models that hold its layers could train them: the one that it was made from, one around it. Not
    where all weights are what a private training left: the search for optimizers takes a tenth of a second.
    """
    begin_from(model, set() if model._privacy.as_left else warn_of_ordinary(model.name, model.weights))
    warn_of_read(model, model._read_by_steps()[1])


def warn_of_read(model: Any, read: Sequence[Any]) -> None:
    """Warns of steps of an ordinary optimizer on what the steps of a training read beside the model, a teacher's say.

    Notes where something else than these changed it since this model's last training that read it, or, what a private
    training or a file left, since then: what the statement of a private model says of itself, that of its reader says.
    """
    if not read:
        return
    state = model._privacy
    state.earlier |= warn_of_ordinary(None, read, _READ, _TEACHER, "fit") | steps_kept(read)
    if are_trained(state.left_beside.changed(read), model) or are_changed(map(held_by, read)):
        state.remark(CHANGED_BETWEEN)


def note_of_ordinary(model: Any) -> list[str]:
    """What statements of a model say of what was warned of, unless it was declared public since; nothing without it.

    Before its first private training they ask what `warn_of_unseen` will: there is no warning yet. After it a change by
    something else is noted as such.
    """
    state = model._privacy
    unseen = state.run is None and not are_watched(map(held_by, model.weights))
    noted = not all(one.declared for one in state.earlier)
    return [_NOTE] if noted or (unseen and optimizers_on(model.weights)) else []


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
