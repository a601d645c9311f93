"""What a private model remembers of what it released, and states."""

import contextlib
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tfdp_layers.accounting import Budget, Ledger, Release, Statement
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.digests import digest_of_noisy, is_recognised, numbers_of, unchanged
from tfdp_layers.accounting.following import following
from tfdp_layers.accounting.left import (
    CHANGED_ELSEWHERE,
    FED_ELSEWHERE,
    are_watched,
    change_of,
    changed_values,
    leave,
    leave_copies,
    leave_elsewhere,
    tells_of_change,
)
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.logs import is_private
from tfdp_layers.accounting.owing import belong
from tfdp_layers.accounting.released import is_loading
from tfdp_layers.audit.canaries import Canaries
from tfdp_layers.audit.one_run import audit_training
from tfdp_layers.certificates.constants import note_of_constants, refuse_changed_constants
from tfdp_layers.layers.adapted import AdaptedLayer, merge_adaptations
from tfdp_layers.models.accounts import (
    join_accounts,
    join_brought,
    join_copies,
    remember_beginning,
    remember_restored,
)
from tfdp_layers.models.earlier import note_of_ordinary
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.models.unpaid import note_checkpoints, notes_of_checkpoints, refuse_unpaid
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.restored import Restored
from tfdp_layers.proof.metrics import written_by_records
from tfdp_layers.proof.models import is_seed
from tfdp_layers.proof.reads import is_counter, same_as
from tfdp_layers.proof.replicas import follows_chief
from tfdp_layers.structure import KerasMixin, held_by


