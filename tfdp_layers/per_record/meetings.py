"""Where records meet weights, in the graph of a layer's own call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.agreement import RefusedLayerError

SIZES = {"Shape", "ShapeN", "Size", "Rank"}
"""Operations whose results hold numbers of rows and positions, and nothing that a record holds."""
REPEATS = {"BroadcastTo", "Tile"}
BINARY = {"Add", "AddV2", "Sub", "Mul", "BiasAdd", "RealDiv", "SquaredDifference", "Pow", "SelectV2"}
IN_ORDER = {"Identity", "Cast", "Reshape", "ExpandDims", "Squeeze"}
"""Operations that keep all entries, in their order."""


class UnknownUseError(RefusedLayerError):
    """A use of weights from which no gradients of single records follow here."""


class RecordsMeetError(UnknownUseError):
    """Gradients of a trial on random records that are not those of its records: these meet in the call, it seems."""


@dataclass(frozen=True)
class Meeting:
    """An operation that takes records, and at one place what was computed from weights alone.

    Attributes:
        op: the operation.
        slot: the place of what came from weights among its inputs.
        weights: the places of these weights among all.
        chain: the operations between them and this one, in order.
        after: the operation that brings what was repeated onto the axis of records, where this one does not.
    """

    op: Any
    slot: int
    weights: tuple[int, ...]
    chain: tuple[Any, ...]
    after: Any = None

    @property
    def met(self) -> tf.Tensor:
        """What came from weights."""
        return self.op.inputs[self.slot]

    @property
    def result(self) -> tf.Tensor:
        return (self.after or self.op).outputs[0]

    @property
    def kind(self) -> tuple[str, int, bool]:
        return self.op.type, self.slot, self.after is not None

    @property
    def in_order(self) -> bool:
        """Whether the weight comes as it is, but for its type and shape."""
        return len(self.weights) == 1 and all(op.type in IN_ORDER for op in self.chain)

    @property
    def transposed(self) -> bool:
        """Whether a weight (n, m) comes as (m, n)."""
        turns = [op for op in self.chain if op.type == "Transpose"]
        rest = [op for op in self.chain if op.type not in ("Identity", "Cast", "Transpose")]
        return len(self.weights) == 1 and not rest and len(turns) == 1 and len(self.met.shape) == 2


def meetings(ops: Sequence[Any], weights: Sequence[tf.Tensor], leaves: Sequence[tf.Tensor]) -> Iterator[Meeting]:
    """The meetings among these operations, which are in order.

    Args:
        ops: all operations of the call.
        weights: the weights' values in it.
        leaves: the tensors that were given to it, with the records on axis 0.

    Raises: UnknownUseError for weights that a loop, a branch or another function takes.
    """
    known: dict[Any, tuple[frozenset[int], frozenset[int]]] = {
        t.ref(): (frozenset([i]), frozenset()) for i, t in enumerate(weights)
    }
    data: set[Any] = {t.ref() for t in leaves}
    sizes: set[Any] = set()
    waiting: dict[Any, Meeting] = {}
    for place, op in enumerate(ops):
        inputs, outputs = [t.ref() for t in op.inputs], [t.ref() for t in op.outputs]
        slots = [slot for slot, t in enumerate(inputs) if t in known]
        rows = any(t in data for t in inputs)
        sized = any(t in sizes for t in inputs)
        if op.type in SIZES:
            sizes.update(outputs if rows or sized else ())
        elif op.type == "Reshape" and inputs[0] in waiting:
            yield dataclasses.replace(waiting[inputs[0]], after=op)
            data.update(outputs)
        elif slots and repeats_inside(op, sized, leaves):
            which, chain = known[inputs[0]]
            waiting[outputs[0]] = Meeting(op, 0, tuple(sorted(which)), tuple(ops[i] for i in sorted(chain)))
        elif slots and (rows or becomes_rows(op, slots, sized, leaves)):
            for slot in slots:
                which, chain = known[inputs[slot]]
                yield Meeting(op, slot, tuple(sorted(which)), tuple(ops[i] for i in sorted(chain)))
            data.update(outputs)
        elif slots:
            which = frozenset().union(*(known[inputs[slot]][0] for slot in slots))
            chain = frozenset([place]).union(*(known[inputs[slot]][1] for slot in slots))
            known.update({t: (which, chain) for t in outputs})
        elif rows:
            data.update(outputs)
        elif sized:
            sizes.update(outputs)


def repeats_inside(op: Any, sized: bool, leaves: Sequence[tf.Tensor]) -> bool:
    """Whether a weight is repeated for each record on an axis behind others of length 1, as `repeat` begins."""
    if op.type not in REPEATS or op.outputs[0].shape.rank is None:
        return False
    sizes = op.outputs[0].shape.as_list()
    place = next((axis for axis, size in enumerate(sizes) if size != 1), 0)
    records = next((t.shape[0] for t in leaves if t.shape.rank), None)
    return place > 0 and sizes[place] == records and (records is not None or sized)


def becomes_rows(op: Any, slots: Sequence[int], sized: bool, leaves: Sequence[tf.Tensor]) -> bool:
    """Whether what came from weights alone gets an axis of records here: repeated, or added to as many zeros."""
    if op.type not in REPEATS and op.type not in BINARY:
        return False
    records = next((t.shape[0] for t in leaves if t.shape.rank), None)
    if records is None:
        return sized
    shapes = [op.inputs[slot].shape for slot in slots]
    whole = op.outputs[0].shape
    return bool(whole.rank and whole[0] == records) and not any(
        s.rank == whole.rank and s[0] == records for s in shapes
    )


def given_out(ops: Sequence[Any], weights: Sequence[tf.Tensor], found: Sequence[Meeting], outputs: Any) -> bool:
    """Whether the call's results hold what was computed from weights alone, so that others use it."""
    known, met = {t.ref() for t in weights}, {id(m.op) for m in found}
    for op in ops:
        if id(op) not in met and op.type not in SIZES and any(t.ref() in known for t in op.inputs):
            known.update(t.ref() for t in op.outputs)
    return any(tf.is_tensor(t) and t.ref() in known for t in tf.nest.flatten(outputs))
