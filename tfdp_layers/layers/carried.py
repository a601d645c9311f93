"""Layers that carry what their weights cost into every file that they are saved in."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from keras.src.backend.common import global_state

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account, account_of, open_account
from tfdp_layers.accounting.left import CHANGED_ELSEWHERE, are_changed, leave
from tfdp_layers.accounting.released import costs_of, remember, remember_later, unpaid_by
from tfdp_layers.accounting.stored import (
    read_stored_ledger,
    read_stored_notes,
    write_stored_ledger,
    write_stored_notes,
)
from tfdp_layers.structure import held_by
from tfdp_layers.uses.counted import CountedLayer

HDF5 = (
    "An HDF5 file (.h5) holds no privacy ledger: a private model from it would not state what its weights cost. Use"
    " model.save('model.keras') and tfdp.load_model, or save_weights('model.weights.h5') and load_weights; to publish,"
    " model.to_keras().save(path)."
)
SEVERAL = (
    "Weights in several files (max_shard_size, or a list of them, *.weights.json) are not saved: the privacy ledger and"
    " the weights must be one file. Files of two saves can be read together, by a program that loads while another one"
    " saves, and 10 steps are then stated as 2. Nothing of the weights was written. Use"
    " model.save_weights('name.weights.h5'): one file, of any size."
)
_files = threading.local()


class PaidLayer(CountedLayer):
    """Mixin for a layer that bounds itself: where something was released into its weights, its ledger is saved with it.

    A private model saves the ledger of all its weights. An ordinary Keras model saves none, so each layer of this kind
    in it does, and whoever loads that file trains on with the cost: `make_private` finds it by the weights.
    """

    def save_own_variables(self, store: Any) -> None:
        """As in Keras, with the ledger of the weights if they cost something: then into one file alone (ValueError)."""
        cost = None if getattr(_files, "whole", False) else cost_of(self)
        if cost is not None:
            refuse_several_files(store)
        super().save_own_variables(store)
        if cost is not None:
            write_stored_ledger(store, cost)
            write_stored_notes(store, notes_of(self))

    def load_own_variables(self, store: Any) -> None:
        """As in Keras. Weights that were saved with a ledger bring it into that of every private model of the layer."""
        variables, cost = read_stored_ledger(store)
        notes, _ = read_stored_notes(variables)
        super().load_own_variables(variables)
        if cost is None:
            return

        def charge() -> None:
            account = Account()
            account.ledger.merge(cost)
            for note in notes:
                account.remark(note)
            for weight in self.weights:
                open_account(held_by(weight), account)
            remember_later(lambda: self._brought(account.ledger))  # sublayers' come later

        charge_what_is_kept(charge)

    def _brought(self, cost: Ledger) -> None:
        """What weights from a file cost, and that they hold what it left in them."""
        remember(cost, map(held_by, self.weights), changed=None)
        leave(map(held_by, self.weights))

    def get_config(self) -> dict[str, Any]:
        """As in Keras. Raises ValueError while Keras writes an HDF5 file (.h5) of weights that cost something."""
        if global_state.get_global_attribute("use_legacy_config", False) and cost_of(self) is not None:
            refuse_hdf5()
        return dict(super().get_config())


def cost_of(layer: Any) -> Ledger | None:
    """What was released into a layer's weights, or into those that they are copies of; None without any.

    Raises: ValueError where no ledger states that, as of a trial that its search did not show.
    """
    held = [held_by(weight) for weight in layer.weights]
    accounts = {id(one.root): one for one in map(account_of, held) if one is not None}
    copied = list(costs_of(held))
    if any(one.unpaid for one in accounts.values()) or unpaid_by(held):
        raise ValueError(
            f"Weights of layer {layer.name!r} came without what they cost, or are those of a trial that a search did"
            " not show: a file of them would state too little. Save the model that the search returned, or one with"
            " weights of your own training."
        )
    ledgers = [one.ledger for one in accounts.values() if one.ledger.updates]
    ledgers += [cost for cost in copied if not any(one.holds(cost) for one in ledgers)]
    if len(ledgers) < 2:
        return ledgers[0] if ledgers else None
    together = ledgers[0].copy()
    for ledger in ledgers[1:]:
        together.merge(ledger)
    return together


def notes_of(layer: Any) -> list[str]:
    """What statements say beside the ledger of whoever was charged for a layer's weights, and of these."""
    held = [held_by(weight) for weight in layer.weights]
    accounts = [one for one in map(account_of, held) if one is not None]
    changed = [CHANGED_ELSEWHERE] if not any(one.trains for one in accounts) and are_changed(held) else []
    return list(dict.fromkeys([*(note for one in accounts for note in one.remarks), *changed]))


@contextlib.contextmanager
def charging_what_is_kept() -> Iterator[list[BaseException]]:
    """Around the loading of a file, in this thread: what it brings is charged at its end, and not where it raises.

    A model that refuses a file puts its own weights back, which cost nothing of that.

    Gives: a list, which gets what was raised by `reading`: Keras may go on all the same.
    """
    earlier = getattr(_files, "waiting", None), getattr(_files, "refused", None)
    _files.waiting, _files.refused = [], []
    try:
        yield _files.refused
        for charge in _files.waiting:
            charge()
    finally:
        _files.waiting, _files.refused = earlier


def charge_what_is_kept(charge: Callable[[], None]) -> None:
    """Charges what was read of a file: at the end of `charging_what_is_kept`, or without such a block at once."""
    waiting = getattr(_files, "waiting", None)
    if waiting is None:
        charge()
    else:
        waiting.append(charge)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Around what a model reads of a file: `charging_what_is_kept` tells whether that raised."""
    try:
        yield
    except BaseException as error:
        if (refused := getattr(_files, "refused", None)) is not None:
            refused.append(error)
        raise


@contextlib.contextmanager
def saving_whole() -> Iterator[None]:
    """Inside, in this thread, layers save no ledger: the model that is saved holds that of all its weights."""
    earlier, _files.whole = getattr(_files, "whole", False), True
    try:
        yield
    finally:
        _files.whole = earlier


def refuse_hdf5() -> None:
    """Raises ValueError where Keras writes or reads its older format, HDF5, which knows weights and nothing beside."""
    if global_state.get_global_attribute("use_legacy_config", False):
        raise ValueError(HDF5)


def refuse_several_files(store: Any) -> None:
    """Raises ValueError where Keras writes weights to several files: what they cost could be read with others' weights.

    Args:
        store: what Keras gives to `save_own_variables`.
    """
    if getattr(store, "max_shard_size", None) is not None:
        raise ValueError(SEVERAL)
