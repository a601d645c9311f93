"""Operations that take or keep numbers outside of variables: Python code, clocks, files, queues, tables, pipelines.

What a step writes and reads is followed by the handles of its variables. Where records are seen without noise, and
where a release is made of what carries noise, numbers must go no other way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.proof.called import graph_named, graph_run
from tfdp_layers.proof.functional import is_functional
from tfdp_layers.proof.reads import holds_numbers, numbers_caught
from tfdp_layers.proof.untaken import FAKE, reads_untaken
from tfdp_layers.proof.unwritten import UNWRITTEN, unwritten
from tfdp_layers.proof.values import UnknownError

__all__ = [
    "PYTHON",
    "called_by",
    "hidden_states",
    "nodes_of",
    "numbers_held",
    "outside",
    "random_states",
    "refuse_by_name",
    "refuse_outside",
]

PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
"""Operations that run Python code in a graph."""

_PIPELINES = ("Dataset", "Iterator")
"""In the names of operations of tf.data, which keep their place, and may read and write files."""

_CALLS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})
"""Operations that do what the functions do that they call."""

_OF_VARIABLES = frozenset(
    {"DisableCopyOnRead", "ReadVariableOp", "ResourceStridedSliceAssign", "VarIsInitializedOp", "VariableShape"}
)
_PREFIXES_OF_VARIABLES = ("Assign", "ResourceApply", "ResourceGather", "ResourceScatter", "ResourceSparseApply")
_OF_GENERATORS = ("RngReadAndSkip", "RngSkip", "StatefulRandom", "StatefulStandard", "StatefulTruncated", "StatefulUni")
LOOKUPS = frozenset({"LookupTableExportV2", "LookupTableFindV2", "LookupTableSizeV2"})
"""They read tables; what writes one keeps what it is given."""

_HARMLESS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2", "Print", "PrintV2"})
"""Messages, which are assumed not to be observed, and checks of the values at hand."""

_DEBUGGING = ("DebugIdentity", "DebugNumericSummary", "DebugNanCount")
"""At the start of the types of operations that TensorFlow's own debugging puts behind all others."""

_RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
"""Random numbers of a state that belongs to the operation alone."""

_BETWEEN_DEVICES = ("Collective", "Nccl")


def outside(operations: Iterable[Any], left_out: Callable[[Any], bool] = lambda one: False) -> str | None:
    """The type of the first operation, also of functions that are called, that takes or keeps numbers elsewhere.

    None where all of them are functions of their inputs (`functional`), read and write variables, whose handles are
    followed, look up in tables, draw random numbers, or sum over devices. So what is in no list is taken for one that
    does, and so is the call of a function that is not to be had.

    Args:
        left_out: which operations are none of these, whatever the lists say.
    """
    listed = list(operations)
    try:
        called = with_called(listed, graph_run)
        found = next((_described(one) for one in called if _is_outside(one) and not left_out(one)), None)
        return FAKE if found is None and reads_untaken(listed, called_by, graph_run) else found
    except UnknownError as error:
        return f"of {error}"


def refuse_outside(operations: Iterable[Any], who: str) -> None:
    """Raises ValueError where operations take or keep numbers that no variable holds: see `outside`.

    Args:
        who: what they are part of, to name it.
    """
    kind = outside(operations)
    refuse_by_name(kind)
    if kind is not None:
        raise ValueError(
            f"{who} runs Python code (tf.py_function or tf.numpy_function), or takes or keeps numbers outside of"
            f" variables, or may (operation {kind}), in every step: whether numbers of the records without noise, as"
            " metrics hold them, go that way into the released weights cannot be seen. Write it in TensorFlow"
            " operations on variables; what needs Python can be computed from the trained model after fit."
        )


def random_states(operations: Iterable[Any]) -> Iterator[Any]:
    """The operations, of these or of functions that they call, that draw random numbers of a state of their own."""
    for one in operations:
        with contextlib.suppress(UnknownError):  # what cannot be had is refused
            if any(
                kind.type in _RANDOM or kind.type.startswith(_OF_GENERATORS) for kind in with_called([one], graph_run)
            ):
                yield one


