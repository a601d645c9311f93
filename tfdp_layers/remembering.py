"""What a private model remembers of what it released, and how that is saved with its weights."""

from typing import Any

from tfdp_layers.accounting import Ledger, Release, Statement
from tfdp_layers.accounting.stored import read_stored_ledger, write_stored_ledger
from tfdp_layers.layers.dp_pca import merge_adaptations
from tfdp_layers.mixin import KerasMixin
from tfdp_layers.model_file import whole_file
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.run import PrivacyState


class Remembering(KerasMixin):
    """Mixin for Keras models: the ledger, the statement, and files that hold both with the weights."""

    _privacy: PrivacyState

    @property
    def ledger(self) -> Ledger:
        """What was released so far. Assign a `Ledger(path)` to keep it in a file; what was spent moves over.

        To charge all that is trained on a data set to one ledger, assign each model the same one:
        `Ledger(path, dataset="name", budget=(epsilon, delta))`; past the budget `fit` ends or refuses to start.
        What layers released by themselves (`tfdp.layers.DPPCA`) is taken over at every look.
        """
        merge_adaptations(self, self._privacy.ledger)
        return self._privacy.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        if self._privacy.run is not None:
            raise RuntimeError("The ledger can't be exchanged while fit runs: assign it before fit.")
        replicas = self._privacy.replicas_of(self)
        if replicas is not None and replicas.workers is not None and not replicas.workers.chief:
            ledger = ledger.copy()  # The chief keeps the one ledger.
        ledger.merge(self.ledger)
        self._privacy.ledger = ledger

    @property
    def current_release(self) -> Release | None:
        """What each update of the running `fit` releases; None outside of one."""
        return None if self._privacy.run is None else self._privacy.run.release

    def privacy_statement(self, delta: float) -> Statement:
        """What was released, at which epsilon, under which assumptions. Print it, or `.to_json()`."""
        self._refuse_unpaid_weights()
        return Statement.from_ledger(self.ledger, delta)

    def audit(self, x: Any, y: Any, canaries: Any = 500, **options: Any) -> Any:
        """Trains on records and canaries, attacks the training, and says which epsilon the attack refutes.

        The canaries spoil the model: audit a twin of the one that you use. Arguments, result, and what is raised: see
        `tfdp.audit.audit_training`.
        """
        from tfdp_layers.audit.one_run import audit_training  # imports this package's batches and layers

        self._require_private()
        return audit_training(self, x, y, canaries, **options)

    @property
    def made_in_fit(self) -> int:
        """Updates that the running `fit` made; 0 outside of one."""
        return 0 if self._privacy.run is None else self._privacy.run.made[0]

    def _refuse_unpaid_weights(self) -> None:
        """Raises ValueError where the optimizer was restored without the ledger (tf.train.Checkpoint does that)."""
        if self._privacy.unpaid:
            raise ValueError(
                "Weights were loaded into this model, and the ledger saved with them was not: it is damaged, or belongs"
                " to another data set (the error from loading says which). Load weights with a whole ledger."
            )
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, PrivateOptimizer) and int(optimizer.releases.numpy()) > self.ledger.updates:
            raise ValueError(
                f"The optimizer counts {int(optimizer.releases.numpy())} releases and the ledger"
                f" {self.ledger.updates}:"
                " weights were restored without what they cost. Restore with load_weights or load_model, or merge the"
                " ledger of the earlier run: model.ledger.merge(...)."
            )

    def save(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was."""
        with whole_file(filepath, overwrite) as path:
            super().save(path, overwrite, *args, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was."""
        with whole_file(filepath, overwrite) as path:
            super().save_weights(path, overwrite, *args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        write_stored_ledger(store, self.ledger)

    def load_own_variables(self, store: Any) -> None:
        """Loads weights; what they cost is merged into the ledger, which never rewinds."""
        # Keras loads the weights of layers after a failure here too (and only warns, with skip_mismatch).
        self._privacy.unpaid = True
        variables, stored = read_stored_ledger(store)
        if stored is not None:
            self.ledger.merge(stored)
        self._privacy.unpaid = False
        super().load_own_variables(variables)
