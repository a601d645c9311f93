"""What a running `fit` has spent, read from the model's ledger and its count of releases."""

from typing import TYPE_CHECKING

from tfdp_layers.accounting import Epsilon, EpsilonCurve

if TYPE_CHECKING:
    import keras

__all__ = ["Spending"]


class Spending:
    """Epsilon along one `fit`: what the ledger held at its start, and the releases made since.

    Args:
        model: a private model inside `fit`.
        delta: in (0, 1).
        nominal: by the accounting of the methods' publications, which is not what holds.

    Raises:
        ValueError: if the model has no running private `fit`, or delta is not in (0, 1).
    """

    def __init__(self, model: "keras.Model", delta: float, nominal: bool = False) -> None:
        release = getattr(model, "current_release", None)
        if release is None:
            raise ValueError(
                f"Model {getattr(model, 'name', model)!r} ({type(model).__name__}) is no private model: make it one,"
                " before compile: model = tfdp.make_private(model). (One of tensorflow-privacy needs a ledger before it"
                " trains: tfdp.tf_privacy.with_ledger(model).)"
            )
        self.ledger = (model.ledger.as_published() if nominal else None) or model.ledger
        self.release = release.as_published() if nominal else release
        self.held = int(getattr(model, "held_in_segment", 0))
        self.curve = EpsilonCurve(self.ledger, self.release, delta, self.held)
        self._model = model
        self._start = self._in_fit
        self._elsewhere = self.releases - self._start

    @property
    def _in_fit(self) -> int:
        # Not optimizer.releases: restoring a checkpoint moves that one and the ledger by the same number.
        return int(self._model.made_in_fit)

    @property
    def releases(self) -> int:
        """Releases in the model's ledger, those of earlier runs included."""
        return self._model.ledger.steps

    @property
    def released(self) -> int:
        """How many of them this `fit` made since this object was."""
        return max(0, self._in_fit - self._start)

    @property
    def stale(self) -> bool:
        """Whether the ledger or the count of releases moved otherwise than by this `fit`.

        Loading weights in a callback does that (keras.callbacks.BackupAndRestore): what they cost joins the ledger.
        """
        return self.releases - self._in_fit != self._elsewhere

    def exact(self) -> Epsilon:
        """The smallest epsilon that an accountant proves, now: tens of milliseconds."""
        return self.curve.at(self.released)

    def bound(self) -> float:
        """An upper bound on `exact()`, cheap enough for every step."""
        return self.curve.bound(self.released)
