"""Pipelines and sources that give their records again: each time it would be another record, of another person."""

from typing import Any

import tensorflow as tf

__all__ = ["ENDLESS", "refuse_repeated", "repeats"]

ENDLESS = 1 << 48
"""No source holds so many records: Grain gives sys.maxsize for a data set that goes round for ever."""

_COUNTING = ("Range", "Counter", "Variant")
"""In the names of data sets that count: `enumerate` pairs records with one, which it wraps."""


def repeats(source: Any) -> bool:
    """Whether a tf.data pipeline, or a data set of Grain, is seen to give records more than once.

    What a zip pairs with the records, a label for all of them say, may be repeated; all that it pairs may not. What
    functions do, as in `flat_map`, is not seen, nor is a pipeline that goes on from another one twice.
    """
    if isinstance(source, tf.data.Dataset):
        return _pipeline_repeats(source)
    if type(source).__module__.partition(".")[0] != "grain":
        return False
    again = type(source).__name__.startswith("Repeat")
    return again or any(repeats(one) for one in getattr(source, "_parents", ()))


def _pipeline_repeats(dataset: tf.data.Dataset) -> bool:
    name, inputs = type(dataset).__name__, list(dataset._inputs())
    if "Zip" in name:  # of enumerate, too, where one of them counts
        paired = [one for one in inputs if not any(kind in type(one).__name__ for kind in _COUNTING)]
        return bool(paired) and all(map(_pipeline_repeats, paired))
    if "DirectedInterleave" in name:  # of sample_from_datasets: the first one says whose turn it is
        inputs = inputs[1:]
    count = tf.get_static_value(getattr(dataset, "_count", None)) if "Repeat" in name else 1
    return count != 1 or any(map(_pipeline_repeats, inputs))


def refuse_repeated(repeated: bool, unit: str) -> None:
    """Raises ValueError for records that come several times, where a record is what is protected."""
    if repeated and unit == "record":
        raise ValueError(
            "These records come from a pipeline that repeats them (.repeat): whoever is in it k times is k records, and"
            " would be protected as one, for about a kth of what it costs. Leave .repeat out: each step draws afresh,"
            " for as many epochs as you like. For random changes of a record give views=k, to let some count more"
            " sample weights; or say whose records they are: unit_ids."
        )
