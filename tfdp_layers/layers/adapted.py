"""What layers share that release something about all records of private data by themselves, once."""

import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.charging import charge, check_ledger
from tfdp_layers.accounting.footprint import Footprint, footprint_of
from tfdp_layers.accounting.grouping import sample_of
from tfdp_layers.accounting.left import leave, leave_elsewhere
from tfdp_layers.accounting.released import remember
from tfdp_layers.accounting.stored import read_stored_ledger, write_stored_ledger
from tfdp_layers.batches.records import arrays, checked_sampling
from tfdp_layers.batches.whose import whose_of
from tfdp_layers.instances import refuse_own_code
from tfdp_layers.layers.carried import charge_what_is_kept
from tfdp_layers.metrics import one_more
from tfdp_layers.noise import NoiseSource, add_noise, as_noise_source
from tfdp_layers.rules.rows import check_bound
from tfdp_layers.sampling import Poisson, Sampling, drawing_all
from tfdp_layers.structure import KerasMixin, held_by

_ROWS = 4096
_COUNTED = 0.5
"""Of the bound: what each record adds to the count. More is noise on the sums, less is noise on the count."""
Kind = TypeVar("Kind", bound=type)


_ADAPTING: set[type] = set()
"""The classes whose `adapt` releases what it is charged for."""

_OF_KERAS = ("build", "quantize")
"""Methods that Keras itself puts on every layer."""


def adapting(kind: Kind) -> Kind:
    """Marks a class of this library whose `total` a record moves by at most its `sensitivity`."""
    _ADAPTING.add(kind)
    return kind


