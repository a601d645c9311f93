"""Weights that came without what they cost: nothing is stated of them, saved, or trained on."""

import contextlib
from typing import Any

import keras

from tfdp_layers.accounting.account import Account
from tfdp_layers.certificates.ordinary import instances_of
from tfdp_layers.optimizers.restored import Deferred, releases_of
from tfdp_layers.proof.reads import same_as

_ELSEWHERE = (
    "Checkpoints of tf.train.Checkpoint and OrbaxCheckpoint hold no ledger: give the model the one of the training that"
    " wrote them, model.ledger = tfdp.accounting.Ledger(its path), or model.ledger.merge(its ledger). Without one,"
    " restore a file of model.save or model.save_weights into a new model. Where an ordinary optimizer wrote it, on"
    " public data, restore it into the ordinary model, and make that private: tfdp.make_private(model)."
)
_LOADED = (
    "Weights were loaded into this model, and the ledger saved with them was not: it is missing, damaged, or of another"
    " data set (the error from loading says which); or they are copies of such weights; or those of a trial that a"
    " search did not show. Load weights with their ledger, or public ones: load_weights(path, public=True)."
    f" {_ELSEWHERE}"
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
        raise ValueError(_RESTORED.format(releases=owed, counted=counted))
    if optimizer is not None and (made := releases_of(optimizer)) > counted:
        raise ValueError(
            _RESTORED.format(releases=made, counted=counted)
            + " Or another model was trained with this optimizer: give each model an optimizer of its own."
        )


def watch_origin(account: Account, model: Any, origin: Any) -> None:
    """Asks from here on what checkpoints brought through another model, an ordinary one, with weights of this one."""
    if isinstance(origin, keras.Model) and not hasattr(origin, "_privacy"):
        account.watch(Deferred(model, origin))


def watch_parts(account: Account, model: Any) -> None:
    """As `watch_origin`, of the ordinary models that are parts of this one."""
    for one in model._flatten_layers(include_self=False):
        watch_origin(account, model, one)


def watch_others(account: Account, model: Any) -> None:
    """As `watch_origin`, of all that are alive: any model that holds a layer may be restored, and its weights too."""
    held = same_as(model.weights)
    for one in instances_of(keras.Model):
        with contextlib.suppress(Exception):  # one that is being made has no weights yet
            if any(map(held, one.weights)):
                watch_origin(account, model, one)


def refuse_unpaid_ordinary(model: Any) -> None:
    """Raises ValueError where an ordinary model was restored from a checkpoint of a private training.

    Copies of its weights would say nothing of that.
    """
    ordinary = [one for one in model._flatten_layers() if isinstance(one, keras.Model) and not hasattr(one, "_privacy")]
    for one in ordinary:
        if releases := Deferred(one).brought():
            raise ValueError(_RESTORED.format(releases=releases, counted="of an ordinary model none"))
