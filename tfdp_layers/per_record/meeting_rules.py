"""What each record adds to the gradient of what it meets, by the kind of operation."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.broadcasting import summed_like
from tfdp_layers.per_record.contributions import Contribution, Lookups, Products, Stored, positions
from tfdp_layers.per_record.convolution_choice import kernel_contribution
from tfdp_layers.per_record.einsum import einsum_contribution
from tfdp_layers.per_record.meetings import REPEATS, Meeting, UnknownUseError


@dataclass(frozen=True)
class Shaped:
    """In the place of a variable: what was computed from weights."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A meeting, with what its gradients are of.

    Attributes:
        meeting: the operation and its input.
        target: the variable, or a `Shaped` of the input's shape.
        turned: whether the input is the target transposed.
        each: rows of the result for each record.
        records: the number of records, where `each` times that many rows are told apart only by it; else None.
    """

    meeting: Meeting
    target: Any
    turned: bool
    each: int
    records: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meeting.met.shape)

    def split(self, rows: tf.Tensor) -> tf.Tensor:
        """(records * each, ...) -> (records, each, ...); as they are where a record has one row."""
        if self.each == 1:
            return rows
        lengths = (-1, self.each) if self.records is None else (self.records, -1)
        return tf.reshape(rows, (*lengths, *rows.shape[1:]))

    def stored(self, values: tf.Tensor) -> Stored:
        """Gradients written out, (records, ...) in the order of the target's entries."""
        return Stored(self.target, tf.reshape(tf.cast(values, tf.float32), (-1, *self.target.shape)))

    def refuse(self, why: str) -> UnknownUseError:
        return UnknownUseError(f"{self.meeting.op.type} {why}")


Rule = Callable[[Place, tf.Tensor], Contribution]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Registers how operations of these types use a weight: (place, gradient at the result) -> contribution."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def contribution(place: Place, u: tf.Tensor) -> Contribution:
    """What each record adds to the gradient of the target. Raises: UnknownUseError where that is not known."""
    u.set_shape(place.meeting.result.shape)
    return RULES[place.meeting.op.type](place, u)


def require_rule(meeting: Meeting) -> None:
    """Raises UnknownUseError for an operation of which no rule says what a weight's gradient is in it."""
    if meeting.op.type not in RULES:
        raise UnknownUseError(f"it takes them to {meeting.op.type}, for which there is no rule")


@rule("Add", "AddV2", "AddN", "BiasAdd", "Sub", "Mul", "RealDiv", "SquaredDifference", "Pow", "SelectV2", "BroadcastTo")
def entry_by_entry(place: Place, u: tf.Tensor) -> Contribution:
    """The weight is broadcast: its gradient is the sum of u times the derivative in each entry."""
    if place.meeting.after is not None:
        return repeated(place, u)
    shape, rank = place.shape, len(u.shape)
    padded = [1] * (rank - len(shape)) + list(shape)
    if len(padded) != rank or not rank or padded[0] != 1:
        raise place.refuse("takes a weight with a value for each record")
    products = derivative(place, tf.cast(u, tf.float32))
    value = padded[1:] if place.each == 1 else [1, *padded[1:]]
    return place.stored(summed_like(place.split(products), value, place.target.shape))


def derivative(place: Place, u: tf.Tensor) -> tf.Tensor:
    """u times the derivative of the result by the weight's entry, of the result's shape."""
    op, slot = place.meeting.op, place.meeting.slot
    kind, values = op.type, [tf.cast(t, tf.float32) if t.dtype.is_floating else t for t in op.inputs]
    if kind in ("Add", "AddV2", "AddN", *REPEATS) or (kind == "BiasAdd" and op.get_attr("data_format") == b"NHWC"):
        return u
    if kind == "Sub":
        return -u if slot else u
    if kind == "Mul":
        return u * values[1 - slot]
    if kind == "RealDiv":
        return -u * values[0] / tf.square(values[1]) if slot else u / values[1]
    if kind == "SquaredDifference":
        return 2.0 * u * (values[slot] - values[1 - slot])
    if kind == "Pow" and slot:
        above = values[0] > 0.0
        logs = tf.math.log(tf.where(above, values[0], tf.ones_like(values[0])))
        return u * tf.pow(values[0], values[1]) * tf.where(above, logs, tf.zeros_like(logs))
    if kind == "SelectV2" and slot:
        chosen = tf.cast(values[0] if slot == 1 else tf.logical_not(values[0]), tf.float32)
        return u * chosen
    raise place.refuse("takes a weight in a way without a rule")


@rule("Tile")
def repeated(place: Place, u: tf.Tensor) -> Contribution:
    """Repeated for each record alone: other axes keep their sizes."""
    shape = place.shape
    if place.meeting.after is not None and place.each == 1 and math.prod(u.shape[1:]) == math.prod(shape):
        return place.stored(u)
    if place.meeting.after is not None or not shape or shape[0] != 1 or tuple(u.shape[1:]) != shape[1:]:
        raise place.refuse("repeats a weight along more than the records")
    return entry_by_entry(place, u)


