"""What `fit` of a tensorflow-privacy model accepts, and how its records are drawn."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting.footprint import Footprint, footprint_of
from tfdp_layers.accounting.logs import is_private, posing_names
from tfdp_layers.callbacks.own_fit import own_fit
from tfdp_layers.callbacks.steering import flatten_callbacks, refuse_steering
from tfdp_layers.caller import warn
from tfdp_layers.instances import refuse_own_code
from tfdp_layers.overlap import copies, overlap
from tfdp_layers.sampling import Partition, Sampling
from tfdp_layers.tf_privacy.draws import PoissonBatches, records_of
from tfdp_layers.tf_privacy.mechanism import Mechanism

__all__ = [
    "Data",
    "data_of",
    "fit_of_keras",
    "private_in",
    "refuse_other_ledgers",
    "refuse_unsound_fit",
    "warn_of_validation",
]


@dataclass(frozen=True)
class Data:
    """The records of a `fit`, and their sampling.

    Attributes:
        x: inputs, to take shapes from.
        rows: of a batch, the last one of an epoch perhaps apart.
        batches: the Poisson draws; None: Keras shuffles arrays.
    """

    x: Any
    sampling: Sampling
    examples: int
    rows: int
    batches: PoissonBatches | None = None

    @property
    def padded(self) -> bool:
        """Whether batches have empty rows."""
        return self.batches is not None

    @property
    def seeded(self) -> bool:
        """Whether a seed repeats the draws."""
        return self.batches is not None and self.batches.seeded

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return self.sampling.steps_per_epoch(self.examples)

    def arguments(self) -> dict[str, Any]:
        """What Keras' `fit` gets in place of the caller's data."""
        return {} if self.batches is None else {"x": self.batches.dataset(), "steps_per_epoch": self.steps}

    def footprint(self) -> Footprint:
        """What tells these records again."""
        leaves = tf.nest.flatten(self.x)
        return footprint_of(leaves, [np.asarray(leaf) for leaf in leaves])

    def refuse_microbatches(self, mechanism: Mechanism) -> None:
        """Raises ValueError unless each microbatch is one record."""
        given = mechanism.microbatches
        if given is None:
            return
        if given != self.rows:
            raise ValueError(
                f"num_microbatches={given} puts several of the {self.rows} rows of a batch into a microbatch: a mean of"
                " records that is clipped as one moves by up to twice the clip, and is not accounted here. Leave"
                " num_microbatches=None, which clips each record alone."
            )
        if not self.padded and self.examples % self.rows:
            raise ValueError(
                f"The last batch of an epoch has {self.examples % self.rows} records, which num_microbatches={given}"
                " does not divide. Leave num_microbatches=None."
            )


def data_of(arguments: dict[str, Any]) -> Data:
    """The records that `fit` got. Raises ValueError where it is not known how they are drawn."""
    x, y = arguments.get("x"), arguments.get("y")
    if isinstance(x, PoissonBatches):
        refuse_own_code(x, [PoissonBatches], "x")
        given = [
            name
            for name in ("y", "batch_size", "sample_weight", "class_weight", "steps_per_epoch")
            if arguments.get(name) is not None
        ]
        if given:
            raise ValueError(f"PoissonBatches hold their labels, weights and sampling: leave {given} out of fit.")
        return Data(x._arrays[0], x.sampling, x.examples, x.rows, x)
    leaves = tf.nest.flatten((x, y))
    if y is None or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        raise ValueError(
            f"fit got {type(x).__name__}: how its batches are drawn is unknown, and the cost depends on it. Give"
            " arrays, which Keras shuffles in ordinary epochs; or tfdp.tf_privacy.PoissonBatches(x, y, batch_size),"
            " which is cheaper."
        )
    if arguments.get("steps_per_epoch") is not None or arguments.get("shuffle", True) is not True:
        raise ValueError(
            "Ordinary epochs are accounted as whole passes over shuffled arrays: leave steps_per_epoch and shuffle out."
        )
    examples = records_of((x, y))
    sampling = Partition(32 if arguments.get("batch_size") is None else arguments["batch_size"])
    sampling.check(examples)
    return Data(x, sampling, examples, sampling.batch_size)


def posing_in(model: Any) -> list[str]:
    """Outputs and metrics of a Keras 2 model whose training metrics are named like validation metrics."""
    compiled = getattr(model, "compiled_metrics", None)
    given = [getattr(compiled, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    metrics = [one for one in tf.nest.flatten(given) if one is not None]
    named = [getattr(one, "name", None) or getattr(one, "__name__", one) for one in metrics]
    of_layers = [one.name for one in getattr(model, "metrics", ())]  # these, and what Keras made of the others
    return posing_names({*map(str, named), *of_layers, *(getattr(model, "output_names", None) or ())})


def private_in(model: Any, arguments: dict[str, Any]) -> Callable[[str], bool]:
    """Whether a number of a name is private in the logs of a `fit` with these arguments: see `is_private`."""
    validated = arguments.get("validation_data") is not None
    return lambda name: is_private(name, validated, bool(posing_in(model)))


def fit_of_keras(model: Any, inherited: Any) -> Callable[..., Any]:
    """Keras' own `fit`, or that of a class of the caller's, `inherited`, which calls it."""
    own = [kind for kind in type(model).__mro__ if "fit" in vars(kind)][1] is not keras.Model
    return inherited if own else own_fit(model)  # type: ignore[no-any-return]


def refuse_other_ledgers(model: Any) -> None:
    """Raises ValueError where a weight was trained with a ledger whose costs the model's own does not hold."""
    for weight in model.weights:
        other = getattr(weight, "_tfdp_ledger", model.ledger)
        if other is not model.ledger and not model.ledger.counts(other):
            raise ValueError(
                f"Weight {weight.name!r} was trained by another model, with another ledger: neither states what both"
                " released. Give models that share weights one ledger: with_ledger(model, ledger=first.ledger); or"
                " merge the other's: model.ledger.merge(other.ledger)."
            )


