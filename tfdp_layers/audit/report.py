"""What an audit found."""

import json
import math
from dataclasses import asdict, dataclass

from tfdp_layers.accounting.wording import rounded_down, rounded_up

__all__ = ["Audit"]

_PRIVATE = (
    "Computed from the records that were audited, without noise, and in no ledger of another model: of private records"
    " keep these numbers to yourself, or audit on public ones."
)


@dataclass(frozen=True)
class Audit:
    """A claim, and what an attack refutes.

    Not covered by any epsilon: the numbers are computed from the records that were audited, without noise. The steps
    that were attacked are in the audited model's ledger alone. Of private records they are for those who hold these.

    Attributes:
        claimed_epsilon: the upper bound: what the ledger proves (or, where it says so, what a publication claims).
        audited_epsilon_lower: the lower bound: the largest epsilon that was refuted, holding with `confidence`.
        delta: at which both are stated.
        confidence: that `audited_epsilon_lower` is at most the true epsilon of the mechanism audited; see `assumption`.
        assumption: what the lower bound is relative to.
        bounds: further lower bounds by name, each holding with `confidence` by itself.
        canaries, included, guesses, correct: of a run with canaries; `correct` of the first number of guesses.
    """

    claimed_epsilon: float
    audited_epsilon_lower: float
    delta: float
    confidence: float
    assumption: str
    bounds: dict[str, float]
    canaries: int = 0
    included: int = 0
    guesses: int = 0
    correct: int = 0

    @property
    def refuted(self) -> bool:
        """Whether the attack learned more than the claim allows: then the claim is false (at this confidence)."""
        return self.audited_epsilon_lower > self.claimed_epsilon

    def to_json(self) -> str:
        """One JSON object; an infinite epsilon is null."""
        values = asdict(self) | {"refuted": self.refuted}
        if not math.isfinite(self.claimed_epsilon):
            values["claimed_epsilon"] = None
        return json.dumps(values)

    def __str__(self) -> str:
        verdict = "REFUTED: the training protects less than claimed" if self.refuted else "not refuted"
        several = f", for {self.canaries} canaries of which {self.included} were included"
        canaries = several if self.canaries > 1 else ", each of a run with the canary or without it"
        others = "".join(f"\n  {name}: epsilon >= {rounded_down(value, 3)}" for name, value in self.bounds.items())
        return (
            f"Claimed: epsilon <= {rounded_up(self.claimed_epsilon)} at delta = {rounded_up(self.delta, 6)}\n"
            f"Audited: epsilon >= {rounded_down(self.audited_epsilon_lower)} with confidence {self.confidence:.0%}"
            f" ({self.assumption}): {verdict}\n"
            f"{self.correct} of {self.guesses} guesses were right{canaries}.{others}\n{_PRIVATE}"
        )
