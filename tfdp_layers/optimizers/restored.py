"""What optimizers, and checkpoints that wait for one, say that weights cost before they came here."""

import weakref
from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.digests import numbers_of
from tfdp_layers.certificates.checkpoints import SCALES, releases_waiting
from tfdp_layers.structure import held_by

__all__ = ["Deferred", "Restored", "accept_restored", "releases_in", "releases_of"]


class _Brought:
    """A number of releases that came with weights of a model. Two are equal that ask the same."""

    def __init__(self, model: Any, holder: Any, asked: Any) -> None:
        self._model, self._holder, self._asked = weakref.ref(model), weakref.ref(holder), asked

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Brought) and other._asked is self._asked

    def __hash__(self) -> int:
        return id(self._asked)

    @property
    def gone(self) -> bool:
        """Whether nobody holds any more what could bring others."""
        return self._holder() is None

    def concerns_others(self, model: Any) -> bool:
        """Whether the weights are those of another model than this one, which somebody holds."""
        return self._model() not in (None, model)


class Restored(_Brought):
    """What an optimizer counts that no ledger of this process paid for: a checkpoint brought it, with the weights.

    A plain object, which an account holds for longer than a model holds its optimizer.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer, optimizer._limit)
        self._limit, self._releases = optimizer._limit, held_by(optimizer.releases)

    def brought(self) -> int:
        """All that it counts, where that is more than was paid for here: whose that are is not known. Else 0."""
        counted = _count(self._releases)
        return counted if counted > self._limit.paid else 0

    @property
    def made(self) -> int:
        """How many releases it made here, or was about to: ledgers count them."""
        return self._limit.made

    def accept(self) -> None:
        """Says that the weights hold nothing unpaid of what it counts now."""
        self._limit.paid = max(self._limit.paid, _count(self._releases))


class Deferred(_Brought):
    """What a checkpoint says of the private optimizer of a model that has none: TensorFlow keeps that for later.

    As `Restored`, of which `compile` makes one, with the count in it: of an ordinary optimizer, too, which says 0 here.
    """

    made = 0

    def __init__(self, model: Any) -> None:
        self._kept = getattr(model, "_self_unconditional_deferred_dependencies", {})
        super().__init__(model, model, self._kept)
        self._read: dict[int, int] = {}  # by which restore it came
        self._accepted = -1

    def brought(self) -> int:
        """The most releases that a checkpoint counts which no optimizer took over, or more where it cannot be read.

        Not those of the newest: it may be one of a part of the weights, beside which an older one's are still there.
        """
        new = [one for one in self._kept.get("optimizer") or () if _moment(one) > self._accepted]
        for one in new:
            if (moment := _moment(one)) not in self._read:
                self._read[moment] = releases_waiting(one)
        return max((self._read[_moment(one)] for one in new), default=0)

    def accept(self) -> None:
        """As `Restored.accept`."""
        self._accepted = max(map(_moment, self._kept.get("optimizer") or ()), default=self._accepted)


def _moment(waiting: Any) -> int:
    return int(waiting.checkpoint.restore_uid)


def releases_of(optimizer: Any) -> int:
    """How many releases a private optimizer counts: its own, and those of a checkpoint."""
    return _count(held_by(optimizer.releases))


def releases_in(tree: dict[str, Any]) -> int:
    """How many releases a private optimizer counts of which this is Keras' tree of state; 0 of an ordinary one, alone.

    It wraps another, and each of the two counts its steps. So does Keras' for the scaling of losses: 0 of that, too.
    """
    found = keras.tree.flatten_with_path(tree)
    counts = [_count(value) for path, value in found if path[-1] == "iteration"]
    return max(counts) if len(counts) > 1 and not any(path[-1] == SCALES for path, _ in found) else 0


def accept_restored(account: Account, model: Any) -> None:
    """Says that all weights of this model were replaced, and paid for: nothing is owed of what any optimizer counted.

    But where another model is in the account: of that one only what both share was replaced.
    """
    root = account.root
    others = [one for one in root._restored if one.concerns_others(model)]
    root._owed = root._owed if others else 0
    for one in root._restored:
        if one not in others:
            one.accept()


def _count(variable: Any) -> int:
    return int(np.max(numbers_of(variable)))
