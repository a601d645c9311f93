"""Layers without a formula, whose own call shows how records meet their weights.

The layer's call is traced as it is. Where what was computed from a weight alone meets what was computed from records,
in an operation with a known rule, that operation's other input and the gradient at its result give what each record
adds: as formulas do, without a gradient written out for each record, and without a second version of the call.

Whether that is right is tried before it is used, once for each layer and shapes: on random records the weighted sum of
what each adds must be TensorFlow's own gradient of the weighted losses. Privacy does not rest on it: what is added is
what is bounded, and that records stay apart is proved of the traced step, as for every layer.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.per_record.agreement import RANGES, TOLERANCE, Drawn, random_like
from tfdp_layers.per_record.contributions import Contribution, Stored
from tfdp_layers.per_record.generic import PerRecordCall
from tfdp_layers.per_record.joining import joined
from tfdp_layers.per_record.meeting_rules import Place, Shaped, contribution, require_rule
from tfdp_layers.per_record.meetings import (
    IN_ORDER,
    Meeting,
    RecordsMeetError,
    UnknownUseError,
    given_out,
    meetings,
)

if TYPE_CHECKING:
    from tfdp_layers.per_record.recording import Recorder

_RECORDS = 7
"""Records of a trial."""
_KNOWN = """
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BroadcastTo Cast Ceil ClipByValue ConcatV2 Cos Cosh
    Cumprod Cumsum Div DivNoNan Elu Equal Erf Erfc Exp ExpandDims Expm1 Floor FloorDiv FloorMod Greater GreaterEqual
    Identity Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    MatrixBandPart Max Maximum Mean Min Minimum Mul MulNoNan Neg NotEqual OnesLike Pack Pad PadV2 Pow Prod RealDiv
    Reciprocal Relu Relu6 Reshape ReverseV2 Rint Round Rsqrt Select SelectV2 Selu Shape Sigmoid Sign Sin Sinh Slice
    Softmax Softplus Softsign Split SplitV Sqrt Square SquaredDifference Squeeze StopGradient StridedSlice Sub Sum
    Tan Tanh Tile Transpose Unpack Where Xdivy Xlogy ZerosLike
"""
VECTORIZED = set(_KNOWN.split())
"""What vectorized is traced to forms that the proof has rules for; of others, products and lookups among them, records
are taken one by one."""


@dataclass(frozen=True)
class Seen:
    """A meeting of a trial: its kind, and how many rows its result has for each record."""

    kind: tuple[str, int, bool]
    each: int


_SEEN: WeakKeyDictionary[Any, dict[str, tuple[Seen, ...]]] = WeakKeyDictionary()
"""Of each layer what trials showed, by the shapes of its arguments."""


def observed(every: PerRecordCall, record: Recorder) -> Any:
    """The layer's own call; what each record adds to its weights' gradients is noted.

    Raises: UnknownUseError where the call uses weights in a way without a rule.
    """
    seen = tried(every, record)
    values = [record.weight(v) for v in every.variables]
    outputs, found = traced(every, values, every.leaves)
    if [m.kind for m in found] != [s.kind for s in seen]:
        raise UnknownUseError("its call does not use them alike each time")
    fixed = all(None not in leaf.shape[1:] for leaf in rows_of(every))
    count = None if fixed else record.records
    for meeting, one in zip(found, seen, strict=True):
        parts = parts_of(every.variables, values, meeting, one.each, count)
        record.note_meeting(every.variables, meeting.result, one.each, parts, fixed)
    return outputs


def rows_of(every: PerRecordCall) -> list[Any]:
    return [leaf for leaf, varies in zip(every.leaves, every.is_rows, strict=True) if varies]


def traced(every: PerRecordCall, values: Sequence[tf.Tensor], leaves: list[Any]) -> tuple[Any, list[Meeting]]:
    """The call's outputs, and where records meet the weights in it. Raises: UnknownUseError."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    outputs = every.with_values(list(values), leaves)
    ops = graph.get_operations()[before:]
    rows = [leaf for leaf, varies in zip(leaves, every.is_rows, strict=True) if varies]
    found = list(meetings(ops, values, rows))
    if given_out(ops, values, found, outputs):
        raise UnknownUseError("its call returns what it computed from weights alone")
    return outputs, found


def parts_of(
    variables: Sequence[Any], values: Sequence[tf.Tensor], meeting: Meeting, each: int, records: Any
) -> Callable[..., list[Contribution]]:
    """What each record, or unit of several rows, adds to the weights that it meets: (gradient at the result, each)."""
    plain = meeting.in_order or (meeting.transposed and "MatMul" in meeting.op.type)
    target = variables[meeting.weights[0]] if plain else Shaped(tuple(meeting.met.shape))
    place = Place(meeting, target, plain and meeting.transposed, each, records)

    def parts(u: tf.Tensor, *, each: int) -> list[Contribution]:
        part = joined(contribution(place, u), each)
        if plain:
            return [part]
        which = [variables[i] for i in meeting.weights]
        back = pulled(meeting.chain, meeting.met, [values[i] for i in meeting.weights], part.gradients())
        return [Stored(v, g) for v, g in zip(which, back, strict=True)]

    return parts