@rule("MatMul")
def product(place: Place, u: tf.Tensor) -> Contribution:
    """Rows (n, k) times a matrix (k, m), or (m, k) transposed."""
    op = place.meeting.op
    if place.meeting.slot == 0 or op.get_attr("transpose_a"):
        raise place.refuse("multiplies a weight with records that lie along its columns")
    turned = op.get_attr("transpose_b")
    widths = place.shape[turned], place.shape[not turned]
    x, u = (tf.ensure_shape(t, (None, n)) for t, n in zip((op.inputs[0], u), widths, strict=True))
    x, u = (place.split(t) if place.each > 1 else t[:, tf.newaxis] for t in (x, u))
    return matrix_products(place, x, u, turned)


def matrix_products(place: Place, x: tf.Tensor, u: tf.Tensor, transposed: bool) -> Contribution:
    """x (records, positions, k) times a matrix (k, m), or (m, k) transposed, whose gradient has u."""
    pair = (u, x) if transposed != place.turned else (x, u)
    return Products(place.target, *pair)


@rule("BatchMatMulV2", "BatchMatMul", "BatchMatMulV3")
def batched_product(place: Place, u: tf.Tensor) -> Contribution:
    """Records (b, ..., n, k) times a matrix, or one matrix for each of several axes; or a matrix times records."""
    op, slot, shape = place.meeting.op, place.meeting.slot, place.shape
    other = op.inputs[1 - slot]
    if place.each > 1 or op.get_attr("adj_x") or (op.get_attr("adj_y") and (slot == 0 or len(shape) > 2)):
        raise place.refuse("multiplies a weight in a way without a rule")
    if slot == 1 and len(shape) == 2:
        return matrix_products(place, positions(other), positions(u), op.get_attr("adj_y"))
    labels = string.ascii_lowercase
    middle = labels[3 : 3 + len(other.shape) - 3]
    own = shape[1:] if len(shape) == len(other.shape) and shape[0] == 1 else shape
    leading = len(own) - 2
    if leading > len(middle) or tuple(own[:leading]) != tuple(other.shape[-2 - leading : -2]):
        raise place.refuse("multiplies a weight in a way without a rule")
    kept = middle[len(middle) - leading :]
    if slot == 1:
        return of_einsum(place, f"z{middle}ab,{kept}bc->z{middle}ac", own, other, u)
    return of_einsum(place, f"z{middle}bc,{kept}ab->z{middle}ac", own, other, u)


@rule("Einsum")
def einsum(place: Place, u: tf.Tensor) -> Contribution:
    """An einsum of records and a weight, with the records on the first axis of both sides."""
    op, slot = place.meeting.op, place.meeting.slot
    operands, result = op.get_attr("equation").decode().split("->")
    both = operands.split(",")
    if len(both) != 2 or "." in operands:
        raise place.refuse("has an equation without a rule")
    records, weight = both[1 - slot], both[slot]
    if place.each > 1 or not records or records[:1] != result[:1] or records[0] in weight:
        raise place.refuse("has an equation whose first label is not that of the records")
    return of_einsum(place, f"{records},{weight}->{result}", place.shape, op.inputs[1 - slot], u)


def of_einsum(place: Place, equation: str, shape: tuple[int, ...], x: tf.Tensor, u: tf.Tensor) -> Contribution:
    """The gradients of a kernel of this shape, of the target's entries in order."""
    if tuple(place.target.shape) == tuple(shape):
        return einsum_contribution(equation, place.target, x, u)
    return place.stored(einsum_contribution(equation, Shaped(tuple(shape)), x, u).gradients())


@rule("GatherV2")
def lookup(place: Place, u: tf.Tensor) -> Contribution:
    """Rows of a table, by each record's own ids."""
    op = place.meeting.op
    axis = tf.get_static_value(op.inputs[2])
    if place.meeting.slot or axis is None or int(axis) != 0 or op.get_attr("batch_dims") or place.each > 1:
        raise place.refuse("reads a weight in a way without a rule")
    ids, rows, units = op.inputs[1], place.shape[0], 1
    for size in place.shape[1:]:
        units *= size
    u = tf.reshape(u, tf.concat([tf.shape(ids), [units]], 0))
    flat = positions(tf.ensure_shape(u, (*ids.shape, units)))
    ids = tf.reshape(ids, tf.shape(flat)[:2])
    if len(place.shape) == 2 and tuple(place.target.shape) == place.shape:
        return Lookups(place.target, ids, flat)
    hot = tf.one_hot(ids, rows, dtype=tf.float32)
    return place.stored(tf.matmul(hot, tf.cast(flat, tf.float32), transpose_a=True))


@rule("Conv2D", "Conv3D", "DepthwiseConv2dNative")
def convolved(place: Place, u: tf.Tensor) -> Contribution:
    """Images (b, *space, channels) convolved with a kernel."""
    op = place.meeting.op
    strides, rates = (list(op.get_attr(name))[1:-1] for name in ("strides", "dilations"))
    padding = op.get_attr("padding").decode().lower()
    if place.meeting.slot == 0 or not op.get_attr("data_format").decode().endswith("C") or padding == "explicit":
        raise place.refuse("convolves in a way without a rule")
    if place.each > 1:
        raise place.refuse("convolves several images of each record")
    operation = keras.ops.depthwise_conv if op.type.startswith("Depthwise") else keras.ops.conv
    options = {"strides": tuple(strides), "padding": padding, "dilation_rate": tuple(rates)}
    convolution = functools.partial(operation, data_format="channels_last", **options)
    same = tuple(place.target.shape) == place.shape
    kernel = place.target if same else Shaped(place.shape)
    part = kernel_contribution(kernel, op.inputs[0], u, operation, convolution, options)
    return part if same else place.stored(part.gradients())
