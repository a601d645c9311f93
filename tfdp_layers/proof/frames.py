"""Where an operation stands: functions within functions, and what variables hold while they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tfdp_layers.proof.sizes import Number, Size, atoms, symbol
from tfdp_layers.proof.values import Value

CALL, BRANCH, LOOP, RECORDS = "call", "branch", "loop", "records"
"""Kinds of frames: entered once where the outer one is; or not; or any constant number of times; or once a piece."""


@dataclass
class Segment:
    """What a variable of small integers holds between writes that cannot be followed: base + offset."""

    base: tuple[Size, ...]
    offset: tuple[int, ...]
    frame: Frame

    def entries(self) -> tuple[Number, ...]:
        return tuple(b + o for b, o in zip(self.base, self.offset, strict=True))


@dataclass(eq=False)
class Frame:
    """A function (or the top graph) in which operations are interpreted.

    Attributes:
        path: tells frames apart; the same in every round of a loop.
        kind: how often it is entered.
        graph: its operations.
        parent: the frame that enters it.
        values: what is known of each tensor, by its name.
        outside: tensors of `parent` by the names of the function's inputs, where they are the same tensor throughout.
        because: why it depends on records whether, or how often, it is entered; "" if it does not.
        loop: of the kind `RECORDS`, the loop (`record_loops.Walk`).
        segments: by variable, what it holds now; `ended` what it held before.
        touched: by variable, the operation here that wrote it last, or None, and those that read it since.
    """

    path: str
    kind: str
    graph: Any
    parent: Frame | None = None
    values: dict[str, Value] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)
    because: str = ""
    loop: Any = None
    segments: dict[int, Segment] = field(default_factory=dict)
    ended: dict[int, list[Segment]] = field(default_factory=dict)
    touched: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def home(self) -> Frame:
        """The frame that counts what this one does: a called function is part of its caller."""
        return self.parent.home if self.kind == CALL and self.parent is not None else self

    def outwards(self) -> Iterator[Frame]:
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

    def reason(self) -> str:
        """Why records decide whether this is run, or how often; "" if they do not."""
        return next((frame.because for frame in self.outwards() if frame.because), "")

    def walks(self) -> list[Any]:
        """The loops over records around this, the innermost first."""
        return [frame.loop for frame in self.outwards() if frame.kind == RECORDS]

    def walk(self) -> Any:
        """The innermost loop over records, None outside of any."""
        return next(iter(self.walks()), None)

    def lasts(self, number: Number) -> bool:
        """Whether a number is the same in all rounds of the loops around: none of them made it."""
        if not isinstance(number, Size):
            return True
        loops = [f.path.rpartition("|")[0] for f in self.outwards() if f.kind in (LOOP, RECORDS)]
        found = atoms(number)
        own = any(
            atom.name.startswith(loop) and atom.name[len(loop) :][:1] in ":| " for atom in found for loop in loops
        )
        return not own and all(self.lasts(operand) for atom in found for operand in atom.operands)

    def segment(self, key: int, count: int) -> Segment:
        """What the variable holds now."""
        home = self.home
        if key not in home.segments:
            home.rebase(key, count)
        return home.segments[key]

    def rebase(self, key: int, count: int) -> None:
        """From here on the variable holds something that nothing is known of."""
        before = self.ended.setdefault(key, [])
        if key in self.segments:
            before.append(self.segments[key])
        base = tuple(symbol(f"{self.path} variable {key}.{len(before)}[{i}]") for i in range(count))
        self.segments[key] = Segment(base, (0,) * count, self)

    def wrote(self, key: int, by: tuple[int, ...] | None) -> None:
        """A variable was written here: it holds what it held and `by`, or (None) something that nothing is known of.

        The frames around this one do not follow what is added here, which may be never run, or several times: there it
        holds something that nothing is known of, whether or not the frames in between looked at it.
        """
        home = self.home
        for frame in self.outwards():
            if frame is home and by is not None:
                segment = frame.segment(key, len(by))
                segment.offset = tuple(a + b for a, b in zip(segment.offset, by, strict=True))
            elif key in frame.segments:
                frame.rebase(key, len(frame.segments[key].base))

    def resolve(self, tensor: Any) -> tuple[Frame, Any]:
        """The outermost frame and tensor that this tensor is the same as: what was handed in is followed outwards."""
        frame = self
        while tensor.name in frame.outside and frame.parent is not None:
            frame, tensor = frame.parent, frame.outside[tensor.name]
        return frame, tensor
