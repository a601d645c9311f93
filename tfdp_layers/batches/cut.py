"""Batches that a declared pipeline is seen to cut from passes over its records, where other draws are declared."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.fixed import followed
from tfdp_layers.batches.overlaps import may_overlap, warn_of_overlaps
from tfdp_layers.batches.pieces import elements_of
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.steps import below, graphs_of, is_count, kind, kind_of, number, operations, steps
from tfdp_layers.caller import warn
from tfdp_layers.proof.called import graph_named
from tfdp_layers.proof.outside import called_by
from tfdp_layers.proof.values import UnknownError
from tfdp_layers.sampling import FixedSize, Sampling

__all__ = ["warn_of_cut"]

_BATCHES = ("Batch", "ParallelBatch", "PaddedBatch", "Rebatch")
_MAPS, _FILTERS = ("Map", "ParallelMap"), ("Filter", "ParallelFilter")
_KEEPING = (
    *_MAPS,
    *("Prefetch", "Options", "AssertCardinality", "CopyToDevice", "DatasetV1Adapter"),
    *("DenseToRagged", "ParseExample", "Restructured"),
)
"""Steps that give an element for each one, in their order, and keep none of them."""
_CUTS = ("Take", "Skip", "Shard")
_WHOLE = (*_KEEPING, *_CUTS, *_FILTERS, "Cache", "Shuffle", "Repeat", "ShuffleAndRepeat", "IgnoreErrors", "Snapshot")
"""Steps that hand on each element as a whole, or leave it out."""
_TOGETHER = ("Zip", "Concatenate", "DirectedInterleave")
_READERS = ("TFRecord", "TextLine", "FixedLengthRecord", "Csv", "CSV", "Sql", "LMDB", "Load", "MatchingFiles")
_PLAIN = (
    *(*_KEEPING, *_CUTS, *_READERS, *_BATCHES, "Cache", "Shuffle", "Repeat", "ShuffleAndRepeat"),
    *("Tensor", "TensorSlice", "Range", "Counter", "Zip", "Concatenate", "Window", "Unbatch", "Snapshot", "Unique"),
    "IgnoreErrors",
)
"""Steps that draw nothing: each pass over them gives each record at most once."""
_FLAT = ("FlatMap", "Interleave", "ParallelInterleave")
_APART = ("Unbatch", "Rebatch", *_FLAT)
"""Steps behind which the rows of an element are records of their own."""
_SHUFFLES = ("Shuffle", "PartitionedCall", "StatefulPartitionedCall")
"""Steps in a function that shuffle, or may: a function that it calls."""
_STATES = ("SeedGenerator", "MemoryCache", "Assert", "PartitionedCall", "If", "While", "Case")
"""Ends of the types of operations that keep a state, and draw nothing but the order of a shuffle."""
_BY_TURNS = "DirectedInterleave"
_OF_PASSES = ("partition", "cyclic")

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options", "Cache", "AssertCardinality")
"""Steps that give an element for each one, in their order."""
_ORDERING = ("Prefetch", "Options", "Repeat", "AssertCardinality", "Shuffle", "Take", "Skip")
"""Steps behind which batches are the same ones."""


def warn_of_cut(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> None:
    """Warns where batches are seen not to be what is declared, once, of the first that holds:

    - epochs, and the pipeline repeats its records, in whichever way `repeats` sees it, or may (`overlaps`); not where
      an epoch takes the first round alone;
    - `.batch` cuts passes over records from arrays and files, shuffled or not, or what is taken by turns from several
      such, into batches; flat maps and interleaves that only open files, or take windows and rows apart, are such
      passes, and so are filters without random numbers; not where generators, random numbers that choose rows, or data
      sets that a function holds decide, which may draw;
    - a batch is the beginning of a new shuffle of all records, and something else than that, `FixedSize`, is declared;
    - other draws, and `.cache` replays the batches in each pass.

    Nothing is said of batches of all records, which all draws of so many are.
    """
    of_passes = sampling.kind in _OF_PASSES
    if of_passes and repeats(dataset) and not _is_first_round(dataset, sampling, examples):
        warn(
            f"This pipeline is declared as {sampling}, with each record once in an epoch, and gives each several times"
            " (.repeat, or behind itself): a person in it k times costs more than is stated. Leave .repeat out, and"
            " declare as many examples as there are records."
        )
        return
    if of_passes and may_overlap(dataset):
        warn_of_overlaps(True, "record")
        return
    size = _cut_to(dataset, examples)
    if size and size != sampling.batch_size and of_passes:
        warn(
            f"This pipeline is declared as {sampling}, and its batches are of .batch({size}): what is stated is"
            f" for others. Declare {type(sampling).__name__}({size}), or the batches' true size."
        )
    if of_passes or (sampling.batch_size >= examples and size in (None, sampling.batch_size)):
        return
    if size is not None:
        afresh = _draws_afresh(dataset, size, examples)
        if not (afresh and isinstance(sampling, FixedSize)):
            _warn_of_no_draw(sampling, size, afresh, any(kind(one) == _BY_TURNS for one in steps(dataset)))
    elif _is_replayed(dataset):
        warn(
            f"This pipeline is declared as {sampling}, which draws every step afresh, and .cache keeps its batches:"
            " those of the first pass come again in each further one, which costs more than is stated. Put .cache"
            " before what draws, or leave it out. Where training ends before the first pass does, nothing is lost."
        )


def _warn_of_no_draw(sampling: Sampling, size: int, afresh: bool, by_turns: bool) -> None:
    name = f".batch({size})" if size else "what makes its batches"
    how, or_else = (
        "cuts passes over its records into its batches: each record is in exactly one batch of a pass",
        f"or declare Partition({size or ''})".replace("()", ""),
    )
    if afresh:
        how, or_else = f"has the first {size} records of a new shuffle in each batch", f"or declare FixedSize({size})"
    elif by_turns:
        how, or_else = (
            "takes records by turns from several data sets (.sample_from_datasets, .choose_from_datasets): those of a"
            " small one come more often than others",
            "let rare classes count more by weights",
        )
    warn(
        f"This pipeline is declared as {sampling}, and {name} {how}, which is no such draw, and costs more than"
        f" is stated. Give the single records to tfdp.records, and fit draws them; {or_else}."
    )


def _cut_to(dataset: tf.data.Dataset, examples: int) -> int | None:
    """The size of the batches into which `.batch` cuts passes over records, 0 of several; None where it is not seen.

    Looked for are the first steps that make batches, in all branches of what is put together behind them.
    """
    batches: list[tuple[Any, list[Any]]] = []
    left: list[tuple[Any, list[Any]]] = [(dataset, [])]
    while left:
        step, changing = left.pop()
        what = kind(step)
        if what in _WHOLE:
            left.append((below(step)[0], [*changing, step] if what in _MAPS else changing))
        elif what in _TOGETHER:
            left += [(one, changing) for one in below(step) if not (what == "Zip" and _counts(one))]
        else:
            batches.append((step, changing))
    sizes = {_size(step) for step, _ in batches}
    found = sizes.pop() if len(sizes) == 1 else None if None in sizes else 0
    if found is None or any(_draws_of_all(one, found, examples) for _, changing in batches for one in changing):
        return None  # what draws rows of all records is a function behind them
    apart = (one for step, _ in batches for one in steps(step) if kind(one) in _APART)
    drawn = any(_draws_rows(one) is not False for above in apart for one in steps(above) if kind(one) in _MAPS)
    return found if not drawn and all(map(_gives_passes, steps(dataset))) else None


def _draws_of_all(step: Any, size: int, examples: int) -> bool:
    return (not size or size >= examples) and _draws_rows(step, size or None) is True


def _counts(step: Any) -> bool:
    """Whether it gives the numbers of elements, those of .enumerate say."""
    return is_count(step) or (kind(step) == "Variant" and step.element_spec == tf.TensorSpec((), tf.int64))


def _draws_rows(step: Any, rows: int | None = None) -> bool | None:
    """Whether a map with chance gives other rows than it gets, as a draw of some does; None where that is not known.

    Args:
        rows: those that it gets, where its type does not say.
    """
    if all(_only_reads(one, batched=True) or _by_rows(one) for one in graphs_of(step)):
        return False
    given, made = _rows(below(step)[0].element_spec), _rows(step.element_spec)
    given = [rows if one is None else one for one in given]
    return None if None in (*given, *made) or not made else set(made).isdisjoint(given)


def _by_rows(graph: Any) -> bool:
    """Whether a function is proved to make each row of its own row alone, random changes included."""
    with contextlib.suppress(Exception):  # of a graph that TensorFlow cannot copy, say
        return followed(graph, lambda one: one.outputs).proved
    return False


def _rows(spec: Any) -> list[int | None]:
    """The rows of each part of an element, but for single numbers; None where they are not known."""
    shapes = [getattr(one, "shape", None) for one in tf.nest.flatten(spec)]
    known = [one if isinstance(one, tf.TensorShape) else tf.TensorShape(None) for one in shapes]
    return [None if one.rank is None else one[0] for one in known if one.rank != 0]


def _size(step: Any) -> int | None:
    """The size of the batches that a step makes of elements, 0 of groups of several sizes; None of what makes none."""
    if kind(step) in _FLAT:
        size = elements_of(step)
        return None if size == 1 else size
    if kind(step) == "GroupByWindow":
        made = [one for name, one in operations(step) if kind_of(name) in _BATCHES]
        known = [None if one is None else number(one, "_batch_size") for one in made]
        return None if not known else int(known[0]) if len(known) == 1 and known[0] is not None else 0
    known = number(step, "_batch_sizes" if kind(step) == "Rebatch" else "_batch_size")
    sizes = set(np.ravel(known).tolist()) if kind(step) in _BATCHES and known is not None else set()
    return int(sizes.pop()) if len(sizes) == 1 else None


def _draws_afresh(dataset: tf.data.Dataset, size: int, examples: int, first: bool = False) -> bool:
    """Whether each batch is what a round takes first of all records, which are shuffled in each round, and not kept.

    Args:
        first: whether a round takes a single batch, by steps above.
    """
    batch: Any = dataset
    while kind(batch) in (*_KEEPING, "Shuffle", "Repeat", "Take", "Skip", "IgnoreErrors"):
        first = first or (kind(batch) == "Take" and number(batch, "_count") == 1)
        batch = below(batch)[0]
    if kind(batch) in ("Zip", "Concatenate"):
        return all(_draws_afresh(one, size, examples, first) for one in below(batch) if not _counts(one))
    if kind(batch) not in _BATCHES:
        return False
    taken = _through(_through(below(batch)[0], (*_KEEPING, "Repeat")), (*_KEEPING, "Shuffle"))
    of_size = kind(taken) == "Take" and number(taken, "_count") == size
    if not (of_size or first):
        return False
    step = below(taken if of_size else batch)[0]
    while kind(step) in (*_KEEPING, *_FILTERS, "Shuffle", "Repeat"):
        if kind(step) == "Shuffle" and _shuffles_all(step, examples):
            return True
        step = below(step)[0]
    return False


def _through(step: Any, kinds: Collection[str]) -> Any:
    """The first step, from this one down, that is none of these."""
    while kind(step) in kinds:
        step = below(step)[0]
    return step


def _shuffles_all(step: Any, examples: int) -> bool:
    """Whether each record may come first, in each round anew."""
    buffer = number(step, "_buffer_size")
    all_of_them = buffer is not None and (buffer >= examples or buffer == tf.data.UNKNOWN_CARDINALITY)
    return bool(all_of_them and step._reshuffle_each_iteration is not False)


def _gives_passes(step: Any) -> bool:
    """Whether it gives each of its elements at most once, and chance has no say in which; of maps `_draws_rows`."""
    what = kind(step)
    if what in _FILTERS:
        return all(map(_only_reads, graphs_of(step)))
    if what in (*_FLAT, "GroupByWindow"):
        graphs = graphs_of(step)
        held = any(inner.dtype == tf.variant for graph in graphs for _, inner in graph.captures)
        return not held and bool(graphs) and all(_only_reads(one, _is_batched(step)) for one in graphs)
    return _counts(step) or what in (*_PLAIN, _BY_TURNS)


def _is_batched(step: Any) -> bool:
    return any(kind(one) in (*_BATCHES, "Window") for one in steps(step))


def _only_reads(graph: Any, batched: bool = False) -> bool:
    """Whether a function opens files, or data sets of what it is given, and nothing in it draws or takes by chance.

    Args:
        batched: whether its arguments may hold several records: then a map may draw some of them.
    """
    for operation in graph.get_operations():
        what = kind(operation)
        if "Dataset" in operation.type:
            chosen = what in _CUTS and any(kind(one) in _SHUFFLES for one in steps(operation))
            if chosen or what not in (*_PLAIN, *_FILTERS, *_FLAT):
                return False
            if what in _MAPS and not batched and not _is_batched(operation):
                continue  # changes each record by itself, as it likes
        elif _is_chance(operation):
            return False
        try:
            if not all(_only_reads(graph_named(graph, name), batched) for name in called_by(operation)):
                return False
        except UnknownError:
            return False
    return True


def _is_chance(operation: Any) -> bool:
    """Whether an operation gives random numbers, also of a known seed, or may: Python code."""
    if operation.op_def is None or "Random" in operation.type:
        return True
    of_state = operation.op_def.is_stateful or operation.type.startswith("Stateless")
    return bool(of_state and not operation.type.endswith(_STATES))


def _is_first_round(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> bool:
    """Whether an epoch ends before a single `.repeat` of the records, or of batches of them, begins again.

    An epoch has as many batches as these records fill: `declared` sees to it. Steps between the repeat and the end
    that leave elements out, or move them across rounds, are taken for a further round.
    """
    step: Any = dataset
    taken = -(-examples // sampling.batch_size)
    while kind(step) in (*_ONE_TO_ONE, *_BATCHES, "Take"):
        size = number(step, "_batch_size") if kind(step) in _BATCHES else 1
        most = number(step, "_count") if kind(step) == "Take" else None
        if size is None:
            return False
        taken = taken * int(size) if most is None or most < 0 else min(taken, int(most))
        step = below(step)[0]
    return kind(step) == "Repeat" and not repeats(below(step)[0]) and int(below(step)[0].cardinality()) >= taken


def _is_replayed(dataset: tf.data.Dataset) -> bool:
    """Whether batches, and no endless stream of them, are kept by `.cache`, and nothing behind it draws others."""
    step: Any = dataset
    while kind(step) in _ORDERING or (kind(step) in ("Map", "ParallelMap") and not _draws(step)):
        step = below(step)[0]
    return kind(step) == "Cache" and int(step.cardinality()) != tf.data.INFINITE_CARDINALITY


def _draws(step: Any) -> bool:
    """Whether a function of a step may give something else at each call: random numbers, Python code."""
    return any(
        one.op_def is None or one.op_def.is_stateful for graph in graphs_of(step) for one in graph.get_operations()
    )
