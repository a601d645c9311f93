"""Batches drawn as they are accounted for: what every source of them offers to `fit`."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from dp_accounting import NeighboringRelation

from tfdp_layers.accounting.footprint import Footprint, footprint_of
from tfdp_layers.batches.heights import filled, in_pieces
from tfdp_layers.batches.shares import share_of
from tfdp_layers.batches.slices import Share, cut_batches
from tfdp_layers.batches.stores import ArrayStore
from tfdp_layers.sampling import Sampling

LONGEST_SUM = 2048
"""Records whose contributions are added in float32; sums over more are added in float64."""

LONGEST_IN_ANY_ORDER = 256
"""Records that may be added in float32 in whatever order a pipeline gives; more are put in random order."""


_FIXED = (
    *("sampling", "examples", "physical_batch_size", "seeded", "declared", "unit"),
    *("records_per_unit", "views", "records_per_owner", "owners"),
)


class Batches(abc.ABC):
    """What a private model trains on: batches `(x, y, sample_weight)` with the sampling that they are accounted by.

    Attributes: `sampling`; `examples`, the declared public number of records; `physical_batch_size`, rows computed at
    once (None: all); `seeded`, draws that a seed repeats (it voids the statement); `declared`, drawn by the caller's
    pipeline instead of by this library; `unit`, whom a `Release` protects: of a "unit" numbers are in units, of each of
    which a draw holds at most `records_per_unit` records, an "owner" owns at most `records_per_owner` of all records,
    and `owners` says how many of these there are, 0 where there are none or that is not known; `views`, how often each
    record of a draw enters; `pipeline`, which gives the caller's, as long as the caller has it; `share`, how the share
    of a class of the labels is released before a `fit` on them, for advice.
    """

    sampling: Sampling
    examples: int
    physical_batch_size: int | None = None
    seeded: bool = False
    declared: bool = False
    unit: str = "record"
    records_per_unit: int = 1
    views: int = 1
    records_per_owner: int = 1
    owners: int = 0
    pipeline: Callable[[], Any] | None = None
    share: str = share_of()

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises AttributeError for what a `fit` was certified and charged by: it stays what it was made with."""
        if name in _FIXED and name in vars(self):
            raise AttributeError(
                f"{type(self).__name__}.{name} stays what it was made with: a fit is charged for it before it draws."
                f" Make another {type(self).__name__}."
            )
        super().__setattr__(name, value)

    @property
    def weighted(self) -> bool:
        """Whether records are known to weigh differently."""
        return False

    def largest_weight(self, classes: int | None = None) -> float | None:
        """The largest weight of a record, where public constants alone say it: the largest of `class_weight`.

        Args:
            classes: how many there are, where a model says it in public: any class may weigh 1 that has no factor.
        """
        return None

    def grouping(self, secret: str) -> str:
        """Which records belong to one unit or owner, for a release: see `accounting.grouping`. Empty for records.

        Args:
            secret: of the ledger that is charged.
        """
        return ""

    def footprint(self) -> Footprint:
        """What tells these records again; of what is not read for it, itself alone."""
        return footprint_of([self, self.pipeline and self.pipeline()])

    @property
    def beginning(self) -> ArrayStore | None:
        """The records where they lie in arrays, or the arrays that a pipeline makes them of; None of others."""
        return None

    def arrays(self) -> tuple[list[Any], list[Any]]:
        """The arrays of x and of y, (records, ...), that lie in memory; none where they do not."""
        return [], []

    @property
    def rows_each(self) -> int:
        """Rows of each drawn record or unit. Where it is above 1, batches hold (records or units, rows_each, ...)."""
        return self.records_per_unit * self.views

    @property
    def redrawn(self) -> bool:
        """Whether a record may hold other numbers at each read, as by a random transform."""
        return False

    def begin(self) -> str:
        """Looks at what records hold before the first is drawn; what statements say of that, or nothing."""
        return ""

    @property
    def piece(self) -> int | None:
        """Records or units that a step computes at once; None: all. At most `LONGEST_SUM` where batches are larger."""
        size = self.physical_batch_size
        if size is not None:
            size = max(1, size // self.rows_each)
        return size if self.sampling.batch_size <= LONGEST_SUM else min(LONGEST_SUM, size or LONGEST_SUM)

    @property
    def order(self) -> Any:
        """What stands for the fixed order that draws follow, and tells nothing of it; None where draws are fresh."""
        return None

    def __len__(self) -> int:
        """Batches in an epoch: ceil(examples / batch_size)."""
        return self.sampling.steps_per_epoch(self.examples)

    @abc.abstractmethod
    def dataset(self, pad: bool | int = False, start: int = 0) -> tf.data.Dataset:
        """Endless batches of the same structure, batch axis None or constant.

        Args:
            pad: True: of a few sizes only; a number: whole panels of so many rows (see `heights.PANEL`).
            start: the step of a fixed order whose draw is the first one.
        """

    def slices(self, share: Share, pad: bool | int = False) -> tf.data.Dataset:
        """The same draws, each cut into disjoint slices; yields (slice, stamp) of this share: see `cut_batches`."""
        return cut_batches(self.dataset(pad is True), self._panels(share, pad))

    def _panels(self, share: Share, pad: bool | int) -> Share:
        """The share, whose slices are filled up to whole panels, each for itself."""
        return replace(share, panel=self._panel(pad), piece=self.piece)

    def _panel(self, pad: bool | int) -> int:
        """Records or units that fill panels of `pad` rows; 1 where none of them moves if one comes or goes."""
        # A record that is replaced, or emptied, leaves all others in their rows.
        moves = self.sampling.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        return pad // math.gcd(pad, self.rows_each) if moves and not isinstance(pad, bool) else 1

    @property
    def _fewest(self) -> int:
        """Rows that a batch has at least. Kernels may round one row otherwise than several, so that a draw of one
        record and another one of two would differ by more than a record: where sizes vary there are always two.
        """
        return 1 if self.piece == 1 or self.sampling.largest(self.examples) is not None else 2

    def _padded(self, rows: Any, pad: bool | int) -> Any:
        """The rows of a batch with `rows` (int or integer tensor, `_fewest` at least) drawn records."""
        constant, size = self.sampling.largest(self.examples), self.sampling.batch_size
        rows = rows if constant is None else constant
        if pad is True:
            # sqrt: an eighth of a small batch is less than the draws' standard deviation, and would give many sizes.
            rows = filled(rows, math.ceil(max(size / 8, math.sqrt(size)))) if constant is None else rows
            return rows if self.piece is None else filled(rows, self.piece)
        panel = self._panel(pad)
        if panel == 1 and constant is None and self._fewest > 1 and self.piece is not None:
            single = rows % self.piece == 1  # the last piece is no single row either
            return rows + (tf.cast(single, rows.dtype) if tf.is_tensor(rows) else int(single))
        return in_pieces(rows, panel, self.piece)

    def _static_rows(self, pad: bool | int) -> int | None:
        return None if self.sampling.largest(self.examples) is None else self._padded(self._fewest, pad)
