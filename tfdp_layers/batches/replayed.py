"""Whether declared batches come as a draw has them: seen as training reads them, by digests and numbers of records."""

from __future__ import annotations

import hashlib
import math
import threading
from typing import Any, NamedTuple

import keras
import numpy as np

from tfdp_layers.caller import warn
from tfdp_layers.sampling import Sampling

__all__ = ["Drawn", "Reading"]

_FIRST, _KEPT = 8, 1024
"""Batches of a pass that are compared, and of the pass before whose digests are kept."""
_NUMBERS = 1 << 14
"""Numbers of an array that a digest is of, evenly spaced."""
_RARELY, _NEVER = math.log(1e-4), math.log(1e-6)
"""Chances of a declared draw to look as seen: equally many records in each batch, or the same ones in two passes."""


class Rows(NamedTuple):
    """How many records a batch has.

    Attributes:
        rows: of its arrays.
        counted: up to the last one of a weight above 0: what is behind it may be padding.
        between: whether a weight of 0 is before that one, which is no padding.
    """

    rows: int
    counted: int
    between: bool


class Pass:
    """Digests of the first batches of a pass, how many rows and records it had until now, and whether it ended."""

    def __init__(self) -> None:
        self.digests: list[int] = []
        self.records, self.counted, self.batches, self.ended = 0, 0, 0, False


class Drawn:
    """What was seen of batches that are declared to be drawn afresh, by all who read them; it warns once at most.

    Noticed are batches that come again as a source is started again: the first 8 of a pass, in their order, or in
    another one among the first 1,024 of the pass before. That one is the pass before of the same reading, or what was
    read last, where that was 8 batches or a whole pass: a look at a batch or two before training is none. Of `Poisson`
    also batches that all have equally many records, the first 8, and passes that have exactly as many as there are,
    where drawn ones so seldom have.

    Args:
        sampling: that is declared, one that draws each batch by itself.
    """

    def __init__(self, sampling: Sampling, examples: int) -> None:
        share = sampling.batch_size / examples
        self.sampling, self.examples = sampling, examples
        self.equal = examples * math.log(share**2 + (1.0 - share) ** 2)  # logarithm of the chance of two equal draws
        self.variance = examples * share * (1.0 - share)
        self.done, self.last = False, Pass()
        self.lock = threading.Lock()

    def say(self, seen: str) -> None:
        with self.lock:
            known, self.done = self.done, True
        if seen and not known:
            warn(seen)


