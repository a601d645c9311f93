"""What a private model remembers beside its weights, and one `fit` of it."""

import contextlib
import copy
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.following import Books, Following, releases_of
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.sightings import keep
from tfdp_layers.batches.base import Batches
from tfdp_layers.certificates.ordinary import Steps
from tfdp_layers.models.beside import Left
from tfdp_layers.models.copied_rows import CopiedRows
from tfdp_layers.models.kept import kept_of
from tfdp_layers.models.planning import Plan
from tfdp_layers.models.replicas import Replicas
from tfdp_layers.models.steered import BROKEN_OFF, RAN_OUT, STEERED, STOPPED, warn_of_steering
from tfdp_layers.models.streams import Stream
from tfdp_layers.models.watching import Watch
from tfdp_layers.noise.masks import HiddenSeeds
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.per_record.losses import PerRecordLoss
from tfdp_layers.proof import Report
from tfdp_layers.sensitivity import SensitivityGroup


class Run:
    """One `fit`, from its certificate to its last step.

    Attributes:
        batches: what it draws.
        groups: the certified groups of weights.
        release: what each of its steps releases.
        token: its place in the ledger; None on workers other than the chief.
        following: on those, what counts in their copy of the chief's ledger.
        entry: which entry of the ledger counts it, and how many releases that counted before.
        settings: what its certificate and the ledger's entry were made from; see `settings_of`.
        numbers: what the last step that may have changed them left of the Python numbers of what follows the noise.
        replicas: the devices that train together, if there are several.
        plan: the steps that it is to make.
        compiled: whether XLA compiles its step, and its batches are padded for that.
        start: the step of a fixed order at which its draws begin.
        looped: whether the loop is the caller's own.
        offered: what such a loop lets its next step draw from.
        fed: models that are said to be computed from what such a loop releases.
        stepping: whether Keras has its step, which stays the same.
        begun: whether the loop, and nothing else, makes the next call of the step: see `Turns`.
        thread, process: those of `fit`, which make its steps.
        made: releases that it made.
        drawn: draws that were taken for them.
        broken: whether a step was broken off, so that it is not known what it released.
        outspent: whether its budget refused releases that it had planned.
        explained: whether it is known what ends it: a budget, or an error, of which there is a note.
        levelled: whether this worker held other weights than the chief before one of its steps.
        copied: recognises copies of its records.
        began_with: by what the weights are known that it began with; none where no code of the caller sees any.
    """

    def __init__(
        self,
        batches: Batches,
        groups: list[SensitivityGroup],
        release: Release,
        replicas: Replicas | None = None,
        plan: Plan | None = None,
        compiled: bool = False,
    ) -> None:
        self.plan, self.compiled = plan, compiled
        self.batches, self.groups, self.release, self.replicas = batches, groups, release, replicas
        self.copied = CopiedRows(batches)
        self.token: str | None = None
        self.following: Following | None = None
        self.settings: Hashable = None
        self.numbers: dict[str, str] | None = None
        self.looped, self.offered = False, None
        self.fed = list[keras.Model]()
        self.thread, self.process = threading.get_ident(), os.getpid()
        self.start = self.made = self.drawn = 0
        self.entry = "", 0
        self.began_with: set[bytes] = set()
        self.begun = self.broken = self.explained = self.outspent = self.levelled = self.stepping = False

    @property
    def counts(self) -> bool:
        """Whether it has its place in a ledger, this process' own or the copy of a worker."""
        return self.token is not None or self.following is not None

    def counted_in(self, ledger: Ledger) -> int:
        """How many releases its own entry of the ledger counts since it began."""
        name, before = self.following.begun if self.following else self.entry
        return releases_of(ledger, name) - before

    def books(self, account: Account) -> Books:
        """What the other workers hear of the chief's before they take what it gives them."""
        return Books(account, self.token, self.following, lambda: self.counted_in(account.ledger) - self.made)

    def count(self, made: int, drawn: int, broken: bool = False) -> None:
        """Counts the releases of one call of the step, and the draws taken for them."""
        self.made += made
        self.drawn += drawn
        self.broken |= broken


