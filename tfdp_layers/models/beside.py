"""What the steps of a training read beside their model's weights: whether it is what another model was trained to."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from tfdp_layers.accounting.digests import digest, size_of, unchanged
from tfdp_layers.accounting.left import is_left_anywhere
from tfdp_layers.accounting.released import is_copy
from tfdp_layers.certificates.ordinary import instances_of, optimizers_on
from tfdp_layers.models.fingerprints import Held
from tfdp_layers.models.steered import CHANGED
from tfdp_layers.proof.proving import handle_of, resource_key
from tfdp_layers.proof.reads import Behind, same_as
from tfdp_layers.structure import held_by, variables_held

__all__ = ["CHANGED_BETWEEN", "Brought", "Left", "are_trained"]

CHANGED_BETWEEN = (
    "Steps that are counted here read weights beside those of their own model, and these were changed between two"
    f" trainings, by something else than a private one. {CHANGED}"
)
"""What statements say of a teacher, say, that was trained on between two trainings."""


class Left:
    """What the trainings of a model left in all that their steps ever read beside it, whether a later one reads it.

    It keeps no variable alive, but for those of which nothing but the handle is known.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Callable[[], Any], bytes]] = {}

    def leave(self, read: Iterable[Any]) -> None:
        """Remembers what these variables hold now; of others, what they held."""
        self._found = {key: found for key, found in self._found.items() if found[0]() is not None}
        for one in read:
            self._found[_key(one)] = _reference(one), digest(one)

    def changed(self, read: Iterable[Any]) -> list[Any]:
        """Those among these variables that are known here, and hold something else by now."""
        found = [(one, self._found.get(_key(one))) for one in read]
        return [one for one, known in found if known and known[0]() is not None and known[1] != digest(one)]

    def copy(self) -> "Left":
        """What a copy of the model, whose steps read the same, begins with."""
        copied = Left()
        copied._found = dict(self._found)
        return copied


def _key(one: Any) -> int:
    return resource_key(handle_of(one)) if isinstance(one, Behind) else id(one)


def _reference(one: Any) -> Callable[[], Any]:
    return (lambda: one) if isinstance(one, Behind) else weakref.ref(one)


def are_trained(changed: Iterable[Any], model: Any) -> bool:
    """Whether some of these are weights of a layer, or took steps of an ordinary optimizer, and hold what is new.

    Then what is in them may come from records. It does not where they hold copies of what was released, or what was
    declared public, or of what the model that reads them began with; nor in a variable of the caller's own, such as a
    weight of a loss that follows the epoch. What private trainings release into is like any other: they leave there
    what is known.
    """
    new = _new_among(changed, model)
    return bool(new) and _are_of_layers(new)


def _new_among(changed: Iterable[Any], model: Any) -> list[Any]:
    """Those that hold no copies of what was released, of the model's own weights, or of what is public.

    What is not recognised by its values may be of an earlier moment, too, where it came with what is of one.
    """
    with unchanged():
        held = [(one, is_copy(one)) for one in changed if not is_left_anywhere(one)]
        rest = [one for one, found in held if not found]
        own = _own_values(model, rest) | _beginning(model) if rest else set()
        new = {id(one) for one in rest if digest(one) not in own}
        copies = [one for one, found in held if found is not None and id(one) not in new]
        unsure = {id(one) for one, found in held if found is None and id(one) in new}
        if unsure and {digest(one) for one in copies} - _own_values(model, copies):
            new -= unsure
    return [one for one, _ in held if id(one) in new]


def _own_values(model: Any, like: Sequence[Any]) -> set[bytes]:
    """By their digests, what those weights of a model hold that are like these."""
    sizes = set(map(size_of, like))
    weights = [held_by(weight) for weight in model.weights]
    return {digest(one) for one in weights if size_of(one) in sizes}


def _beginning(model: Any) -> set[bytes]:
    """By their digests, what a training that runs began with."""
    run = model._privacy.run
    return set() if run is None else run.began_with


def _are_of_layers(new: list[Any]) -> bool:
    """Whether a layer holds some, in whatever way, or an ordinary optimizer steps them. It takes 0.1 seconds."""
    among = same_as(new)
    held = (one for layer in instances_of(keras.layers.Layer) for one in variables_held(layer))
    return any(map(among, held)) or bool(optimizers_on(new))


class Brought:
    """Notes, once, weights of another model, and what layers hold beside weights, that changed while a training runs.

    See `are_trained`.

    Whose a variable is, is asked ever more seldom, and before a statement, or the end; what it holds, each time: copies
    of what was released may be followed by what another training made of them.

    Args:
        model: whose steps read them.
        note: called with a sentence.
    """

    def __init__(self, model: Any, note: Callable[[str], None]) -> None:
        self._model, self._note = model, note
        self._asked: Counter[int] = Counter()
        self._waiting: dict[int, Any] = {}
        self._who, self._found = "", False

    def __call__(self, now: Held, then: Held, who: str) -> None:
        """Notes it of what changed between these moments. Args: who: changed it, for the sentence."""
        new = [] if self._found or now == then else _new_among(now.changed_from(then), self._model)
        if not new:
            return
        self._who = who
        self._waiting.update((id(one), one) for one in new)
        self._asked.update(map(id, new))
        times = min(self._asked[id(one)] for one in new)
        if not times & (times - 1):
            self.ask()

    def ask(self) -> None:
        """Asks of all that changed since this was asked last."""
        waiting, self._waiting = [*self._waiting.values()], {}
        if waiting and not self._found and _are_of_layers(waiting):
            self._found = True
            own = same_as(one for layer in self._model._flatten_layers() for one in variables_held(layer))
            whose = "variables of the model's layers" if any(map(own, waiting)) else "weights of another model"
            self._note(f"{self._who} changed {whose}, which the steps read, in fit. {CHANGED}")
