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

__all__ = ["LONGEST", "NUMBERS", "Drawn", "Reading", "Rows"]

_FIRST, _KEPT = 8, 1024
"""Batches of a pass that are compared, and of the pass before whose digests are kept."""
LONGEST, _MOST = 4096, 16384
"""Batches of a pass, and of a reading, that are looked at."""
NUMBERS = 1 << 14
"""Numbers of an array that a digest is of, evenly spaced."""
_RARELY, _NEVER = math.log(1e-4), math.log(1e-6)
"""Chances of a declared draw to look as seen: equally many records in each batch, or the same ones in two passes."""


class Rows(NamedTuple):
    """How many records a batch has.

    Attributes:
        rows: of its arrays.
        counted: up to the last one of a weight above 0: what is behind it may be padding.
        between: whether a weight of 0 is before that one, which is no padding.
        alike: whether the first row, the middle one and the last one hold the same.
    """

    rows: int
    counted: int
    between: bool
    alike: bool = False


class Pass:
    """Digests of the first batches of a pass, how many rows and records it had until now, and whether it ended."""

    def __init__(self) -> None:
        self.digests: list[int] = []
        self.records, self.counted, self.batches, self.ended = 0, 0, 0, False


class Runs:
    """How many batches in a row came before, all at one distance, among the first ones of a reading.

    A batch of one record or none tells nothing. Nor do batches of which some are alike within that distance: records
    that hold the same make such ones, and no draw of records that differ does. Of records of few values, few batches
    may come again in their order by chance: of fewer than 8, 16 have to.

    Blocks of 1 to 7 batches that each come again at once, and others behind them, make no such run: each is one
    `echo`, and noticed are 8 different batches in them, or 16 of which neighbours differ.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._place, self._distance = 0, 0
        self.run: list[int] = []
        self._echoes: list[tuple[int, ...]] = []
        self._echoed = (0, 0)  # the length of these blocks, and the last place of one

    def read(self, digest: int, rows: int) -> None:
        self._place += 1
        if rows < 2:
            return
        before = self._places.get(digest)
        if before is not None or len(self._places) < _KEPT:
            self._places[digest] = self._place
        distance = 0 if before is None else self._place - before
        if not distance:
            self.run = []
        elif distance == self._distance:
            self.run = [*self.run, digest][-2 * _FIRST :]
        else:
            self.run = [digest]
        self._distance = distance
        if 0 < distance < _FIRST:
            self._echo(distance)

    def _echo(self, distance: int) -> None:
        length, last = self._echoed
        going = length == distance and self._place - last <= 2 * distance
        if len(self.run) == distance == len({*self.run}):
            block = tuple(self.run)
            known = self._echoes if going else []
            self._echoes = known if known[-1:] == [block] else [*known, block][-2 * _FIRST :]
            self._echoed = distance, self._place
        elif going:
            self._echoed = distance, self._place

    def again(self, alone: bool) -> bool:
        """Whether so many came again that it is no chance.

        Args:
            alone: whether each pass has a single batch, which may then be the same one each time.
        """
        most = min(_FIRST, self._distance)
        enough = _FIRST if most == _FIRST or (alone and most == 1) else 2 * _FIRST
        run = self.run[-enough:]
        in_order = len(run) == enough and most > (0 if alone else 1) and len({*run}) == most
        return in_order or self._echo_again()

    def _echo_again(self) -> bool:
        different = len({digest for block in self._echoes for digest in block})
        return different >= _FIRST or (len(self._echoes) == 2 * _FIRST and different > 2)


class Drawn:
    """What was seen of batches that are declared to be drawn afresh, by all who read them; it warns once at most.

    Noticed are batches that come again as a source is started again: the first 8 of a pass, in their order, or in
    another one among the first 1,024 of the pass before. That one is the pass before of the same reading, or what was
    read last, where that was 8 batches or a whole pass: a look at a batch or two before training is none. Where a pass
    has no end that is seen (`.repeat`, a loop in a generator), it is 8 in a row that came before in that order, among
    the first 1,024 of the reading, and blocks that come again at once (`Runs`); where a pass has fewer than 8, passes
    of the same ones, in whichever order. Of `Poisson` also batches that all have equally many records, the first 8,
    and passes that have exactly as many as there are, where drawn ones so seldom have.

    Args:
        sampling: that is declared, one that draws each batch by itself.
    """

    def __init__(self, sampling: Sampling, examples: int) -> None:
        share = sampling.batch_size / examples
        self.sampling, self.examples = sampling, examples
        self.equal = examples * math.log(share**2 + (1.0 - share) ** 2)  # logarithm of the chance of two equal draws
        self.variance = examples * share * (1.0 - share)
        self.done, self.unsaid, self.last = False, "", Pass()
        self._lock = threading.RLock()

    def say(self, seen: str) -> None:
        """Warns, once; where a filter makes an error of that, whoever reads on, or again, is told again."""
        with self._lock:
            if not self.done:
                self.unsaid = seen
                warn(seen)
                self.done, self.unsaid = True, ""


class Reading:
    """One reading of the batches, pass after pass, from their first one on. What cannot be read is said elsewhere.

    Of a pass the first 4,096 are looked at, and no further one at all once a pass ended, two were other ones than
    those before them, 1,024 batches or more were looked at, and nothing that may come to a word is under way; or 16,384
    batches were.

    Attributes:
        over: whether that is so.
    """

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._rows: list[Rows] = []
        self._full = 0.0  # logarithm of the chance that all passes had exactly as many records as there are
        self._sized = drawn.sampling.kind == "poisson"
        self._runs = Runs()
        self._same: float = 0  # batches of passes in a row that have those of the pass before; none may be there twice
        self._looked, self._passes, self._others, self.over = 0, 0, 0, False
        self._begin(drawn.last)

    @property
    def begun(self) -> bool:
        """Whether the pass has a batch."""
        return self._now.batches > 0

    def _begin(self, before: Pass) -> None:
        told = before.ended or len(before.digests) >= _FIRST
        self._before = before.digests if told else []
        self._now = self._drawn.last = Pass()

    def read(self, batch: Any) -> None:
        """Looks at the next batch, as arrays."""
        if self._drawn.done or self.over or self._now.batches >= LONGEST:
            return
        leaves = keras.tree.flatten(batch)
        if not leaves or not all(np.ndim(leaf) for leaf in leaves):
            return  # said where it is standardised
        self.see(_digest(leaves), _rows(batch, leaves))

    def see(self, digest: int, rows: Rows) -> None:
        """Looks at the next batch, by a digest of all that it holds."""
        if self._drawn.unsaid:
            self._drawn.say(self._drawn.unsaid)
        now = self._now
        self._looked += 1
        self.over = self._looked >= _MOST
        if len(now.digests) < _KEPT:
            now.digests.append(digest)
        self._runs.read(digest, rows.counted)
        now.records, now.counted, now.batches = now.records + rows.rows, now.counted + rows.counted, now.batches + 1
        if self._sized and len(self._rows) < _FIRST:
            self._rows.append(rows)
            if self._of_one_size():
                self._drawn.say(_of_one_size(self._drawn.sampling, len(self._rows), rows.rows))
        first = self._before and now.batches == _FIRST
        again = self._runs.again(alone=len(self._before) == now.batches == 1 and not rows.alike)
        if (first and self._comes_again()) or (again and self._is_no_chance(_FIRST, _KEPT)):
            self._drawn.say(_comes_again(self._drawn.sampling, looked=bool(first) and not self._passes))

    def ended(self) -> None:
        """Says that the pass has no further batch."""
        if self.over:
            return
        now, now.ended = self._now, True
        if self._sized and now.batches > 1:
            rare = _likely(self._drawn.variance * now.batches)
            whole = self._drawn.examples in (now.records, now.counted)
            self._full = self._full + rare if whole else math.inf
            if self._full <= _RARELY:
                self._drawn.say(_whole_passes(self._drawn.sampling, self._drawn.examples))
        self._count_same()
        if self._passes and not {*now.digests[:_FIRST]} <= {*self._before}:
            self._others += 1
        self._passes += 1
        under_way = self._same > 0 or self._runs.run or -math.inf < self._full < 0.0
        self.over = self._looked >= _KEPT and self._others > 1 and not under_way
        if not self.over:
            self._begin(now)

    def _count_same(self) -> None:
        """Looks for passes of a few batches that are those of the pass before, in whichever order.

        Where a pass has one twice, records hold the same, or it shows as an echo (`Runs`).
        """
        now = {*self._now.digests}
        if len(now) < len(self._now.digests):
            self._same = -math.inf
        again = 1 < len(now) < _FIRST and now == {*self._before}
        self._same = self._same + len(now) if again else min(self._same, 0)
        if self._same >= _FIRST and self._is_no_chance(_FIRST, len(now) ** _FIRST):
            self._drawn.say(_comes_again(self._drawn.sampling))

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
        """Whether the first batches of this pass are some of the pass before.

        Where records hold the same, draws are told apart by their sizes alone, and come again by chance.
        """
        now, before = self._now.digests[:_FIRST], self._before
        if len({*now}) < len(now):
            return False
        if now == before[: len(now)]:
            return self._is_no_chance(len(now))
        differ = len({*before}) == len(before)
        return differ and {*now} <= {*before} and self._is_no_chance(len(now), len(before) ** len(now))

    def _is_no_chance(self, batches: int, places: int = 1) -> bool:
        """Whether so many draws in a row next to never equal others at any of these places."""
        return self._drawn.equal * batches + math.log(places) <= _NEVER


def _likely(variance: float) -> float:
    """Logarithm of what no number of records exceeds in probability: about 0.4 / sqrt(variance)."""
    return min(0.0, math.log(0.5 / math.sqrt(max(variance, 1e-9))))


def _digest(leaves: list[np.ndarray]) -> int:
    found = hashlib.blake2b(digest_size=8)
    for leaf in leaves:
        flat = leaf.reshape(-1)
        part = np.ascontiguousarray(flat[:: -(-flat.size // NUMBERS) | 1])
        found.update(repr((leaf.shape, leaf.dtype.str)).encode())
        found.update(repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes())
    return int.from_bytes(found.digest(), "little")


def _rows(batch: Any, leaves: list[np.ndarray]) -> Rows:
    rows = len(leaves[0])
    weights = leaves[-1]
    if not (isinstance(batch, tuple) and len(batch) == 3 and weights.size == rows):
        return Rows(rows, rows, False, _alike(leaves))
    there = np.flatnonzero(weights)
    counted = int(there[-1]) + 1 if len(there) else 0
    return Rows(rows, counted, len(there) < counted, _alike(leaves))


def _alike(leaves: list[np.ndarray]) -> bool:
    places = [(0, len(leaf) // 2, max(len(leaf) - 1, 0)) for leaf in leaves]
    rows = ([leaf[one : one + 1].tobytes() for one in at] for leaf, at in zip(leaves, places, strict=True))
    return all(first == middle == last for first, middle, last in rows)


def _comes_again(sampling: Sampling, looked: bool = False) -> str:
    """What is said; `looked`: of the first pass of a reading, where what was read before may have trained nothing."""
    text = (
        f"The batches that were declared as {sampling}, which draws every step afresh, came again as the loader,"
        " generator or pipeline went on, or was started again: the same records are together in several steps, which"
        " costs more than is stated. Give the single records to tfdp.records, and fit draws them; declare"
        f" Partition({sampling.batch_size}) where a pass has each record in one batch; or draw in __iter__, in"
        " __getitem__, or in the function of from_generator by a generator without a seed, not by the number of the"
        " step, and give each drawn batch once (nothing calls on_epoch_end of a declared keras.utils.PyDataset)."
    )
    return text + " Where what was read before was a look, and trained nothing, nothing is lost." * looked


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
