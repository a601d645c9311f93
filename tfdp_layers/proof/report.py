"""What a proof found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Report"]

Status = Literal["proved", "mixed", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What was found of one output, or of one write of state.

    Attributes:
        name: of the output, or of the variable.
        status: "proved"; "mixed": records meet, or their number or places are used as a value; "unknown".
        reason: why it is not proved.
        operation, type: the first operation at fault.
        layer: the Keras layer that it is in, where its name shows it.
        place: the operation's name behind those of the functions that it is in.
    """

    name: str
    status: Status
    reason: str = ""
    operation: str = ""
    type: str = ""
    layer: str = ""
    place: str = ""

    def __str__(self) -> str:
        if self.status == "proved":
            return f"{self.name}: proved"
        where = f" in layer {self.layer!r}" if self.layer else ""
        at = f" (operation {self.operation!r} of type {self.type}{where})" if self.operation else ""
        return f"{self.name}: {self.status}: {self.reason}{at}"


@dataclass(frozen=True)
class Report:
    """What was found of all outputs and of all state that is written.

    Attributes:
        findings: one for each output.
        writes: state that is written with what depends on records and may not be, and noise that may repeat.
        operations: how many were interpreted.
        seconds: how long that took.
        common: random numbers drawn once for several records (`common_draws`). It does not count for `status`: on one
            device that computes a draw at once they are constants.
    """

    findings: tuple[Finding, ...]
    writes: tuple[Finding, ...] = ()
    operations: int = 0
    seconds: float = 0.0
    common: tuple[Finding, ...] = ()

    @property
    def status(self) -> Status:
        """ "proved" if all of it is; "mixed" if anything is; else "unknown"."""
        found = {finding.status for finding in (*self.findings, *self.writes)}
        return "mixed" if "mixed" in found else "unknown" if "unknown" in found else "proved"

    @property
    def proved(self) -> bool:
        return self.status == "proved"

    @property
    def first(self) -> Finding | None:
        """What is at fault: of the findings of the worst status the first that names a layer, or else the first.

        None if all is proved.
        """
        if self.proved:
            return None
        worst = [finding for finding in (*self.findings, *self.writes) if finding.status == self.status]
        return next((finding for finding in worst if finding.layer), worst[0])

    @property
    def reason(self) -> str:
        return "" if self.first is None else self.first.reason

    @property
    def operation(self) -> str:
        return "" if self.first is None else self.first.operation

    @property
    def type(self) -> str:
        return "" if self.first is None else self.first.type

    @property
    def layer(self) -> str:
        return "" if self.first is None else self.first.layer

    def __str__(self) -> str:
        return self.status if self.first is None else str(self.first)
