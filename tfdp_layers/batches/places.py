"""Pipelines that put records at other places: ids or owners given by place would be those of other records."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import snapshot_pb2

from tfdp_layers.batches.steps import below, graphs_of, kind, kind_of, number, steps
from tfdp_layers.proof.outside import nodes_of, with_called
from tfdp_layers.proof.values import UnknownError

__all__ = [
    "UNKNOWN",
    "in_any_order",
    "is_loose",
    "kept_before",
    "moved_by",
    "moves",
    "nodes_behind",
    "nodes_held",
    "nodes_within",
    "refuse_moved",
]

_KEPT = re.compile(
    r"(Random|Parallel|Flat)?Map|MapWithIndex|MapOnGpu|MapAndBatch|ParseExample|Zip|Concatenate|Repeat|Scan"
    r"|TFRecord|TextLine|FixedLengthRecord|Source|With[A-Z]\w+"
    "|(Parallel|Padded|DenseToSparse|Re|Un)?[Bb]atch|DenseToRagged|Window|Slice|Take|Skip|Shard|Filter"
    "|TakeWhile|Unique|IgnoreErrors|Cache|Prefetch|Options|Restructured|CopyToDevice|AssertCardinality|AssertNext|Finalize"
)
"""Steps that keep the order. Where they leave some out, the number of ids is another one than that of records."""
_SOURCES = re.compile(
    "TensorSlice|Tensor|SparseTensorSlice|List|Range|Counter|Random|Generator|MatchingFiles|Variant|Csv|CSV|Sql"
)
"""Sources of tf.data that give their elements in one order, beside the readers of files above."""
_CALLED = {
    "Shuffle": ".shuffle",
    "WindowShuffle": ".window_shuffle",
    "ShuffleAndRepeat": ".shuffle",
    "GlobalShuffle": "a global shuffle",
    "Interleave": ".interleave of several sources at once",
    "ParallelInterleave": ".interleave of several sources at once",
    "DirectedInterleave": ".sample_from_datasets or .choose_from_datasets",
    "GroupByWindow": ".group_by_window or .bucket_by_sequence_length",
    "Mixed": "a mix of several data sets",
}
_MAKES = re.compile(r"(\w+?)Dataset(V\d)?")
"""Types of operations that make data sets, within functions."""
_READ_ONCE = ("FlatMap", "Interleave", "ParallelInterleave", "Reduce")
"""Those that keep the order of one source, or give no data set."""
_ORDERED = " Or give it deterministic=True, if the options of the pipeline say deterministic=False."
_OTHERS = "what that reading gave"
_ANEW = " That is: give another folder, or delete this one, and it is written anew, in the order of the ids."
_FILE = "a file of .cache"
_CHECKED = " To keep what was read: tfdp.records(dataset, unit_ids=ids, cache=FOLDER), which checks the ids, or"
_MEMORY = " .cache() without a name, which keeps it in memory."
_IN_FILE = "_in_file"
"""The attribute, of our own, of an operation `Cache` that was given the name of a file, or what may be one."""
UNKNOWN = "DatasetThatCannotBeLookedAt"
"""The type of what stands for the operations of a data set that is not to be had."""


def moved_by(source: Any) -> str:
    """Which operation of a pipeline of tf.data, or of a Grain data set, moves elements; empty where all keep the order.

    Every operation that is not known to keep it counts as one that moves them, and so does every source of tf.data;
    those in functions count, at any depth, and those of data sets that functions hold. A file of `.cache` always
    counts: it may be there, or be written by another job while this one begins to read. What Python code does
    (generators, sources, a `map` that keeps what it saw) is not seen, and neither are random numbers by which a
    function changes the order of rows that it gets.
    """
    loose = is_loose(source)
    return next(filter(None, (moves(step, loose) or _kept_in_file(step) for step in steps(source))), "")


def in_any_order(source: tf.data.Dataset) -> str:
    """Which parallel operation of a pipeline, or of its functions, gives elements as they become ready; or empty."""
    loose = is_loose(source)
    within = (node for step in steps(source) for node in _nodes(step) if _gives_any_order(node, loose))
    own = next((step for step in steps(source) if _gives_any_order(step, loose)), None)
    found = own or next(within, None)
    return "" if found is None else _in_any_order(found)


def is_loose(source: Any) -> bool:
    """Whether the options of a pipeline let parallel steps, also in functions, give elements in any order."""
    return isinstance(source, tf.data.Dataset) and source.options().deterministic is False


def moves(step: Any, loose: bool) -> str:
    """How a step, or an operation in a function that makes a data set, moves elements; empty where it does not.

    Args:
        loose: whether the pipeline's options let parallel steps give elements in any order.
    """
    what = kind(step)
    if _gives_any_order(step, loose):
        return _in_any_order(step)
    if "Interleave" in what and number(step, "_cycle_length") == 1:
        what = "FlatMap"
    own = _moves_itself(step, what)
    if own and what not in (*_CALLED, "Load"):
        return own
    inner = _unknown_in(step, _READ_ONCE if what == "Load" else ("FlatMap", "Reduce"), loose)
    return f"{inner} within a function of {'.load' if what == 'Load' else 'it'}" if inner else own


def _kept_in_file(step: Any) -> str:
    """What a file of `.cache`, of a step or in its functions, does to the order; empty where there is none."""
    if not any(map(_is_in_file, (step, *_nodes(step)))):
        return ""
    return f"{_FILE}, which holds what the job gave that wrote it, in the order of that one"


def _is_in_file(step: Any) -> bool:
    if isinstance(step, tf.compat.v1.NodeDef):
        return _IN_FILE in step.attr
    name = number(step, "_filename") if kind(step) == "Cache" else b""
    return name is None or bool(name.item() if hasattr(name, "item") else name)


def kept_before(what: str) -> str:
    """How a folder moves records that another reading than this one wrote."""
    return f"{what} was there before, or another job wrote it meanwhile: it holds {_OTHERS}, in the order of that one"


def _moves_itself(step: Any, what: str) -> str:
    """How a step moves elements, whatever its functions do; empty where it does not."""
    if what == "FlatMap":
        return ""
    if what == "Slice" and (getattr(step, "_step", None) or 1) < 0:
        return "a slice that runs backwards"
    if isinstance(step, tf.data.Dataset) and not below(step):
        return _loaded(step) if what == "Load" else "" if _keeps(what) else what
    return "" if _KEPT.fullmatch(what) or not below(step) else _CALLED.get(what, what)


def _keeps(what: str) -> bool:
    return bool(_KEPT.fullmatch(what) or _SOURCES.fullmatch(what))


def _unknown_in(step: Any, besides: tuple[str, ...], loose: bool) -> str:
    """What a step's functions do with data sets, other than keep their order, or do what `besides` names."""
    for node in _nodes(step):
        if getattr(node, "op", "") == UNKNOWN:
            return "a data set that cannot be looked at"
        made = kind(node) if isinstance(node, tf.data.Dataset) else (_MAKES.fullmatch(node.op) or ("", ""))[1]
        if made and made not in besides and not _keeps(made):
            return str(made)
        if _gives_any_order(node, loose):
            return _in_any_order(node)
    return ""


