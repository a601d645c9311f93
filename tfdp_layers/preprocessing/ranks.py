"""Quantiles of private numbers, from noisy counts in nested intervals."""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.accounting.grouping import sample_of
from tfdp_layers.batches.extremes import warn_of_extremes
from tfdp_layers.batches.whose import whose_of
from tfdp_layers.metrics import one_more, whole_draw
from tfdp_layers.noise import NoiseSource, add_noise, as_noise_source

_MOST_LEVELS = 20
_LEAST_NOISE = 1e-30


def quantiles(
    values: Any,
    ledger: Ledger,
    probabilities: Sequence[float],
    *,
    lower: Any,
    upper: Any,
    noise_multiplier: float,
    levels: int = 10,
    examples: int | None = None,
    unit_ids: Any = None,
    owners: Any = None,
    records_per_owner: int | None = None,
    noise_source: str | NoiseSource = "secure",
) -> np.ndarray:
    """Releases quantiles of each column of private numbers, and charges the ledger before it does.

    The public range of a column is halved `levels` times; the numbers in each interval of each halving are counted,
    noise is added to the counts, and all quantiles are read from them.

    Formal guarantee: one Gaussian mechanism of this noise multiplier on all records, composed with all else in the
    ledger, under its neighbouring relation (add-or-remove for an empty one), and for its unit.
    Derivation: a record lies in one interval of each halving of each of d columns, so adding or removing it, or
    replacing it by an empty one, moves d * levels counts by 1: an L2 norm of sqrt(d * levels), attained by every record
    without NaN. Counts are whole numbers, so their sums are exact. NaN, which is refused, would lie in no interval, and
    what lies beyond the range lies in its first or last. Of a unit one record enters, chosen by fresh randomness alone:
    whichever that is, the unit moves the counts as one record does. The k records of an owner move them by at most k
    times the bound, which equal records attain, and are charged so. However many quantiles are read from the counts, it
    is post-processing: their ranks go by the noisy number of all numbers, which is one of the sums, and by an exact one
    only where it is `examples`, or the same in both neighbouring data sets.

    The count of the numbers below a point is a sum of at most `levels` noisy ones: its noise has a standard deviation
    of at most noise_multiplier * levels * sqrt(d). A quantile is off by about that many ranks, and by one interval.

    Args:
        values: (records,) or (records, columns), the private numbers.
        ledger: `model.ledger`, or the data set's own.
        probabilities: of the quantiles, in (0, 1).
        lower, upper: a public range of each column, (columns,) or one number for all. What is known of the order of
            magnitude: 2^levels intervals divide it.
        noise_multiplier: the noise's standard deviation over sqrt(d * levels); above 0.
        levels: 1 to 20.
        examples: the declared, public number of records, or of units, by which ranks go; a noisy one if left out.
        unit_ids: (records,), for a ledger that protects units: each counts with one of its records, chosen at random.
        owners, records_per_owner: as `fit` takes them, for a ledger that protects owners: all records count.
        noise_source: as in `tfdp.optimizers`.

    Returns: (probabilities,) or (probabilities, columns), each column rising.
    Raises:
        ValueError: values that are no numbers, NaN among them, settings out of range, an owner of more records than
            stated, or a unit that the ledger does not protect; nothing is charged.
        BudgetExhausted, LedgerError: the ledger cannot take the charge; nothing is released.
    Source: counts in a binary tree: Hay, Rastogi, Miklau, Suciu 2010, arXiv:0904.0942, section 4 (with Laplace noise).

    Example:
        low, high = tfdp.preprocessing.quantiles(x, model.ledger, [0.05, 0.95], lower=0.0, upper=1e6,
            noise_multiplier=20.0)
    """
    array = np.asarray(values)
    wanted = _checked(array, probabilities, levels, noise_multiplier)
    levels, noise_multiplier = int(levels), float(noise_multiplier)  # products of small integers of NumPy wrap around
    columns = array.reshape(len(array), -1)
    low, high = _ends(lower, upper, columns, unit_ids)
    whose = whose_of(len(columns), unit_ids, owners, records_per_owner, ("values", values))
    columns, source = whose.entering(columns), as_noise_source(noise_source)
    declared, bound = len(columns) if examples is None else examples, math.sqrt(columns.shape[1] * levels)
    noise = GroupNoise("quantiles", bound, noise_multiplier * bound)
    release = Release(
        (noise,),
        whole_draw(ledger, declared, len(columns)),
        declared,
        seeded=source.seeded,
        generator=source.generator,
        purpose="whole_data",
        **whose.stated(ledger.secret, sample_of([array])),
    )
    token = charge(ledger, release, records=footprint_of([values], [array], people=whose.people))
    source.rekey()
    counts = tf.constant(counted(columns, low, high, levels), tf.float64)
    (noisy,) = add_noise(source, [counts], source.widened([noise.stddev], noise_multiplier, int(tf.size(counts))))
    found = read(np.asarray(noisy), low, high, levels, wanted, _public(examples, release))
    ledger.settle(token, 1)
    return found[:, 0] if array.ndim == 1 else found


