"""How the weights of a private model are read and written, with what they cost."""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting.choice import Counted, counted_by
from tfdp_layers.accounting.digests import unchanged
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.left import changed_values, leave_anew, leave_copies, tells_of_change
from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.accounting.released import (
    begin_with,
    is_copy,
    is_known_value,
    known_values,
    loading,
    remember_later,
    remember_now,
    remember_public,
)
from tfdp_layers.accounting.remarks import kinds_of
from tfdp_layers.accounting.stored import (
    read_paid_weights,
    read_stored_ledger,
    read_stored_notes,
    write_paid_weights,
    write_stored_ledger,
    write_stored_notes,
)
from tfdp_layers.accounting.view import state_of
from tfdp_layers.certificates.constants import CONSTANTS, leave_constants, refuse_changed_constants
from tfdp_layers.layers.carried import (
    charge_what_is_kept,
    charging_what_is_kept,
    reading,
    refuse_hdf5,
    refuse_several_files,
    saving_whole,
)
from tfdp_layers.models.accounts import (
    join_accounts,
    join_copies,
    layers_with_lora,
    paid_for,
    remember_computed,
    remember_handed_out,
    remember_loaded,
)
from tfdp_layers.models.bookkeeping import Bookkeeping
from tfdp_layers.models.crossing import forget_metrics
from tfdp_layers.models.kept import kept_of
from tfdp_layers.models.quantizing import refuse_calibration
from tfdp_layers.models.rebuilding import begin_lora_anew, described, rebuilt, refuse_lost_ties, restore_trained
from tfdp_layers.models.unpaid import accept_weights
from tfdp_layers.models.whole_file import whole_model, whole_weights
from tfdp_layers.optimizers.restored import releases_in
from tfdp_layers.structure import held_by

_loading = threading.local()
_UNPAID = (
    "These weights were saved without a privacy ledger, so what they cost is not known. If they are public (never"
    " computed from private records), say so: load_weights(path, public=True), or tfdp.load_model(path, public=True)."
    " If a private training made them, load the file that it saved, by model.save or model.save_weights."
)
_SAVED = "Give the path of a file that model.save or save_weights wrote; in a folder of save, its model.weights.h5."


