"""What a private model remembers of what it released, and how that is saved with its weights."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tfdp_layers.accounting import Budget, Ledger, Release, Statement
from tfdp_layers.accounting.accountant import check_delta
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.accounting.released import are_foreign, loading
from tfdp_layers.accounting.stored import read_paid_weights, read_stored_ledger, write_paid_weights, write_stored_ledger
from tfdp_layers.audit.canaries import Canaries
from tfdp_layers.audit.one_run import audit_training
from tfdp_layers.certificates.constants import refuse_changed_constants
from tfdp_layers.layers.adapted import AdaptedLayer, merge_adaptations
from tfdp_layers.layers.carried import HDF5, charging_what_is_kept, refuse_hdf5, saving_whole
from tfdp_layers.models.accounts import join_accounts, layers_with_lora, paid_for, remember_loaded
from tfdp_layers.models.quantizing import refuse_calibration
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.models.whole_file import whole_file
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.structure import KerasMixin, held_by

_loading = threading.local()
_UNPAID = (
    "These weights were saved without a privacy ledger, so what they cost is not known. If they are public (never"
    " computed from private records), say so: load_weights(path, public=True), or tfdp.load_model(path, public=True)."
    " If a private training made them, load the file that it saved, by model.save or model.save_weights."
)
_SAVED = "Give the path of a file that model.save or model.save_weights wrote."
_CHANGED = (
    "The weights are, or were between two trainings, not those of the end of a training: something else changed them,"
    " such as fit of a model that shares them, or a quantization. What it took from records is not in this statement."
)


class Bookkeeping(KerasMixin):
    """Mixin for Keras models: the ledger, the statement, and files that hold both with the weights."""

    _privacy: PrivacyState

    # The ledger -------------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What was released into the model's weights so far. Looking changes nothing.

        Assign a `Ledger(path)` to keep it in a file; what was spent moves over. To charge all that is trained on a data
        set to one ledger, assign each model the same one: `Ledger(path, dataset="name", budget=(epsilon, delta))`; past
        the budget `fit` ends or refuses to start.

        Models that share weights which one of them trains, or that hold copies of released weights, have one ledger.
        What layers release by themselves (`tfdp.layers.DPPCA`) is in it, too.
        """
        return self._privacy.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        check_ledger(ledger)
        if self._privacy.run is not None:
            raise RuntimeError("The ledger can't be exchanged while fit runs: assign it before fit.")
        self._settle_accounts()
        replicas = self._privacy.replicas_of(self._distribute_strategy)
        if replicas is not None and replicas.workers is not None and not replicas.workers.chief:
            ledger = ledger.copy()  # The chief keeps the one ledger.
        ledger.merge(self.ledger)
        self._privacy.account.replace(ledger)

    def _settle_accounts(self) -> None:
        """Takes over what was released into this model's weights, by whichever model or layer.

        Raises: ValueError where that is not known, or counted in two ledgers.
        """
        account = self._privacy.account
        join_accounts(account, self.weights, self.trainable_variables)
        merge_adaptations(self._flatten_layers(include_self=False), account)

    @property
    def current_release(self) -> Release | None:
        """What each step of the running `fit` releases; None outside of one."""
        return None if self._privacy.run is None else self._privacy.run.release

    @property
    def made_in_fit(self) -> int:
        """Releases that the running `fit` made; 0 outside of one."""
        return 0 if self._privacy.run is None else self._privacy.run.made

    @property
    def held_in_segment(self) -> int:
        """Releases that the ledger holds of the segment that the running `fit` adds to, where its cost depends on them.

        Of independent releases, and outside of a `fit`, 0.
        """
        run = self._privacy.run
        if run is None or run.token is None or not run.release.sequential:
            return 0
        entry = self.ledger.entry_of(run.token)
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
            self.ledger.keep_to(run.token, budget, nominal=nominal)

    def privacy_statement(self, delta: float | None = None, unit_name: str | None = None) -> Statement:
        """What was released, at which epsilon, under which assumptions. Print it, or `.to_json()`.

        A note says so where something other than a private training changed the weights since the last one.

        Args:
            delta: needed: the probability with which the guarantee may fail, below 1 / number of records.
            unit_name: what a unit is ("patient"), where `fit` got `unit_ids` or `owners`: the word that readers see.

        Raises: ValueError without a delta in (0, 1), for a name that is no word or where records are protected, where
            weights came without what they cost, or where constants changed after `tfdp.public`.
        """
        self._settle_accounts()
        self._refuse_unpaid_weights()
        refuse_changed_constants(self)
        statement = Statement.from_ledger(self.ledger, check_delta(delta), unit_name)
        remarks = list(self._privacy.remarks)
        if self._privacy.run is None and _CHANGED not in remarks and self._changed_elsewhere():
            remarks.append(_CHANGED)
        return replace(statement, notes=(*statement.notes, *remarks))

    def _changed_elsewhere(self) -> bool:
        """Whether weights are not what the last training left: they hold other numbers, or others are in their place.

        What is no weight any more was replaced behind this model, as `quantize` of another model that shares it does.
        """
        trained, here = self._privacy.trained, set(map(id, map(held_by, self.weights)))
        return are_foreign(trained) or any(id(held) not in here for held in trained)

    def _note_change(self) -> None:
        """Before a training, whose end would hide it: from here on every statement says so."""
        if _CHANGED not in self._privacy.remarks and self._changed_elsewhere():
            self._privacy.remarks.append(_CHANGED)

    def _refuse_unpaid_weights(self) -> None:
        """Raises ValueError where the optimizer was restored without the ledger (tf.train.Checkpoint does that)."""
        if self._privacy.unpaid:
            raise ValueError(
                "Weights were loaded into this model, and the ledger saved with them was not: it is missing, damaged,"
                " or of another data set (the error from loading says which); or they are those of a trial that a"
                " search did not show. Load weights with their ledger, or public ones: load_weights(path, public=True)."
            )
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, PrivateOptimizer) and int(optimizer.releases.numpy()) > self.ledger.updates:
            raise ValueError(
                f"The optimizer counts {int(optimizer.releases.numpy())} releases and the ledger"
                f" {self.ledger.updates}: weights were restored without what they cost, or another model was trained"
                " with this optimizer. Restore with load_weights or load_model, or merge the ledger of the earlier run:"
                " model.ledger.merge(...); give each model an optimizer of its own."
            )

    def audit(self, x: Any, y: Any, canaries: Canaries | int = 500, **options: Any) -> Any:
        """Trains on records and canaries, attacks the training, and says which epsilon the attack refutes.

        The canaries spoil the model: audit a twin of the one that you use. Arguments, result, and what is raised: see
        `tfdp.audit.audit_training`.
        """
        self._require_private()
        return audit_training(self, x, y, canaries, **options)

    # Files ------------------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """As in Keras. Raises ValueError while Keras writes an HDF5 file (.h5), which would hold no ledger."""
        refuse_hdf5()
        return dict(super().get_config())

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """As in Keras. Raises ValueError while Keras reads an HDF5 file (.h5), which holds no ledger."""
        refuse_hdf5()
        return super().from_config(*args, **kwargs)

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was.

        Raises: ValueError for an HDF5 file (.h5), which would hold no ledger.
        """
        if isinstance(filepath, str | os.PathLike) and os.fspath(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(HDF5)  # before Keras empties a file that is there
        self._privacy.decided("saved the model")
        with saving_whole(), whole_file(filepath, overwrite) as path:
            super().save(path, overwrite, *args, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was."""
        self._privacy.decided("saved the weights")
        with saving_whole(), whole_file(filepath, overwrite) as path:
            super().save_weights(path, overwrite, *args, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], *args: Any, public: bool = False, **kwargs: Any) -> None:
        """As in Keras; what the weights cost joins the ledger.

        Args:
            public: says that weights saved without a ledger were not computed from private records, so that they cost
                nothing. A ledger that is there counts all the same.

        Raises: ValueError for a pipe, a device or a folder, and for weights without a ledger that are not declared
            public; then the model keeps its own.
        """
        if not (public and isinstance(filepath, str | os.PathLike) and os.path.isdir(filepath)):  # Orbax writes folders
            refuse_no_plain_file(filepath, _SAVED)
        self._privacy.decided("loaded weights")
        held, was = [*self.variables, *self._optimizer_variables()], self._privacy.unpaid
        before = [variable.numpy() for variable in held]
        self._privacy.asked = False
        try:
            with charging_what_is_kept():
                with declared_public(public):
                    super().load_weights(filepath, *args, **kwargs)
                asked = self._privacy.asked or public
                if not asked and not all(map(np.array_equal, before, (variable.numpy() for variable in held))):
                    raise ValueError(_UNPAID)  # Keras reads files of other formats past `load_own_variables`
                if not was:
                    self._refuse_unpaid_weights()  # with skip_mismatch Keras warns only
            if public:
                self._privacy.trained = []
        except BaseException:
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
            self._privacy.unpaid = was
            raise

    def _optimizer_variables(self) -> list[Any]:
        optimizer = getattr(self, "optimizer", None)
        return list(optimizer.variables) if isinstance(optimizer, PrivateOptimizer) else []

    def get_weights(self) -> list[Any]:
        """As in Keras."""
        self._privacy.decided("took the weights")
        return list(super().get_weights())

    def set_weights(self, weights: Any) -> None:
        """As in Keras."""
        self._privacy.decided("set the weights")
        super().set_weights(weights)

    def get_state_tree(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in Keras, without the metrics: what they hold of the records carries no noise, and this goes to files."""
        self._privacy.decided("took the weights")
        return {k: v for k, v in super().get_state_tree(*args, **kwargs).items() if k != "metrics_variables"}

    def quantize(self, *args: Any, public: bool = False, **kwargs: Any) -> None:
        """As in Keras. What the new weights are computed from was paid for, so they are too.

        Args:
            public: says that the `dataset` of the config ("gptq", "awq"), to which weights are fitted, is public.

        Raises: ValueError for a config with a data set that is not declared public; nothing is changed.
        """
        refuse_calibration((*args, *kwargs.values()), public)
        self._settle_accounts()
        before = [(layer, list(layer.weights)) for layer in self._flatten_layers() if not layer._layers]
        super().quantize(*args, **kwargs)
        for layer, weights in before:
            if any(paid_for(weights)):
                join_accounts(self._privacy.account, (), layer.weights)
        kept = set(map(id, map(held_by, self.weights)))
        self._privacy.trained = [held for held in self._privacy.trained if id(held) in kept]

    def export(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras. Metrics that layers keep start anew: what they hold of records carries no noise."""
        self._privacy.decided("exported the model")
        for layer in self._flatten_layers(include_self=False):
            for metric in layer._metrics:
                metric.reset_state()
        return super().export(*args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        self._settle_accounts()
        self._refuse_unpaid_weights()
        refuse_changed_constants(self)
        super().save_own_variables(store)
        write_stored_ledger(store, self.ledger)
        mixed = {id(w) for layer in layers_with_lora(self) if any(paid_for(layer.weights)) for w in layer.weights}
        weights = self._trained_by_fits()
        paid = zip(weights, paid_for(weights), strict=True)
        write_paid_weights(store, [is_paid or id(weight) in mixed for weight, is_paid in paid])

    def _trained_by_fits(self) -> list[Any]:
        """The weights that trainings may release something into: adapted layers know themselves what theirs cost."""
        adapted = [layer for layer in self._flatten_layers() if isinstance(layer, AdaptedLayer)]
        theirs = {id(weight) for layer in adapted for weight in layer.weights}
        return [weight for weight in self.weights if id(weight) not in theirs]

    def _share_cost(self, paid: list[bool] | None) -> None:
        """Lets weights that are being loaded say what they cost, wherever they go from here: frozen ones, too.

        Args:
            paid: of each weight, whether a training released something into it; None where the file does not tell.
        """
        weights = self._trained_by_fits()
        if paid is None or len(paid) != len(weights):
            paid = [True] * len(weights)
        theirs = [weight for weight, is_paid in zip(weights, paid, strict=True) if is_paid]
        join_accounts(self._privacy.account, (), theirs)
        remember_loaded(self._privacy.account, lambda: [*theirs, *self._optimizer_variables()])

    def load_own_variables(self, store: Any) -> None:
        """Loads weights; what they cost is merged into the ledger, which never rewinds."""
        # Keras loads the weights of layers after a failure here too (and only warns, with skip_mismatch).
        self._privacy.unpaid = self._privacy.asked = True
        variables, stored = read_stored_ledger(store)
        paid = read_paid_weights(variables)
        if stored is not None:
            with loading():
                self._settle_accounts()
                self.ledger.merge(stored)
                if stored.updates:
                    self._share_cost(paid)
        elif not getattr(_loading, "public", False):
            raise ValueError(_UNPAID)
        self._privacy.unpaid = False
        super().load_own_variables(variables)


@contextlib.contextmanager
def declared_public(public: bool) -> Iterator[None]:
    """Weights loaded inside the block, in this thread, may come without a ledger, if `public`."""
    earlier, _loading.public = getattr(_loading, "public", False), bool(public)
    try:
        yield
    finally:
        _loading.public = earlier
