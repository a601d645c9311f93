"""The ledger that is saved among weights: written and read here alone."""

from typing import Any

import numpy as np

from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.storage import LedgerError


def stored_ledger(stored: Any) -> Ledger:
    """The ledger that was saved with weights, as bytes. Raises LedgerError where they are not a whole ledger."""
    try:
        text = np.asarray(stored, np.uint8).tobytes().decode()
    except (TypeError, ValueError) as error:
        raise LedgerError(f"The ledger saved with these weights is damaged ({error}). Use a backup of them.") from error
    return Ledger.from_json(text)
