"""Events that fail with a small probability, and what of delta is left beside them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.wording import rounded_up

__all__ = ["FailingDpEvent", "FailsTooOften", "failing", "without_failures"]


class FailsTooOften(NotImplementedError):  # noqa: N818 (says what happened)
    """No epsilon holds at a delta that is not above the probability of failure."""


@dataclass(frozen=True)
class FailingDpEvent(DpEvent):
    """An event beside an independent one that is (0, failure)-differentially private, in both directions.

    Attributes:
        event: what is released unless it fails.
        failure: in (0, 1), the total variation distance of what is released besides.
    """

    event: DpEvent
    failure: float


def without_failures(counts: Mapping[DpEvent, int], delta: float) -> tuple[Counter[DpEvent], float]:
    """The events without their failures, and the delta at which their epsilon is that of the whole composition.

    Guarantee: if the events returned are (epsilon, delta returned)-differentially private, the composition is
    (epsilon, delta). Proof: release all that may fail first. That pair of distributions has total variation distance at
    most F, the sum of the failures: it is a mixture that with probability at least 1 - F tells nothing and else
    everything. The rest is composed with it independently, so its hockey-stick divergence is at most F + (1 - F) times
    that of the rest. What is left is delta - F.

    Raises: FailsTooOften where the failures alone are delta or more: no epsilon holds there.
    """
    rest: Counter[DpEvent] = Counter()
    failures = 0.0
    for event, count in counts.items():
        if isinstance(event, FailingDpEvent):
            rest[event.event] += count
            failures += count * event.failure
        else:
            rest[event] += count
    left = delta - failures * (1.0 + 1e-9)
    if failures and left <= 0.0:
        raise FailsTooOften(
            f"What the ledger holds fails with probability up to {rounded_up(failures, 6)} (vocabularies do), and no"
            f" epsilon holds at delta={rounded_up(delta, 6)}, which is no larger. State it at a larger delta, or"
            " release with a smaller failure."
        )
    return (rest, left) if failures else (Counter(dict(counts)), delta)


def failing(event: DpEvent, failure: float, relation: NeighboringRelation) -> FailingDpEvent:
    """An event whose failure is that of adding or removing a record; replacing one removes one and adds another."""
    return FailingDpEvent(event, failure * (2 if relation is NeighboringRelation.REPLACE_ONE else 1))
