"""Whether an input of several holds the same rows in many records, as pairs do: one person is in all of these."""

from collections.abc import Sequence

import numpy as np

from tfdp_layers.accounting.repeats import repeated
from tfdp_layers.accounting.sketch import sketch_of
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.clocks import is_clock
from tfdp_layers.caller import warn

__all__ = ["warn_of_pairs"]

_COLUMNS = 4
"""Inputs of fewer numbers are ids, flags and the like, which many share."""


def warn_of_pairs(*samples: Sequence[np.ndarray]) -> None:
    """Warns where rows of an input come several times in it, or in another input as well.

    Left out are inputs of fewer than 4 numbers a record, those that tell the time (`is_clock`), and few rows that many
    records share about equally often, see `repeated`. Not noticed: what comes again beside other columns of one input,
    or changed.

    Args:
        samples: of records, each the arrays of the inputs, (records, ...); of one input alone nothing is said, whose
            records `warn_of_repeated` looks at.
    """
    if any(map(_come_again, samples)):
        warn(
            "Rows of one input come again in other records, as images do that are paired with several others, or what"
            " is known of a person beside each of their visits. Where such rows are public (products, questions), or"
            " tell of what many people share (a district, a treatment), nothing is lost. But a person who is in all of"
            f" these records {AS_SO_MANY} Then say whose the records are, fit(..., unit_ids=...); where a pair is of"
            " two people owners=, of records that tfdp.preprocessing.limit_owners keeps; or use each of them once."
        )


def _come_again(arrays: Sequence[np.ndarray]) -> bool:
    if len(arrays) < 2:
        return False
    wide = [
        array
        for array in arrays
        if len(array) and array.size >= _COLUMNS * len(array) and not is_clock(array, still=False)
    ]
    sketches = [sketch_of([array]) for array in wide]
    again = any(repeated(one) is not None for one in sketches)
    for place, one in enumerate(wide):  # beside another one: what is in one record twice is in one record
        others = [k for k in range(place) if wide[k].shape != one.shape or not np.array_equal(wide[k], one)]
        again = again or any(sketches[place].shares(sketches[k]) for k in others)
    return again