def hidden_states(operations: Iterable[Any]) -> Iterator[Any]:
    """The operations, of these or of functions that they call, that draw of a state which no variable holds."""
    for one in operations:
        with contextlib.suppress(UnknownError):  # `outside` names it
            yield from (drawn for drawn in with_called([one], graph_run) if drawn.type in _RANDOM)


def refuse_by_name(kind: str | None) -> None:
    """Raises ValueError where what `outside` found is TensorFlow's own debugging, or reads what a kernel leaves
    unwritten (`unwritten`)."""
    if kind is not None and UNWRITTEN in kind:
        raise ValueError(
            f"Memory that nothing wrote is read, by operation {kind}. Numbers of other records may stand there, so that"
            " nothing is known of what a record shows. Change what reads it."
        )
    if kind is not None and kind.startswith(_DEBUGGING):
        raise ValueError(
            f"TensorFlow's debugging is switched on for the whole program (operation {kind}). It looks at every number"
            " of a step, also at those of records that carry no noise, and writes them to files, or ends the training"
            " by what it sees. Switch it off before fit: tf.debugging.disable_check_numerics(), or"
            " tf.debugging.experimental.disable_dump_debug_info(). To look for NaN with it, train the same model on"
            " public or made-up data by Keras, without make_private."
        )


def _described(operation: Any) -> str:
    """The type of an operation; and what it is about it, where that is what is read of it."""
    return f"{operation.type}{unwritten(operation)}"


def _is_outside(operation: Any) -> bool:
    kind = operation.type
    if kind in PYTHON or any(name in kind for name in _PIPELINES):
        return True
    if kind == "PrintV2" and operation.get_attr("output_stream").startswith(b"file"):
        return True
    if is_functional(operation) or kind in _HARMLESS or kind in _RANDOM or kind.startswith(_BETWEEN_DEVICES):
        return False
    # By name: what else has a handle is a queue, an accumulator, an iterator or a table that is written.
    known = kind in _CALLS or kind in _OF_VARIABLES or kind in LOOKUPS
    return not (known or kind.startswith(_PREFIXES_OF_VARIABLES) or kind.startswith(_OF_GENERATORS))


def with_called(operations: Iterable[Any], graph_of: Callable[[Any, str], Any] = graph_named) -> Iterator[Any]:
    """Operations, and those of the functions that they call. Raises: UnknownError where one is not to be had."""
    for operation in operations:
        yield operation
        for name in called_by(operation):
            yield from with_called(graph_of(operation.graph, name).get_operations(), graph_of)


def called_by(operation: Any) -> list[str]:
    """The names of the functions in an operation's attributes."""
    found = []
    for attribute in operation.node_def.attr.values():
        found += [attribute.func.name] if attribute.HasField("func") else [one.name for one in attribute.list.func]
    return found


def nodes_of(graph: Any) -> list[Any]:
    """All operations of a graph and of the functions that it calls, as TensorFlow writes them into files."""
    written = graph.as_graph_def()
    return [*written.node, *(node for function in written.library.function for node in function.node_def)]


def numbers_held(graph: Any, operations: Iterable[Any] | None = None) -> list[np.ndarray]:
    """The real numbers that a graph holds by itself: constants, also of functions that it calls, and what it caught.

    Args:
        operations: those of the graph whose constants are asked for; all of them if left out, or where one calls a
            function whose graph is not to be had.
    """
    asked = with_called(graph.get_operations() if operations is None else operations)
    try:
        held = [one.get_attr("value") for one in asked if one.type == "Const" and holds_numbers(one.outputs[0].dtype)]
    except UnknownError:  # a function of TensorFlow 1, say, of which there is no graph, but what is written into files
        written = (node.attr for node in nodes_of(graph) if node.op == "Const")
        held = [one["value"].tensor for one in written if holds_numbers(tf.dtypes.as_dtype(one["dtype"].type))]
    return [*map(tf.make_ndarray, held), *numbers_caught(graph)]
