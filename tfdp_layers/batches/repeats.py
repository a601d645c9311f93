"""Pipelines and sources that give their records again: each time it would be another record, of another person."""

from collections.abc import Callable, Hashable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.people import People
from tfdp_layers.accounting.wording import AS_SO_MANY
from tfdp_layers.batches.contents import contents_of
from tfdp_layers.batches.steps import READERS, below, identity, is_grain, kind, number
from tfdp_layers.caller import warn

__all__ = ["ENDLESS", "is_one_thing", "keys_of", "refuse_repeated", "repeats", "rounds", "shared_of", "warn_of_rounds"]

ENDLESS = 1 << 48
"""No source holds so many records: Grain gives sys.maxsize for a data set that goes round for ever."""

_PARTS = ("Take", "Skip", "Shard", "Slice", "Filter", "Window", "Unique", "IgnoreErrors")
_CHANGING = ("Map", "Interleave", "Scan", "Zip")
"""In the names of data sets that give a part of the records, and of those that change them."""
_COUNTING = ("Range", "Counter", "Variant")
"""In the names of data sets that count: `enumerate` pairs records with one, which it wraps."""


def repeats(source: Any) -> bool:
    """Whether a tf.data pipeline, or a data set of Grain, is seen to give records more than once.

    What a zip pairs with the records, a label for all of them say, may be repeated; all that it pairs may not, but for
    one thing that is paired with a count that ends, as Keras' `timeseries_dataset_from_array` pairs the series with the
    numbers of its windows. Seen are repeats in the functions of `flat_map` and `interleave`, too, and a pipeline behind
    itself, once as it is; not what functions do besides, copies that they make of a record say.
    """
    if isinstance(source, tf.data.Dataset):
        return _pipeline_repeats(source) or _comes_twice(source)
    return is_grain(source) and (_grain_repeats(source) or _comes_twice(source))


def _grain_repeats(source: Any) -> bool:
    return kind(source) == "Repeat" or any(map(_grain_repeats, below(source)))


def _pipeline_repeats(dataset: tf.data.Dataset) -> bool:
    name, inputs = type(dataset).__name__, list(dataset._inputs())
    if "Zip" in name:  # of enumerate, too, where one of them counts
        counts = [one for one in inputs if any(kind in type(one).__name__ for kind in _COUNTING)]
        paired = [one for one in inputs if one not in counts]
        ends = any(0 <= int(tf.data.experimental.cardinality(one)) < ENDLESS for one in counts)
        paired = [one for one in paired if not (ends and is_one_thing(one))]
        return bool(paired) and all(map(_pipeline_repeats, paired))
    if "DirectedInterleave" in name:  # of sample_from_datasets: the first one says whose turn it is
        inputs = inputs[1:]
    count = tf.get_static_value(getattr(dataset, "_count", None)) if "Repeat" in name else 1
    return count != 1 or _function_repeats(dataset) or any(map(_pipeline_repeats, inputs))


def _function_repeats(dataset: tf.data.Dataset) -> bool:
    """Whether the function that makes data sets of elements, of `flat_map` or `interleave`, repeats them."""
    function = getattr(getattr(dataset, "_map_func", None), "function", None)
    if function is None or not any(kind in type(dataset).__name__ for kind in ("FlatMap", "Interleave")):
        return False
    repeats_in = [one for one in function.graph.get_operations() if one.type == "RepeatDataset"]
    return any(tf.get_static_value(one.inputs[1]) != 1 for one in repeats_in)


def _comes_twice(dataset: Any) -> bool:
    """Whether a pipeline, of Grain too, goes on behind itself, or takes turns with itself: as it is, or changed once.

    Where a part of it is taken on the way, by `take`, `skip`, `shard` or a filter, the two may be two parts; and where
    it is changed on both ways, each may take other people's records out of its elements.
    """
    return _held_by(dataset)[1]


def _held_by(dataset: Any) -> tuple[dict[Hashable, bool], bool]:
    """Of which pipelines, by `identity`, one gives all records, and whether as they are; whether some come twice."""
    name = kind(dataset)
    parts = [_held_by(one) for one in below(dataset)]
    held: dict[Hashable, bool] = {}
    twice = any(found for _, found in parts)
    for one, _ in parts if not any(part in name for part in _PARTS) else ():
        # What a zip pairs may come from one: then it stands beside itself, in one record.
        twice |= "Zip" not in name and any((mine and key in held) or held.get(key, False) for key, mine in one.items())
        held |= {key: mine or held.get(key, False) for key, mine in one.items()}
    if any(one in name for one in _CHANGING) and "Directed" not in name:
        held = dict.fromkeys(held, False)
    return held | dict.fromkeys(keys_of(dataset), True), twice


def keys_of(dataset: Any) -> set[Hashable]:
    """What two steps share that give the same records: sources of the same arrays or files, equal cuts."""
    if below(dataset) and not hasattr(dataset, "_filenames"):
        count = number(dataset, "_count") if kind(dataset) in ("Take", "Skip") else None
        cut_alike = () if count is None else ((kind(dataset), identity(below(dataset)[0]), int(count)),)
        return {identity(dataset), *cut_alike}
    own, *others = contents_of(dataset)
    files = {one for one in others if isinstance(one, tuple) and one[0] == "file"}
    return {own, *files, *([tuple(others)] if others and not files else [])}


