"""Streams of correlated noise over several calls of `fit`: where one goes on, and where another one starts.

A stream that goes on adds to its own entry of the ledger, whose cost is that of all its releases together. It may only
where nothing was lost in between: the noise is still in the optimizer's memory, every draw led to a release, and the
order of the records is followed from where it was left. Everywhere else (another process, other records, weights,
noise or ledger, an interrupted step) a new stream starts with z_{-1} = 0 in an entry of its own, and costs add up.
"""

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdp_layers.accounting import Ledger, Release
from tfdp_layers.batches.base import Batches
from tfdp_layers.noise import NoiseMemory, as_sparsity_preserving
from tfdp_layers.optimizers.base import PrivateOptimizer

if TYPE_CHECKING:
    from tfdp_layers.models.run import Run

__all__ = ["Stream", "begin_stream", "settle_correlation", "stream_after"]


@dataclass(frozen=True)
class Stream:
    """A stream after a `fit` that ended between two steps.

    Attributes:
        release, token, ledger: what each of its releases reveals, and where they are counted.
        batches: what they were drawn from.
        optimizer: whose memory holds its noise.
        memory: which memory holds it, and which of its streams it is.
        order: that their draws followed.
        weights: that the noise was added to: others have numbers of their own in the memory, left from another step.
        made: releases so far: the next draw is that of step `made` in the order of the records.
        process: its number.
    """

    release: Release
    token: str
    ledger: "weakref.ref[Ledger]"
    batches: "weakref.ref[Batches]"
    optimizer: "weakref.ref[PrivateOptimizer]"
    memory: tuple[NoiseMemory, int]
    order: Any
    weights: list[Any]
    made: int
    process: int

    def of(self, batches: Batches, optimizer: PrivateOptimizer) -> bool:
        """Whether its noise and its order are still there."""
        return (
            self.batches() is batches
            and batches.order is self.order
            and self.optimizer() is optimizer
            and optimizer.memory is self.memory[0]
            and optimizer.memory.streams == self.memory[1]
            and self.process == os.getpid()
        )

    def goes_on(self, run: "Run", optimizer: PrivateOptimizer, ledger: Ledger) -> bool:
        """Whether this run's releases are the next ones of the stream, and the ledger holds all before them."""
        if not self.of(run.batches, optimizer) or self.ledger() is not ledger or run.release != self.release:
            return False
        if [id(weight) for weight in noised(run)] != [id(weight) for weight in self.weights]:
            return False
        entry = ledger.entry_of(self.token)
        return entry is not None and entry.steps == self.made


def noised(run: "Run") -> list[Any]:
    """The weights that a run's noise is added to."""
    return [weight for group in run.groups for weight in group.variables]


def settle_correlation(optimizer: PrivateOptimizer, batches: Batches, steps: int, last: Stream | None) -> None:
    """Finds the decay of the optimizer's noise, where it has none: that of the stream that goes on, or the best.

    Raises: ValueError where the noise may not be correlated on these draws.
    """
    if optimizer.noise is None:
        optimizer.correlation = None
        return
    as_sparsity_preserving(optimizer.selection, beside=optimizer.noise)  # it may have been assigned since
    if optimizer.noise.decay is None and last is not None and last.of(batches, optimizer):
        optimizer.correlation = last.release.noise
        return
    optimizer.correlation = batches.sampling.settled(optimizer.noise, steps, batches.examples)


def begin_stream(run: "Run", optimizer: PrivateOptimizer, ledger: Ledger, last: Stream | None) -> str | None:
    """The token of the stream that goes on; None where a new one starts, whose noise is that of no earlier step."""
    if run.release.noise is None:
        return None
    # A noise multiplier that is found for a budget was found for a new stream.
    if last is not None and not optimizer.multiplier.calibrates and last.goes_on(run, optimizer, ledger):
        run.start = last.made
        return last.token
    optimizer.memory.restart()
    return None


def stream_after(run: Any, optimizer: PrivateOptimizer, ledger: Ledger) -> Stream | None:
    """The stream that a later `fit` may go on with; None where draws or releases were lost."""
    if run is None or run.token is None or run.release.noise is None or run.broken or run.made != run.drawn:
        return None
    if not run.batches.sampling.fixed or run.batches.declared or run.replicas is not None or not run.made:
        return None
    entry, made = ledger.entry_of(run.token), run.start + run.made
    if entry is None or entry.steps != made:  # something was reserved that no step made
        return None
    return Stream(
        run.release,
        run.token,
        weakref.ref(ledger),
        weakref.ref(run.batches),
        weakref.ref(optimizer),
        (optimizer.memory, optimizer.memory.streams),
        run.batches.order,
        noised(run),
        made,
        os.getpid(),
    )