def pulled(chain: Sequence[Any], end: tf.Tensor, values: Sequence[tf.Tensor], gradients: tf.Tensor) -> Any:
    """Gradients (records, ...) of what a chain of operations computes from weights, as those of the weights."""
    left = list(chain)
    while left and left[-1].outputs[0].ref() == end.ref() and (earlier := moved(left[-1], gradients)) is not None:
        gradients, end = earlier, left.pop().inputs[0]
    if not left:
        return [gradients]
    first = []  # what moves entries of the only weight before all else: taken back behind the rest
    while len(values) == 1 and moves(left[0], values[0]) and all(t.ref() != values[0].ref() for t in taken(left[1:])):
        first.append(left.pop(0))
        values = first[-1].outputs[:1]

    def one(gradient: tf.Tensor) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            copies = [tf.identity(value) for value in values]
            tape.watch(copies)
            made = {value.ref(): copy for value, copy in zip(values, copies, strict=True)}
            for op in left:
                repeat(op, made)
        output = tf.cast(gradient, end.dtype)
        found = tape.gradient(made[end.ref()], copies, output_gradients=output, unconnected_gradients="zero")
        return [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in found]

    if VECTORIZED.issuperset(op.type for op in left):
        found = tf.vectorized_map(one, gradients)
    else:
        found = tf.map_fn(one, gradients, fn_output_signature=[tf.float32] * len(values))
        found = [tf.ensure_shape(g, (None, *value.shape)) for g, value in zip(found, values, strict=True)]
    for op in reversed(first):
        found = [moved(op, found[0])]
    return found


def taken(ops: Sequence[Any]) -> list[tf.Tensor]:
    """What these operations take."""
    return [tensor for op in ops for tensor in op.inputs]


def moves(op: Any, value: tf.Tensor) -> bool:
    """Whether an operation moves the entries of a value, in a way that `moved` takes back."""
    known = op.inputs[0].ref() == value.ref() and op.outputs[0].shape.is_fully_defined()
    return known and moved(op, tf.zeros((1, *op.outputs[0].shape))) is not None


def moved(op: Any, gradients: tf.Tensor) -> Any:
    """Gradients (records, ...) at the result of an operation that moves entries, at its input; None of other ones."""
    shape = op.inputs[0].shape
    if op.type in IN_ORDER:
        return tf.reshape(gradients, (-1, *shape))
    if op.type == "Transpose" and (order := tf.get_static_value(op.inputs[1])) is not None:
        return tf.transpose(gradients, [0, *(1 + int(axis) for axis in np.argsort(order))])
    if op.type == "GatherV2" and not op.get_attr("batch_dims") and op.inputs[1].shape.is_fully_defined():
        # By a product: what adds up rows by their numbers, no proof follows.
        axis = int(tf.get_static_value(op.inputs[2])) % len(shape)
        hot = tf.one_hot(tf.reshape(op.inputs[1], [-1]), shape[axis], dtype=tf.float32)
        flat = tf.reshape(gradients, (-1, math.prod(shape[:axis]), hot.shape[0], math.prod(shape[axis + 1 :])))
        return tf.reshape(tf.einsum("bpnu,nr->bpru", flat, hot), (-1, *shape))
    return None


def repeat(op: Any, made: dict[Any, tf.Tensor]) -> None:
    """Computes an operation once more, on what was made in the place of its inputs. Raises: UnknownUseError."""
    function = getattr(tf.raw_ops, op.type, None)
    if function is None or op.op_def.is_stateful:
        raise UnknownUseError(f"its call computes {op.type} of weights alone")
    rest, given = [made.get(t.ref(), t) for t in op.inputs], {}
    for argument in op.op_def.input_arg:
        if argument.number_attr or argument.type_list_attr:
            attr = op.get_attr(argument.number_attr or argument.type_list_attr)
            count = attr if isinstance(attr, int) else len(attr)
            given[argument.name], rest = rest[:count], rest[count:]
        else:
            given[argument.name], rest = rest[0], rest[1:]
    arguments = op.op_def.input_arg
    told = {name for one in arguments for name in (one.type_attr, one.number_attr, one.type_list_attr)}
    given |= {attr.name: op.get_attr(attr.name) for attr in op.op_def.attr if attr.name not in told}
    names = list(inspect.signature(function).parameters)
    # TensorFlow calls some inputs and attributes otherwise in Python, in the same order.
    others = iter([name for name in names if name not in given])
    given = {name if name in names else next(others): value for name, value in given.items()}
    outputs = function(**given)
    outputs = outputs if len(op.outputs) > 1 else [outputs]
    made.update({old.ref(): new for old, new in zip(op.outputs, outputs, strict=True)})


# Trials ---------------------------------------------------------------------------------------------------------------


