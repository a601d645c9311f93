"""Weights that came without what they cost: nothing is stated of them, saved, or trained on."""

from collections.abc import Iterable
from typing import Any

from tfdp_layers.accounting.account import Account, account_of
from tfdp_layers.accounting.released import is_known_value, remember_owed
from tfdp_layers.certificates.checkpoints import (
    UNREADABLE,
    carry_restores,
    releases_brought,
    settle_restored,
    trained_by_private,
)
from tfdp_layers.optimizers.restored import accept_restored, releases_of
from tfdp_layers.structure import held_by

__all__ = ["accept_weights", "note_checkpoints", "notes_of_checkpoints", "refuse_unpaid", "refuse_unpaid_copies"]

_ELSEWHERE = (
    "Checkpoints of tf.train.Checkpoint and OrbaxCheckpoint hold no ledger: give the model the one of the training that"
    " wrote them, model.ledger = tfdp.accounting.Ledger(its path), or model.ledger.merge(its ledger). Without one,"
    " restore a file of model.save or model.save_weights into a new model. Where an ordinary optimizer wrote it, on"
    " public data, restore it into a new ordinary model, and make that private: tfdp.make_private(model)."
)
_LOADED = (
    "Weights were loaded into this model, and the ledger saved with them was not: it is missing, damaged, or of another"
    " data set (the error from loading says which); or they are copies of such weights; or those of a trial that a"
    " search did not show. Load weights with their ledger, or public ones: load_weights(path, public=True)."
    f" {_ELSEWHERE}"
)
UNSEEN = (
    "A checkpoint of tf.train.Checkpoint was restored into weights of this model, and what they cost could not be read"
    " of it: it holds weights alone, or an ordinary model took it, or others had trained them. If a private training"
    " made them, that is in this statement only where its ledger was given (model.ledger.merge adds it); what an"
    " ordinary one took from records is not. If they are public, nothing is lost (tfdp.public of the ordinary model"
    " that was restored, before make_private, says so)."
)
_RESTORED = (
    "The optimizer counts {releases} releases and the ledger {counted}: these weights, or the ones they were copied"
    f" from, were restored without what they cost; compiling anew does not change that. {_ELSEWHERE}"
)


def refuse_unpaid(account: Account, optimizer: Any) -> None:
    """Raises ValueError where weights, or what an optimizer keeps, were restored without what they cost.

    Args:
        account: that pays for the weights: it knows what every optimizer said that they ever had.
        optimizer: the private one that they have now; None without one.
    """
    if account.flagged:
        raise ValueError(_LOADED)
    counted = account.ledger.updates
    if owed := account.owed:
        raise ValueError(_restored(owed, counted))
    if optimizer is not None and (made := releases_of(optimizer)) > counted:
        raise ValueError(
            _restored(made, counted)
            + " Or another model was trained with this optimizer: give each model an optimizer of its own."
        )


def note_checkpoints(model: Any, weights: Iterable[Any]) -> None:
    """Counts what checkpoints brought into these weights of a private model, through whichever model they came.

    Who holds copies of weights of such a checkpoint, in ordinary models that live, owes its releases, too.
    """
    state = model._privacy
    carry_restores(model._flatten_layers())
    for restore, releases in releases_brought(weights).items():
        if releases and restore not in state.restores:
            state.account.owe(releases)
            state.restores.add(restore)
    for releases, held in trained_by_private():
        source = Account()
        source.owe(releases)
        remember_owed(source, [one for one in map(held_by, held) if account_of(one) is None])


def notes_of_checkpoints(model: Any) -> list[str]:
    """What statements say of weights of which nobody can tell any more whether a private training made them."""
    own = {getattr(one, "_self_update_uid", -1) for one in model._optimizer_variables()}
    unread = {one for one, releases in releases_brought(model.weights).items() if releases is None} - own
    return [UNSEEN] if any(not _is_known(model.weights, one) for one in unread) else []


def _is_known(weights: list[Any], restore: int) -> bool:
    """Whether this process released what some of these weights hold, or they began with it."""
    held = [held_by(one) for one in weights if getattr(one, "_self_update_uid", -1) == restore]
    return any(map(is_known_value, held))


def accept_weights(account: Account, model: Any) -> None:
    """As `accept_restored`: what a file brought took the place of all weights, those of checkpoints, too."""
    accept_restored(account, model)
    settle_restored([*model.weights, *model._flatten_layers()])


def refuse_unpaid_copies(model: Any) -> None:
    """Raises ValueError where an ordinary model holds a checkpoint of a private training: copies would not say so."""
    if releases := max(filter(None, releases_brought(model.weights).values()), default=0):
        raise ValueError(_restored(releases, "of an ordinary model none"))


def _restored(releases: int, counted: int | str) -> str:
    number: int | str = "an unknown number of" if releases == UNREADABLE else releases
    return _RESTORED.format(releases=number, counted=counted)