class AdaptedLayer(KerasMixin, keras.layers.Layer):
    """A layer whose `adapt` releases one noisy sum over all records, and keeps the record of what that cost.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.

    Derivation: one record moves `total` by at most B, its `sensitivity`. A number that was counted is a function of the
    records, so that by add-or-remove no mean may be divided by it: of n and n - 1 records it would move by up to
    2 B / n. So where the number is not declared, B / 2 for each record is one more entry of the sum, which then moves
    by at most sqrt(B^2 + B^2 / 4) = 1.118 B, attained where B is; the noise is that much larger, of the same noise
    multiplier, and the mean is divided by the noisy number. A declared number is the same in both, as a counted one is
    where neighbours differ in what a record holds: dividing by it is post-processing.

    A layer of this kind defines `check_shape`, `total`, `sensitivity` and `use`, beside what Keras asks for.

    Args: as in `DPPCA`.
    """

    group = ""
    """How the ledger calls what is released."""

    divides = True
    """Whether `use` depends on the number of records."""

    def __init__(self, noise_multiplier: float, *, noise_source: str | NoiseSource = "secure", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(noise_multiplier, bool) or not 0 <= noise_multiplier < math.inf:
            raise ValueError(
                "`noise_multiplier` is the noise's standard deviation over what one record may move: a finite number, 0"
                f" or more. Received: noise_multiplier={noise_multiplier!r}."
            )
        self.noise_multiplier = float(noise_multiplier)
        self.noise_source = as_noise_source(noise_source)
        self._paid = _Paid()

    def build_receipt(self) -> None:
        """Adds a weight: which count of which entry of a ledger paid. It goes wherever weights are copied."""
        self.receipt = self.add_weight(shape=(5,), dtype="int32", name="receipt", initializer="zeros", trainable=False)

    def plain(self) -> Any:
        """An ordinary Keras layer, or model, that does the same."""
        raise NotImplementedError

    def copy_to(self, target: Any) -> None:
        """Gives what `plain` made this layer's values."""
        raise NotImplementedError

    # What it costs ----------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What the weights in use, and every earlier `adapt`, cost."""
        return self._paid.ledger

    @ledger.setter
    def ledger(self, ledger: Any) -> None:
        raise AttributeError(
            f"The ledger of {type(self).__name__} is its own. A model of which it is a layer counts what it cost; for a"
            " data set's ledger, tfdp.accounting.Ledger(path, dataset='name'), write that_ledger.merge(layer.ledger)"
            " after adapt."
        )

    def adapt(
        self,
        data: Any,
        sampling: Sampling | None = None,
        examples: int | None = None,
        unit_ids: Any = None,
        owners: Any = None,
        records_per_owner: int | None = None,
    ) -> None:
        """Releases one noisy sum over all records, charged before it is made, and uses it from now on.

        Args:
            data: an array (records, ...), the private records.
            sampling: how the model's `fit` draws, `tfdp.sampling.FixedSize(256)` say: the cost is stated under its
                neighbouring relation, and a ledger holds one. Each record is used once here whatever it is. Default:
                Poisson sampling, add or remove one record, as in `fit`.
            examples: the declared, public number of records, or of units. If it is left out they are counted, and by
                add-or-remove the mean is divided by a noisy number: the sums get 1.118 times the noise, and the mean of
                n is off by its own size times 2.24 noise_multiplier / n (a standard deviation) as well.
            unit_ids: (records,), where the ledger of the model protects units, as `fit` with `unit_ids` makes it: of
                each unit one record enters, chosen at random, so that a unit moves the sum as one record does.
            owners, records_per_owner: as `fit` takes them, where the ledger of the model protects owners: all records
                enter, and the k of one owner are charged as one of k times the size.

        Raises:
            ValueError: a layer of a class of your own, or with a method put on it, whose sum may be of any size; data
                of no records or of another shape than before, a sampling of another kind, an owner of
                more records than stated, or units where the ledger protects records, or the other way round.
            BudgetExhausted: it would exceed the budget of a ledger of a model that uses the layer; nothing is released.
        """
        refuse_own_code(self, _ADAPTING, "The layer", _OF_KERAS)
        given, data = data, checked_records(data)
        if not self.built:
            self.build((None, *data.shape[1:]))
        self.check_shape(tuple(data.shape[1:]))
        self.warn_of(data, unit_ids)
        whose = whose_of(len(data), unit_ids, owners, records_per_owner, ("data", given))
        stated = whose.stated(self._secret(), sample_of([np.asarray(data)]) if whose.grouped else None)
        records = footprint_of([given], [np.asarray(data)], people=whose.people)
        data = whose.entering(data)
        with self._paid.alone:
            self._release(data, sampling, examples, stated, records)

    def _secret(self) -> str:
        """That of the ledger of a model that uses the layer, so that its `fit` knows the units again; or its own."""
        return next((account.ledger for account in self._paid.users), self._paid.ledger).secret

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError for records of another shape than the layer was built for."""
        raise NotImplementedError

    def warn_of(self, data: np.ndarray, unit_ids: Any) -> None:
        """Warns of settings that were taken from these very records (records, ...), before anything is charged."""

    def total(self, data: Any) -> tf.Tensor:
        """The sum over the records of what each adds, in float64: NOT private."""
        raise NotImplementedError

    @property
    def sensitivity(self) -> float:
        """The most that one record moves `total` in the L2 norm, whatever it holds."""
        raise NotImplementedError

    def use(self, released: np.ndarray, count: float, stddev: float) -> None:
        """Sets the weights from the noisy `total` over `count` records, a declared or noisy number; noise `stddev`."""
        raise NotImplementedError

    def _release(
        self, data: Any, sampling: Sampling | None, examples: int | None, stated: dict[str, Any], records: Footprint
    ) -> None:
        sampling = Poisson(1) if sampling is None else checked_sampling(sampling)
        own, counted = self.sensitivity, examples is None and self.divides and one_more(sampling, stated["unit"])
        share, declared = own * _COUNTED * counted, len(data) if examples is None else examples
        bound = math.hypot(own, share)
        stddev = self.noise_multiplier * bound
        self.noise_source.rekey()
        source: dict[str, Any] = {"seeded": self.noise_source.seeded, "generator": self.noise_source.generator}
        release = whole_data(self.group, bound, stddev, sampling, declared, **stated, **source)
        ledger = self._paid.ledger
        total = self._summed(data, share)  # by what is charged: code of the caller that shows warnings may change it
        for account in self._paid.users:  # before anything is reserved: a reservation, taken back, keeps its unit
            check_ledger(account.ledger)
            account.ledger.check(release)
        token = charge(ledger, release, records=records, beside=[account.ledger for account in self._paid.users])
        entry = ledger.entry_of(token)
        assert entry is not None
        try:
            for account in self._paid.users:
                account.ledger.merge(ledger, spent=False)
        except BaseException:
            ledger.settle(token, 0)
            raise
        stddevs = self.noise_source.widened([stddev], self.noise_multiplier, math.prod(total.shape))
        (released,) = add_noise(self.noise_source, [total], stddevs)
        self.receipt.assign([*np.frombuffer(bytes.fromhex(entry.uid), np.int32), entry.steps])
        sums, count = np.asarray(released), float(declared)
        if share:
            sums, count = sums[:-1], max(1.0, float(sums[-1]) / share)
        self.use(sums, count, stddev)
        ledger.settle(token, 1)
        remember(ledger, map(held_by, self.weights))
        leave(map(held_by, self.weights))
        leave_elsewhere(map(held_by, self.weights))

    def _summed(self, data: Any, share: float) -> tf.Tensor:
        """`total`, and behind it the number of records times `share`, where that is not 0."""
        total = self.total(data)
        return tf.concat([total, tf.constant([share * len(data)], tf.float64)], 0) if share else total

    @property
    def adapted(self) -> bool:
        """Whether the weights come from an `adapt`, of this layer or of the one that they were copied from."""
        return self.built and bool(np.any(np.asarray(self.receipt)))

    @property
    def paid(self) -> bool:
        """Whether the ledger holds the release that the weights come from."""
        *words, count = np.asarray(self.receipt, np.int32)
        uid = np.asarray(words, np.int32).tobytes().hex()
        return any(entry.uid == uid and entry.steps >= count for entry in self.ledger.entries)

    # Saving -----------------------------------------------------------------------------------------------------------

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        write_stored_ledger(store, self.ledger)

    def load_own_variables(self, store: Any) -> None:
        """Loads weights; what they cost is merged into the ledger, which never rewinds."""
        variables, stored = read_stored_ledger(store)
        super().load_own_variables(variables)
        if stored is not None:
            charge_what_is_kept(lambda: self._brought(stored))

    def _brought(self, cost: Ledger) -> None:
        """What weights from a file cost, and that they hold what it left in them."""
        self.ledger.merge(cost)
        remember(self.ledger, map(held_by, self.weights))
        leave(map(held_by, self.weights))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"noise_multiplier": self.noise_multiplier}


class NormClipped(AdaptedLayer):
    """An `AdaptedLayer` that scales each record to L2 norm at most `l2_norm_clip`. Args: as in `DPPCA`."""

    def __init__(self, noise_multiplier: float, l2_norm_clip: float = 1.0, **kwargs: Any) -> None:
        super().__init__(noise_multiplier, **kwargs)
        self.l2_norm_clip = l2_norm_clip

    @property
    def l2_norm_clip(self) -> float:
        """C, a float: the square of a small integer of NumPy wraps around. Raises ValueError for what is no bound."""
        return self._l2_norm_clip

    @l2_norm_clip.setter
    def l2_norm_clip(self, clip: float) -> None:
        check_bound(l2_norm_clip=clip)
        self._l2_norm_clip = float(clip)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"l2_norm_clip": self.l2_norm_clip}


def checked_records(data: Any) -> np.ndarray:
    """The records as an array (records, features, ...), whose rows are found by their places alone.

    What is read is this array, never slices of what was given: those of a data frame may go by labels, ends included,
    and count a record twice.

    Raises: ValueError unless they are numbers, dense, and at least one.
    """
    found = None if keras.tree.is_nested(data) else arrays("data", data)
    if found is None or found.ndim < 2 or 0 in found.shape:
        raise ValueError(
            "adapt needs an array (records, features, ...) of at least one record. Received:"
            f" {type(data).__name__} of shape {getattr(data, 'shape', None)}."
        )
    return np.asarray(found)


def merge_adaptations(layers: Iterable[Any], account: Account) -> None:
    """Takes what the adapted layers among these cost over into a model's account, now and at each later `adapt`.

    Raises: ValueError for a layer whose projection came without its cost.
    """
    for layer in layers:
        if not isinstance(layer, AdaptedLayer):
            continue
        layer._paid.users.add(account)
        if not layer.adapted:
            continue
        if not layer.paid:
            raise ValueError(
                f"Layer {layer.name!r} ({type(layer).__name__}) has weights that were copied to it without the record"
                " of what they cost, so every epsilon would be too small. Merge the ledger of the layer that was"
                " adapted: layer.ledger.merge(original.ledger)."
            )
        if not account.ledger.holds(layer.ledger):
            account.ledger.merge(layer.ledger)


class _Paid:
    """What a layer released, and the accounts of the models that use it: Keras neither tracks nor saves it.

    One thread at a time may adapt the layer: what another has reserved meanwhile is in the layer's ledger, so that the
    models' would take over both, having asked their budgets for one, and count also what is refused then.
    """

    def __init__(self) -> None:
        self.alone = threading.Lock()
        self.ledger = Ledger()
        self.users: weakref.WeakSet[Account] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Paid":
        copied = _Paid()
        copied.ledger = self.ledger.copy()
        return copied


def whole_data(group: str, bound: float, stddev: float, sampling: Sampling, examples: int, **options: Any) -> Release:
    """One noisy sum over all records, of which one record moves `bound`, as a ledger counts it."""
    noise = GroupNoise(group, bound, stddev)
    return Release((noise,), whole(sampling, examples), examples, purpose="whole_data", **options)


def whole(sampling: Sampling, examples: int) -> Sampling:
    """The sampling of the same relation that draws every record, once."""
    return drawing_all(checked_sampling(sampling).relation, examples)


def chunks(data: Any, rows: int = _ROWS) -> Iterator[np.ndarray]:
    for start in range(0, len(data), min(rows, _ROWS)):
        yield np.asarray(data[start : start + min(rows, _ROWS)])