class Bookkeeping(KerasMixin):
    """Mixin for Keras models: the ledger and the statement."""

    _privacy: PrivacyState

    # The ledger -------------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What was released into the model's weights so far. Looking spends nothing.

        Assign a `Ledger(path)` to keep it in a file; what was spent moves over. To charge all that is trained on a data
        set to one ledger, assign each model the same one: `Ledger(path, dataset="name", budget=(epsilon, delta))`; past
        the budget `fit` ends or refuses to start.

        Models that share weights which one of them trains, or that hold copies of released weights, have one ledger:
        what copies cost that were put into single layers or variables joins at the next look, `fit`, statement or save.
        What layers release by themselves (`tfdp.layers.DPPCA`) is in it, too.

        Raises: ValueError where copies of released weights cost what this ledger cannot take over.
        """
        # In a fit weights hold what no training ended with; while a file is read, what may be refused.
        if self._privacy.run is None and not is_loading():
            held = map(held_by, [*self.weights, *self._optimizer_variables()])
            join_copies(self._privacy.account, held, later=False)
        return self._privacy.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        check_ledger(ledger)
        if self._privacy.run is not None:
            raise RuntimeError("The ledger can't be exchanged while fit runs: assign it before fit.")
        self._settle_accounts()
        if follows_chief(self._distribute_strategy):
            ledger = following(ledger, self._privacy.ledger)
        ledger.merge(self._privacy.ledger)
        self._privacy.account.replace(ledger, named=True)

    def _optimizer_variables(self) -> list[Any]:
        optimizer = getattr(self, "optimizer", None)
        return list(optimizer.variables) if isinstance(optimizer, PrivateOptimizer) else []

    def _settle_accounts(self) -> None:
        """Takes over what was released into this model's weights, by whichever model or layer.

        Raises: ValueError where that is not known, or counted in two ledgers.
        """
        state, account = self._privacy, self._privacy.account
        with unchanged():
            if not self.made_in_fit:
                note_checkpoints(self, self.weights)
            if self._optimizer_variables():
                account.watch(Restored(self, self.optimizer))
            join_accounts(account, self.weights, self.trainable_variables)
            remember_restored(account, self.weights)
            leave_copies(map(held_by, self.weights))
            kept = list(map(held_by, self._optimizer_variables()))
            belong(kept, account)
            read = map(held_by, [*state.read_by_sums, *state.read_after_noise, *state.read_by_release])
            join_copies(account, [*kept, *filter(is_recognised, read)])
            remember_beginning(account, self.weights)
        merge_adaptations(self._flatten_layers(include_self=False), account)

    def _read_beside_weights(self) -> list[Any]:
        """What a step reads and may move beside the model's weights, and may be a copy of released numbers.

        Variables of TensorFlow or Keras; counters, seeds and rates are too short.
        """
        weights, (kept, beside) = set(map(id, map(held_by, self.weights))), self._read_by_steps()
        return [one for one in (*kept, *beside) if is_recognised(one) and id(one) not in weights]

    def _read_by_steps(self) -> tuple[list[Any], list[Any]]:
        """The weights with what the optimizer keeps for them, and what else a step reads: of any type and size.

        Variables of TensorFlow. Not `_counted_by_optimizer`, the learning rate, metrics, and seeds, in whose place each
        step finds secret numbers.
        """
        state, kept = self._privacy, [*map(held_by, self.weights), *self._kept_by_optimizer()]
        beside = [*state.read_by_sums, *state.read_after_noise, *state.read_by_release]
        read = {id(one): one for one in map(held_by, beside)}
        optimizer = getattr(self, "optimizer", None)  # of a model that was compiled
        rate = [optimizer.inner_optimizer._learning_rate] if isinstance(optimizer, PrivateOptimizer) else []
        seeds = [*state.seeds, *(() if state.hidden is None else state.hidden.held)]
        known = same_as([*kept, *self._optimizer_variables(), *rate, *written_by_records(self), *seeds])
        return kept, [one for one in read.values() if not known(one) and not is_seed(one)]

    def _left_beside(self) -> list[Any]:
        """What steps read beside, as `_read_by_steps` gives it, but for what they count in: a call of a model does it.

        What else they write is compared with what a training left there.
        """
        return [one for one in self._read_by_steps()[1] if not is_counter(one, self._privacy.written_by_sums)]

    def _counted_by_optimizer(self) -> list[Any]:
        """What else the optimizer keeps, but for learning rates: its counts of steps, and single numbers."""
        optimizers = [self.optimizer, self.optimizer.inner_optimizer] if self._optimizer_variables() else []
        rates = {id(held_by(one._learning_rate)) for one in optimizers}
        held = map(held_by, self._optimizer_variables())
        return [one for one in held if not is_recognised(one) and id(one) not in rates]

    def _kept_by_optimizer(self) -> list[Any]:
        """What an optimizer keeps for the weights: momentum and averages, say; no counter, rate or seed."""
        return [held for held in map(held_by, self._optimizer_variables()) if is_recognised(held)]

    def _join_brought(self) -> None:
        """Takes over what weights, or what the step reads beside them, cost that were put in while a training runs.

        Raises: as `join_brought`.
        """
        join_brought(self._privacy.account, map(held_by, [*self.weights, *self._read_beside_weights()]))

    @property
    def current_release(self) -> Release | None:
        """What each step of the running `fit` releases; None outside of one."""
        return None if self._privacy.run is None else self._privacy.run.release

    @property
    def made_in_fit(self) -> int:
        """Releases that the running `fit` made; 0 outside of one."""
        return 0 if self._privacy.run is None else self._privacy.run.made

    def private_in_logs(self, name: str) -> bool:
        """Whether a number in the logs of the running `fit`, or of the last one, is private: see `is_private`."""
        return is_private(name, self._privacy.validated, self._privacy.posing)

    @property
    def held_in_segment(self) -> int:
        """Releases that the ledger holds of the segment that the running `fit` adds to, where its cost depends on them.

        Of independent releases, and outside of a `fit`, 0.
        """
        run = self._privacy.run
        if run is None or run.token is None or not run.release.sequential:
            return 0
        entry = self._privacy.ledger.entry_of(run.token)
        return 0 if entry is None else entry.steps

    @property
    def planned_in_fit(self) -> int | None:
        """Releases that the running `fit` makes in all, if nothing ends it before; None outside of one."""
        run = self._privacy.run
        return None if run is None or run.plan is None else run.plan.steps

    @property
    def outspent_in_fit(self) -> bool:
        """Whether the budget of the running `fit` refused releases that it had planned: others took them from it."""
        return self._privacy.run is not None and self._privacy.run.outspent

    def keep_fit_to(self, budget: Budget, *, nominal: bool = False) -> None:
        """Until the running `fit` ends, its ledger reserves nothing, for whomever, that exceeds a budget.

        See `Ledger.keep_to`. A later budget takes the earlier one's place.
        Raises: RuntimeError outside of a `fit`.
        """
        run = self._privacy.require_run()
        if run.token is not None:
            self._privacy.ledger.keep_to(run.token, budget, nominal=nominal)

    def privacy_statement(self, delta: float | None = None, unit_name: str | None = None) -> Statement:
        """What was released, at which epsilon, under which assumptions. Print it, or `.to_json()`.

        A note says so where something other than a private training changed the weights since the last one.

        Args:
            delta: needed: the probability with which the guarantee may fail, below 1 / number of records.
            unit_name: what a unit is ("patient"), where `fit` got `unit_ids` or `owners`: the word that readers see.

        Raises: ValueError without a delta in (0, 1), for a name that is no word or where records are protected, where
            weights came without what they cost, or where constants changed after `tfdp.public`.
        """
        with unchanged():
            self._settle_accounts()
            self._refuse_unpaid_weights()
            refuse_changed_constants(self)
            remarks = self._remarks()
        return Statement.from_ledger(self._privacy.ledger, check_delta(delta), unit_name, remarks)

    def _remarks(self) -> list[str]:
        """What statements say of this model beside its ledger; files of it say so, too."""
        if self._privacy.watch is not None:
            self._privacy.watch.compared()
        remarks = list(self._privacy.remarks)
        if self._privacy.run is None and CHANGED_ELSEWHERE not in remarks:
            remarks += [note for note in [self._change()] if note is not None and note not in remarks]
        if not tells_of_change(remarks):
            remarks += [note for note in note_of_ordinary(self) if note not in remarks]
        remarks += [note for note in notes_of_checkpoints(self) if note not in remarks]
        if self._privacy.ledger.updates:
            remarks += note_of_constants(self)
        return remarks

    def _change(self) -> str | None:
        """What statements say of weights that are not what a training left: they hold other numbers, or were replaced.

        What a layer holds no more was replaced behind this model, as `quantize` of another one that shares it does.
        """
        for layer, held in self._privacy.left.items():
            here = {id(held_by(weight)): weight for weight in layer.weights}
            new = [weight for key, weight in here.items() if key not in held]
            if layer in self._flatten_layers() and (not held.issubset(here) or not all(map(_adds_nothing, new))):
                return CHANGED_ELSEWHERE
        kept = [one for one in self._kept_by_optimizer() if digest_of_noisy(one) is not None]  # zeros start it anew
        return change_of([*map(held_by, self.weights), *kept])

    def _used_by_steps(self) -> set[int]:
        """By their ids, the variables that a step reads and writes beside its optimizer's; none where none is built."""
        state = self._privacy
        beside = [*state.read_by_sums, *state.read_after_noise, *state.read_by_release] if self.weights else []
        return {id(held_by(one)) for one in (*self.weights, *beside)}

    def _trained_by_fits(self) -> list[Any]:
        """The weights that trainings may release something into: adapted layers know themselves what theirs cost."""
        adapted = [layer for layer in self._flatten_layers() if isinstance(layer, AdaptedLayer)]
        theirs = {id(weight) for layer in adapted for weight in layer.weights}
        return [weight for weight in self.weights if id(weight) not in theirs]

    def _left_by_fits(self) -> list[Any]:
        """What holds, between two trainings, what the first left there: all weights, and what the optimizer keeps."""
        return [*map(held_by, self.weights), *self._kept_by_optimizer()]

    def _leave(self, but: Collection[bytes] = (), beside: Iterable[Any] | None = None) -> None:
        """Remembers what its weights hold as what a training left; see `accounting.left.leave`.

        Args:
            beside: what else that training released, and Keras may put into weights; None: a file left them.
        """
        if beside is not None and self._privacy.watch is not None:
            with contextlib.suppress(LedgerError):
                self._privacy.watch.compared()
        changed = tells_of_change(self._privacy.remarks)
        for note in [] if changed else note_of_ordinary(self):
            with contextlib.suppress(LedgerError):  # a file that cannot be written: the next that is brings it
                self._privacy.remark(note)
        with unchanged():
            leave(self._left_by_fits(), but)
            if beside is not None:
                self._privacy.left_beside.leave(self._left_beside())
            if not changed:
                leave_elsewhere(map(held_by, [*self.trainable_variables, *(beside or ())]), but)
        layers = [layer for layer in self._flatten_layers(include_self=False) if layer.weights and not layer._layers]
        held = [{id(held_by(weight)) for weight in layer.weights} for layer in layers]
        self._privacy.left = weakref.WeakKeyDictionary(zip(layers, held, strict=True))

    def _note_change(self) -> None:
        """Before a training, whose end would hide it: from here on every statement says so."""
        noted = {CHANGED_ELSEWHERE, FED_ELSEWHERE}.intersection(self._privacy.remarks)
        self._privacy.foreign = changed_values(self._left_by_fits())
        change = None if CHANGED_ELSEWHERE in noted else self._change()
        for note in (*([change] if change is not None else ()), *notes_of_checkpoints(self)):
            self._privacy.remark(note)
        self._privacy.as_left = not noted and self._is_as_left()

    def _is_as_left(self) -> bool:
        """Whether all weights hold, between two trainings, what a training or a file left in them."""
        return self._change() is None and are_watched(map(held_by, self._trained_by_fits()))

    def _refuse_unpaid_weights(self) -> None:
        """Raises ValueError where weights, or the optimizer, were restored without the ledger.

        tf.train.Checkpoint and OrbaxCheckpoint do that.
        """
        run = self._privacy.run
        if run is not None and run.made > (own := run.counted_in(self._privacy.ledger)):
            raise RuntimeError(
                f"The training that runs made {run.made:,} releases, and its ledger counts {own:,} of them: what its"
                " weights cost would be stated too small. Nothing is stated or saved. Call fit again, and please report"
                " how this one was started."
            )
        refuse_unpaid(self._privacy.account, self.optimizer if self._optimizer_variables() else None)

    def audit(self, x: Any, y: Any, canaries: Canaries | int = 500, **options: Any) -> Any:
        """Trains on records and canaries, attacks the training, and says which epsilon the attack refutes.

        The canaries spoil the model: audit a twin of the one that you use. Arguments, result, and what is raised: see
        `tfdp.audit.audit_training`.
        """
        self._require_private()
        return audit_training(self, x, y, canaries, **options)


def _adds_nothing(weight: Any) -> bool:
    """Whether a weight that a layer has got since is of LoRA as it begins: times zeros."""
    return "lora" in weight.name and (not weight.name.endswith("_b") or not np.any(numbers_of(held_by(weight))))
