"""Proofs: of a traced function, of a layer's rows, of a private model's sums."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.common_draws import common_draws
from tfdp_layers.proof.frames import CALL, Frame
from tfdp_layers.proof.interpreter import Prover
from tfdp_layers.proof.randomness import stale
from tfdp_layers.proof.report import Finding, Report
from tfdp_layers.proof.sizes import Number, symbol
from tfdp_layers.proof.values import Batch, Constant, Handle, Refused, Rows, Total, Value
from tfdp_layers.proof.xla import is_compiled

Judge = Callable[[Value, Batch], "Refused | None"]


def prove(
    function: Any,
    records: Sequence[Any] | None = None,
    sums: Sequence[Any] | None = None,
    may_write: Iterable[Any] = (),
    layers: Iterable[str] = (),
    secret: Iterable[Any] | None = None,
) -> Report:
    """Proves that outputs of a traced function are sums over records, and that nothing else comes of the records.

    Formal guarantee: if the report says "proved", there is for each output one function f, so that for every number
    B >= 1 of records r_1 ... r_B in any order it is f(r_1) + ... + f(r_B): f may depend on the captured weights, on
    noise that is shared by all, and on noise of the record's own (independent, and distributed alike); it does not
    depend on B, on places or on other records. And no variable, but those of `may_write`, is written with what depends
    on records, their number or places.

    Assumed: what docs/guarantee.md lists: the rules match the operations and kernels keep rows apart; real arithmetic;
    other axes' sizes are public, and at least 1; captured constants and weights are public or paid for.

    Args:
        function: a `ConcreteFunction`, or a `FuncGraph` (also one that is being traced).
        records: tensors of its graph whose axis 0 is the batch; all inputs that are not captured if left out.
        sums: tensors of its graph that are released; all outputs if left out.
        may_write: variables that records may write (metrics, the loss tracker). Reading them is refused.
        layers: names of Keras layers, to name the one at fault.
        secret: the variables whose seeds nobody knows; those of noise for each record must be among them. None takes
            any that are never used again.

    Returns: "proved", or the operation at fault: "mixed" is positive evidence, "unknown" is none.
    """
    return examined(function, records, sums, may_write, layers, additive, secret)


def prove_rows(function: Any, *specs: Any, records: Sequence[Any] | None = None, layers: Iterable[str] = ()) -> Report:
    """Proves that outputs are row by row: row i of each is one function of record i alone, whatever the batch.

    Args:
        function: a `ConcreteFunction`, or a Python function that is traced with `specs`, trees of `tf.TensorSpec` with
            an unknown axis 0.
    """
    if specs:
        function = tf.function(function, autograph=False).get_concrete_function(*specs)
    return examined(function, records, None, (), layers, row_by_row)


def additive(value: Value, batch: Batch) -> Refused | None:
    """What is wrong with an output that should be a sum over the records; None if nothing is."""
    if isinstance(value, Refused):
        return value
    if (isinstance(value, Total) and value.batch == batch) or (isinstance(value, Constant) and value.fill == 0.0):
        return None
    if isinstance(value, Constant):
        return Refused(None, mixed=False, reason="an output that is a constant, and not plainly zero")
    return Refused(None, mixed=True, reason=f"an output that is {described(value)} instead of a sum over records")


def row_by_row(value: Value, batch: Batch) -> Refused | None:
    """What is wrong with an output that should have a row for each record; None if nothing is."""
    if isinstance(value, Refused):
        return value
    if isinstance(value, Rows) and (value.axis, value.layout) == (0, (batch, 1, 1)):
        return None
    as_many = batch.static is not None and (value.shape or ())[:1] == (batch.static,)
    if isinstance(value, Constant) and value.fill is not None and as_many:
        return None  # the same number for each record
    return Refused(None, mixed=True, reason=f"an output that is {described(value)} instead of one row a record")


def described(value: Value) -> str:
    if isinstance(value, Rows):
        return f"one value a record, laid out along axis {value.axis}"
    return {"Constant": "a constant", "Total": "a sum over records"}.get(
        type(value).__name__, "made of the number or the places of records"
    )


def examined(
    function: Any,
    records: Sequence[Any] | None,
    sums: Sequence[Any] | None,
    may_write: Iterable[Any],
    layers: Iterable[str],
    judge: Judge,
    secret: Iterable[Any] | None = None,
    fixed: int | None = None,
) -> Report:
    """The report on a function's outputs, each judged by what is known of it.

    Args:
        fixed: how many records there are, where the function was traced for so many and is run with no other number.
            What is proved is proved of this number alone: an axis of as many entries that are laid out as the records
            are is then that of the records.
    """
    start = time.perf_counter()
    graph = getattr(function, "graph", function)
    captured = {inner.name: outer for outer, inner in graph.captures}
    if records is None:
        records = [t for t in graph.inputs if t.name not in captured and t.dtype not in (tf.resource, tf.variant)]
    outputs = list(graph.outputs) if sums is None else list(sums)
    batch = Batch(symbol("records", varies=True, least=1), static=fixed)  # type: ignore[arg-type]
    prover = Prover([batch], tainted={resource_key(handle_of(v)) for v in may_write})
    prover.compiled = is_compiled(function)
    prover.secret = None if secret is None else {resource_key(handle_of(v)) for v in secret}
    prover.captured = handles_by_key([outermost(outer) for outer in captured.values()])
    frame = Frame("", CALL, graph, values=given(graph, captured, records, batch))
    prover.run(frame)
    names = sorted(set(layers), key=len, reverse=True)
    findings = tuple(finding(t.name, judge(frame.values[t.name], batch), t, names) for t in outputs)
    allowed = prover.tainted
    faults = [(w.variable, w.fault) for w in prover.writes.values() if w.variable not in allowed]
    paths = {resource_key(outermost(outer)): inner for inner, outer in captured.items()}
    writes = [finding(paths.get(key, "state"), fault, None, names) for key, fault in faults]
    writes += [finding("noise", fault, None, names) for fault in stale(prover)]
    writes += [finding("shape", fault, None, names) for fault in prover.doubts.values()]
    common = tuple(finding("random numbers", fault, None, names) for fault in common_draws(prover))
    return Report(findings, tuple(writes), prover.operations, time.perf_counter() - start, common)


def given(graph: Any, captured: dict[str, Any], records: Sequence[Any], batch: Batch) -> dict[str, Value]:
    """What is known of a graph's inputs and of the records."""
    values: dict[str, Value] = {}
    for tensor in graph.inputs:
        outer = outermost(captured.get(tensor.name, tensor))
        if tensor.name in captured and tf.is_symbolic_tensor(outer):
            values[tensor.name] = Refused(None, mixed=False, reason="a value of a function around this one")
        elif tensor.dtype == tf.resource:
            values[tensor.name] = Handle((), key=resource_key(outer))
        elif tensor.dtype == tf.variant:
            values[tensor.name] = Refused(None, mixed=False, reason="an input of which nothing is known")
        else:
            known = tensor.shape.rank is not None
            shape = (
                tuple(symbol(f"{tensor.name} {i}", least=1) if n is None else n for i, n in enumerate(tensor.shape))
                if known
                else None
            )
            values[tensor.name] = Constant(shape)
    for tensor in records:
        values[tensor.name] = of_records(tensor, batch)
    return values


