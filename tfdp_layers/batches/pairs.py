"""Whether an input of several holds the same rows in many records, as pairs do: one person is in all of these."""

from collections.abc import Sequence

import numpy as np

from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.repeats import repeated
from tfdp_layers.accounting.sketch import Sketch, hashes_of, sketch_of
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.clocks import is_clock
from tfdp_layers.batches.stacked import comes_as_target, parts_come_again
from tfdp_layers.caller import warn

__all__ = ["warn_of_pairs"]

_COLUMNS = 4
"""Inputs of fewer numbers are ids, flags and the like, which many share."""


def warn_of_pairs(
    *samples: Sequence[np.ndarray],
    labels: Sequence[np.ndarray] = (),
    people: People | None = None,
    within: bool = True,
) -> None:
    """Warns where rows of an input come several times in it, in another input or in the targets as well.

    Parts of one input that holds several in one array are rows, too: see `parts_come_again`. Left out are inputs of
    fewer than 4 numbers a record, those that tell the time (`is_clock`), and few rows that many records share about
    equally often, see `repeated`. Not noticed: what comes again beside other columns of one input, or changed.

    Args:
        samples: of records, each the arrays of the inputs, (records, ...); of equal records of one input alone nothing
            is said, which `warn_of_repeated` looks at.
        labels: the arrays of the targets, of the same records: those of the shape of an input are looked at.
        people: whose the records are; then rows count that come again in a record with no owner of the first one.
        within: whether parts of an input, and targets, are looked at.
    """
    if not any(_come_again(one, people) or (within and _within(one, labels, people)) for one in samples):
        return
    if people is None:
        where, fix = "other records", "Then say whose the records are, fit(..., unit_ids=...); where a pair is of two"
        fix += " people owners=, of records that tfdp.preprocessing.limit_owners keeps; or use each of them once."
    else:
        where = "records of other people, by the ids that are given"
        fix = "Then give all whom a record is of: owners=[[case, control], ...], of records that"
        fix += " tfdp.preprocessing.limit_owners keeps; or use each of them once."
    warn(
        f"Rows of one input come again in {where}, as images do that are paired with several others, or in several bags"
        " (also in one stacked array, or as inputs and targets), or what is known of a person beside each visit. Where"
        " such rows are public (products, questions), or tell of what many people share (a district, a treatment),"
        f" nothing is lost. But a person who is in all of these records {AS_SO_MANY} {fix}"
    )


def _within(arrays: Sequence[np.ndarray], labels: Sequence[np.ndarray], people: People | None) -> bool:
    """Whether parts of an input come again, or it comes again as a target."""
    if any(parts_come_again(array, people) for array in arrays):
        return True
    return any(comes_as_target(array, target, people) for array in arrays for target in labels)


def _come_again(arrays: Sequence[np.ndarray], people: People | None) -> bool:
    if len(arrays) < 2:
        return False
    wide = [
        array
        for array in arrays
        if len(array) and array.size >= _COLUMNS * len(array) and not is_clock(array, still=False)
    ]
    sketches = [sketch_of([array], people) for array in wide]
    again = any(repeated(one) is not None for one in sketches)
    for place, one in enumerate(wide):  # beside another one: what is in one record twice is in one record
        others = [k for k in range(place) if wide[k].shape != one.shape or not np.array_equal(wide[k], one)]
        again = again or any(_share((one, wide[k]), (sketches[place], sketches[k]), people) for k in others)
    return again


def _share(arrays: tuple[np.ndarray, np.ndarray], sketches: tuple[Sketch, Sketch], people: People | None) -> bool:
    """Whether two inputs have rows in common by no chance, and not within each person's own records."""
    one, other = sketches
    if not one.shares(other) or people is None:
        return one.shares(other)
    mine, theirs = (hashes_of([array]) for array in arrays)
    own = np.setdiff1d(np.intersect1d(mine, theirs), mine[people.met(mine, theirs)])
    return one.shares(other.without(own))
