"""Which of a process' models share what they spend: those that share weights, or copies of released weights."""

from collections.abc import Callable, Iterable
from typing import Any

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.account import Account, account_of, open_account
from tfdp_layers.accounting.left import leave_made, leave_notes, notes_left
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.released import (
    begin_with,
    costs_of,
    disown,
    forget,
    is_loading,
    is_paid_for,
    known_values,
    remember,
    remember_copies,
    remember_held,
    remember_later,
    remember_owed,
    remember_passing,
    unpaid_by,
)
from tfdp_layers.certificates.checkpoints import copy_restores
from tfdp_layers.structure import held_by


def join_accounts(account: Account, variables: Iterable[Any], trained: Iterable[Any]) -> None:
    """Joins a model's account with those of its weights, and opens accounts for the weights that it trains.

    Guarantee: models that share a weight which any of them trains have one ledger. A model that holds a copy of the
    values with which a training of this process ended, or that came with a ledger from a file, takes over what they
    cost. Copies of values from the middle of a training, or changed by hand, are not recognised.

    Args:
        account: the model's.
        variables: all weights of the model, Keras variables.
        trained: those among them that it trains.

    Raises: as `Account.join`, and ValueError for copies whose cost the ledger cannot take over.
    """
    held = [held_by(variable) for variable in variables]
    for note in notes_left(held):
        account.remark(note)
    account.join(found for found in map(account_of, held) if found is not None)
    join_copies(account, held)
    for owing in unpaid_by(held) - {account.root}:
        if owing is None or owing.flagged:
            account.unpaid = True
        else:  # whose copies these are: a ledger that counts as many makes them good
            account.owe(owing.owed, beside=True)
    for held_one in map(held_by, trained):
        for one in (held_one, *getattr(held_one, "values", ())):  # a graph of replicas reads one of its copies
            open_account(one, account)


def join_copies(account: Account, values: Iterable[Any], *, later: bool = True) -> None:
    """Takes over what those among these values cost that are copies of released ones, of all of them or of none.

    Args:
        later: see `accounting.released.costs_of`.

    Raises: as `join_accounts`.
    """
    costs = [cost for cost in costs_of(values, account.ledger, later=later) if not account.ledger.holds(cost)]
    tried = account.ledger.copy() if len(costs) > 1 else account.ledger
    for ledger in (tried, account.ledger):
        for cost in costs:
            _take_over(ledger, cost)


def _take_over(ledger: Ledger, cost: Ledger) -> None:
    """Merges what a copy cost. Raises ValueError where the two don't add up."""
    try:
        ledger._take(cost)
    except ValueError as error:
        raise ValueError(
            "Weights of this model are, to the last bit, those that another training of this process ended with: so"
            " what that cost is counted for this model, too, and the two cannot be added up."
            f" {error} Where the weights are no copies, both trainings ended with equal numbers by themselves, as"
            " without noise (noise_multiplier=0) or with a seeded source they may: train with noise, or make one of"
            " the two in a process of its own."
        ) from error


def join_brought(account: Account, values: Iterable[Any]) -> None:
    """Takes over what values cost that code of the caller brought into a training that runs: no step is made on others.

    Raises: as `join_accounts`; from then on no statement is made either.
    """
    held = list(values)
    try:
        join_copies(account, held)
    except (ValueError, LedgerError):
        account.unpaid = True
        raise
    if unpaid_by(held):
        account.unpaid = True
        raise ValueError(
            "While the training ran, weights were put into this model whose cost no ledger states (those of a trial"
            " that a search did not show, say). No step is made on them, and no statement: train a model of its own."
        )


def remember_handed_out(model: Any, variables: Iterable[Any] | None = None) -> None:
    """Remembers what code of the caller may take from a training that runs, before it is shown; else what is held.

    Args:
        variables: of what was released; all of it, if left out.
    """
    run = model._privacy.run
    if run is None:
        remember_held(map(held_by, model.weights))
        remember_restored(model._privacy.account, model.weights)
    if run is not None and run.counts:  # another thread may be here while the first step is made
        held = map(held_by, released_by(model) if variables is None else variables)
        # Weights that a callback put back, to find a rate say, are no more released than they were before.
        remember_passing(model._privacy.account, held, but=run.began_with)


