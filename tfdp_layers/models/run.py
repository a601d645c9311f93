"""What a private model remembers beside its weights, and one `fit` of it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tfdp_layers.accounting import Ledger, Release
from tfdp_layers.batches.base import Batches
from tfdp_layers.models.replicas import Replicas
from tfdp_layers.per_record.losses import PerRecordLoss
from tfdp_layers.sensitivity import SensitivityGroup


@dataclass(frozen=True)
class Run:
    """One `fit`: its batches, certified groups, what each step releases, its place in the ledger, its replicas;
    how many updates were made, and how many draws were taken for them.
    """

    batches: Batches
    groups: list[SensitivityGroup]
    release: Release
    token: Any
    settings: Any
    replicas: Replicas | None = None
    made: list[int] = field(default_factory=lambda: [0])
    drawn: list[int] = field(default_factory=lambda: [0])


class PrivacyState:
    """A plain object: Keras neither tracks nor saves it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.loss: Any = None
        self.loss_weights: Any = None
        self.run: Run | None = None
        self.traced: Any = None
        self.uses: Counter[int] | None = None
        self.independent = False
        self.unpaid = False
        self._replicas: Replicas | None = None
        self._per_record: PerRecordLoss | None = None
        self._certified: tuple[list[int], list[SensitivityGroup]] | None = None

    def __deepcopy__(self, memo: Any) -> "PrivacyState":
        copied = PrivacyState()
        copied.ledger = self.ledger.copy()
        return copied

    def compiled(self, loss: Any, loss_weights: Any) -> None:
        """Forgets what held for an earlier compilation."""
        self.loss, self.loss_weights, self._per_record = loss, loss_weights, None
        self.traced, self.independent, self.uses, self._certified = None, False, None, None

    def loss_of(self, model: Any) -> PerRecordLoss:
        """The compiled loss, taken apart into records."""
        if self._per_record is None:
            self._per_record = PerRecordLoss(
                self.loss, self.loss_weights, list(getattr(model, "output_names", ["output"]))
            )
        return self._per_record

    def groups_of(self, model: Any) -> list[SensitivityGroup]:
        """The certified groups of the model: those of the current `fit`, or else of the model as it is."""
        if self.run is not None:
            return self.run.groups
        key = [id(model.optimizer), *map(id, model.trainable_variables)]
        if self._certified is None or self._certified[0] != key:
            self._certified = (key, model.sensitivities())
        return self._certified[1]

    def replicas_of(self, model: Any) -> Replicas | None:
        """The replicas of the model; None where it was made outside of strategies."""
        strategy = model._distribute_strategy
        if strategy is not None and (self._replicas is None or self._replicas.strategy is not strategy):
            self._replicas = Replicas(strategy)
        return None if strategy is None else self._replicas

    def refuse_other_uses(self, uses: Counter[int]) -> None:
        """Raises RuntimeError if the step used a bounded layer more or less often than its bound was stated for."""
        if self.uses is not None and uses != self.uses:
            raise RuntimeError("The step uses its layers another number of times than their bounds were stated for.")

    def require_run(self) -> Run:
        """The current `fit`. Raises RuntimeError outside of one."""
        if self.run is None:
            raise RuntimeError(
                "A private step runs inside fit only: there the sampler, the ledger and the limit are set."
            )
        return self.run
