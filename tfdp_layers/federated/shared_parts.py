"""Which party trains a model, or a part of it in another model: layers, optimizers, losses and metrics, variables."""

import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdp_layers.federated.step_state import StepState, key_of, own_code

if TYPE_CHECKING:
    import keras

__all__ = ["note_private", "note_training"]


@dataclass
class _Trainings:
    """Those of one part, as long as it lives.

    Attributes:
        part: lives no longer for being here.
        records: of the first party that trains it.
        several: whether another party does, too.
        unknown: why it is not known what one of them keeps.
        private: whether a `PrivateModel` is among them.
        moved: whether one of them may write it.
    """

    part: "weakref.ref[Any]"
    records: Any
    several: bool = False
    unknown: str | None = None
    private: bool = False
    moved: bool = False


_noted: dict[Any, _Trainings] = {}
"""By what tells parts of models from others."""

_OWN = "Give each party a model of its own, of its own layers (keras.models.clone_model, compiled anew)."


def note_training(model: "keras.Model", x: Any, state: StepState) -> None:
    """Notes that a party with these records trains an ordinary model whose step keeps this.

    Raises: ValueError where another party trains a part of it, and it is not known what either training keeps; or
        where that of a `PrivateModel` is among them, and a part is written that both have.
    """
    if state.elsewhere is None:
        moved = state.written | set(map(key_of, [*model.trainable_variables, *model.optimizer.variables]))
        _note(model, x, None, False, moved, state)
    else:
        _note(model, x, state.elsewhere, False, None, state)


def note_private(model: "keras.Model", x: Any) -> None:
    """Notes that a party trains a `PrivateModel`, whose steps are known to write nothing but its weights.

    Raises: ValueError where another party trains what it trains, or changes what it reads.
    """
    _note(model, x, None, True, set(map(key_of, [*model.trainable_variables, *model.optimizer.variables])), None)


def _note(
    model: "keras.Model",
    x: Any,
    unknown: str | None,
    private: bool,
    moved: Collection[Any] | None,
    state: StepState | None,
) -> None:
    """Args: moved: the keys of parts that may be written; None for any of them."""
    parts: dict[Any, Any] = {}
    for key, part in _parts(model, state):
        parts.setdefault(key, part)
    for key, part in parts.items():
        found = _noted.get(key)
        if found is None or (found.records is x and not found.several):
            continue
        if unknown or found.unknown:
            raise ValueError(
                f"Model {model.name!r} {_shares(model, part)} and may keep numbers that no variable holds"
                f" ({unknown or found.unknown}): what one party leaves there would go into the other one's uploads."
                f" {_OWN}"
            )
        if (private or found.private) and (found.moved or moved is None or key in moved):
            raise ValueError(
                f"The {'private ' * private}model {model.name!r} {_shares(model, part)} and one of the two trainings"
                " is private: what is learned there would go into the other party's uploads, and no ledger, or one for"
                f" both, would count it. {_OWN}"
            )
    for key, part in parts.items():
        found = _noted.get(key)
        if found is None:
            found = _noted[key] = _Trainings(weakref.ref(part, lambda _, key=key: _noted.pop(key, None)), x)  # type: ignore[misc]
        found.several |= found.records is not x
        found.unknown = found.unknown or unknown
        found.private |= private
        found.moved |= moved is None or key in moved


def _shares(model: "keras.Model", part: Any) -> str:
    if part is model:
        return "trains another party already,"
    names = (getattr(part, name, None) for name in ("name", "__name__"))
    name = getattr(part, "path", None) if hasattr(part, "assign") else next(filter(None, names), type(part).__name__)
    return f"shares {name!r} with a model that another party trains,"


def _parts(model: "keras.Model", state: StepState | None) -> Iterator[tuple[Any, Any]]:
    """What another model may have, too, by what tells it from others."""
    import keras

    from tfdp_layers.structure import variables_held

    layers = [one for one in model._flatten_layers() if not isinstance(one, keras.layers.InputLayer)]
    given = [one for one in keras.tree.flatten([model.loss, model.metrics]) if own_code(one) and _may_keep(one)]
    for part in [*layers, model.optimizer, *(getattr(one, "__self__", one) for one in given)]:
        yield ("part", id(part)), part
    held = [variable for layer in layers for variable in variables_held(layer)]
    for one in [*model.variables, *model.optimizer.variables, *held]:
        yield key_of(one), one
    for kept in [] if state is None else state.variables:
        yield kept.key, kept.handle


def _may_keep(part: Any) -> bool:
    """Whether a loss or metric may keep numbers by itself; a function alone has none but those of its module."""
    return not hasattr(part, "__code__") or hasattr(part, "__self__") or bool(part.__closure__)