def remember_restored(account: Account, variables: Iterable[Any]) -> None:
    """Remembers what weights hold that came without what they cost: who gets a copy here states what was paid since.

    Those that were ever trained here have an account. A frozen backbone has none: others may have the same, and public.
    """
    if (account.unpaid or account.restored) and not is_loading():  # then they hold what a file replaces
        remember_owed(account, [one for one in map(held_by, variables) if account_of(one) is not None])


def remember_beginning(account: Account, variables: Iterable[Any]) -> None:
    """Remembers what weights hold before a training releases anything into them: a reset to that costs nothing."""
    if not account.trains:
        begin_with(map(held_by, variables))


def remember_released(account: Account, variables: Iterable[Any]) -> None:
    """Remembers what the values that a training ended with cost: see `accounting.released.remember`."""
    remember(account.ledger, map(held_by, variables))


def remember_computed(account: Account, variables: Iterable[Any]) -> None:
    """Lets weights that Keras computed from released ones say what they cost, and recognises copies of them."""
    made = list(variables)
    join_accounts(account, (), made)
    remember(account.ledger, map(held_by, made), changed=None)


def remember_copied(model: Any, variables: Iterable[Any], copies: Iterable[Any]) -> None:
    """Lets numbers that were computed from a model's weights say what these cost.

    Those of a training that goes on cost what its account holds when they are found: it may decide which are kept.
    """
    variables, copies = list(variables), list(copies)
    held, made = list(map(held_by, variables)), list(map(held_by, copies))
    copy_restores(variables, copies)
    leave_made(held, made)
    leave_notes((note for one in map(account_of, held) if one is not None for note in one.remarks), made)
    if getattr(model, "made_in_fit", 0) and any(map(is_paid_for, held)):
        remember_passing(model._privacy.account, made, but=model._privacy.run.began_with)
    else:
        remember_copies(held, made)


def remember_loaded(cost: Ledger, variables: Callable[[], Iterable[Any]], changed: bool = False) -> None:
    """Remembers what values that are being loaded cost, once they are there.

    Frozen weights are among them: a training of another process may have ended with them.

    Args:
        changed: whether their file says that something else than a training changed them.
    """
    remember_later(lambda: remember(cost, map(held_by, variables()), changed or None))


def released_by(model: Any) -> list[Any]:
    """What a training of a private model released, and what Keras computes from that alone, each as NumPy reads it.

    The weights that it trains; the optimizer's state, with its moments and moving averages of weights; and the weights
    of layers with LoRA as Keras hands them out and writes them, with what was learned added to what was frozen.
    """
    learning = [layer for layer in layers_with_lora(model) if layer.trainable_variables]
    merged = [getattr(layer, name) for layer in learning for name in ("kernel", "embeddings") if hasattr(layer, name)]
    return [*model.trainable_variables, *model.optimizer.variables, *merged]


def layers_with_lora(model: Any) -> list[Any]:
    """The layers whose frozen weights are handed out, and written, with what LoRA learned added to them."""
    return [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]


def released_values(model: Any) -> set[bytes]:
    """By what the values are remembered that a training of this model ended with."""
    return known_values(map(held_by, released_by(model)))


def forget_released(values: Iterable[bytes]) -> None:
    """Forgets what `released_values` gave: nobody else may hold a copy of these."""
    forget(values)


def disown_released(values: Iterable[bytes]) -> None:
    """What `released_values` gave is paid for by no ledger that says so: no model that holds a copy states a cost."""
    disown(values)


def charge_elsewhere(model: Any, ledger: Ledger) -> None:
    """Lets a ledger that holds already what a training cost, by an entry of another kind, be the one of its model.

    Nothing is merged: counting the training's own releases there, too, would charge them twice.
    """
    account = model._privacy.account
    forget_released(released_values(model))
    account.replace(ledger)
    account.unpaid = False
    remember_released(account, released_by(model))


def paid_for(variables: Iterable[Any]) -> list[bool]:
    """Of each weight, whether a training released something into it, or it holds a copy of released values."""
    return [is_paid_for(held_by(variable)) for variable in variables]
