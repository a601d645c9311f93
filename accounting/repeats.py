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


def warn_of_repeated(footprint: Footprint | None, unit: str) -> None:
    """Warns of records that come several times (`repeated`, single ones `lone_copies`), where a record is protected.

    Whoever oversamples a rare class, or reads a file twice, has people of several records, whom epsilon does not cover.

    Args:
        footprint: of the records; None where nothing is known of them.
        unit: that is protected.
    """
    sketch = footprint.sketch if unit == "record" and footprint else None
    found = None if sketch is None else repeated(sketch)
    rows, times = (0, 0) if sketch is None else sketch.lone
    if found is not None:
        looked_at, several, most = found
        seen = f"Of {looked_at:,} different rows that were looked at, {several:,} come several times, up to {most:,}"
    elif rows:
        seen = f"Some rows come several times, up to {times:,}, in columns where next to no two other people agree"
    if found is not None or rows:
        warn(
            f"{seen}, as copies of records do. If equal rows are other people's (who share a place, a treatment, an"
            " answer, or a stand-in for no answer), or rows of no answer (blank, imputed, empty texts), nothing is"
            f" lost, and all may stay. But a person of several records {AS_SO_MANY} Then leave the copies out: rare"
            " classes count more by sample_weight or class_weight, records change at random by views=, and unit_ids="
            " says whose they are."
        )


def repeated(sketch: Sketch) -> tuple[int, int, int] | None:
    """How many different rows were looked at, how many of them come several times, and how often at most.

    None where that may well be chance: rows of a table of few columns equal other people's. It is none where

    - all of 20 rows or more come a multiple of the same number of times: a file that was read twice, say;
    - 20 rows or more come k times, and next to none k - 1 or k + 1 times. Rows of independent people come k times by a
      mixture of Poisson distributions, of which F_k^2 <= (1 + 1 / k) F_(k-1) F_(k+1) in the mean, by Cauchy and Schwarz
      (F_k: how many come k times); four times that is no chance;
    - 20 rows or more, and a twentieth of the records, are equal as a whole, and next to none by half; or 8 or more that
      differ by each quarter of their columns. By chance rows agree in some columns far more often than in all. (Where
      there are few different rows, as where each record is of one of few products, nothing follows from that.)

    None, too, where there are few different rows, that come about equally often and do not differ by each quarter: the
    treatments of a trial, the cells of a design, the hours of a week. Not noticed: what was copied less often, or
    changed.
    """
    times = np.frombuffer(sketch.counts, np.uint32)
    several = times[times > 1]
    copies, records = int(several.sum()) - len(several), int(times.sum())
    share, fewest_different = len(times) / records, _DIFFERENT if sketch.told_by_quarter else _OF_PLACES
    if share <= _DIFFERENT and not sketch.told_by_quarter and float(times.var()) <= _EQUALLY * float(times.mean()):
        return None
    surely = len(several) >= _SURELY and (int(np.gcd.reduce(times)) > 1 or _leaps(times))
    enough = len(several) >= (_FEWEST if sketch.told_by_quarter else _SURELY) and copies >= _SHARE * records
    if not (surely or (sketch.told_by_half and enough and share > fewest_different)):
        return None
    return len(times), len(several), int(several.max())


def _leaps(times: np.ndarray) -> bool:
    often = np.bincount(np.minimum(times, _MOST + 1), minlength=_MOST + 2)
    return any(
        often[k] >= _SURELY and often[k] > _LEAP * math.sqrt((often[k - 1] + 5.0) * (often[k + 1] + 5.0))
        for k in np.flatnonzero(often[: _MOST + 1]).tolist()
        if k > 1
    )
