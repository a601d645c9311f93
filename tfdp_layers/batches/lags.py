"""Whether columns of a table are other columns of the rows above, across the rows where one person ends."""

from collections.abc import Iterable, Iterator

import numpy as np

from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.blocks import by_no_chance
from tfdp_layers.caller import warn

__all__ = ["warn_of_lags"]

_ROWS, _COLUMNS, _TARGETS, _FURTHEST = 1 << 12, 24, 8, 4
"""Rows that are looked at, columns of inputs and of targets, and how many rows above a value may come from."""
_FEWEST, _SHARE, _NEAR = 8, 0.9, 1e-6
"""Rows, and different values, that it takes; the share of the rows that agree; how near equal numbers are."""
_FIRST, _MOST = 64, 0.5
"""Rows by which pairs of columns are chosen; from which share on one value explains the rows."""


def warn_of_lags(inputs: Iterable[np.ndarray], labels: Iterable[np.ndarray], positions: np.ndarray) -> None:
    """Warns where a column is another one of up to 4 rows above, or a difference to these, also where they are another
    person's: `table["before"] = table.dose.shift(1)`, and `.diff()`, without `groupby`.

    Inputs of columns are looked at side by side, and so are targets: `label = table.dose.shift(-1)`. Looked at are the
    rows whose row above is somebody else's, 8 or more. Left out are columns of fewer than 8 values there, what goes on
    by one constant in most of these rows (numbers of rows, sorted hours), and what rows in any other order would show.
    Not noticed: values that were changed besides (scaled, relative changes, means of several rows), that come from
    their own column (`ffill`), rows that were shuffled since, and columns behind the first 24 (8 of targets).

    Args:
        inputs, labels: (records, columns) or (records,), numbers; others are left out.
        positions: (records,) whose each record is.
    """
    (x, called), (y, targets) = _beside(inputs, "input", _COLUMNS), _beside(labels, "target", _TARGETS)
    rows, names = np.concatenate([x, y], axis=1) if x.size and y.size else x if x.size else y, called + targets
    with np.errstate(all="ignore"):  # of numbers near the largest
        found = _lagged(rows, positions[: len(rows)])
    if found is None:
        return
    column, was, lag = names[found[0]], names[found[1]], found[3]
    row = f"{'the row' if abs(lag) == 1 else f'{abs(lag)} rows'} {'below' if lag < 0 else 'above'}"
    what = f"the difference between {was} and that of {row}" if found[2] else f"{was} of {row}"
    warn(
        f"Rows hold what is other people's: {column} is {what}, also where that is somebody else's, as .shift() and"
        f" .diff() give it of a whole table. A person who is in another one's records, too, {AS_SO_MANY} Take it of"
        " each person's own rows: table.groupby(id).dose.shift(1). Where the column is public, nothing is lost:"
        " warnings.filterwarnings('ignore', 'Rows hold what is other')."
    )


def _beside(arrays: Iterable[np.ndarray], word: str, most: int) -> tuple[np.ndarray, list[str]]:
    """The columns of these arrays side by side, those of narrow ones first, and what they are called."""
    given = list(arrays)
    tables = [(one.shape[1] if one.ndim > 1 else 1, place, one) for place, one in enumerate(given) if _is_table(one)]
    columns, names = [np.zeros((0, 0))], list[str]()
    for width, place, one in sorted(tables, key=lambda table: table[0]):
        columns.append(one.reshape(len(one), width)[:_ROWS, : max(0, most - len(names))].astype(np.float64))
        of = f"the {word}" if len(given) == 1 else f"{word} {place}"
        alone = "column {}" if len(given) == 1 and word == "input" else of if width == 1 else f"column {{}} of {of}"
        names += [alone.format(column) for column in range(columns[-1].shape[1])]
    return (np.concatenate(columns[1:], axis=1) if names else columns[0]), names


def _is_table(array: np.ndarray) -> bool:
    return array.ndim in (1, 2) and array.dtype.kind in "iuf" and array.size > 0


def _lagged(x: np.ndarray, positions: np.ndarray) -> tuple[int, int, bool, int] | None:
    """The column, which one it was, whether it is a difference of that, and how many rows above; None where none is."""
    for lag in range(1, min(_FURTHEST, len(x) - 1) + 1):
        others = positions[: len(x) - lag] != positions[lag:]
        if int(others.sum()) < _FEWEST:
            continue
        last, first = x[:-lag][others], x[lag:][others]
        near, moved = _NEAR * (np.abs(first) + np.abs(last)), np.abs(first - last)
        left_out = _mostly_one(moved, near)
        for column, was in _alike(first, last, near):
            if not left_out[was]:
                return column, was, False, lag
        left_out |= _mostly_one(first, near) | _mostly_one(last, near)
        for values, way in ((first, lag), (last, -lag)):
            for column, was in _alike(np.abs(values), moved, near):
                if not left_out[was]:
                    return column, was, True, way
    return None


def _alike(values: np.ndarray, given: np.ndarray, near: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs of columns that agree, row by row, as they would not in another order: in nine of ten rows.

    The first one has 8 different values or more. By a few rows it is seen which pairs are worth a look.
    """
    some = np.unique(np.linspace(0, len(values) - 1, _FIRST).astype(np.int64))
    apart = np.abs(values[some][:, :, np.newaxis] - given[some][:, np.newaxis, :])
    for column, was in np.argwhere(np.mean(apart <= near[some][:, np.newaxis, :], axis=0) > _MOST).tolist():
        one, other = values[:, column], given[:, was]
        same = np.abs(one - other) <= near[:, was]
        enough = column != was and same.mean() >= _SHARE and len(np.unique(one)) >= _FEWEST
        if enough and by_no_chance(other, np.where(same, other, one)):
            yield column, was


def _mostly_one(values: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(columns,) whether at least half of them is one value."""
    return np.asarray(np.mean(np.abs(values - np.median(values, axis=0)) <= near, axis=0) >= _MOST)
