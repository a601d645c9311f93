"""The ledger that is saved among the weights of a model or a layer, so that what they cost goes wherever they go."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.storage import LedgerError

__all__ = [
    "PAID_WEIGHTS",
    "STORED_LEDGER",
    "read_paid_weights",
    "read_stored_ledger",
    "write_paid_weights",
    "write_stored_ledger",
]

STORED_LEDGER = "privacy_ledger"
"""Its name among the variables in the file."""

PAID_WEIGHTS = "privacy_paid_weights"
"""The name of a flag for each weight: whether a training released something into it."""


def write_stored_ledger(store: Any, ledger: Ledger) -> None:
    """Saves a copy of the ledger beside the variables in `store`, the mapping that Keras gives `save_own_variables`."""
    store[STORED_LEDGER] = np.frombuffer(ledger.to_json().encode(), np.uint8)


def read_stored_ledger(store: Any) -> tuple[dict[str, Any], Ledger | None]:
    """Reads what `write_stored_ledger` wrote, in `load_own_variables`.

    Returns:
        The variables without the ledger, for Keras, and the ledger: None where none was saved with them.
    Raises:
        LedgerError: what was saved is not a whole ledger.
    """
    variables = {name: store[name] for name in store.keys()}  # noqa: SIM118 (an h5 group is no dict)
    stored = variables.pop(STORED_LEDGER, None)
    return variables, None if stored is None else _decoded(stored)


def write_paid_weights(store: Any, paid: Sequence[bool]) -> None:
    """Saves, of each weight of a model in their order, whether a training released something into it."""
    store[PAID_WEIGHTS] = np.asarray(paid, np.uint8)


def read_paid_weights(variables: dict[str, Any]) -> list[bool] | None:
    """Takes what `write_paid_weights` wrote out of the variables; None where it is missing or damaged."""
    stored = variables.pop(PAID_WEIGHTS, None)
    try:
        return None if stored is None else [bool(flag) for flag in np.asarray(stored, np.uint8).reshape(-1)]
    except (TypeError, ValueError):
        return None


def _decoded(stored: Any) -> Ledger:
    try:
        text = np.asarray(stored, np.uint8).tobytes().decode()
    except (TypeError, ValueError) as error:
        raise LedgerError(f"The ledger saved with these weights is damaged ({error}). Use a backup of them.") from error
    return Ledger.from_json(text)
