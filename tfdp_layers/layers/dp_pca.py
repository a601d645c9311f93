"""Principal components of private data, from a noisy second-moment matrix."""

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import GroupNoise, Ledger
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.events import WholeDataRelease
from tfdp_layers.accounting.stored import read_stored_ledger, write_stored_ledger
from tfdp_layers.noise import NoiseSource, add_noise, as_noise_source
from tfdp_layers.rules.rows import L2, check_bound
from tfdp_layers.sampling import Poisson, Sampling, drawing_all
from tfdp_layers.structure import KerasMixin

_ROWS = 4096
GROUP = "DP-PCA second moments"


@keras.saving.register_keras_serializable(package="tfdp_layers")
class DPPCA(KerasMixin, keras.layers.Layer):
    """Projects each record on the leading eigenvectors of a noisy matrix sum_i x_i x_i^T; `adapt` releases that matrix.

    Forward: y = x V, V being fixed: columns are orthonormal, and found by `adapt`. Nothing is trained or clipped there.

    Formal guarantee: one `adapt` is one Gaussian mechanism of the given noise multiplier over all its records, which
    joins the ledger of every private model that uses the layer, by whatever name or copy: a model whose layer was
    adapted without a record of it refuses to train and to state an epsilon. Adapting twice costs twice.
    Derivation: each record is scaled to L2 norm at most C. What is released is the vector w of the matrix's diagonal
    and of sqrt(2) times its entries above it, for which ||w(x x^T)||_2 = ||x x^T||_F = ||x||^2 <= C^2: adding or
    removing a record, or replacing it by an empty one, moves w by at most C^2, attained by every record of norm C.
    (Replacing a record moves it by at most sqrt(2) C^2; it is accounted with 2 C^2.) Noise of standard deviation
    noise_multiplier * C^2 on w is that on the diagonal, and 1 / sqrt(2) of it on each entry above, mirrored below. The
    eigenvectors are post-processing, and do not depend on the number of records.
    The matrix is not centered, as in the sources. A record with a NaN or an infinity counts as zero.

    Shapes: (batch, ...) to (batch, components); a record is flattened.
    Args:
        components: columns of V, at most the number of features.
        noise_multiplier: the noise's standard deviation over C^2, of each `adapt`. 0 adds none: epsilon is infinite.
        l2_norm_clip: C, in units of the data.
        noise_source: "default", "secure" or a `NoiseSource`, for tests `tfdp.noise.SeededNoise(seed)`. It is not saved.
        name, dtype: as in Keras.

    Attributes:
        ledger: what `adapt` released, saved with the weights. Where the layer is used outside of a private model (to
            transform the data before `fit`), merge it yourself: `model.ledger.merge(layer.ledger)`.

    Raises: ValueError for settings out of range.
    Source: Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss", algorithm 1 (there with the same noise on and off the
        diagonal); used before a network by Abadi et al. 2016, arXiv:1607.00133, section 4.
    """

    def __init__(
        self,
        components: int,
        noise_multiplier: float,
        l2_norm_clip: float = 1.0,
        *,
        noise_source: str | NoiseSource = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_bound(l2_norm_clip=l2_norm_clip)
        if isinstance(components, bool) or not hasattr(components, "__index__") or components < 1:
            raise ValueError(f"`components` must be an integer of at least 1. Received: components={components!r}.")
        if isinstance(noise_multiplier, bool) or not 0 <= noise_multiplier < math.inf:
            raise ValueError(
                "`noise_multiplier` is the noise's standard deviation over l2_norm_clip^2: a finite number, 0 or more."
                f" Received: noise_multiplier={noise_multiplier!r}."
            )
        self.components = int(components)
        self.noise_multiplier, self.l2_norm_clip = float(noise_multiplier), float(l2_norm_clip)
        self.noise_source = as_noise_source(noise_source)
        self._paid = _Paid()

    def build(self, input_shape: Sequence[int | None]) -> None:
        features = math.prod(input_shape[1:])  # type: ignore[arg-type]  # an unknown size is a TypeError
        if self.components > features:
            raise ValueError(f"DPPCA finds at most as many components as features: {self.components} > {features}.")
        add = {"initializer": "zeros", "trainable": False}
        self.projection = self.add_weight(shape=(features, self.components), name="projection", **add)
        # Which count of which entry of a ledger paid for the projection. It goes with it wherever weights are copied.
        self.receipt = self.add_weight(shape=(5,), dtype="int32", name="receipt", **add)

    def call(self, inputs: tf.Tensor) -> Any:
        flat = keras.ops.reshape(inputs, (-1, self.projection.shape[0]))
        return keras.ops.matmul(flat, keras.ops.cast(self.projection, flat.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[Any, ...]:
        return (input_shape[0], self.components)

    # What it costs ----------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What the projection in use, and every earlier one, cost."""
        return self._paid.ledger

    def adapt(self, data: Any, sampling: Sampling | None = None, examples: int | None = None) -> None:
        """Releases a noisy second-moment matrix of all records, and projects on its leading eigenvectors from now on.

        Args:
            data: an array (records, ...), the private records.
            sampling: how the model's `fit` draws, `tfdp.sampling.FixedSize(256)` say: the cost is stated under its
                neighbouring relation, and a ledger holds one. Each record is used once here whatever it is. Default:
                Poisson sampling, add or remove one record, as in `fit`.
            examples: the declared, public number of records; that of the array if left out.

        Raises: ValueError for data of no records or of other features than before, or a sampling of another kind.
        """
        if not hasattr(data, "shape") or len(data.shape) < 2 or not len(data):
            raise ValueError(
                f"adapt needs an array (records, features, ...) of at least one record. Received: {type(data).__name__}"
                f" of shape {getattr(data, 'shape', None)}."
            )
        if not self.built:
            self.build((None, *data.shape[1:]))
        features = self.projection.shape[0]
        if math.prod(data.shape[1:]) != features:
            raise ValueError(f"adapt got records of {math.prod(data.shape[1:])} features; the layer has {features}.")
        bound = self.l2_norm_clip**2
        stddev = self.noise_multiplier * bound
        self.noise_source.rekey()
        release = WholeDataRelease(
            (GroupNoise(GROUP, bound, stddev),),
            whole(Poisson(1) if sampling is None else sampling, len(data) if examples is None else examples),
            len(data) if examples is None else examples,
            seeded=self.noise_source.seeded,
            generator=self.noise_source.generator,
        )
        ledger = self._paid.ledger
        token = ledger.begin(release)
        ledger.reserve(token, 1)
        entry = ledger.entry_of(token)
        assert entry is not None
        for account in self._paid.users:
            account.ledger.merge(ledger)
        (released,) = add_noise(self.noise_source, [second_moments(data, self.l2_norm_clip)], [stddev])
        self.receipt.assign([*np.frombuffer(bytes.fromhex(entry.uid), np.int32), entry.steps])
        self.projection.assign(leading_eigenvectors(np.asarray(released), features, self.components))
        ledger.settle(token, 1)

    @property
    def adapted(self) -> bool:
        """Whether there is a projection, from this layer's `adapt` or from copied weights."""
        return self.built and bool(np.any(np.asarray(self.receipt)))

    @property
    def paid(self) -> bool:
        """Whether the ledger holds the release that the projection comes from."""
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
            self.ledger.merge(stored)

    def get_config(self) -> dict[str, Any]:
        settings = ("components", "noise_multiplier", "l2_norm_clip")
        return super().get_config() | {name: getattr(self, name) for name in settings}


def merge_adaptations(layers: Iterable[Any], account: Account) -> None:
    """Takes what the DPPCA layers among these cost over into a model's account, now and at each later `adapt`.

    Raises: ValueError for a layer whose projection came without its cost.
    """
    for layer in layers:
        if not isinstance(layer, DPPCA):
            continue
        layer._paid.users.add(account)
        if not layer.adapted:
            continue
        if not layer.paid:
            raise ValueError(
                f"Layer {layer.name!r} (DPPCA) projects by weights that were copied to it without the record of what"
                " they cost, so every epsilon would be too small. Merge the ledger of the layer that was adapted:"
                " layer.ledger.merge(original.ledger)."
            )
        if not account.ledger.holds(layer.ledger):
            account.ledger.merge(layer.ledger)


class _Paid:
    """What a layer released, and the accounts of the models that use it: Keras neither tracks nor saves it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.users: weakref.WeakSet[Account] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Paid":
        copied = _Paid()
        copied.ledger = self.ledger.copy()
        return copied


def whole(sampling: Sampling, examples: int) -> Sampling:
    """The sampling of the same relation that draws every record, once."""
    if not isinstance(sampling, Sampling):
        raise ValueError(
            f"`sampling` must be a sampler, for example tfdp.sampling.Poisson(256). Received: {sampling!r}."
        )
    return drawing_all(sampling.relation, examples)


def second_moments(data: Any, clip: float) -> tf.Tensor:
    """The diagonal of sum_i x_i x_i^T, then sqrt(2) times what is above it, in float64: (d (d + 1) / 2,).

    Each record moves the vector by at most clip^2: `L2` keeps a relative margin of 2^-16 below the clip, which float64
    rounding of the sum does not use up before 1e10 records.
    """
    features, rule = math.prod(data.shape[1:]), L2(clip)
    total = tf.zeros((features, features), tf.float64)
    for rows in chunks(data):
        clipped = tf.cast(rule(tf.reshape(tf.cast(rows, tf.float32), (-1, features))), tf.float64)
        total += tf.matmul(clipped, clipped, transpose_a=True)
    above = tf.gather_nd(total, tf.constant(np.argwhere(np.triu(np.ones((features, features), bool), 1))))
    return tf.concat([tf.linalg.diag_part(total), math.sqrt(2.0) * above], 0)


def leading_eigenvectors(moments: np.ndarray, features: int, components: int) -> np.ndarray:
    """Orthonormal columns, from the vector of `second_moments`: (features, components)."""
    matrix = np.zeros((features, features))
    matrix[np.triu_indices(features, 1)] = moments[features:] / math.sqrt(2.0)
    matrix += matrix.T
    matrix[np.diag_indices(features)] = moments[:features]
    _, vectors = np.linalg.eigh(matrix)
    return vectors[:, : -components - 1 : -1]


def chunks(data: Any) -> Iterator[np.ndarray]:
    for start in range(0, len(data), _ROWS):
        yield np.asarray(data[start : start + _ROWS])