class WeightFiles(Bookkeeping):
    """Mixin for Keras models: their ledger goes where their weights go, into files and out of them."""

    def get_config(self) -> dict[str, Any]:
        """As in Keras. Raises ValueError while Keras writes an HDF5 file (.h5), which would hold no ledger."""
        refuse_hdf5()
        return described(self, dict(super().get_config()))

    @classmethod
    def from_config(cls, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in Keras. Raises ValueError while Keras reads an HDF5 file (.h5), which holds no ledger."""
        refuse_hdf5()
        by_keras = super().from_config
        return rebuilt(cls, config, lambda own: by_keras(own, *args, **kwargs))

    def build_from_config(self, config: dict[str, Any]) -> None:
        """As in Keras."""
        super().build_from_config(config)
        restore_trained(self)

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an interrupted save leaves an earlier file as it was.

        Raises: ValueError for an HDF5 file (.h5), which would hold no ledger, and for a layer that a file would hold
            twice; FileExistsError where a folder (zipped=False) would not be a new one, with overwrite=True too;
            RuntimeError while a `fit` of another thread changes the weights.
        """
        refuse_no_path(filepath, "filepath", "model.keras")
        refuse_lost_ties(self)
        self._privacy.decided("saved the model")
        with self._privacy.account.saving(), saving_whole(), whole_model(filepath, overwrite, *args, **kwargs) as path:
            super().save(path, overwrite, *args, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As `save`, into one file. Raises: ValueError for several (`max_shard_size`); RuntimeError as `save`."""
        refuse_no_path(filepath, "filepath", "model.weights.h5")
        self._privacy.decided("saved the weights")
        whole = whole_weights(filepath, overwrite, *args, **kwargs)
        with self._privacy.account.saving(), saving_whole(), whole as path:
            super().save_weights(path, overwrite, *args, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], *args: Any, public: bool = False, **kwargs: Any) -> None:
        """As in Keras; what the weights cost joins the ledger.

        Args:
            public: says that weights saved without a ledger were not computed from records, or persons, that this
                model's ledger counts, so that they cost these nothing. A ledger that is there counts all the same.

        Raises: ValueError for a pipe, a device or a folder, and for weights without a ledger that are not declared
            public; then the model keeps its own.
        """
        refuse_no_path(filepath, "filepath", "model.weights.h5")
        if not (public and os.path.isdir(filepath)):  # Orbax writes folders
            refuse_no_plain_file(filepath, _SAVED)
        self._privacy.decided("loaded weights")
        account, held = self._privacy.account, [*self.variables, *self._optimizer_variables()]
        before, was, owed = [variable.numpy() for variable in held], account.flagged, account.owed
        changed = changed_values(self._left_by_fits()) if public else set()
        self._privacy.asked = False
        try:
            with loading(), charging_what_is_kept() as refused:
                with declared_public(public), _of_weights():
                    super().load_weights(filepath, *args, **kwargs)
                asked = self._privacy.asked or public
                if not asked and not all(map(np.array_equal, before, (variable.numpy() for variable in held))):
                    raise ValueError(_UNPAID)  # Keras reads files of other formats past `load_own_variables`
                if refused and not was:
                    self._refuse_unpaid_weights()  # with skip_mismatch Keras warns only
            if not any((*args, *kwargs.values())):  # with options some weights may be those before
                accept_weights(account, self)
            remember_now()  # what was loaded has its numbers
            if public:
                now = zip(held, before, strict=True)
                read = [held_by(one) for one, old in now if not np.array_equal(one.numpy(), old)]
                remember_public(read)
                leave_anew(self._left_by_fits(), changed)
        except BaseException:
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
            account.unpaid = was
            account.owe(owed)
            raise

    def get_weights(self) -> list[Any]:
        """As in Keras."""
        self._privacy.decided("took the weights")
        found, trained = list(super().get_weights()), set(map(id, self.trainable_variables))
        # What was read: a step of another thread may have written since, or before.
        remember_handed_out(self, [v for one, v in zip(self.weights, found, strict=True) if id(one) in trained])
        return found

    def set_weights(self, weights: Any) -> None:
        """As in Keras; what copies of released weights cost joins the ledger: where it cannot, statements refuse."""
        self._privacy.decided("set the weights")
        self._refuse_other_shapes(weights := list(weights))
        held = [*map(held_by, self.weights)]
        with unchanged(), contextlib.suppress(ValueError, LedgerError):
            join_copies(self._privacy.account, weights)
        super().set_weights(weights)
        with unchanged():
            leave_copies(held, whole=any(map(is_known_value, weights)))
            with contextlib.suppress(ValueError, LedgerError):
                join_copies(self._privacy.account, held)  # from here on they pay for what they hold

    def _refuse_other_shapes(self, weights: list[Any]) -> None:
        """Raises ValueError for weights of another network, before any is charged, or set."""
        given, own = [np.shape(weight) for weight in weights], [tuple(weight.shape) for weight in self.weights]
        if given != own:
            raise ValueError(
                f"You called `set_weights(weights)` on {self.name!r} with weights of the shapes {given}, and its own,"
                f" in `model.weights`, have the shapes {own}. Nothing was set."
            )

    def get_state_tree(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in Keras, without the metrics: what they hold of the records carries no noise, and this goes to files."""
        self._privacy.decided("took the weights")
        found = {k: v for k, v in super().get_state_tree(*args, **kwargs).items() if k != "metrics_variables"}
        shown = [found.get(name, ()) for name in ("trainable_variables", "optimizer_variables")]
        remember_handed_out(self, keras.tree.flatten(shown))  # what was read, as in `get_weights`
        return found

    def set_state_tree(self, state_tree: dict[str, Any]) -> None:
        """As in Keras, and for OrbaxCheckpoint: unless trainings of this process made it, its releases are owed."""
        self._privacy.decided("set the weights")
        known = list(map(is_copy, keras.tree.flatten(state_tree.get("trainable_variables", {}))))
        if False in known or True not in known:  # Keras leaves the count out where the optimizer has another name
            self._privacy.account.owe(releases_in(state_tree.get("optimizer_variables", {})))
        super().set_state_tree(state_tree)  # where it raises, some weights are set

    def quantize(self, *args: Any, public: bool = False, **kwargs: Any) -> None:
        """As in Keras. What the new weights are computed from was paid for, so they are too.

        Args:
            public: says that the `dataset` of the config ("gptq", "awq"), to which weights are fitted, is public.

        Raises: ValueError for a config with a data set that is not declared public; nothing is changed.
        """
        refuse_calibration((*args, *kwargs.values()), public)
        self._settle_accounts()
        self._note_change()
        before = [(layer, list(layer.weights)) for layer in self._flatten_layers() if not layer._layers]
        super().quantize(*args, **kwargs)
        for layer, weights in before:
            if any(paid_for(weights)):
                remember_computed(self._privacy.account, layer.weights)
        if self._privacy.ledger.updates:
            self._leave()

    def export(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """As in Keras. Metrics that layers keep start anew: what they hold of records carries no noise."""
        refuse_no_path(filepath, "filepath", "served")
        self._privacy.decided("exported the model")
        with self._privacy.account.saving():
            forget_metrics(self)
            return super().export(filepath, *args, **kwargs)

    def save_own_variables(self, store: Any) -> None:
        refuse_several_files(store)
        self._privacy.account.refuse_other_thread()
        self._settle_accounts()
        self._refuse_unpaid_weights()
        refuse_changed_constants(self)
        super().save_own_variables(store)
        kept = kept_of(self._privacy.run, self._privacy.ledger)
        write_stored_ledger(store, kept.ledger)
        write_stored_notes(store, [*self._remarks(), *kept.notes], kept.counted)
        mixed = {id(w) for layer in layers_with_lora(self) if any(paid_for(layer.weights)) for w in layer.weights}
        paid = zip(weights := self._trained_by_fits(), paid_for(weights), strict=True)
        write_paid_weights(store, [is_paid or id(weight) in mixed for weight, is_paid in paid])

    def load_own_variables(self, store: Any) -> None:
        """Loads weights; what they cost is merged into the ledger, which never rewinds."""
        # Keras loads the weights of layers after a failure here too (and only warns, with skip_mismatch). Until they
        # are charged, which is at the end of `load_weights`, nothing is stated of them, and nothing saved.
        self._privacy.unpaid = self._privacy.asked = True
        with reading():
            variables, stored = read_stored_ledger(store)
            paid, (notes, counted) = read_paid_weights(variables), read_stored_notes(variables)
            if stored is None and not getattr(_loading, "public", False):
                raise ValueError(_UNPAID)
            if stored is not None:
                state_of(stored).note(kinds_of(notes))  # so copies of its weights say so, too
                with loading():
                    self._settle_accounts()
                if not self._privacy.ledger.holds(stored):
                    self._privacy.ledger.copy().merge(stored)  # raises before any weight is loaded
            changed = changed_values(self._left_by_fits()) if stored is not None and stored.updates else set()
            before = known_values(map(held_by, self.weights)) if stored is not None and not stored.updates else set()
            read = _Read(stored, paid, notes, counted, changed, before, getattr(_loading, "weights", False))
            super().load_own_variables(variables)
        charge_what_is_kept(lambda: self._charge(read))

    def _charge(self, read: "_Read") -> None:
        """Takes over what weights that were loaded cost, and what is to be said of them."""
        remember_later(lambda: read.begun.extend(begin_lora_anew(self)))  # before anything looks at the weights
        if read.ledger is not None:
            with loading():
                cost = counted_by(self._privacy.ledger, read.ledger, read.counted)
                self._privacy.ledger._take(cost)
                if read.ledger.updates:  # a training that runs goes on to make what is planned
                    self._share_cost(read, cost if self._privacy.run is None else read.ledger)
                else:
                    remember_later(lambda: begin_with(map(held_by, self.weights), loaded=True, but=read.before))
            if read.counted is not None and cost is read.ledger:
                self._privacy.remark(read.counted.note)
            for note in read.notes:
                if not note.startswith(CONSTANTS):  # asked again, so that it ends where they are declared public
                    self._privacy.remark(note)
        self._privacy.unpaid = False

    def _share_cost(self, read: "_Read", cost: Ledger) -> None:
        """Lets weights that are being loaded say what they cost, wherever they go from here: frozen ones, too."""
        weights, paid = self._trained_by_fits(), read.paid
        if paid is None or len(paid) != len(weights):
            paid = [True] * len(weights)
        theirs = [weight for weight, is_paid in zip(weights, paid, strict=True) if is_paid]
        others = [held_by(weight) for weight, is_paid in zip(weights, paid, strict=True) if not is_paid]
        join_accounts(self._privacy.account, (), theirs)
        changed = tells_of_change(read.notes)
        remember_loaded(cost, lambda: [*read.without_begun(theirs), *self._optimizer_variables()], changed)
        remember_later(lambda: begin_with(map(held_by, read.begun), loaded=True))
        remember_later(lambda: begin_with(others, loaded=True))
        remember_later(lambda: self._leave(but=read.changed))
        if not any(note.startswith(CONSTANTS) for note in read.notes):
            remember_later(lambda: leave_constants(self, of_weights=read.alone))


@dataclass(frozen=True)
class _Read:
    """What a file says of a model's weights.

    Attributes:
        ledger: what they cost; None where they are declared public.
        paid: of each weight, whether a training released something into it; None where the file does not tell.
        notes: sentences for statements, of which one may say that no training accepted its constants.
        counted: what the ledger counts that was planned only.
        changed: of the model's weights, before, the values that something else had written.
        before: their values before, where the file says that all it holds cost nothing.
        alone: whether it is a file of weights.
        begun: LoRA factors that began anew once it was read: no training released what they hold.
    """

    ledger: Ledger | None
    paid: list[bool] | None
    notes: list[str]
    counted: Counted | None
    changed: set[bytes]
    before: set[bytes]
    alone: bool
    begun: list[Any] = field(default_factory=list)

    def without_begun(self, weights: list[Any]) -> list[Any]:
        """These weights, but for those that began anew."""
        begun = set(map(id, self.begun))
        return [weight for weight in weights if id(weight) not in begun]


@contextlib.contextmanager
def _of_weights() -> Iterator[None]:
    """Inside, in this thread, a file of weights is read, which brings no vocabulary."""
    _loading.weights = True
    try:
        yield
    finally:
        _loading.weights = False


@contextlib.contextmanager
def declared_public(public: bool) -> Iterator[None]:
    """Weights loaded inside the block, in this thread, may come without a ledger, if `public`."""
    earlier, _loading.public = getattr(_loading, "public", False), bool(public)
    try:
        yield
    finally:
        _loading.public = earlier
