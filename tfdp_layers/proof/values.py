"""What is known of a tensor: how it depends on the records of the batch.

Every statement is meant for every number of records B >= 1, every order of them, all weights and all noise.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfdp_layers.proof.sizes import Number, Size, symbol

Shape: TypeAlias = "tuple[Number | None, ...] | None"
"""Sizes of axes, None for one that is yet to be filled in (see `settle`); None for an unknown rank."""


@dataclass(frozen=True)
class Batch:
    """The records along an axis.

    Attributes:
        size: how many they are, an expression that names this batch and no other.
        parent: of a piece or of padded records, the batch that they are taken from.
        start: of a piece, the place of its first record in the parent.
        loop: of a piece, the loop that walks over the parent piece by piece.
        padded: whether rows beyond those of the parent follow, which hold anything.
        static: the number that TensorFlow knows, for pieces of a fixed size; None where it differs from run to run.
    """

    size: Size
    parent: Batch | None = None
    start: Number = 0
    loop: str = ""
    padded: bool = False
    static: int | None = None


@dataclass(frozen=True)
class Value:
    """Of a tensor. `fill`: the number that all its entries are, None if they differ or that is not known."""

    shape: Shape = None
    fill: float | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class Constant(Value):
    """Depends neither on records nor on their number, nor on places: weights, noise shared by all, constants.

    `entries`: of a small integer tensor, its entries in row-major order.
    """

    entries: tuple[Number, ...] | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class Counted(Value):
    """Depends on the number of the records, or on places in the batch, but not on what the records hold.

    Attributes:
        entries: as of `Constant`.
        steps: (start, step, count) of a sequence of integers start, start + step, ...
    """

    entries: tuple[Number, ...] | None = dataclasses.field(default=None, kw_only=True)
    steps: tuple[Number, int, Number] | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class Rows(Value):
    """Row by row: each entry depends on one record alone, the same way for all records.

    Axis `axis` has outer * batch.size * inner entries. Entry (i, b, j) of it, in row-major order, is a function f_ij of
    record b, of constants and of noise drawn for b; the same f_ij for every b, for every number of records and wherever
    the record stands. `outer`, `inner` and the other axes' sizes are constants.

    Attributes:
        within: integer bounds (least, most) of all entries, None if not known.
        runs: (axis, least, most): bounds of the sum of any leading entries along that axis.
    """

    batch: Batch = dataclasses.field(kw_only=True)
    axis: int = dataclasses.field(default=0, kw_only=True)
    outer: Number = dataclasses.field(default=1, kw_only=True)
    inner: Number = dataclasses.field(default=1, kw_only=True)
    within: tuple[Number, Number] | None = dataclasses.field(default=None, kw_only=True)
    runs: tuple[int, Number, Number] | None = dataclasses.field(default=None, kw_only=True)

    @property
    def layout(self) -> tuple[Batch, Number, Number]:
        return self.batch, self.outer, self.inner

    @property
    def length(self) -> Number:
        """Of the axis of the records."""
        return self.batch.size * self.outer * self.inner


@dataclass(frozen=True)
class Places(Value):
    """Integers that tell the place of a record: at record b of the axis, stride * b + v with least <= v <= most.

    v may depend on the record. It is laid out as `Rows` with outer 1. Fit for little: see `places`.
    """

    batch: Batch = dataclasses.field(kw_only=True)
    axis: int = dataclasses.field(default=0, kw_only=True)
    inner: Number = dataclasses.field(default=1, kw_only=True)
    stride: Number = dataclasses.field(default=1, kw_only=True)
    least: Number = dataclasses.field(default=0, kw_only=True)
    most: Number = dataclasses.field(default=0, kw_only=True)

    @property
    def outer(self) -> Number:
        return 1

    @property
    def length(self) -> Number:
        return self.batch.size * self.inner


@dataclass(frozen=True)
class Total(Value):
    """Additive: the sum over the records of a batch of f(record), f as in `Rows`."""

    batch: Batch = dataclasses.field(kw_only=True)


@dataclass(frozen=True)
class Single(Value):
    """Depends on one record alone: the one at a place in a batch, in a round of a loop over it."""

    batch: Batch = dataclasses.field(kw_only=True)
    place: Number = dataclasses.field(kw_only=True)
    loop: str = dataclasses.field(kw_only=True)


@dataclass(frozen=True)
class Carried(Value):
    """What a loop over records carries from round to round, in a round: what it was, and what this round put to it.

    Attributes:
        loop, index: which value of which loop.
        start: what it is before the first round.
        put: what this round added (a `Total` or `Single`), or put at the places of its records; None if nothing yet.
    """

    loop: str = dataclasses.field(kw_only=True)
    index: int = dataclasses.field(kw_only=True)
    start: Value = dataclasses.field(kw_only=True)
    put: Value | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class ListOf(Value):
    """A TensorList whose elements all are as `element`; None where nothing was put.

    Attributes:
        length: how many elements it has; None for a constant that is not known.
        unset: whether there may be places where nothing was put, which give zeros.
        spare: whether XLA, which does without lists that grow, may have more places than elements, of zeros at first.
        declared: the value that the elements' shape was declared by, or a `Special` that stands for it; None where it
            is one of several. Kernels refuse an element of another shape.
        rows: elements are those of this value along axis 0, in their order.
        steps: elements are integers; as of `Counted`.
    """

    element: Value | None = None
    length: Number | None = dataclasses.field(default=None, kw_only=True)
    unset: bool = dataclasses.field(default=False, kw_only=True)
    spare: bool = dataclasses.field(default=False, kw_only=True)
    declared: Value | None = dataclasses.field(default=None, kw_only=True)
    rows: Value | None = dataclasses.field(default=None, kw_only=True)
    steps: tuple[Number, int, Number] | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class Handle(Value):
    """A handle of state outside of the graph; `key` says of which."""

    key: int = dataclasses.field(kw_only=True)


@dataclass(frozen=True)
class Everyone(Value):
    """Whether something holds of all records (`holds`), or of none (not `holds`); negated if `negated`.

    Attributes:
        tensor, frame: the tensor, and the frame that it is computed in, all entries of which are meant.
        name: tells it from others.
    """

    name: str = dataclasses.field(kw_only=True)
    tensor: Any = dataclasses.field(kw_only=True, compare=False)
    frame: Any = dataclasses.field(kw_only=True, compare=False)
    holds: bool = dataclasses.field(default=True, kw_only=True)
    negated: bool = dataclasses.field(default=False, kw_only=True)


@dataclass(frozen=True)
class Special(Value):
    """A step of an idiom that is no value by itself: `idiom` names it, `parts` are what it is of."""

    idiom: str = dataclasses.field(kw_only=True)
    parts: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True)


@dataclass(frozen=True)
class Pieces(Value):
    """What the records' texts are cut into, along one axis: the words of a record one after the other, then the next's.

    A word depends on its record alone, as does how many a record has; the same way for all records. A record may have
    several texts, laid out as `Rows` are; then "record" stands for each text here.

    Attributes:
        cut: the operation that cut them, which tells them from pieces of other numbers.
        what: "words"; "places" (record, place) and "records" of them; how many of a record, "counts"; where these
            start, "starts", and end, "ends"; "sizes", (records, most words of one); "column", the words one below the
            other, (words, 1); "numbers", integers computed from how many words there are in all.
        known: of "numbers", what they are, where the number of all words is a symbol.
    """

    batch: Batch = dataclasses.field(kw_only=True)
    outer: Number = dataclasses.field(default=1, kw_only=True)
    inner: Number = dataclasses.field(default=1, kw_only=True)
    cut: str = dataclasses.field(kw_only=True)
    what: str = dataclasses.field(kw_only=True)
    known: Constant | Counted | None = dataclasses.field(default=None, kw_only=True)

    @property
    def texts(self) -> Number:
        """How many were cut."""
        return self.batch.size * self.outer * self.inner

    @property
    def words(self) -> Size:
        """How many words all texts have together, which is what the records say."""
        return symbol(f"words of {self.cut}", varies=True, least=0)

    @property
    def origin(self) -> tuple[Any, ...]:
        """What is the same of all that one cut made."""
        return self.batch, self.outer, self.inner, self.cut


@dataclass(frozen=True)
class Refused(Value):
    """Nothing is known (not `mixed`), or records are known to meet (`mixed`).

    Attributes:
        reason, operation, type: why, and the first operation at fault.
        place: its name behind those of the functions that it is in.
    """

    mixed: bool = dataclasses.field(kw_only=True)
    reason: str = dataclasses.field(kw_only=True)
    operation: str = dataclasses.field(default="", kw_only=True)
    type: str = dataclasses.field(default="", kw_only=True)
    place: str = dataclasses.field(default="", kw_only=True)


class RefusalError(Exception):
    """Raised by a rule that cannot vouch for its outputs."""

    mixed = False


class UnknownError(RefusalError):
    """Nothing can be said."""


class MixedError(RefusalError):
    """Records meet, or their number or places are used as a value."""

    mixed = True
