"""What the steps of a training read beside their model's weights: whether it is what another model was trained to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tfdp_layers.accounting.account import account_of
from tfdp_layers.accounting.digests import digest, unchanged
from tfdp_layers.accounting.left import is_left_anywhere
from tfdp_layers.accounting.released import is_copy
from tfdp_layers.certificates.ordinary import instances_of, optimizers_on
from tfdp_layers.models.steered import CHANGED
from tfdp_layers.proof.reads import same_as
from tfdp_layers.structure import held_by

__all__ = ["CHANGED_BETWEEN", "Brought", "are_trained", "changed_since", "left_beside"]

CHANGED_BETWEEN = (
    "Weights of another model, which the steps read, were changed between two trainings, by something else than a"
    f" private one. {CHANGED}"
)
"""What statements say of a teacher, say, that was trained on between two trainings."""


def left_beside(read: Iterable[Any]) -> list[tuple[Any, bytes]]:
    """What a training leaves in what its steps read, for `changed_since`."""
    return [(one, digest(one)) for one in read]


def changed_since(left: Sequence[tuple[Any, bytes]], read: Iterable[Any]) -> list[Any] | None:
    """Those among these variables that hold something else than was left in them; None where others are read now."""
    known, read = {id(one): found for one, found in left}, list(read)
    if any(id(one) not in known for one in read):
        return None
    return [one for one in read if digest(one) != known[id(one)]]


def are_trained(changed: Iterable[Any]) -> bool:
    """Whether some of these are weights of a layer, or took steps of an ordinary optimizer, and hold what is new.

    Then what is in them may come from records. It does not where they hold copies of what was released, or what was
    declared public; nor in a variable of the caller's own, such as a weight of a loss that follows the epoch. What
    private trainings release into is charged, and their own statements say what else changed it.
    """
    new = _new_among(changed)
    return bool(new) and _are_of_layers(new)


def _new_among(changed: Iterable[Any]) -> list[Any]:
    """Those that no private training releases into, and that hold no copies of what was released, or is public."""
    with unchanged():
        unpaid = [one for one in changed if account_of(held_by(one)) is None and not is_left_anywhere(one)]
        copies = [is_copy(one) for one in unpaid]
    return [] if True in copies and False not in copies else unpaid  # what may be equal by chance came with the others


def _are_of_layers(new: list[Any]) -> bool:
    """Whether some are weights of a layer, or an ordinary optimizer steps them. It takes 0.1 seconds."""
    among = same_as(new)
    layers = map(vars, instances_of(keras.layers.Layer))
    lists = ("_trainable_variables", "_non_trainable_variables")
    held = (weight for layer in layers for name in lists for weight in layer.get(name, ()))
    return any(map(among, held)) or bool(optimizers_on(new))


class Brought:
    """Asks `are_trained` of what changed between two steps.

    Whose it is, is asked ever more seldom of the same variables; what they hold, each time: copies of what was
    released may be followed by what another training made of them.
    """

    def __init__(self) -> None:
        self._asked: Counter[frozenset[int]] = Counter()
        self._found = False

    def __call__(self, changed: Sequence[Any]) -> bool:
        """Whether they are; once it was so, no more is asked."""
        new = [] if self._found else _new_among(changed)
        if not new:
            return False
        key = frozenset(map(id, new))
        self._asked[key] = times = self._asked[key] + 1
        self._found = not times & (times - 1) and _are_of_layers(new)
        return self._found
