"""Weights that came without what they cost: nothing is stated of them, saved, or trained on."""

from typing import Any

from tfdp_layers.accounting.account import Account
from tfdp_layers.optimizers.restored import releases_of

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
