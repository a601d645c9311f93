"""Whether the rows of a data set are copies of one another: then a record is not a person."""

import math

import numpy as np

from tfdp_layers.accounting.footprint import Footprint
from tfdp_layers.accounting.sketch import Sketch
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.caller import warn

__all__ = ["repeated", "warn_of_repeated"]

_FEWEST, _SURELY, _SHARE, _DIFFERENT = 8, 20, 0.05, 0.15
_OF_PLACES = 0.3
"""As `_DIFFERENT`: of few columns, of which not each quarter tells rows apart, as coordinates of places."""
_EQUALLY = 2.0
"""The variance of how often rows come, by its mean: 0 where all come equally often, 1 where it is drawn."""
_MOST = 4096
_LEAP = 4.0
_OF_RECORDS = (
    *("records", "", ""),
    "leave the copies out: rare classes count more by sample_weight or class_weight, records change at random by"
    " views=, and unit_ids= says whose they are.",
)
_OF_UNITS = (
    *("ids", ", under ids of different people", " that many were shown"),
    "give each person one id, the same in all tables and departments, also for copies of a row; a row that several"
    " people share needs all of them: owners=, of records that tfdp.preprocessing.limit_owners keeps.",
)
"""Of what a person may have several, how that shows, what else it may be, and what to do then."""


def warn_of_repeated(footprint: Footprint | None, unit: str) -> None:
    """Warns of records that come several times (`repeated`, single ones `lone_copies`): then a record is no person.

    Whoever oversamples a rare class, or reads a file twice, has people of several records, whom epsilon does not cover.
    Where units or owners are protected, what one of them has several times is covered: rows count that several of them
    have, as where a person has another id in each department.

    Args:
        footprint: of the records; None where nothing is known of them.
        unit: that is protected.
    """
    sketch = footprint.sketch or footprint.copies if footprint else None
    if sketch is not None and unit != "record" and sketch.holders is None:
        sketch = None  # nothing is known of whose they are
    seen, begins = _seen(sketch)
    if not seen:
        return
    whose, under, shown, fix = _OF_RECORDS if unit == "record" else _OF_UNITS
    warn(
        f"{seen}{under}, as copies of records do. If equal rows are other people's (who share a place, a treatment, an"
        " answer, or a stand-in for no answer), rows of no answer (blank, imputed, empty texts), or public (items,"
        f" questions, codes{shown}), nothing is lost, and all may stay: warnings.filterwarnings('ignore', '{begins}')."
        f" But a person of several {whose} {AS_SO_MANY} Then {fix}"
    )


def _seen(sketch: Sketch | None) -> tuple[str, str]:
    """What shows copies, and a pattern that it begins with; empty where nothing does."""
    found = None if sketch is None else repeated(sketch)
    rows, times = (0, 0) if sketch is None else sketch.lone
    if found is not None:
        seen = "Of {:,} different rows that were looked at, {:,} come several times, up to {:,}".format(*found)
        return seen, "Of .* different rows that were looked at"
    seen = f"Some rows come several times, up to {times:,}, in columns where next to no two other people agree"
    return (seen, "Some rows come several times") if rows else ("", "")


def repeated(sketch: Sketch) -> tuple[int, int, int] | None:
    """How many different rows were looked at, how many of them come several times, and how often at most.

    None where that may well be chance: rows of a table of few columns equal other people's. It is none where

    - all of 20 rows or more come a multiple of the same number of times: a file that was read twice, say;
    - 20 rows or more come k times, and next to none k - 1 or k + 1 times. Rows of independent people come k times by a
      mixture of Poisson distributions, of which F_k^2 <= (1 + 1 / k) F_(k-1) F_(k+1) in the mean, by Cauchy and Schwarz
      (F_k: how many come k times); four times that is no chance;
    - 20 rows or more, and a twentieth of the records, are equal as a whole, and next to none by half; or 8 or more that
      differ by each quarter of their columns; or 20 or more are equal, and next to none are nearly so (`near_rows`). By
      chance rows agree in some columns far more often than in all. (Where there are few different rows, as where each
      record is of one of few products, nothing follows from that.)

    Where it is known whose the records are, a row comes as often as different people have it. Rows that three people
    or more have, and more than half of all, are nobody's own, and left out; and the first two say nothing of fewer than
    40 people, nor where one of them has more than a quarter of all rows: how many have a row by chance is near a
    Poisson distribution where each has few of them alone.

    None, too, where there are few different rows, that come about equally often and do not differ by each quarter: the
    treatments of a trial, the cells of a design, the hours of a week. Not noticed: what was copied less often, or
    changed.
    """
    times = np.frombuffer(sketch.counts if sketch.holders is None else sketch.holders, np.uint32)
    if sketch.holders is not None:
        times = times[2 * times <= max(4, sketch.people)]
    many = sketch.holders is None or sketch.spread
    several = times[times > 1]
    if not len(several):
        return None
    copies, records = int(several.sum()) - len(several), int(times.sum())
    share, fewest_different = len(times) / records, _DIFFERENT if sketch.told_by_quarter else _OF_PLACES
    if share <= _DIFFERENT and not sketch.told_by_quarter and float(times.var()) <= _EQUALLY * float(times.mean()):
        return None
    surely = many and len(several) >= _SURELY and (int(np.gcd.reduce(times)) > 1 or _leaps(times))
    enough = len(several) >= (_FEWEST if sketch.told_by_quarter else _SURELY) and copies >= _SHARE * records
    told = sketch.told_by_half or sketch.alone
    if not (surely or (told and enough and share > fewest_different)):
        return None
    return len(times), len(several), int(several.max())


def _leaps(times: np.ndarray) -> bool:
    often = np.bincount(np.minimum(times, _MOST + 1), minlength=_MOST + 2)
    return any(
        often[k] >= _SURELY and often[k] > _LEAP * math.sqrt((often[k - 1] + 5.0) * (often[k + 1] + 5.0))
        for k in np.flatnonzero(often[: _MOST + 1]).tolist()
        if k > 1
    )
