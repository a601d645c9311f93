"""Which party trains a model, or a part of it in another model: layers, optimizers, losses and metrics, variables."""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdp_layers.federated.data_state import DataState
from tfdp_layers.federated.given import Given
from tfdp_layers.federated.own_code import own_code
from tfdp_layers.federated.step_state import StepState, key_of

if TYPE_CHECKING:
    import keras

__all__ = ["note_training"]


@dataclass
class _Trainings:
    """Those of one part, as long as it lives.

    Attributes:
        part: lives no longer for being here, unless its class has no weak references.
        given: by the first party that trains it.
        several: whether another party does, too.
        unknown: why it is not known what one of them keeps.
        private: whether a `PrivateModel` is among them.
        moved: whether one of them may write it.
    """

    part: Callable[[], Any]
    given: Given
    several: bool = False
    unknown: str | None = None
    private: bool = False
    moved: bool = False


_noted: dict[Any, _Trainings] = {}
"""By what tells parts of models from others."""

_OWN = (
    "Give each party a model of its own, of its own layers (keras.models.clone_model, compiled anew), and"
    " data as arrays or pipelines, made anew for each, that write nothing which those of others read. (A"
    " Party that is made anew, with the same name and the same file of its ledger, may keep its own.)"
)


def note_training(
    model: "keras.Model", given: Given, state: StepState | None, data: DataState, unknown: str | None, final: bool
) -> bool:
    """Notes that a party trains a model whose step, and whose data, keep this.

    Args:
        given: all that the party gives: the same objects are one party's.
        state: None of a `PrivateModel`, whose steps are known to write nothing but its weights. What a loss of it reads
            in other models is not noted: steps that other trainings of these take show in its statement.
        unknown: why it is not known what its steps keep.
        final: whether it is known whose it is, or never will be. Before, parts of a party that its ledgers' files tell
            may be the same party's.

    Returns: whether there are such parts: then it is to be noted once more.
    Raises: ValueError where another party trains a part of it, or has it in its data, and it is not known what one of
        them keeps; or where that of a `PrivateModel` is among them, and a part is written that both have.
    """
    unknown = data.elsewhere or unknown
    parts = _first((key, (part, unknown)) for key, part in _parts(model, state))
    for key, part in data.read.items():
        parts.setdefault(key, (part, data.reasons.get(key) or (data.elsewhere if key in data.written else None)))
    moved = data.written | set(map(key_of, [*model.trainable_variables, *model.optimizer.variables]))
    moved |= state.written if state else set()
    left = set() if final else {key for key in parts if _may_be_its_own(key, given)}
    parts = {key: value for key, value in parts.items() if key not in left}
    _note(model, given, parts, state is None, None if unknown else moved)
    return bool(left)


def _may_be_its_own(key: Any, given: Given) -> bool:
    """Whether a party trains a part that may be the one that gives these, made anew."""
    found = _noted.get(key)
    return found is not None and found.given.told_by_files and not found.given.is_same(given)


def _first(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of what comes first under each key: a layer or a variable before its handle."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def _note(
    model: "keras.Model",
    given: Given,
    parts: Mapping[Any, tuple[Any, str | None]],
    private: bool,
    moved: Collection[Any] | None,
) -> None:
    """Notes a training of these parts.

    Args:
        parts: by their keys, and why it is not known what the training keeps there.
        moved: the keys of parts that may be written; None for any of them.
    """
    for key, (part, unknown) in parts.items():
        found = _noted.get(key)
        if found is None or (found.given.is_same(given) and not found.several):
            continue
        if unknown or found.unknown:
            raise ValueError(
                f"Model {model.name!r} {_shares(model, part)} and may keep numbers that are not its party's own"
                f" ({unknown or found.unknown}): what one party leaves there would go into the other one's uploads."
                f" {_OWN}"
            )
        if (private or found.private) and (found.moved or moved is None or key in moved):
            raise ValueError(
                f"The {'private ' * private}model {model.name!r} {_shares(model, part)} and one of the two trainings"
                " is private: what is learned there would go into the other party's uploads, and no ledger, or one for"
                f" both, would count it. {_OWN}"
            )
    for key, (part, unknown) in parts.items():
        found = _noted.get(key)
        if found is None:
            found = _noted[key] = _Trainings(_reference(part, key), given)
        found.several |= not found.given.is_same(given)
        found.unknown = found.unknown or unknown
        found.private |= private
        found.moved |= moved is None or key in moved


def _reference(part: Any, key: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(part, lambda _: _noted.pop(key, None))
    except TypeError:  # of a class with __slots__: kept, so that no other object gets its id
        return lambda: part


def _shares(model: "keras.Model", part: Any) -> str:
    if part is model:
        return "trains another party already,"
    if hasattr(part, "element_spec"):
        return f"has a step of its data ({type(part).__name__}) that those of another party go through, too,"
    if hasattr(part, "_handle_data"):
        return "shares a variable or a table, in its steps or its data, with the training of another party,"
    names = (getattr(part, name, None) for name in ("name", "__name__"))
    name = getattr(part, "path", None) if hasattr(part, "assign") else next(filter(None, names), type(part).__name__)
    return f"shares {name!r} with a model that another party trains,"


def _parts(model: "keras.Model", state: StepState | None) -> Iterator[tuple[Any, Any]]:
    """What another model may have, too, by what tells it from others."""
    import keras

    from tfdp_layers.structure import variables_held

    layers = [one for one in model._flatten_layers() if not isinstance(one, keras.layers.InputLayer)]
    given = [getattr(one, "__self__", one) for one in own_code(model) if _may_keep(one)]
    for part in [*layers, model.optimizer, *given]:
        yield ("part", id(part)), part
    held = [variable for layer in layers for variable in variables_held(layer)]
    for one in [*model.variables, *model.optimizer.variables, *held]:
        yield key_of(one), one
    for kept in [] if state is None else state.variables:
        yield kept.key, kept.handle


def _may_keep(part: Any) -> bool:
    """Whether code may keep numbers by itself; a function alone has none but those of its module."""
    return not hasattr(part, "__code__") or hasattr(part, "__self__") or bool(part.__closure__)