def of_records(tensor: Any, batch: Batch) -> Value:
    """A tensor that holds the records along axis 0. Axes of the same unknown size get one name only if they are one."""
    if tensor.shape.rank is None or tensor.shape.rank == 0:
        return Refused(None, mixed=False, reason="records without a known rank, or without an axis")
    sizes: list[Number] = [
        symbol(f"{tensor.name} axis {i}", least=1) if n is None else n for i, n in enumerate(tensor.shape)
    ]
    if tensor.shape[0] not in (None, batch.static):
        return Refused(None, mixed=False, reason="a batch of a fixed size: trace with an unknown one")
    return Rows((batch.size, *sizes[1:]), batch=batch)


def handles_by_key(tensors: Iterable[Any]) -> dict[int, Any]:
    """Handles of resources from outside of all functions; none of a key that several have."""
    found: dict[int, list[Any]] = {}
    for one in tensors:
        if one.dtype == tf.resource and not tf.is_symbolic_tensor(one):
            found.setdefault(resource_key(one), []).append(one)
    return {key: ones[0] for key, ones in found.items() if len({id(one) for one in ones}) == 1}


def outermost(tensor: Any) -> Any:
    """The tensor that a captured one stands for, outside of all functions that are being traced."""
    while True:
        graph = getattr(tensor, "graph", None) if tf.is_symbolic_tensor(tensor) else None
        captures = getattr(graph, "captures", None)
        found = None if captures is None else next((outer for outer, inner in captures if inner is tensor), None)
        if found is None:
            return tensor
        tensor = found


def resource_key(handle: Any) -> int:
    """Tells resources apart, by their names: a copy of a handle is another tensor, of the same resource."""
    name = re.search(r'ResourceHandle\(name="([^"]+)"', str(handle))
    return id(handle) if name is None else hash(name.group(1))


def handle_of(variable: Any) -> Any:
    """The handle of a Keras or TensorFlow variable, or the handle itself."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return value if tf.is_tensor(value) and value.dtype == tf.resource else value.handle


def finding(name: str, fault: Refused | None, tensor: Any, layers: Sequence[str]) -> Finding:
    if fault is None:
        return Finding(name, "proved")
    operation = fault.operation or ("" if tensor is None else tensor.op.name)
    kind = fault.type or ("" if tensor is None else tensor.op.type)
    layer = layer_of(operation, layers)
    return Finding(name, "mixed" if fault.mixed else "unknown", fault.reason, operation, kind, layer, fault.place)


def layer_of(operation: str, layers: Sequence[str]) -> str:
    """The innermost layer that an operation's name is in: names of scopes are those of layers.

    Keras opens the scope of a layer twice, to build and to call it, so that the second bears a number: "dense_1" is the
    call of "dense", and that of "dense_1" is "dense_1_2".
    """
    for part in reversed(operation.split("/")[:-1]):
        name = re.sub(r"_\d+$", "", part)
        if name in layers or part in layers:
            return name if name in layers else part
    return ""
