"""What the steps of a training read beside their model's weights: whether it is what another model was trained to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tfdp_layers.accounting.account import account_of
from tfdp_layers.accounting.digests import digest
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
    unpaid = [one for one in changed if account_of(held_by(one)) is None and not is_left_anywhere(one)]
    copies = [is_copy(one) for one in unpaid]
    if not unpaid or (True in copies and False not in copies):  # what may be equal by chance came with the others
        return False
    among = same_as(unpaid)
    layers = map(vars, instances_of(keras.layers.Layer))
    lists = ("_trainable_variables", "_non_trainable_variables")
    held = (weight for layer in layers for name in lists for weight in layer.get(name, ()))
    return any(map(among, held)) or bool(optimizers_on(unpaid))


class Brought:
    """Asks `are_trained` of what changed between two steps: ever more seldom of the same, for it takes 0.1 seconds."""

    def __init__(self) -> None:
        self._asked: Counter[frozenset[int]] = Counter()
        self._found = False

    def __call__(self, changed: Sequence[Any]) -> bool:
        """Whether they are; once it was so, no more is asked."""
        key = frozenset(map(id, changed))
        self._asked[key] = times = self._asked[key] + 1
        if self._found or not changed or times & (times - 1):
            return False
        self._found = are_trained(changed)
        return self._found