class Reading:
    """One reading of the batches, pass after pass, from their first one on. What cannot be read is said elsewhere."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._rows: list[Rows] = []
        self._full = 0.0  # logarithm of the chance that all passes had exactly as many records as there are
        self._sized = drawn.sampling.kind == "poisson"
        self._begin(drawn.last)

    def _begin(self, before: Pass) -> None:
        told = before.ended or len(before.digests) >= _FIRST
        self._before = before.digests if told else []
        self._now = self._drawn.last = Pass()

    def read(self, batch: Any) -> None:
        """Looks at the next batch, as arrays."""
        if self._drawn.done:
            return
        leaves = keras.tree.flatten(batch)
        if not leaves or not all(np.ndim(leaf) for leaf in leaves):
            return  # said where it is standardised
        now = self._now
        if len(now.digests) < _KEPT:
            now.digests.append(_digest(leaves))
        rows = _rows(batch, leaves)
        now.records, now.counted, now.batches = now.records + rows.rows, now.counted + rows.counted, now.batches + 1
        if self._sized and len(self._rows) < _FIRST:
            self._rows.append(rows)
            if self._of_one_size():
                self._drawn.say(_of_one_size(self._drawn.sampling, len(self._rows), rows.rows))
        if self._before and now.batches == min(_FIRST, len(self._before)) and self._comes_again():
            self._drawn.say(_comes_again(self._drawn.sampling))

    def ended(self) -> None:
        """Says that the pass has no further batch."""
        now, now.ended = self._now, True
        if self._sized and now.batches > 1:
            rare = _likely(self._drawn.variance * now.batches)
            whole = self._drawn.examples in (now.records, now.counted)
            self._full = self._full + rare if whole else math.inf
            if self._full <= _RARELY:
                self._drawn.say(_whole_passes(self._drawn.sampling, self._drawn.examples))
        self._begin(now)

    def _of_one_size(self) -> bool:
        """Whether all batches have equally many records, and drawn ones next to never do.

        Padding is what has the weight 0 at the end; but of batches that have as many rows as a mean draw, which nobody
        pads to, nothing is, where such weights are elsewhere as well.
        """
        sizes = {one.counted for one in self._rows}
        declared = self._drawn.sampling.batch_size
        if any(one.between for one in self._rows) and all(one.rows == declared for one in self._rows):
            sizes = {declared}
        times = len(self._rows) - (0 if sizes == {declared} else 1)
        return len(sizes) == 1 and times * _likely(self._drawn.variance) <= _RARELY

    def _comes_again(self) -> bool:
        now, before = self._now.digests[:_FIRST], self._before
        if len(now) > 1 and len({*now, *before}) == 1:
            return False  # records that are all alike
        chance = self._drawn.equal * len(now)
        if now == before[: len(now)]:
            return chance <= _NEVER
        return set(now) <= set(before) and chance + len(now) * math.log(len(before)) <= _NEVER


def _likely(variance: float) -> float:
    """Logarithm of what no number of records exceeds in probability: about 0.4 / sqrt(variance)."""
    return min(0.0, math.log(0.5 / math.sqrt(max(variance, 1e-9))))


def _digest(leaves: list[np.ndarray]) -> int:
    found = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        flat = leaf.reshape(-1)
        part = np.ascontiguousarray(flat[:: -(-flat.size // _NUMBERS) | 1])
        found.update(repr((leaf.shape, leaf.dtype.str)).encode())
        found.update(repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes())
    return int.from_bytes(found.digest(), "little")


def _rows(batch: Any, leaves: list[np.ndarray]) -> Rows:
    rows = len(leaves[0])
    weights = leaves[-1]
    if not (isinstance(batch, tuple) and len(batch) == 3 and weights.size == rows):
        return Rows(rows, rows, False)
    there = np.flatnonzero(weights)
    counted = int(there[-1]) + 1 if len(there) else 0
    return Rows(rows, counted, len(there) < counted)


def _comes_again(sampling: Sampling) -> str:
    return (
        f"The batches that were declared as {sampling}, which draws every step afresh, came again as the loader was"
        " started again: the same records are in the same batches in each pass, which costs more than is stated. Give"
        f" the single records to tfdp.records, and fit draws them; declare Partition({sampling.batch_size}) where a"
        " pass has each record in one batch; or draw in __iter__, or __getitem__, by a generator without a seed"
        " (nothing calls on_epoch_end of a declared keras.utils.PyDataset)."
    )


def _of_one_size(sampling: Sampling, batches: int, rows: int) -> str:
    return (
        f"The batches that were declared as {sampling}, which differ in size where they are drawn so, do not: the first"
        f" {batches} have equally many records ({rows} rows). Those of a shuffled pass, or of another draw, cost more"
        f" than is stated. {_instead(sampling, sampling.batch_size)}"
    )


def _whole_passes(sampling: Sampling, examples: int) -> str:
    return (
        f"The batches that were declared as {sampling} have {examples} records in each pass, exactly as many as there"
        " are, as those of a shuffled pass have, and next to never those of draws: that costs more than is stated."
        f" {_instead(sampling, sampling.batch_size)}"
    )


def _instead(sampling: Sampling, size: int) -> str:
    return (
        f"Give the single records to tfdp.records, and fit draws them; declare Partition({size}) where each record is"
        f" in one batch of a pass, or FixedSize({size}) where each batch is drawn from all records."
    )
