"""Items of sources that are no records: what filters leave out, lists of arrays, streams without an index."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from tfdp_layers.batches.repeats import ENDLESS
from tfdp_layers.batches.steps import is_grain, kind, steps
from tfdp_layers.instances import refuse_class

__all__ = [
    "is_filtered",
    "is_source",
    "refuse_length",
    "refuse_no_source",
    "refuse_none",
    "refuse_stream",
    "refuse_unpacked",
]

_FILES = ("Parquet", "TFRecord")
"""Beginnings of the names of Grain's data sets that read files one behind the other, and have no MapDataset below."""
_FROM_FILES = (
    "The files that it reads have none either. Give TFRecord files as tfdp.records(tf.data.TFRecordDataset(files)"
    ".map(parse)), Parquet files as arrays (pandas.read_parquet), or a source with an index (ArrayRecord)"
)
_FROM_INDEXES = (
    "Give what it reads: the MapDataset before .to_iter_dataset(), or of a DataLoader its data source,"
    " tfdp.records(source, transform)"
)


def is_filtered(source: Any) -> bool:
    """Whether this is a Grain data set with a filter: it keeps its length, and items that are dropped are None."""
    return is_grain(source) and any(kind(step) == "Filter" for step in steps(source))


def refuse_length(records: int) -> None:
    """Raises ValueError for a source without records, and one without an end."""
    if not 0 < records < ENDLESS:
        endless = "endless. Leave out .repeat(): records are drawn by index, for as many epochs as you like."
        empty = "empty, or its filter drops all, so nothing can be drawn from it. Give at least one record."
        raise ValueError(f"The source is {endless if records else empty}")


def refuse_none(record: Any, index: int) -> None:
    """Raises ValueError for None in the place of a record."""
    if record is None:
        raise ValueError(
            f"Record {index} is None, and every index must have a record. Leave out beforehand what is none: find out"
            " once which items are there, kept = [i for i in range(len(source)) if source[i] is not None], and give"
            " tfdp.records(kept, source.__getitem__); whether an item is one must not depend on the others."
        )


def refuse_unpacked(record: Any, index: int) -> None:
    """Raises ValueError for a list of arrays, dicts or lists of several lengths, which would be stacked to one array.

    A list of numbers is let in, as one array, and so are lists of lists that are one.
    """
    if isinstance(record, Mapping | tuple):
        for part in record.values() if isinstance(record, Mapping) else record:
            refuse_unpacked(part, index)
    if not isinstance(record, list) or not record:
        return
    held = any(isinstance(one, Mapping | tuple) or (hasattr(one, "__array__") and np.ndim(one)) for one in record)
    if held or not _is_one_array(record):
        raise ValueError(
            f"Record {index} is, or holds, a list of {len(record)}, {[type(one).__name__ for one in record[:4]]}, and a"
            " list is taken for one array. Parts of a record, x and y say, stand in a tuple: return (x, y), or give"
            " tfdp.records(source, tuple). Rows of several lengths are padded to one, in the transform."
        )


def _is_one_array(record: list[Any]) -> bool:
    try:
        return np.asarray(record).dtype.kind != "O"
    except ValueError:  # rows of several lengths
        return False


def refuse_stream(given: Any) -> None:
    """Raises ValueError for what Grain reads in its own order: it has no index by which records could be drawn."""
    name, grain = type(given).__name__, any(one.__module__.startswith("grain.") for one in type(given).__mro__)
    if grain and hasattr(given, "__iter__") and not hasattr(given, "__array__"):
        files = is_grain(given) and any(kind(step).startswith(_FILES) for step in steps(given))
        what = _FROM_FILES if files else _FROM_INDEXES
        raise ValueError(
            f"{name} of Grain is a stream: it has no index, and records are drawn by their indexes. {what}, without"
            " shuffles and batches; random draws and batches are the library's. A stream that must stay one:"
            " tfdp.declare_sampling (docs/data.md)."
        )


def is_source(x: Any) -> bool:
    """Whether these are records by index, which are neither arrays nor batches."""
    if isinstance(x, list | tuple | Mapping | str | bytes | type | keras.utils.PyDataset) or hasattr(x, "__array__"):
        return False
    return hasattr(x, "__len__") and (hasattr(x, "__getitem__") or hasattr(x, "__getitems__"))


def refuse_no_source(source: Any, workers: Any) -> None:
    """Raises ValueError for what has no records by index, and a number of threads that is none."""
    refuse_class(source, "The source of records")
    if not is_source(source) and not isinstance(source, list):
        if isinstance(source, keras.utils.PyDataset):
            raise ValueError(
                f"{type(source).__name__} is a keras.utils.PyDataset, whose [index] gives a batch, and records are"
                " drawn one by one. Give its arrays to fit as they are; or write a class without that base whose"
                " __getitem__(index) gives one record, (x[index], y[index]), and __len__ their number, and give"
                " fit tfdp.records(TheClass())."
            )
        refuse_stream(source)
        made = ""
        if hasattr(source, "__array__"):
            one_each = getattr(source, "ndim", 1) == 1
            fix = " Where each value is the name of what a transform reads, give tfdp.records(list(values), transform)."
            raise ValueError(
                f"{type(source).__name__} holds values, and is no source of single records: they may be numbers, or"
                f" names of files. Arrays and tables go to fit as they are.{fix if one_each else ''}"
            )
        if callable(source) or hasattr(source, "__next__"):
            made = " A generator becomes one by tf.data.Dataset.from_generator(function, output_signature=...)."
        raise ValueError(
            f"{type(source).__name__} is no source of single records: it needs __len__ and __getitem__(index), or"
            f" to be a tf.data pipeline.{made} Arrays go to fit as they are; a stream of batches to"
            " tfdp.declare_sampling."
        )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int | np.integer) or workers < 0):
        raise ValueError(f"workers is a number of threads, 0 or more. Received: {workers!r}.")