def _nodes(step: Any) -> Iterator[Any]:
    """What makes data sets in a step's functions, at any depth, and in data sets that these hold.

    Operations as TensorFlow writes them down, and the steps of those that the functions name in Python: they are not
    written down, which takes long, as all arrays are that they are made of.
    """
    yield from (node for node in nodes_within(step) if "Dataset" in node.op)
    known = _named(step)
    for tensor in _tensors_held(step):
        if id(tensor) not in known:
            yield from (node for node in nodes_behind(tensor) if "Dataset" in node.op)
        for one in steps(known[id(tensor)]) if id(tensor) in known else ():
            yield one
            yield from _nodes(one)


def _named(step: Any) -> dict[int, Any]:
    """Data sets that a step's Python functions name, by the ids of the tensors that stand for them."""
    found: dict[int, Any] = {}
    for wrapped in vars(step).values() if isinstance(step, tf.data.Dataset) else ():
        function: Any = getattr(wrapped, "_func", None)
        with contextlib.suppress(TypeError, ValueError):  # of partials, say, and of names without a value
            names = inspect.getclosurevars(getattr(function, "python_function", function))
            held = [*names.nonlocals.values(), *names.globals.values()]
            found |= {id(one._variant_tensor): one for one in held if isinstance(one, tf.data.Dataset)}
    return found


def nodes_within(step: Any) -> Iterator[Any]:
    """The operations in a step's functions, at any depth; none of a step of Grain."""
    for graph in graphs_of(step) if isinstance(step, tf.data.Dataset) else ():
        try:
            yield from [_node_of(one) for one in with_called(graph.get_operations())]
        except UnknownError:
            yield from nodes_of(graph)


def _node_of(operation: Any) -> Any:
    node = operation.node_def
    if _is_in_file(operation):
        node.attr[_IN_FILE].b = True
    return node


def nodes_held(step: Any) -> Iterator[Any]:
    """The operations of the data sets that a step's functions hold, at any depth; `UNKNOWN` of one not to be had."""
    for tensor in _tensors_held(step):
        yield from nodes_behind(tensor)


def _tensors_held(step: Any) -> list[tf.Tensor]:
    graphs = graphs_of(step) if isinstance(step, tf.data.Dataset) else []
    return [outer for graph in graphs for outer, _ in graph.captures if outer.dtype == tf.variant]


