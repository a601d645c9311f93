"""Records that are padded to the longest of them: then what one holds decides how long all others are."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.caller import warn

__all__ = ["pads_to_longest", "warn_of_padding"]

_MOST_BYTES = 1 << 30
_PADDED = 0.5
"""Of the records, those that end (or begin) in what padding looks like, at least."""
_FEWEST, _LENGTHS, _STEPS = 8, 3, 8
"""Records, different lengths of them, and steps of texts."""
_ROWS, _NESTED = 1 << 12, 0.95
"""Records of which all steps are looked at, and the share of them that hold no padding within."""


def pads_to_longest(dataset: Any, graphs: Iterable[Any]) -> bool:
    """Whether a data set, or a function of it, makes batches of records of several lengths as long as the longest.

    Args:
        graphs: of its functions.
    """
    shapes: list[Any] = tf.nest.flatten(getattr(dataset, "_padded_shapes", None) or [])
    known = [tf.get_static_value(one) for one in shapes]
    for operation in (one for graph in graphs for one in graph.get_operations()):
        if operation.type.startswith("PaddedBatchDataset"):  # as in bucket_by_sequence_length
            shapes = [one for one in operation.inputs if one.dtype == tf.int64 and one.shape.rank == 1]
            known += map(tf.get_static_value, shapes)
        elif operation.type == "RaggedTensorToTensor":  # its first axis is that of the records
            shape = tf.get_static_value(operation.inputs[0])
            known.append(shape if shape is None or np.ndim(shape) == 0 else shape[1:])
    return any(one is None or bool(np.any(np.asarray(one) < 0)) for one in known)


def warn_of_padding(inputs: Sequence[np.ndarray], positions: np.ndarray | None = None) -> None:
    """Warns of series and texts that are padded to the longest, which one record, or person, alone has.

    So `keras.utils.pad_sequences` pads without `maxlen`. Looked at are whole numbers (records, steps), and what has a
    further axis; most records must end, or begin, in one and the same number, and one person alone in another.

    Not noticed: a longest length that several people have, padding that is not one number, and arrays above 1 GiB.

    Args:
        inputs: (records, ...) each.
        positions: (records,) whose each record is, if that is known.
    """
    for x in inputs:
        if x.ndim not in (2, 3) or (x.ndim == 2 and x.dtype.kind not in "iu") or x.dtype.kind not in "biuf":
            continue
        images = x.ndim == 3 and x.shape[1] == x.shape[2]
        few = x.shape[1] < (_STEPS if x.ndim == 2 else 2)  # a table of whole numbers is no text
        if images or few or len(x) < _FEWEST or x.nbytes > _MOST_BYTES:
            continue
        for inward, name in ((x[:, ::-1], "end"), (x, "begin")):
            if _one_alone(inward.reshape(len(x), x.shape[1], -1), positions):
                _warn(x.shape[1], name)
                return


def _one_alone(steps: np.ndarray, positions: np.ndarray | None) -> bool:
    """Whether one record, or person, alone has something else than padding in the first of these steps.

    Args:
        steps: (records, steps, numbers), from the end inwards: what is padded is so from some step on, and outwards.
    """
    some = steps[:: max(1, len(steps) // _ROWS), 0]
    values, counts = np.unique(some, return_counts=True)
    if not len(values) or counts.max() < _PADDED * some.size:
        return False
    padding = values[np.argmax(counts)]
    longest = np.flatnonzero(np.any(steps[:, 0] != padding, axis=1))
    people = longest if positions is None else np.asarray(positions)[longest]
    if not len(longest) or np.any(people != people[0]):
        return False
    held = np.any(steps[:_ROWS] != padding, axis=2)
    inwards = ~np.any(held[:, :-1] & ~held[:, 1:], axis=1)
    return bool(np.mean(inwards) >= _NESTED and len(np.unique(held.sum(1))) >= _LENGTHS)


def _warn(steps: int, end: str) -> None:
    warn(
        f"Of these records of {steps:,} steps all {end} in the same number but those of one person: they look padded to"
        " the longest, as keras.utils.pad_sequences does without maxlen. Then one person's length decides how much"
        " padding all others get, each of them may add something else to the step without that person, and the"
        " statement does not hold. Pad and cut to a length that is public: pad_sequences(series, maxlen=200). Where"
        " this length was chosen beforehand, or masks keep the model from the padding, nothing is lost."
    )
