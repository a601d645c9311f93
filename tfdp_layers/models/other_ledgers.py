"""What a `fit` says of other ledgers of this process that were charged for its records."""

from typing import Any

from tfdp_layers.accounting import EpsilonCurve, Ledger
from tfdp_layers.accounting.grouping import warn_of_regrouping
from tfdp_layers.accounting.releases import groupings_in
from tfdp_layers.accounting.repeats import warn_of_repeated
from tfdp_layers.accounting.sightings import Sighting, sight, sum_of, warn_of_others
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.models.calibrating import budget_of
from tfdp_layers.models.run import Run

__all__ = ["sight_records"]

_SUM = "tfdp.accounting.epsilon(tfdp.accounting.together(model.ledger), delta)"

_MOST_EVENTS = 8
"""Of more different releases the cheap bound is said: an exact sum takes seconds."""


def sight_records(run: Run, token: str, ledger: Ledger, callbacks: Any) -> None:
    """Notes what a `fit` is charged for; warns of records that come several times, that seem to be grouped otherwise
    than before, and where other ledgers were charged for some of them."""
    if run.plan is None or not run.plan.steps:
        return
    records = run.batches.footprint()
    warn_of_repeated(records, run.release.unit)
    warn_of_regrouping(ledger.uid, groupings_in(run.release), run.release.unit)
    others = sight(ledger, token, records)
    if others:
        warn_of_others(ledger, others, lambda: _cost(run, ledger, others, callbacks))


def _cost(run: Run, ledger: Ledger, others: tuple[Sighting, ...], callbacks: Any) -> str:
    """What all of them cost once the planned steps are made, where a budget says at which delta."""
    budget = budget_of(callbacks)
    if budget is None or run.plan is None:
        return f"What all cost after this fit: {_SUM}."
    try:
        curve = EpsilonCurve(sum_of(ledger, others), run.release, budget.delta)
        few = len(sum_of(ledger, others).events()) < _MOST_EVENTS
        total = float(curve.at(run.plan.steps)) if few else curve.bound(run.plan.steps)
        alone = float(EpsilonCurve(ledger, run.release, budget.delta).at(run.plan.steps))
    except (ValueError, ArithmeticError, NotImplementedError):
        return "Their guarantees are of different kinds (another neighbouring relation or unit) and have no sum."
    return (
        f"With this fit it will be up to epsilon {rounded_up(total)} at delta {rounded_up(budget.delta, 6)}, where this"
        f" model will state {rounded_up(alone)}: {_SUM}."
    )