def refuse_unsound_fit(model: Any, arguments: dict[str, Any]) -> None:
    """Raises ValueError for settings of `fit` and `compile` that the ledger could not account, or that leak."""
    import keras

    if getattr(model, "optimizer", None) is None:
        raise ValueError("Compile the model first: model.compile(optimizer, loss).")
    if arguments.get("validation_split"):
        raise ValueError(
            "validation_split carves the validation data out of the private data: its metrics carry no noise. Give"
            " public data as validation_data=(x, y)."
        )
    validation = arguments.get("validation_data")
    if isinstance(validation, PoissonBatches) or _share_records(arguments.get("x"), validation):
        raise ValueError(
            "validation_data is the private training data itself; its metrics carry no noise. Give public data."
        )
    for callback in flatten_callbacks(arguments.get("callbacks")):
        refuse_steering(callback, validation is not None, posing_in(model))
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "BackupAndRestore goes on in the middle of an epoch, where a record may come twice in what is accounted"
                " as one pass. Save weights with ModelCheckpoint, keep the ledger in a file, and call fit anew."
            )
    if model.autotune_steps_per_execution or int(model.steps_per_execution) != 1:
        raise ValueError("Compile with steps_per_execution=1: a budget may end between any two steps.")
    if type(model.distribute_strategy).__name__ != "_DefaultDistributionStrategy":
        raise ValueError("Train outside of tf.distribute strategies: each replica would add a noise of its own.")
    if model._jit_compile:
        raise ValueError("Compile without jit_compile (DPModel has use_xla=True): checks inside of the step vanish.")


def _share_records(x: Any, validation: Any) -> bool:
    if not isinstance(validation, list | tuple) or not validation:
        return False
    x = x._arrays[0] if isinstance(x, PoissonBatches) else x
    return overlap(tf.nest.flatten(x), tf.nest.flatten(validation[0]))


def warn_of_validation(arguments: dict[str, Any]) -> None:
    """Warns where most rows of validation arrays, x and y, each equal one training record: see `copies`."""
    given, x, y = arguments.get("validation_data"), arguments.get("x"), arguments.get("y")
    if not isinstance(given, list | tuple) or len(given) < 2:
        return
    mine = x._arrays[:2] if isinstance(x, PoissonBatches) else (x, y)
    with contextlib.suppress(ValueError, TypeError):  # data that cannot be evaluated: Keras says so
        if copies(_leaves(*mine), _leaves(*given[:2])):
            warn(
                "Most rows of validation_data each equal one row of the training data, number by number. A copy of a"
                " private record is as private as the record, and validation metrics carry no noise: keep them to"
                " yourself, stop and choose nothing by them, or give public data. Where these rows are public, nothing"
                " is lost."
            )


def _leaves(x: Any, y: Any) -> list[np.ndarray]:
    labels = [np.asanyarray(leaf) for leaf in tf.nest.flatten(y)]
    return [*map(np.asanyarray, tf.nest.flatten(x)), *(leaf.reshape(len(leaf), -1) for leaf in labels)]