def release_of(
    batches: Batches, groups: Sequence[SensitivityGroup], optimizer: PrivateOptimizer, ledger: Ledger | None = None
) -> Release:
    """What each step of a `fit` on these batches releases, for the ledger; without one for its cost alone."""
    noises = [GroupNoise(g.name, g.bound, s) for g, s in zip(groups, optimizer.stddevs(groups), strict=True)]
    return Release(
        tuple(noises),
        batches.sampling,
        batches.examples,
        seeded=batches.seeded or optimizer.noise_source.seeded,
        declared=batches.declared,
        nominal_noise_multiplier=optimizer.nominal_noise_multiplier,
        noise=optimizer.correlation,
        generator=optimizer.noise_source.generator,
        unit=batches.unit,
        records_per_unit=batches.records_per_unit,
        views=batches.views,
        records_per_owner=batches.records_per_owner,
        owners=batches.owners,
        grouping="" if ledger is None else batches.grouping(ledger.secret),
    )


class PrivacyState:
    """A plain object: Keras neither tracks nor saves it."""

    def __init__(self) -> None:
        self.account = Account()
        self.loss: Any = None
        self.loss_weights: Any = None
        self.run: Run | None = None
        self.traced: Hashable = None
        self.uses: Counter[int] | None = None
        self.records: Any = None  # what they last looked like: (trees of) tf.TensorSpec
        self.independence: Report | None = None
        self.sums: Any = None
        self.program: str | None = None
        self.largest_weight: float | None = None
        self.metrics: Any = None
        self.read_after_noise: list[Any] = []
        self.read_by_sums: list[Any] = []
        self.read_by_release: list[Any] = []  # beside the model's own: what an optimizer of the caller's reads
        self.graph: Any = None  # of the traced sums
        self.hidden: HiddenSeeds | None = None  # that the traced sums draw from in the place of the layers' own
        self.seeds: list[Any] = []  # that the traced sums draw from, beside those of the model's own layers
        self.written_by_sums: set[int] = set()
        self.kept_by_pieces: list[tuple[Any, tf.DType]] = []  # variables that layers write: handles and types
        self.accept_measured = False
        self.validated = self.posing = False  # of the logs of the last training, see `is_private`
        self.asked = False  # whether a file that is being loaded was asked for a ledger
        self.watch: Watch | None = None
        self.step: Any = None  # that was made last
        self.origin: Any = None  # of a class of its own: the model that this one was made of
        self.trained: Any = None  # what a configuration says of flags and LoRA, until the model is built
        self.comes_back: Any = None  # the shapes of the weights for which the configuration was tried
        self.stream: Stream | None = None
        # By layers, the ids of what held their weights as the last training ended.
        self.left: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self.foreign: set[bytes] = set()  # by digests, what something else had put into weights as a `fit` opened
        self.earlier: set[Steps] = set()  # of ordinary optimizers, on the weights that trainings began from
        self.left_beside = Left()  # what trainings left in what their steps read
        self.restores: set[int] = set()  # of checkpoints, that it was asked what they count
        self.as_left = False  # whether all weights hold what a training or a file left in them, as a `fit` opens
        self._replicas: Replicas | None = None
        self._per_record: PerRecordLoss | None = None
        self._certified: tuple[list[int], list[SensitivityGroup]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivacyState":
        self.account.refuse_other_thread()
        copied = PrivacyState()
        copied.account = copy.deepcopy(self.account)
        kept = kept_of(self.run, self.ledger, copied=True)
        if kept.notes:
            copied.account.replace(kept.ledger)
        for note in kept.notes:
            copied.remark(note)
        copied.earlier, copied.left_beside = set(self.earlier), self.left_beside.copy()
        return copied

    def end_run(self) -> None:
        """Ends the `Run`, if there is one, and what it asked of the ledger: a budget, and a file that counts ahead."""
        run, self.run = self.run, None
        if run is not None and run.token is not None:
            keep(run.token)
            if note := run.batches.begin():  # found out while it ran
                with contextlib.suppress(LedgerError):
                    self.remark(note)
            self.ledger.end(run.token)

    @property
    def unpaid(self) -> bool:
        """Whether weights of the model, or of one that shares weights with it, came without what they cost."""
        return self.account.unpaid

    @unpaid.setter
    def unpaid(self, value: bool) -> None:
        self.account.unpaid = value

    @property
    def ledger(self) -> Ledger:
        """What was released into the model's weights."""
        return self.account.ledger

    @property
    def remarks(self) -> list[str]:
        """Sentences for the statements of all models that share weights with this one."""
        return self.account.remarks

    def remark(self, sentence: str) -> None:
        """Remembers a sentence for statements, of the ledger, too. Raises: as `Account.remark`."""
        self.account.remark(sentence)

    def steered(self, sentence: str) -> None:
        """Warns, and `remark`s for statements, that a callback may have decided by private numbers. Raises: as that."""
        try:
            self.remark(f"{sentence} {STEERED}")
        finally:
            warn_of_steering(sentence)

    def broken_off(self, run: Run, error: Exception, made: int = 0) -> None:
        """Notes that an error out of a step, or of the drawing of its records, ends a training that made steps.

        Args:
            error: that one; where it is that the data ran out, the note says so.
            made: releases of the step that raised, which `run` does not count yet.
        """
        over, run.explained = isinstance(error, StopIteration | tf.errors.OutOfRangeError), True
        made = run.made + (0 if over else made)
        if made and run.plan is not None:
            said = RAN_OUT if over else BROKEN_OFF
            with contextlib.suppress(LedgerError):  # a file that cannot be written: the error goes on
                self.remark(said.format(made=f"{made:,}", planned=f"{run.plan.steps:,}"))

    def ended(self) -> None:
        """Notes that a training ended before the steps that it planned, where nothing explains that.

        A budget's end follows from counts alone; of a step that broke off, and of data that ran out, other notes tell.
        """
        run = self.run
        if run is None or run.token is None or run.plan is None or run.explained or not 0 < run.made < run.plan.steps:
            return
        with contextlib.suppress(LedgerError):  # as above
            if self.ledger.affordable(run.token, 1, lasting=True):
                self.remark(STOPPED.format(made=f"{run.made:,}", planned=f"{run.plan.steps:,}"))

    def decided(self, what: str) -> None:
        """Notes that the weights are taken or exchanged: by a callback, if a hook runs."""
        if self.watch is not None:
            self.watch.decided(what)

    def compiled(self, loss: Any, loss_weights: Any) -> None:
        """Forgets what held for an earlier compilation."""
        self.loss, self.loss_weights, self._per_record = loss, loss_weights, None
        self.traced, self.independence, self.sums, self.metrics = None, None, None, None
        self.uses, self._certified, self.read_by_release = None, None, []

    def loss_of(self, outputs: Sequence[str]) -> PerRecordLoss:
        """The compiled loss of a model with outputs of these names, taken apart into records."""
        if self._per_record is None:
            self._per_record = PerRecordLoss(self.loss, self.loss_weights, list(outputs))
        return self._per_record

    def groups_of(self, key: list[int], certify: Callable[[], list[SensitivityGroup]]) -> list[SensitivityGroup]:
        """The certified groups of the current `fit`, or else of the model as it is: `certify()`, once for each key."""
        if self.run is not None:
            return self.run.groups
        if self._certified is None or self._certified[0] != key:
            self._certified = (key, certify())
        return self._certified[1]

    def replicas_of(self, strategy: tf.distribute.Strategy | None) -> Replicas | None:
        """The replicas of a model made under this strategy; None where it was made outside of strategies."""
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
