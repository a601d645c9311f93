"""What every bound on per-record gradients of ordinary layers offers to an optimizer, and the sum that all share."""

from __future__ import annotations

import abc
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdp_layers.per_record.contributions import Contribution
from tfdp_layers.sensitivity import Role, SensitivityGroup

Contributions = Mapping[int, Contribution]
LayerVariables = Sequence[tuple[str, tuple[Any, ...]]]
"""(path, trainable variables) of each layer that does not bound itself."""


SCOPE = f"optimizers_bound_{secrets.token_hex(8)}"
"""Of the names of the operations of `Bounding.sums` in a graph; no layer's name is the same by chance."""


@dataclass(frozen=True)
class Bounding(abc.ABC):
    """Bounds what each record adds to the gradients of the layers that don't bound themselves.

    Attributes:
        allow_generic: whether layers without a per-record formula may take the slow way.
    """

    allow_generic: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def weighs(self) -> bool:
        """Whether a record's share scales its bounded gradient: where the bound undoes what its weight did."""
        return False

    @property
    def chunked(self) -> bool:
        """Whether each entry is looked at by itself, in chunks of records whose number a trace may leave open."""
        return False

    @abc.abstractmethod
    def groups(self, layers: LayerVariables) -> list[SensitivityGroup]:
        """The groups of weights and their bounds; a group without variables is a statistic (see `sums`)."""

    def statistics_of_rows(self, tables: Sequence[tuple[str, Any]]) -> list[SensitivityGroup]:
        """Statistics of the rows of tables, (path, variable) each, that records look up: none, but for `RowCounts`."""
        return []

    @abc.abstractmethod
    def sums(self, groups: Sequence[SensitivityGroup], parts: Contributions, present: tf.Tensor) -> list[tf.Tensor]:
        """The bounded sum of each variable of the groups, in order; then each statistic, of its group's shape.

        Args:
            parts: what each record adds, by the variable's id; a variable without an entry is not used.
            present: (batch,) float32, 0.0 for rows of padding; 1.0 for records, or where this `weighs`, what a record
                counts for, in [0, 1].
        """


def one_group(name: str, layers: LayerVariables, bound: float) -> list[SensitivityGroup]:
    """All weights of the layers in one group with one bound; no group where there are none."""
    variables = tuple(v for _, owned in layers for v in owned)
    return [SensitivityGroup(name, variables, bound, Role.OPTIMIZER)] if variables else []
