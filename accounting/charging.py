"""The one way from a ledger to a paid release: the ledger counts as this library made it, and counted before."""

from collections.abc import Iterable
from typing import Any

from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.accounting.grouping import warn_of_regrouping
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.releases import AnyRelease, groupings_in
from tfdp_layers.accounting.repeats import warn_of_repeated
from tfdp_layers.accounting.sightings import keep, sight, warn_of_others
from tfdp_layers.accounting.view import no_ledger
from tfdp_layers.instances import replaced

__all__ = ["charge", "check_ledger", "counts_alike"]

_counting: set[type] = {Ledger}
"""The classes of ledgers whose counts this library vouches for."""


def counts_alike(kind: type[Ledger]) -> type[Ledger]:
    """Marks a class of this library, derived from `Ledger`, whose ledgers count at least what `Ledger` does."""
    _counting.add(kind)
    return kind


def check_ledger(ledger: Any) -> None:
    """Asked by all that spends or states, so that nothing is released, or stated, that is counted by other code.

    What another ledger wrote into the file of this one is in it afterwards.

    Raises:
        ValueError: anything but a ledger (a model, a path, the class), one of a class of the caller's own, and one with
            a method of its own: what it is charged, and what it says that it holds, may be less.
        LedgerError: its file is no whole ledger any more.
    """
    if not isinstance(ledger, Ledger):
        raise no_ledger(ledger)
    foreign = replaced(ledger)
    if foreign or type(ledger) not in _counting:
        what = f"has a {foreign[0]}() of its own" if foreign else f"is of {type(ledger).__name__}, a class of your own"
        raise ValueError(
            f"This ledger {what}: whether it counts what is released is unknown, and so is every epsilon. Use"
            " tfdp.accounting.Ledger as it is; to watch what it counts, read ledger.entries, or give fit a callback."
        )
    ledger._look()


def charge(
    ledger: Any,
    release: AnyRelease,
    steps: int = 1,
    *,
    records: Footprint | None = None,
    beside: Iterable[Ledger] = (),
) -> str:
    """Counts releases that are about to be made; returns the token, with which `Ledger.settle` says how many were.

    Args:
        records: that are read, so that charges of other ledgers for the same ones are noticed, with a warning.
        beside: ledgers that will count these releases, too.

    Raises: as `check_ledger`, `Ledger.begin` and `Ledger.reserve`, and a warning that Python was told to raise; nothing
        is counted then, and none may be made.
    """
    check_ledger(ledger)
    token: str = ledger.begin(release)
    others = sight(ledger, token, records, beside)
    try:
        # First: a warning may be an error.
        warn_of_repeated(records, release.unit)
        warn_of_regrouping(ledger.uid, groupings_in(release), release.unit)
        warn_of_others(ledger, others)
        ledger.reserve(token, steps)
    finally:
        keep(token)
    return token
