"""Public rows of a step: like records in shape, and none of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.models.equal_rows import KnownRows, as_table

__all__ = ["HELD", "PrivateRows", "checked_public"]

HELD = (
    "their gradients would be added without noise. Give rows that were computed from released values and public numbers"
    " alone, such as samples of a generator."
)


class PrivateRows:
    """The records of a run, which may not come back as public rows: copies of them, as a replay buffer holds.

    Records of pipelines and sources are not known here.
    """

    def __init__(self, inputs: Sequence[np.ndarray]) -> None:
        """Of the arrays of x that lie in memory."""
        self._known: KnownRows | None = KnownRows(inputs) if len(inputs) else None
        if self._known is not None and not self._known.bounded:
            self._known = None

    def refuse(self, x: Any) -> None:
        """Raises ValueError for rows of x, as the model takes them, that are copies of records.

        One is enough, where the records' numbers are such that none is equal by chance; of tables of few values more
        must be equal than other people's would be.
        """
        if self._known is None:
            return
        leaves = [as_table(np.asarray(leaf)) for leaf in keras.tree.flatten(x) if leaf is not None]
        if [leaf.shape[1] for leaf in leaves] == self._known.widths and self._known.holds(leaves, 1):
            raise ValueError(
                f"`public` holds private records: rows of it equal some, number by number, and {HELD} Earlier draws are"
                " private, too: each use of a record is paid for by a draw of its own."
            )


def checked_public(public: Any, drawn: Any) -> Any:
    """Public rows as tensors (x, y, sample_weight). Raises ValueError unless they are rows like those drawn."""
    if not isinstance(public, tuple | list) or len(public) not in (2, 3):
        raise ValueError(
            "`public` must be (x, y) or (x, y, sample_weight), rows that are no records. Received:"
            f" {type(public).__name__}."
        )
    try:
        x, y = (
            keras.tree.pack_sequence_as(wanted, [_as_rows(*pair) for pair in _paired(given, wanted)])
            for given, wanted in zip(public[:2], drawn[:2], strict=True)
        )
    except ValueError as error:
        raise ValueError(f"`public` must have rows of x and y like the records of the run: {error}") from None
    rows = {leaf.shape[0] for leaf in keras.tree.flatten((x, y)) if leaf is not None}
    if len(rows) != 1 or 0 in rows:
        raise ValueError(f"`public` must hold as many rows of x as of y, and at least one. Received: {sorted(rows)}.")
    weight = tf.ones((rows.pop(),)) if len(public) == 2 else keras.tree.map_structure(tf.convert_to_tensor, public[2])
    return x, y, weight


def _paired(given: Any, wanted: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of what is given beside those of the records, in the order of Keras' trees; a list is as a tuple.

    Raises: ValueError for another structure, which tells kinds, names and numbers of parts, and nothing in them: those
    of the records are private.
    """
    if isinstance(wanted, dict):
        names = sorted(wanted)
        if not isinstance(given, dict) or given.keys() != wanted.keys():
            raise ValueError(f"expected a dict of {names}, received {_kind(given)}.")
        for name in names:
            yield from _paired(given[name], wanted[name])
    elif isinstance(wanted, tuple | list):
        if not isinstance(given, tuple | list) or len(given) != len(wanted):
            raise ValueError(f"expected a list or tuple of {len(wanted)}, received {_kind(given)}.")
        for part, one in zip(given, wanted, strict=True):
            yield from _paired(part, one)
    else:
        yield given, wanted


def _kind(given: Any) -> str:
    if isinstance(given, dict):
        return f"a dict of {sorted(map(str, given))}"
    return f"a {type(given).__name__}{f' of {len(given)}' if isinstance(given, tuple | list) else ''}"


def _as_rows(given: Any, wanted: Any) -> Any:
    """A tensor of the type and of the row shape of `wanted`. Raises ValueError where it has another shape."""
    if wanted is None:
        return None
    try:
        rows = tf.convert_to_tensor(given)
    except (TypeError, ValueError):  # its text holds the values
        raise ValueError(f"expected an array, received {_kind(given)} that is none.") from None
    if (rows.dtype == tf.string) != (wanted.dtype == tf.string):
        raise ValueError(f"expected {wanted.dtype.name}, received {rows.dtype.name}.")
    rows = tf.cast(rows, wanted.dtype)
    if rows.shape.rank != wanted.shape.rank or rows.shape[1:] != wanted.shape[1:]:
        raise ValueError(f"expected shape {('rows', *wanted.shape[1:])}, received {tuple(rows.shape)}.")
    return rows
