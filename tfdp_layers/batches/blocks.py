"""Whether records are blocks of one long text: then one person less moves all that follows from block to block."""

import math
from collections.abc import Iterable

import numpy as np

from tfdp_layers.caller import warn

__all__ = ["by_no_chance", "warn_of_blocks"]

_ROWS, _NUMBERS = 1 << 12, 1 << 20
"""Rows that are looked at, and numbers of them."""
_FEWEST, _SHARE, _CHANCE = 8, 0.9, 1e-6
"""Rows that another one follows; the share of them that go on there; how probable that may be of rows in any order."""


def warn_of_blocks(
    inputs: Iterable[np.ndarray], labels: Iterable[np.ndarray], positions: np.ndarray | None = None
) -> bool:
    """Warns where targets are the inputs one step later, and nearly each row goes on in the next one.

    So a text is cut into blocks for a language model, and a series for a forecast. Left out is what rows in any other
    order would show as well: those that all begin and end with the same token, say, as padded texts do.

    Not noticed: blocks in another order, blocks with a step left out between them (x and y from blocks of L + 1), x
    without targets, and texts that were joined before a tokenizer cut them.

    Args:
        inputs, labels: (records, steps) or (records, steps, 1), numbers.
        positions: (records,) whose each record is; then rows count that the next one of somebody else goes on from.

    Returns: whether it warned.
    """
    targets = _tables(labels)
    for x in _tables(inputs):
        for y in targets:
            if x.shape == y.shape and (followed := _going_on(x, y, positions)):
                _warn(followed, positions is not None)
                return True
    return False


def _tables(arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
    """(rows, steps) each, of the rows that are looked at; without what is no sequence of numbers."""
    flat = [one[:, :, 0] if one.ndim == 3 and one.shape[2] == 1 else one for one in arrays]
    found = [one for one in flat if one.ndim == 2 and one.dtype.kind in "biuf" and one.shape[1] > 1]
    return [one[: min(_ROWS, max(2, _NUMBERS // one.shape[1]))] for one in found]


def _going_on(x: np.ndarray, y: np.ndarray, positions: np.ndarray | None) -> int:
    """How many of these rows the next one goes on from; 0 where few do, or rows in any order would."""
    last, first = y[:-1, -1], x[1:, 0]
    if positions is not None:
        others = positions[: len(x) - 1] != positions[1 : len(x)]
        last, first = last[others], first[others]
    count, found = len(last), int(np.sum(last == first))
    if count < _FEWEST or found < _SHARE * count or not np.array_equal(y[:, :-1], x[:, 1:]):
        return 0
    return found if by_no_chance(last, first) else 0


def by_no_chance(last: np.ndarray, first: np.ndarray) -> bool:
    """Whether these agree, one by one, far more often than they would in any other order."""
    count, found = len(last), int(np.sum(last == first))
    values, places = np.unique(np.concatenate([last, first]), return_inverse=True)
    ends, starts = (np.bincount(one, minlength=len(values)) / count for one in np.split(places.reshape(-1), 2))
    share, by_chance = found / count, float(ends @ starts)
    if by_chance >= share:
        return False
    surplus = share * math.log(share / by_chance)  # Chernoff's bound: of count draws, so many agree
    surplus += (1.0 - share) * math.log((1.0 - share) / (1.0 - by_chance)) if share < 1.0 else 0.0
    return count * surplus > -math.log(_CHANCE)


def _warn(followed: int, owned: bool) -> None:
    across = " of somebody else" if owned else ""
    warn(
        f"Records go on in one another: the last target of {followed:,} that were looked at is the first input of the"
        f" next record{across}, as where one long text is cut into blocks. If several people's texts were joined in"
        " it, a block may hold the end of one and the beginning of another, and one person less moves everything behind"
        " it from block to block: then the statement holds for nobody. Cut or pad each person's own text by itself, to"
        " one record a person; or to several, and say whose they are: fit(..., unit_ids=...). Where the text is public,"
        " nothing is lost."
    )
