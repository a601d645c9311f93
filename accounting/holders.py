"""The ledgers of this process: who holds a file that nothing runs on, and what a fork does to them all."""

import os
import weakref
from pathlib import Path
from typing import Any

__all__ = ["hold", "let_go"]

_ledgers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def hold(ledger: Any) -> None:
    """Notes a ledger, as long as it lives."""
    _ledgers.add(ledger)


def let_go(path: Path | None) -> bool:
    """Asks the ledgers of this process that hold a file for it, one of which may be anywhere.

    In a notebook it is the ledger of a cell that ran before: by another name, in the last error, or among the results.
    Nothing is lost: whoever charges it next takes the file again, and over what was written meanwhile.

    Returns: whether one let go of it. None does on which a training runs, or something is reserved and not settled.
    """
    return any([ledger._let_go() for ledger in list(_ledgers) if ledger.path == path])


def _after_fork() -> None:
    for ledger in list(_ledgers):
        ledger._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