def is_one_thing(dataset: tf.data.Dataset) -> bool:
    """Whether a pipeline repeats a single element, of `from_tensors`."""
    inputs = list(dataset._inputs())
    return "Repeat" in type(dataset).__name__ and [type(one).__name__.strip("_") for one in inputs] == ["TensorDataset"]


def shared_of(step: Any) -> list[tf.Tensor | None]:
    """Of each part of the elements that a function gets the array that is given with all of them, as one element."""
    while len(below(step)) == 1 and (kind(step) != "Zip"):
        step = below(step)[0]
        if kind(step) in (*READERS, "Map", "ParallelMap", "Batch", "Window", "Scan"):
            return []
    found: list[tf.Tensor | None] = []
    for branch in below(step):
        parts = len(tf.nest.flatten(branch.element_spec))
        found += below(branch)[0]._tensors if is_one_thing(branch) else [None] * parts
    return found


def is_one_number(dataset: tf.data.Dataset) -> bool:
    """Whether it repeats a single number: an array that it repeats may hold all records."""
    sizes = [
        getattr(one, "shape", tf.TensorShape(None)).num_elements() for one in tf.nest.flatten(dataset.element_spec)
    ]
    return is_one_thing(dataset) and sizes == [1]


def refuse_repeated(repeated: bool, unit: str, by: str = "") -> None:
    """Raises ValueError for records that come several times, where a record is what is protected.

    Args:
        by: the class of a data set that the code of a source reads, where that one repeats.
    """
    if repeated and unit == "record":
        public = (
            f" Seen is a {by}, which the code of the source holds. If that gives public data beside the records, let"
            " the code hold what it gives, list(data_set[:n]) say, in its place."
        )
        raise ValueError(
            "These records come from a pipeline that repeats them (.repeat, also in flat_map), or goes on behind itself"
            " (.concatenate, changed or not): whoever is in it k times is k records, and would be protected as one, for"
            " about a kth of what it costs. Leave .repeat out: each step draws afresh, for as many epochs as you like."
            " For random changes of a record give views=k, to let some count more sample weights; or say whose records"
            f" they are: unit_ids.{public if by else ''}"
        )


_MOST_ROUNDS, _PRIMES = 64, (2, 3, 5, 7, 11, 13, 17, 19)
_PLACES, _DIFFERENT = 8, 6


def warn_of_rounds(records: int, rows: list[Callable[[int], Any]], people: People | None = None) -> bool:
    """Warns of records, of which all are never looked at, that seem to come several times: see `rounds`.

    Returns whether it did.

    Args:
        rows: ways to look at a record, each as `row` of `rounds`; none where all are looked at elsewhere.
        people: whose the records are; None where a record is what is protected.
    """
    times = max((rounds(records, row, people) for row in rows), default=1)
    if times > 1:
        warn(
            f"The {records:,} records seem to be {records // times:,}, each {times} times or more: at all places that"
            f" were looked at the same ones come again. Who is in one of them is in all, and {AS_SO_MANY} Give each"
            " record once, for as many epochs as you like; random changes of a record are views=; and unit_ids= says"
            " whose they are, by one id for all records of a person."
        )
    return times > 1


def rounds(records: int, row: Callable[[int], Any], people: People | None = None) -> int:
    """How often each of these records seems to come, in rounds or one behind the other; 1 where nothing shows that.

    Looks at a record for each prime up to 19 that divides them, and at more where one comes again: at 8 places, which
    must differ.

    Args:
        row: gives a record, by its index, in parts that can be compared.
        people: whose they are; then it counts what comes again as somebody else's.
    """
    known: dict[int, list[np.ndarray]] = {}

    def same(a: int, b: int, apart: bool = False) -> bool:
        if apart and people is not None and not people.strangers(a, b):
            return False
        for place in (a, b):
            if place not in known:
                known[place] = [np.asarray(part) for part in keras.tree.flatten(row(place))]
        return len(known[a]) == len(known[b]) and all(map(np.array_equal, known[a], known[b]))

    def again(starts: list[int], later: int) -> bool:
        if len(starts) < _PLACES or not all(same(start, start + later, apart=True) for start in starts):
            return False
        return sum(not any(same(a, b) for b in starts[:n]) for n, a in enumerate(starts)) >= _DIFFERENT

    def in_rounds(times: int) -> bool:
        each = records // times
        return again(np.unique(np.linspace(0, each - 1, _PLACES).astype(int)).tolist(), each)

    def in_turn(times: int) -> bool:
        firsts = np.unique(np.linspace(0, records // times - 1, _PLACES).astype(int))
        return again((times * firsts).tolist(), times - 1)

    ways = [times for times in range(min(_MOST_ROUNDS, records // _PLACES), 1, -1) if records % times == 0]
    for lie in (in_rounds, in_turn):
        if any(lie(times) for times in ways if times in _PRIMES):  # what comes 12 times comes twice
            return next(filter(lie, ways))
    return 1