_WRITTEN: dict[int, list[Any]] = {}
"""What `nodes_behind` found, by the id of the tensor, as long as that is there."""


def nodes_behind(data_set: tf.Tensor) -> list[Any]:
    """The operations of a data set, by the tensor that stands for it, and of its functions, as they are written down.

    Without constants. `UNKNOWN` where it is not to be had.
    """
    if id(data_set) not in _WRITTEN:
        _WRITTEN[id(data_set)] = _written(data_set)
        weakref.finalize(data_set, _WRITTEN.pop, id(data_set), None).atexit = False
    return _WRITTEN[id(data_set)]


def _written(data_set: tf.Tensor) -> list[Any]:
    try:
        written = tf.raw_ops.DatasetToGraphV2(input_dataset=data_set, external_state_policy=1)
        graph = tf.compat.v1.GraphDef.FromString(written.numpy())
    except (AttributeError, TypeError, tf.errors.OpError, message.DecodeError):  # over 2 GiB, or made in a function
        return [tf.compat.v1.NodeDef(op=UNKNOWN)]
    parts = (graph.node, *(function.node_def for function in graph.library.function))
    # Copied: each would keep the whole graph in memory, with its arrays.
    nodes = [node for part in parts for node in _marked(part) if node.op != "Const"]
    return [type(node).FromString(node.SerializeToString()) for node in nodes]


def _marked(nodes: Any) -> Any:
    """Operations of one graph or function, of which those that cache in a file say so."""
    unnamed = {one.name for one in nodes if one.op == "Const" and [*one.attr["value"].tensor.string_val] == [b""]}
    for one in nodes:
        if kind_of(one.op) == "Cache" and one.input[1].partition(":")[0] not in unnamed:
            one.attr[_IN_FILE].b = True
    return nodes


def _gives_any_order(step: Any, loose: bool) -> bool:
    """Of a step, or of an operation, whether it gives elements as they become ready."""
    order = getattr(step, "_deterministic", "")
    if not isinstance(step, tf.data.Dataset):
        given = getattr(step, "node_def", step)
        held = getattr(given, "attr", {}) if "Dataset" in getattr(given, "op", "") else {}
        order = held["deterministic"].s.decode() if "deterministic" in held else ""
        order = {True: "false", False: "default"}[held["sloppy"].b] if "sloppy" in held else order
    return order in (("false", "default") if loose else ("false",))


def _in_any_order(step: Any) -> str:
    if isinstance(step, tf.data.Dataset):
        return f"{'.interleave' if 'Interleave' in kind(step) else '.map or .batch'} with deterministic=False"
    return f"{kind(step) if isinstance(step, tf.Operation) else kind_of(step.op)} with deterministic=False"


def _loaded(step: Any) -> str:
    """What `Dataset.load` does to the order: it reads the shards in turns, so that only one keeps it.

    `Dataset.save` without shard_func writes one shard, in order.
    """
    try:
        with tf.io.gfile.GFile(os.path.join(step._path, "snapshot.metadata"), "rb") as file:
            run = snapshot_pb2.SnapshotMetadataRecord.FromString(file.read()).run_id
        shards = [one for one in tf.io.gfile.listdir(os.path.join(step._path, run)) if ".shard" in one]
    except (OSError, TypeError, ValueError, tf.errors.OpError, message.DecodeError):
        return ".load of a data set whose shards cannot be counted"
    return "" if len(shards) < 2 else f".load of {len(shards)} shards in turns: without shard_func .save writes one"


def refuse_moved(how: str, argument: str) -> None:
    """Raises ValueError for ids or owners by place beside a pipeline that moves records.

    Args:
        how: what `moved_by` found.
        argument: by which they were given, "unit_ids" or "owners".
    """
    if not how:
        return
    inside = (
        " Or put the ids into the records, where they stay with them: of a tf.data pipeline, an entry of x,"
        " tfdp.records(dataset, unit_ids='patient') (docs/data.md)."
    )
    first = _ORDERED if "deterministic" in how else _ANEW if _OTHERS in how else ""
    if how.startswith(_FILE):
        first = f"{_CHECKED if argument == 'unit_ids' else ' Or'}{_MEMORY}"
    raise ValueError(
        f"`{argument}` says by place whose each record is, and this pipeline moves records to other places ({how}): a"
        " record would be protected as somebody else's, and one person would enter a step with several contributions."
        " Leave that operation out: it is not needed, the library draws at random itself, in every step afresh."
        f"{first}{inside if argument == 'unit_ids' else ''} Or read records and"
        f" {argument} together, in one pass, into arrays:"
        f" x, y, {argument} = map(numpy.stack, zip(*items)), where each of the items is (x, y, whose it is)."
    )
