"""Batches that a declared pipeline is seen to cut from passes over its records, where other draws are declared."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.batches.chance import (
    BATCHES,
    DRAWN,
    FILTERS,
    FLAT,
    KEEPING,
    MAPS,
    PLAIN,
    Chance,
    is_batched,
    only_reads,
)
from tfdp_layers.batches.fixed import followed
from tfdp_layers.batches.overlaps import may_overlap, warn_of_overlaps
from tfdp_layers.batches.pieces import elements_of
from tfdp_layers.batches.repeats import repeats
from tfdp_layers.batches.same import WHOLE, numbers_elements, warn_of_same
from tfdp_layers.batches.steps import below, graphs_of, kind, kind_of, number, operations, steps
from tfdp_layers.caller import warn
from tfdp_layers.sampling import FixedSize, Sampling

__all__ = ["say_no_draw", "say_other_size", "say_repeated", "warn_of_cut"]

_TOGETHER = ("Zip", "Concatenate", "DirectedInterleave")
_APART = ("Unbatch", "Rebatch", *FLAT)
"""Steps behind which the rows of an element are records of their own."""
_BY_TURNS = "DirectedInterleave"
_OF_PASSES = ("partition", "cyclic")

_ONE_TO_ONE = ("Map", "ParallelMap", "Prefetch", "Options", "Cache", "AssertCardinality")
"""Steps that give an element for each one, in their order."""


def warn_of_cut(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> bool:
    """Warns where batches are seen not to be what is declared, once, of the first that holds:

    - epochs, and the pipeline repeats its records, in whichever way `repeats` sees it, or may (`overlaps`); not where
      an epoch takes the first round alone;
    - `.batch` cuts passes over records from arrays and files, shuffled or not, or what is taken by turns from several
      such, into batches; flat maps and interleaves that only open files, or take windows and rows apart, are such
      passes, and so are filters without random numbers; not where generators, random numbers that choose rows, or data
      sets that a function holds decide, which may draw;
    - a batch is the beginning of a new shuffle of all records, and something else than that, `FixedSize`, is declared;
    - other draws, and the same batches come in each pass: `.cache` replays them, or nothing draws (`same`).

    Nothing is said of batches of all records, which all draws of so many are.

    Returns: whether it was said that the batches are no such draw as is declared.
    """
    of_passes = sampling.kind in _OF_PASSES
    if of_passes and repeats(dataset) and not _is_first_round(dataset, sampling, examples):
        say_repeated(sampling)
        return True
    if of_passes and may_overlap(dataset):
        warn_of_overlaps(True, "record")
        return True
    size = _cut_to(dataset, examples)
    if size and size != sampling.batch_size and of_passes:
        say_other_size(sampling, size)
    if of_passes or (sampling.batch_size >= examples and size in (None, sampling.batch_size)):
        return bool(size and size != sampling.batch_size and of_passes)
    if size is None:
        return warn_of_same(dataset, sampling, examples)
    afresh = _draws_afresh(dataset, size, examples)
    drawn = afresh and isinstance(sampling, FixedSize)
    if not drawn:
        say_no_draw(sampling, size, afresh, any(kind(one) == _BY_TURNS for one in steps(dataset)))
    return not drawn


def say_repeated(sampling: Sampling) -> None:
    warn(
        f"This pipeline is declared as {sampling}, with each record once in an epoch, and gives each several times"
        " (.repeat, or behind itself): a person in it k times costs more than is stated. Leave .repeat out, and"
        " declare as many examples as there are records."
    )


def say_other_size(sampling: Sampling, size: int) -> None:
    warn(
        f"This pipeline is declared as {sampling}, and its batches are of .batch({size}): what is stated is"
        f" for others. Declare {type(sampling).__name__}({size}), or the batches' true size."
    )


def say_no_draw(sampling: Sampling, size: int, afresh: bool = False, by_turns: bool = False) -> None:
    """Warns of a pipeline that cuts passes over its records into batches, where a draw is declared.

    Args:
        size: of its batches, 0 of several.
        afresh: whether each batch is the beginning of a new shuffle.
        by_turns: whether records are taken by turns from several data sets.
    """
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
        if what in WHOLE:
            left.append((below(step)[0], [*changing, step] if what in MAPS else changing))
        elif what in _TOGETHER:
            left += [(one, changing) for one in below(step) if not (what == "Zip" and numbers_elements(one))]
        else:
            batches.append((step, changing))
    sizes = {_size(step) for step, _ in batches}
    found = sizes.pop() if len(sizes) == 1 else None if None in sizes else 0
    chance, behind = Chance(), [one for _, changing in batches for one in changing]
    if found is None or ((found == 0 or found >= examples) and _draws_of_all(dataset, behind, found, chance)):
        return None  # what draws rows of all records is a function behind them
    apart = (one for step, _ in batches for one in steps(step) if kind(one) in _APART)
    below_them = {id(one): one for above in apart for one in steps(above) if kind(one) in MAPS}
    drawn = any(_draws_rows(one, chance) is not False for one in below_them.values())
    return found if not drawn and all(_gives_passes(one, chance) for one in steps(dataset)) else None


def _draws_of_all(dataset: tf.data.Dataset, behind: list[Any], size: int, chance: Chance) -> bool:
    """Whether functions behind batches of all records keep some of these by chance, or may, or let some weigh."""
    drawn = [_draws_rows(step, chance, size or None) for step in behind]
    if not size:
        return True in drawn
    spec = dataset.element_spec
    weights = len(tf.nest.flatten(spec[2])) if isinstance(spec, tuple) and len(spec) == 3 else 0
    return any(one is not False for one in drawn) or (weights > 0 and DRAWN in chance.parts(dataset)[-weights:])


def _draws_rows(step: Any, chance: Chance, rows: int | None = None) -> bool | None:
    """Whether a map with chance gives other rows than it gets, as a draw of some does; None where that is not known.

    With chance is one that draws, or does something with what was drawn.

    Args:
        rows: those that it gets, where its type does not say.
    """
    entered = chance.enters(step)
    if all((not entered and only_reads(one, batched=True)) or _by_rows(one) for one in graphs_of(step)):
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
    if kind(step) in FLAT:
        size = elements_of(step)
        return None if size == 1 else size
    if kind(step) == "GroupByWindow":
        made = [one for name, one in operations(step) if kind_of(name) in BATCHES]
        known = [None if one is None else number(one, "_batch_size") for one in made]
        return None if not known else int(known[0]) if len(known) == 1 and known[0] is not None else 0
    known = number(step, "_batch_sizes" if kind(step) == "Rebatch" else "_batch_size")
    sizes = set(np.ravel(known).tolist()) if kind(step) in BATCHES and known is not None else set()
    return int(sizes.pop()) if len(sizes) == 1 else None


def _draws_afresh(dataset: tf.data.Dataset, size: int, examples: int, first: bool = False) -> bool:
    """Whether each batch is what a round takes first of all records, which are shuffled in each round, and not kept.

    Args:
        first: whether a round takes a single batch, by steps above.
    """
    batch: Any = dataset
    while kind(batch) in (*KEEPING, "Shuffle", "Repeat", "Take", "Skip", "IgnoreErrors"):
        first = first or (kind(batch) == "Take" and number(batch, "_count") == 1)
        batch = below(batch)[0]
    if kind(batch) in ("Zip", "Concatenate"):
        return all(_draws_afresh(one, size, examples, first) for one in below(batch) if not numbers_elements(one))
    if kind(batch) not in BATCHES:
        return False
    taken = _through(_through(below(batch)[0], (*KEEPING, "Repeat")), (*KEEPING, "Shuffle"))
    of_size = kind(taken) == "Take" and number(taken, "_count") == size
    if not (of_size or first):
        return False
    step = below(taken if of_size else batch)[0]
    while kind(step) in (*KEEPING, *FILTERS, "Shuffle", "Repeat"):
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


def _gives_passes(step: Any, chance: Chance) -> bool:
    """Whether it gives each of its elements at most once, and chance has no say in which; of maps `_draws_rows`."""
    what = kind(step)
    if what in FILTERS:
        return not chance.decides(step)
    if chance.decides(step) if what == "GroupByWindow" else what in FLAT and chance.enters(step):
        return False
    if what in (*FLAT, "GroupByWindow"):
        graphs = graphs_of(step)
        held = any(inner.dtype == tf.variant for graph in graphs for _, inner in graph.captures)
        return not held and bool(graphs) and all(only_reads(one, is_batched(step)) for one in graphs)
    return numbers_elements(step) or what in (*PLAIN, _BY_TURNS)


def _is_first_round(dataset: tf.data.Dataset, sampling: Sampling, examples: int) -> bool:
    """Whether an epoch ends before a single `.repeat` of the records, or of batches of them, begins again.

    An epoch has as many batches as these records fill: `declared` sees to it. Steps between the repeat and the end
    that leave elements out, or move them across rounds, are taken for a further round.
    """
    step: Any = dataset
    taken = -(-examples // sampling.batch_size)
    while kind(step) in (*_ONE_TO_ONE, *BATCHES, "Take"):
        size = number(step, "_batch_size") if kind(step) in BATCHES else 1
        most = number(step, "_count") if kind(step) == "Take" else None
        if size is None:
            return False
        taken = taken * int(size) if most is None or most < 0 else min(taken, int(most))
        step = below(step)[0]
    return kind(step) == "Repeat" and not repeats(below(step)[0]) and int(below(step)[0].cardinality()) >= taken