def counted(columns: np.ndarray, low: np.ndarray, high: np.ndarray, levels: int) -> np.ndarray:
    """How many numbers lie in each interval of each halving: (columns, 2^(levels + 1) - 2), coarsest first."""
    finest = 2**levels
    with np.errstate(over="ignore", invalid="ignore"):
        place = np.floor((columns.astype(np.float64) - low) / (high - low) * finest)
    found = np.zeros((columns.shape[1], 2 * finest - 2), np.int64)
    for column, known in enumerate(~np.isnan(place).T):
        leaf = np.clip(place[known, column], 0, finest - 1).astype(np.int64)
        leaves = np.bincount(leaf, minlength=finest)
        found[column] = np.concatenate([leaves.reshape(2**level, -1).sum(axis=1) for level in range(1, levels + 1)])
    return found


def _public(examples: int | None, release: Release) -> int | None:
    """The number of records where it is declared, or the same in both neighbouring data sets."""
    return None if examples is None and one_more(release.sampling, release.unit) else release.examples


def read(
    noisy: np.ndarray, low: np.ndarray, high: np.ndarray, levels: int, wanted: np.ndarray, number: int | None = None
) -> np.ndarray:
    """The ends of intervals below which so large a part of the numbers lies, by the noisy counts: (wanted, columns).

    Args:
        number: of all, where it is public; None for the noisy one of each column.
    """
    finest = 2**levels
    below = np.zeros((len(noisy), finest))
    for level in range(1, levels + 1):
        start, size = 2**level - 2, 2**level
        width = finest // size
        counts = noisy[:, start : start + size]
        # An end is reached by the intervals that its binary digits name: at each level at most one, the left of a pair.
        below.reshape(len(noisy), size // 2, 2, width)[:, :, 1] += counts[:, ::2, None]
    rising = np.maximum.accumulate(np.hstack([below, noisy[:, :2].sum(axis=1, keepdims=True)]), axis=1)
    ends = np.linspace(0.0, 1.0, finest + 1)
    totals = noisy[:, :2].sum(axis=1) if number is None else np.full(len(noisy), number)
    found = [
        [
            ends[min(int(np.searchsorted(column, part * total)), finest)]
            for column, total in zip(rising, totals, strict=True)
        ]
        for part in wanted
    ]
    return np.asarray(low + (high - low) * np.asarray(found))


def _checked(array: np.ndarray, probabilities: Any, levels: Any, noise_multiplier: Any) -> np.ndarray:
    """The probabilities as an array. Raises ValueError for values or settings that cannot be used."""
    if array.ndim not in (1, 2) or 0 in array.shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"values must be numbers, (records,) or (records, columns). Received: {array.dtype}, shape {array.shape}."
        )
    holes = int(np.isnan(array).reshape(len(array), -1).any(axis=1).sum()) if array.dtype.kind == "f" else 0
    if holes:
        raise ValueError(
            f"{holes:,} of the {len(array):,} records hold NaN, which has no rank, and each would move all quantiles"
            " down. Leave them out, one column at a time: kept = ~np.isnan(values), then quantiles(values[kept], ...),"
            " with unit_ids=ids[kept] where there are ids. What is infinite counts at an end of the range."
        )
    wanted = np.asarray(probabilities, np.float64)
    if wanted.ndim != 1 or not wanted.size or not np.all((wanted > 0.0) & (wanted < 1.0)):
        raise ValueError(
            "probabilities must be a list of numbers strictly between 0 and 1, [0.05, 0.5, 0.95] for two ends and the"
            f" median. Received: {probabilities!r}."
        )
    if isinstance(levels, bool) or not hasattr(levels, "__index__") or not 1 <= levels <= _MOST_LEVELS:
        raise ValueError(f"levels must be an integer in 1..{_MOST_LEVELS}. Received: {levels!r}.")
    known = isinstance(noise_multiplier, numbers.Real) and not isinstance(noise_multiplier, bool)
    if not known or not _LEAST_NOISE <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be finite and {_LEAST_NOISE} or more. Received: {noise_multiplier!r}.")
    return wanted


def _ends(lower: Any, upper: Any, table: np.ndarray, unit_ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of each column. Raises ValueError for what is no range; warns of one that was read off these records."""
    columns = table.shape[1]
    low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    fine = all(end.shape in ((), (columns,)) for end in (low, high))
    with np.errstate(over="ignore", invalid="ignore"):
        fine = fine and bool(np.isfinite(high - low).all() and np.all(low < high))
    if not fine:
        raise ValueError(
            f"lower and upper must be finite, one number or one for each of {columns} columns, each lower below its"
            f" upper. Received: lower={lower!r}, upper={upper!r}."
        )
    warn_of_extremes(table, low, high, unit_ids)
    return np.broadcast_to(low, (columns,)), np.broadcast_to(high, (columns,))
