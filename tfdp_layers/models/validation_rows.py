"""Whether validation data are private: rows of the training data, or held out of what these come from."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.batches.base import Batches
from tfdp_layers.batches.beginning import arrays_in
from tfdp_layers.batches.records import arrays
from tfdp_layers.batches.written import nodes_of, parts_of
from tfdp_layers.caller import warn
from tfdp_layers.overlap import copies, parts_of_one

__all__ = ["GRID", "arrays_of_records", "consists_of", "warn_of_private_rows"]

_ADVICE = (
    " and validation metrics carry no noise: keep them to yourself, stop and choose nothing by them, or release one"
    " noisy number of them, tfdp.release_metric(...)"
)
_NUMBERS, _CHOOSES = ("Range", "Random"), ("Take", "Skip", "Shard", "Filter", "Window", "Sample", "Choose")
GRID = 0.25
"""Tables whose rows fill more of a grid than this have equal rows that are no copies: see `Sketch`."""


def warn_of_private_rows(batches: Batches, given: Any, what: str = "validation_data") -> None:
    """Warns where most rows of validation data are those of training records, or come from one source with these.

    What is split off the private records is as private as they are, whether it is trained on or not. Seen are equal
    rows (x and y; where y differs, of x alone, unless its columns are a grid, which many people are measured at), parts
    of one array, pipelines that have a data set in common, and pipelines of arrays that hold the training records. Not
    seen are copies of other rows of an array, as `train_test_split` makes, other ways to read one file, and arrays that
    a pipeline changes before they are compared.

    Args:
        given: `validation_data` of `fit`: arrays, (x, y) and weights, or a tf.data pipeline.
        what: they are called.
    """
    mine = arrays_of_records(batches)
    if isinstance(given, tf.data.Dataset):
        _look_at_pipeline(batches, mine, given, what)
    elif mine is not None and (isinstance(given, list | tuple) or hasattr(given, "__array__")):
        with contextlib.suppress(ValueError):  # data that cannot be evaluated: `check_validation` says so
            x, y, _ = keras.utils.unpack_x_y_sample_weight(given)
            theirs = _leaves((arrays("x", x), None if y is None else arrays("y", y)))
            if _hold(mine, theirs):
                _warn_of_copies(what)
            elif parts_of_one(mine[0], theirs[0]):
                _warn_of_parts(what, "are parts of one array. Rows that you split off")


def arrays_of_records(batches: Batches) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """The arrays of the training records' x and y, as these are compared; None of records in no arrays."""
    store = getattr(batches, "beginning", None)
    return None if store is None else _leaves(store.structure[:2])


def consists_of(mine: Any, given: tf.data.Dataset) -> bool:
    """Whether most rows that a pipeline gives are training records, as far as the arrays tell that it begins with.

    Args:
        mine: `arrays_of_records`.
    """
    nodes = list(nodes_of(given))
    chosen = any(part in type(node).__name__ for node in nodes for part in _CHOOSES)
    return not chosen and any(_hold(mine, one) for one in _held_by(nodes))


def _held_by(nodes: Sequence[tf.data.Dataset]) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    return [_leaves(found) for node in nodes if (found := arrays_in(node)) is not None]


def _look_at_pipeline(batches: Batches, mine: Any, given: tf.data.Dataset, what: str) -> None:
    if mine is not None and consists_of(mine, given):
        _warn_of_copies(what)
        return
    nodes = list(nodes_of(given))
    known = {id(one) for one in parts_of(batches)}
    if any(id(node) in known and not any(part in type(node).__name__ for part in _NUMBERS) for node in nodes):
        _warn_of_parts(what, "are made of one tf.data pipeline. Rows that you hold out of")
    elif mine is not None and any(_hold(one, mine) for one in _held_by(nodes)):
        _warn_of_parts(what, "are made of one array, in a tf.data pipeline. Rows that you hold out of")


def _leaves(structure: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arrays of x, and of y: (records, ...) and (records, numbers)."""
    x, y = ([leaf for leaf in keras.tree.flatten(part) if leaf is not None] for part in structure)
    return x, [leaf.reshape(len(leaf), -1) for leaf in y]


def _hold(some: Sequence[list[np.ndarray]], others: Sequence[list[np.ndarray]]) -> bool:
    """Whether most of the other rows are each one of the first."""
    if not copies(some[0], others[0]):
        return False
    (x, y), (_, other) = some, others
    alike = [leaf.shape[1:] for leaf in y] == [leaf.shape[1:] for leaf in other]
    return not y or not alike or copies([*x, *y], [*others[0], *other]) or sketch_of(x).filled < GRID


def _warn_of_copies(what: str) -> None:
    warn(
        f"Most rows of {what} each equal one row of the training data, number by number. A copy of a private"
        f" record is as private as the record,{_ADVICE}; or train without these rows, x[~held_out]. Where these rows"
        " are public, nothing is lost."
    )


def _warn_of_parts(what: str, how: str) -> None:
    warn(
        f"{what} and the training data {how} private ones are as private as those,{_ADVICE}. Where these rows"
        " are public, nothing is lost."
    )
