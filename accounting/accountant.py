"""Epsilon of a ledger, exactly or along a run."""

import math
import operator
from collections import Counter
from decimal import ROUND_CEILING, Decimal
from typing import Any, SupportsIndex, overload

from dp_accounting import DpEvent, NeighboringRelation

from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.composition import smallest_epsilon
from tfdp_layers.accounting.failures import without_failures
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.releases import AnyRelease
from tfdp_layers.accounting.sightings import others_of, sum_of
from tfdp_layers.accounting.wording import never_below

__all__ = ["Epsilon", "EpsilonCurve", "check_delta", "epsilon", "events_of", "nominal_epsilon", "together"]

# Points at which a curve is evaluated for its bound: each a fifth after the last. Epsilon grows about as the square
# root of the number of releases: a tenth from one to the next.
_GRID_RATIO = 1.2


class Epsilon(float):
    """An epsilon that knows what it means; compares and calculates as a float, and prints as one, never below itself.

    Whatever prints it to some digits (`f"{epsilon:.2f}"`, Keras' progress bar, the name of a checkpoint) rounds it up,
    and so does `round(epsilon, 2)`. What reads the plain number cannot be told: `"%.2f" % epsilon`, NumPy's rounding,
    `int`. They round to the nearest, or down; use an f-string.

    Attributes:
        delta: the delta it holds with.
        accountant: which accountant proved it, for example "PLD".
        relation: the neighbouring relation, or None where nothing was released.
        sampling: the kinds of sampling, joined by "+", for example "poisson".
    """

    delta: float
    accountant: str
    relation: NeighboringRelation | None
    sampling: str

    def __new__(
        cls, value: float, delta: float, accountant: str, relation: NeighboringRelation | None, sampling: str
    ) -> "Epsilon":
        self = super().__new__(cls, value)
        self.delta, self.accountant, self.relation, self.sampling = delta, accountant, relation, sampling
        return self

    def __format__(self, form: str) -> str:
        return never_below(float(self), form)

    @overload
    def __round__(self, digits: None = None, /) -> int: ...

    @overload
    def __round__(self, digits: SupportsIndex, /) -> "Epsilon": ...

    def __round__(self, digits: SupportsIndex | None = None, /) -> Any:
        """The least number of so many decimals that is not below it, an `Epsilon` too; without `digits` an integer."""
        if digits is None:
            return math.ceil(self)
        value = round(float(self), digits)
        if value < self:
            last = Decimal(1).scaleb(-operator.index(digits))
            value = float(Decimal(float(self)).quantize(last, ROUND_CEILING))
        return Epsilon(value, self.delta, self.accountant, self.relation, self.sampling)

    def __truediv__(self, other: Any) -> Any:
        """As of floats; divided by the integer 1, as Keras does before it prints, it stays what it is."""
        return self if type(other) is int and other == 1 else float.__truediv__(self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Epsilon, (float(self), self.delta, self.accountant, self.relation, self.sampling)


def epsilon(ledger: Ledger, delta: float) -> Epsilon:
    """Returns the smallest epsilon that an accountant proves for everything in the ledger.

    Guarantee: all releases of the ledger together are (epsilon, delta)-differentially private under the ledger's
    neighbouring relation, if they were made as recorded. Infinity where a group had no noise, 0.0 for an empty ledger.

    Raises:
        ValueError: delta is not in (0, 1).
        NotImplementedError: no installed accountant can bound what was released.
    """
    check_ledger(ledger)
    delta = check_delta(delta)
    return _state(events_of(ledger), ledger.relation, delta, _kinds(ledger))


def nominal_epsilon(ledger: Ledger, delta: float) -> Epsilon | None:
    """Returns the epsilon by the accounting that the methods' publications print; None where it is no other.

    NOT a guarantee: `epsilon` is, and is larger. Raises as `epsilon`.
    """
    check_ledger(ledger)
    published = ledger.as_published()
    return None if published is None else epsilon(published, delta)


def together(ledger: Ledger) -> Ledger:
    """What this process released of the records that a ledger was charged for, all ledgers together, as far as known.

    For an epsilon of all of it, `tfdp.accounting.epsilon(tfdp.accounting.together(model.ledger), delta)`, or to add it
    up for good: `model.ledger.merge(tfdp.accounting.together(model.ledger))`. Known are the charges of this process for
    one object, for rows of one array, or for arrays with more equal rows than chance explains (by 5%, 8 rows). Not
    known: other processes, records as read from pipelines, other columns of them, another scale, tables of few
    different rows, copies of what was charged for before 256 other data sets, and `release_metric`, which sees none.
    Left out, too, is the training of an audit (`model.audit`), which is in the audited twin's ledger: add it where the
    twin is published as well, `model.ledger.merge(twin.ledger)`. What an audit finds, no epsilon covers.

    Which charges these are is computed from the records where equal rows show it: that is for those who hold them.

    Returns: a ledger in memory, which changes nothing.
    Raises: ValueError for anything but a ledger, and where the ledgers have different neighbouring relations or units,
        and no one epsilon is for all.
    """
    check_ledger(ledger)
    return sum_of(ledger, others_of(ledger))


class EpsilonCurve:
    """Epsilon after further, equal releases of a segment, on top of a snapshot of a ledger.

    Args:
        ledger: what was released before; not changed. None for nothing.
        release: what each of them reveals.
        delta: in (0, 1).
        held: how many releases of the same segment the ledger holds: the further ones go on after them.
    Raises:
        ValueError: delta is not in (0, 1), the release has another neighbouring relation than the ledger, or the ledger
            holds fewer releases of the segment.
        FailsTooOften: what the ledger holds fails with probability delta.
    """

    def __init__(self, ledger: Ledger | None, release: AnyRelease, delta: float, held: int = 0) -> None:
        self.release, self._held = release, held
        self.delta = check_delta(delta)
        ledger = Ledger() if ledger is None else ledger
        check_ledger(ledger)
        ledger.check(release)
        self._before = without_segment(events_of(ledger), release.event(), release.charges(held))
        self._kinds = _kinds(ledger) | {release.drawn}
        self._event = release.event()
        without_failures(self._before, self.delta)
        self._values: dict[int, Epsilon] = {}

    def at(self, steps: int) -> Epsilon:
        """Exact epsilon (the smallest that an accountant proves) after `steps` further releases."""
        return self._at_charges(self.release.charges(self._held + steps))

    def bound(self, steps: int) -> float:
        """An upper bound on `at(steps)`, monotone in steps, for every step: `at` the next point of a grid, kept.

        At most about a tenth above `at`. Some 25 values in 200 steps, and 13 more each time that these are tenfold.
        """
        return float(self._at_charges(_next_grid_point(self.release.charges(self._held + steps))))

    def _at_charges(self, charges: int) -> Epsilon:
        if charges not in self._values:
            counts = self._before + Counter({self._event: charges})
            self._values[charges] = _state(counts, self.release.relation, self.delta, self._kinds)
        return self._values[charges]


def events_of(ledger: Ledger) -> Counter[DpEvent]:
    """How often each event of the ledger was released: what every number that is stated of it is computed from.

    Raises: as `check_ledger`.
    """
    check_ledger(ledger)
    return ledger.events()


def without_segment(counts: Counter[DpEvent], event: DpEvent, charges: int) -> Counter[DpEvent]:
    """The events without those of a segment that goes on. Raises ValueError where they are not among them."""
    if counts[event] < charges:
        raise ValueError(
            "The ledger does not hold as many releases of this segment as `held` says, with this noise multiplier,"
            " sampling and noise. Leave held out for a new segment."
        )
    return +(counts - Counter({event: charges}))


def check_delta(delta: Any) -> float:
    """Returns delta as a float. Raises ValueError unless it lies strictly between 0 and 1."""
    if delta is None:
        raise ValueError(
            "Give delta, the probability with which the guarantee may fail: strictly between 0 and 1, and well below"
            " 1 / number of records, for example delta=1e-5."
        )
    try:
        value = math.nan if isinstance(delta, str | bytes) else float(delta)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < 1.0:
        raise ValueError(
            f"delta must lie strictly between 0 and 1. Received: {delta!r}. It bounds the probability that the"
            " guarantee fails: choose at most 1 / number of records, for example 1e-5."
        )
    return value


def _state(counts: Counter[DpEvent], relation: NeighboringRelation | None, delta: float, kinds: set[str]) -> Epsilon:
    if relation is None:
        return Epsilon(0.0, delta, "nothing released", None, "")
    value, accountant = smallest_epsilon(counts, relation, delta)
    return Epsilon(value, delta, accountant, relation, "+".join(sorted(kinds)))


def _kinds(ledger: Ledger) -> set[str]:
    return {release.drawn for release in ledger.releases}


def _next_grid_point(charges: int) -> int:
    point = 1
    while point < charges:
        point = max(point + 1, math.floor(point * _GRID_RATIO))
    return point if charges else 0
