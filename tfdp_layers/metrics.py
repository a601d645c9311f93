"""Metrics of private data, released with noise and charged to the ledger."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from dp_accounting import NeighboringRelation

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting.charging import charge, check_ledger
from tfdp_layers.batches.chosen import remember_group, warn_of_chosen
from tfdp_layers.batches.extremes import warn_of_extremes
from tfdp_layers.batches.whose import whose_of
from tfdp_layers.noise import NoiseSource, add_noise, as_noise_source
from tfdp_layers.sampling import Sampling, drawing_all

_LEAST, _MOST = 1e-30, 1e38
"""Ranges and deviations within which sums of all records, and the noise on them, are plain numbers."""


def release_metric(
    values: Any,
    ledger: Ledger,
    *,
    stddev: float,
    lower: float = 0.0,
    upper: float = 1.0,
    examples: int | None = None,
    unit_ids: Any = None,
    owners: Any = None,
    records_per_owner: int | None = None,
    name: str = "metric",
    noise_source: str | NoiseSource = "secure",
) -> float:
    """Releases the mean of one bounded number a record, with Gaussian noise, and charges the ledger before it does.

    Formal guarantee: the released number is one Gaussian mechanism on all records, composed with everything else in the
    ledger, under the ledger's neighbouring relation (add-or-remove for an empty one) and for its unit. Each number is
    clipped to [lower, upper], NaN counts as the middle, and the noise on the mean has the deviation `stddev`. The
    result is not clipped: it may lie beyond the range.
    Derivation: with h half of the range, each number less the middle of the range lies in [-h, h], whatever a record
    holds. The mean of n is their sum over n. With `examples`, which is public, n is the same in both neighbouring data
    sets: one record more or less, or one emptied, moves the mean by at most h / n, attained by every record at an end.
    Where n was counted it is a function of the records: with m the mean of the n - 1 others and c the record,
    |(c + (n - 1) m) / n - m| = |c - m| / n <= 2 h / n, attained by a record at one end and all others at the other; so
    the whole range is charged, twice as much. (The neighbour of n - 1 records has the same noise, and states the larger
    2 h / (n - 1): both state enough.) Data sets that differ in what a record holds have the same n: by 2 h / n where it
    is replaced by any other, by h / n where it is emptied or an owner's records are. All of it holds of units, whose
    own means lie in [-h, h] as well.

    So name `examples` where the number is public (a published one, a quota, what a contract says): it halves the noise
    that the same epsilon needs. Where it is not, leave it out: a number that was counted is no public one. Statements
    show it either way, without noise ("a mean over 14 units"). So never choose the records of a mean by what they hold
    (`hit[y == 1]`: their number tells who is among them). Release (hit & chosen) and chosen, each over all records, and
    divide the one by the other. Where the same ledger released a metric of more units before, that brings a warning;
    without ids nothing can be told.

    Args:
        values: numbers or booleans (records,), each computed from its own record and from what was released before,
            for example `model.predict(x).argmax(-1) == y` for accuracy.
        ledger: `model.ledger`, or the data set's own; see `Ledger(dataset=...)`.
        stddev: of the noise on the mean, in the metric's units: 0.005 leaves an accuracy good to about one percent.
        lower, upper: public bounds that do not depend on the data; larger values (of a loss, say) are clipped. Ends
            that are exactly the smallest or largest value, of one record alone, bring a warning.
        examples: the declared, public number of records, or of units, by which the sum is divided. They are counted if
            it is left out, and a record is charged with twice as much under add-or-remove.
        unit_ids: (records,), for a ledger that protects units: the mean is over units, of each one's own mean.
        owners, records_per_owner: as `fit` takes them, for a ledger that protects owners: the mean is over records, and
            the k of one owner move their sum by at most k times half the range, as they are charged. (Their number is
            public.)
        name: of the metric, for the statement.
        noise_source: as in `tfdp.optimizers`.

    Returns: the noisy mean.
    Raises:
        ValueError: values that are not one number a record, bounds or a stddev out of range, an owner of more records
            than stated, or a unit that the ledger does not protect.
        BudgetExhausted, LedgerError: the ledger cannot take the charge; nothing is released.
    """
    lower, upper = _range(lower, upper)
    numbers = _centred(values, lower, upper)
    whose = whose_of(len(numbers), unit_ids, owners, records_per_owner, ("values", values), scores=True)
    warn_of_extremes(one_each(values)[:, np.newaxis], lower, upper, unit_ids)
    if whose.units is not None:
        numbers = whose.units.means(numbers)
    examples = Counted(len(numbers)) if examples is None else examples
    counted = isinstance(examples, Counted)
    declared = int(examples) if counted else examples
    _check_noise(stddev)
    source = as_noise_source(noise_source)
    sampling = whole_draw(ledger, declared, len(numbers))
    total_stddev = float(stddev) * declared
    bound, stated = most_moved(lower, upper, sampling, whose.unit, counted), whose.stated(ledger.secret)
    release = metric_release(name, bound, total_stddev, sampling, source, stated)
    group = None if whose.units is None else warn_of_chosen(ledger, whose.units.names, counted)
    token = charge(ledger, release)
    remember_group(ledger, group)
    # math.fsum: a sum rounded once, so that rounding moves it by no more than a record's share of 2^-53 of all.
    total = tf.constant(math.fsum(numbers), tf.float64)
    noisy = float(add_noise(source, [total], source.widened([total_stddev], total_stddev / bound, 1))[0])
    ledger.settle(token, 1)
    return (lower + upper) / 2.0 + noisy / declared


class Counted(int):
    """A number of records, or of units, that was counted from the private ones: see `release_metric`."""


def most_moved(lower: float, upper: float, sampling: Sampling, unit: str, counted: bool) -> float:
    """How far one record moves the sum, as it is charged: half the range, or all of it where it changes the divisor.

    See `release_metric`, which derives it. (What replaces a record is charged with twice as much by its sampling; that
    an owner's records are there is public, and they are emptied, not removed.)
    """
    return upper - lower if counted and one_more(sampling, unit) else (upper - lower) / 2.0


def one_more(sampling: Sampling, unit: str) -> bool:
    """Whether of two neighbouring data sets one holds a record, or unit, more: then a count of them is private."""
    return unit != "owner" and sampling.relation is NeighboringRelation.ADD_OR_REMOVE_ONE


def metric_release(
    name: str,
    bound: float,
    stddev: float,
    sampling: Sampling,
    source: NoiseSource,
    stated: Mapping[str, Any],
) -> Release:
    """What `release_metric` releases, for the ledger: a sum that a record moves by at most `bound`, noise `stddev`."""
    return Release(
        (GroupNoise(name, bound, stddev),),
        sampling,
        sampling.batch_size,
        seeded=source.seeded,
        generator=source.generator,
        purpose="metric",
        **stated,
    )


def whole_draw(ledger: Ledger, examples: int, rows: int) -> Sampling:
    """The sampling that draws every record, under the ledger's relation. Raises ValueError where it needs all rows."""
    check_ledger(ledger)
    sampling = drawing_all(ledger.relation or NeighboringRelation.ADD_OR_REMOVE_ONE, examples)
    sampling.draws(examples, np.random.default_rng(), rows=rows)  # draws nothing; checks the numbers
    return sampling


def _check_noise(stddev: Any) -> None:
    number = isinstance(stddev, int | float | np.number) and not isinstance(stddev, bool)
    if not number or not _LEAST <= stddev <= _MOST:
        raise ValueError(
            f"stddev, the noise on the mean, must be a number from {_LEAST} to {_MOST}. Received:"
            f" stddev={stddev!r}. Without noise a metric has no guarantee."
        )


def _range(lower: Any, upper: Any) -> tuple[float, float]:
    """The bounds as floats: differences of small integers of NumPy wrap around. Raises ValueError for no range."""
    try:
        ends = tuple(math.nan if isinstance(one, str) else float(one) for one in (lower, upper))
    except (TypeError, ValueError):
        ends = math.nan, math.nan
    if not (ends[0] < ends[1] and max(map(abs, ends)) <= _MOST and ends[1] - ends[0] >= _LEAST):
        raise ValueError(
            f"lower must lie below upper, by {_LEAST} at least, and both within {_MOST}. Received: lower={lower!r},"
            f" upper={upper!r}."
        )
    return ends[0], ends[1]


def _centred(values: Any, lower: float, upper: float) -> np.ndarray:
    """The values clipped, less the middle of the range: float64 (records,), in [-range / 2, range / 2]."""
    array = one_each(values)
    half = (upper - lower) / 2.0
    centred = np.clip(array.astype(np.float64), lower, upper) - (lower + upper) / 2.0
    # Once more: the subtraction is rounded.
    return np.clip(np.where(np.isnan(centred), 0.0, centred), -half, half)


def one_each(values: Any) -> np.ndarray:
    """The values, (records,) numbers or booleans. Raises ValueError for any others."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        raise ValueError(
            f"values must be one number or boolean a record, shape (records,). Received shape {array.shape}: give the"
            " column, values[:, 0]."
        )
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "biuf":
        raise ValueError(
            "values must be one number or boolean a record, shape (records,), for example"
            " model.predict(x).argmax(-1) == y, of one output (model.predict(x)[:, 0] > 0.5) == y, with y (records,)."
            f" Received shape {array.shape} of dtype {array.dtype}. What is no mean"
            " over records (AUC, F1, recall) is computed from released means: docs/guarantee.md, One ledger for a data"
            " set."
        )
    return array