def tried(every: PerRecordCall, record: Recorder) -> tuple[Seen, ...]:
    """What a trial shows, made once for each layer and shapes. Raises: UnknownUseError where it fails."""
    known = _SEEN.setdefault(every.layer, {})
    flags = [(v.trainable, any(v is one for one in every.variables)) for v in every.layer.variables]
    looks = [(t.dtype.name, t.shape.as_list()[1:]) if tf.is_tensor(t) else repr(t) for t in every.leaves]
    key = repr((looks, flags, every.layer.compute_dtype))
    if key not in known:
        with record.aside(_RECORDS):
            known[key] = trial(every)
    return known[key]


def trial(every: PerRecordCall) -> tuple[Seen, ...]:
    """What records of the first range show on which TensorFlow's gradients are finite, where it is what they add.

    Raises: UnknownUseError where it is not, or none are finite: what is NaN cannot be compared.
    """
    for drawn in RANGES:
        seen, sums, own = tried_on(every, drawn)
        if all(np.isfinite(gradient).all() for gradient in own):
            require_equal(sums, own, every.layer.compute_dtype)
            return seen
    raise UnknownUseError("its gradients could not be compared: they are NaN on all random records that were tried")


def tried_on(every: PerRecordCall, drawn: Drawn) -> tuple[tuple[Seen, ...], list[np.ndarray], list[np.ndarray]]:
    """The meetings seen; the weighted sums of what random records add; TensorFlow's gradients of the weighted losses.

    Raises: UnknownUseError where something has no rule, or fails.
    """
    rng, seen, rows = np.random.default_rng(0), [], rows_of(every)
    with tf.init_scope():
        count = rows[0].shape[0] if rows else None
        leaves = [random_like(leaf, rng, count, _RECORDS, drawn) for leaf in every.leaves]
        values = [tf.constant(v.numpy() + 0.1 * rng.normal(size=v.shape), v.dtype) for v in every.variables]
    given = values, [leaf for leaf, varies in zip(leaves, every.is_rows, strict=True) if varies]
    weights = rng.uniform(0.5, 1.5, _RECORDS).astype("float32")

    def both(values: list[tf.Tensor], rows: list[tf.Tensor]) -> Any:
        rest = iter(rows)
        placed = [next(rest) if varies else leaf for leaf, varies in zip(leaves, every.is_rows, strict=True)]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            copies = [tf.identity(value) for value in values]
            tape.watch(copies)
            outputs, found = traced(every, copies, placed)
            plain, weighted = losses(outputs, rng, weights)
        own = tape.gradient(weighted, copies, unconnected_gradients="zero")
        upstream = tape.gradient(plain, [m.result for m in found], unconnected_gradients="zero")
        sums = {id(v): tf.zeros(v.shape) for v in every.variables}
        for meeting, u in zip(found, upstream, strict=True):
            require_rule(meeting)
            seen.append(Seen(meeting.kind, rows_each(meeting)))
            for part in parts_of(every.variables, copies, meeting, seen[-1].each, None)(u, each=1):
                sums[id(part.variable)] += part.weighted_sum(tf.constant(weights))
        return list(sums.values()), [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in own]

    try:
        compare = tf.function(both, autograph=False).get_concrete_function(*given)  # not in init_scope: it stops tapes
        with tf.init_scope():
            sums, own = compare(*given)
    except UnknownUseError:
        raise
    except Exception as error:
        raise UnknownUseError(f"a trial on random records failed: {error}") from error
    return tuple(seen), [np.asarray(t, np.float64) for t in sums], [np.asarray(t, np.float64) for t in own]


def rows_each(meeting: Meeting) -> int:
    """Rows of a meeting's result for each record of a trial. Raises: UnknownUseError where axis 0 is not theirs."""
    shape = meeting.result.shape
    if not shape.rank or shape[0] is None or shape[0] % _RECORDS:
        raise UnknownUseError(f"{meeting.op.type} gives a weight's product without the records on axis 0")
    return int(shape[0]) // _RECORDS


def losses(outputs: Any, rng: np.random.Generator, weights: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """The sum of the outputs, by random coefficients, over all records; and with each record weighted."""
    plain = weighted = tf.zeros(())
    for output in keras.tree.flatten(outputs):
        if not tf.is_tensor(output) or not output.dtype.is_floating:
            continue
        if not output.shape.is_fully_defined() or not output.shape.rank or output.shape[0] % _RECORDS:
            raise UnknownUseError("its outputs do not have the records on axis 0")
        terms = tf.cast(output, tf.float32) * rng.normal(size=output.shape).astype("float32")
        each = np.repeat(weights, output.shape[0] // _RECORDS)
        plain += tf.reduce_sum(terms)
        weighted += tf.reduce_sum(terms * each.reshape(-1, *[1] * (output.shape.rank - 1)))
    return plain, weighted


def require_equal(sums: Sequence[np.ndarray], own: Sequence[np.ndarray], dtype: str) -> None:
    """Raises UnknownUseError where the sums are not the gradients."""
    sizes = [np.abs(wanted).max(initial=0.0) for wanted in own]
    for one, wanted, size in zip(sums, own, sizes, strict=True):
        if not np.abs(one - wanted).max(initial=0.0) <= TOLERANCE.get(dtype, 1e-3) * size + 1e-5 * max(1e-3, *sizes):
            raise RecordsMeetError("on random records its gradients are not those of its records, each by itself")
