"""Layers whose Python code goes over the records one by one: found early, for a trace of many takes minutes."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.adopted import NotOfRecordsError
from tfdp_layers.proof.models import layer_names
from tfdp_layers.proof.proving import layer_of, prove_rows

_MANY = 250
"""Operations of one name beside each other: of the records in a trace of a thousand, or of a layer of many steps."""

_FIX = (
    "Compute on the whole batch at once, with axis 0 left alone; or let keras.ops.vectorized_map(function, x) call the"
    " function for each record. A layer that is not yours goes before fit: into the transform of a source."
)


class Unrolled(BaseException):
    """A trace that makes operations of one name by the hundred; no `Exception`, which code of a layer may catch.

    Attributes:
        place: the name of the last of them.
        graph: of the trace, which was left.
    """

    def __init__(self, place: str, graph: Any) -> None:
        super().__init__(place)
        self.place, self.graph = place, graph


@contextlib.contextmanager
def stopped_if_unrolled(active: bool = True, failed: list[Exception] | None = None) -> Iterator[None]:
    """Inside, a trace raises `Unrolled` where it has made many operations of one name. It costs next to nothing.

    Args:
        failed: gets what TensorFlow raised of operations that cannot be, of their shapes say.
    """
    graph = tf.compat.v1.get_default_graph()
    create = getattr(graph, "_create_op_internal", None)  # TensorFlow's own, which calls itself by this name
    if not active or create is None:
        yield
        return
    found: list[str] = []

    def created(*args: Any, **kwargs: Any) -> Any:
        try:
            operation = create(*args, **kwargs)
        except Exception as error:
            if failed is not None:
                failed.append(error)
            raise
        if not found and is_one_of_many(operation):
            found.append(operation.name)
            raise Unrolled(operation.name, graph)
        return operation

    graph._create_op_internal = created
    try:
        yield
    finally:
        del graph._create_op_internal
    if found:  # it was caught on the way: what was traced then is not what is called
        raise Unrolled(found[0], graph)


def refuse_counting(model: keras.Model, inputs: Any, failed: list[Exception], error: Exception) -> None:
    """Raises ValueError where a call fails at a made-up number of records, and not where their number is open.

    Args:
        inputs: specs of any number of records.
        failed: what TensorFlow raised of operations.
        error: that ended the call. It is looked at where it says one of these, which Keras puts words around.
    """
    said = next((str(one) for one in failed if str(one) in str(error)), None)
    if said is None:
        return
    try:
        tf.function(lambda x: model(x, training=True), autograph=False).get_concrete_function(inputs)
    except (TypeError, ValueError):  # it fails at any number, and says so by itself
        return
    node = re.search(r"{{node ([^}]+)}}", said)
    layer = layer_of(node[1], list(layer_names(model))) if node else ""
    where = f"layer {layer!r}" if layer else f"model {model.name!r}"
    raise ValueError(
        f"The call of {where} depends on how many records there are, and a step draws any number of them. It looks as"
        " if axis 0, the batch, were used as another axis: a table of places laid along it, or a reshape that joins"
        " rows of several records. Keep axis 0 for the records, as keras.ops.reshape(x, (-1, n)) of the n numbers of"
        f" one record does. Of a made-up number of records TensorFlow said: {said}"
    ) from error


def is_one_of_many(operation: Any) -> bool:
    """Whether an operation's name counts up to many."""
    last = re.search(r"_(\d+)$", operation.name)
    return bool(last and int(last[1]) >= _MANY)


def refuse_unrolled(model: keras.Model, forward: Callable[[Any], Any], inputs: Any, place: str) -> None:
    """Raises ValueError where Python code goes over the records, and steps, whose batches have any size, cannot.

    What it refuses would be refused in the trace of the step. Where it refuses nothing, nothing is known.

    Args:
        forward: what a step computes of its inputs before the loss.
        inputs: specs of any number of records.
        place: of `Unrolled`.
    """
    python = "Python code of a layer goes over the records one by one"
    try:
        function = tf.function(forward, autograph=False).get_concrete_function(inputs)
    except NotOfRecordsError:
        return
    except (TypeError, ValueError) as error:
        said = re.sub(r"\x1b\[\d*m", "", " ".join(str(error).split()))
        raise ValueError(
            f"Operation {place!r} comes again for each record: {python}, range(x.shape[0]) say. Batches of steps have"
            f" any size, and there it ends in: {said} {_FIX}"
        ) from error
    if any(map(is_one_of_many, function.graph.get_operations())):  # of steps of a sequence, say
        return
    report = prove_rows(function, layers=layer_names(model))
    if report.status == "mixed":
        layer = f", in layer {report.layer!r}" if report.layer else ""
        raise ValueError(
            f"Records are not independent in model {model.name!r}: {report.reason} (operation {report.operation!r} of"
            f" type {report.type}{layer}). {python}, and where it does not know how many they are, as in a step, it"
            f" takes rows of other records. {_FIX}"
        )
