"""What a trial may cost: the batch sizes and epochs that a search draws from, each with its share of the noise."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import Budget, GroupNoise, Release
from tfdp_layers.accounting.calibration import estimated_noise_multiplier
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.batches.base import Batches
from tfdp_layers.models.calibrating import rounded_up
from tfdp_layers.models.fit_arguments import OPTIONS, as_batches
from tfdp_layers.models.looking import forget_logs
from tfdp_layers.optimizers.noise_multiplier import NoiseMultiplier
from tfdp_layers.proof.specs import flat_specs
from tfdp_layers.tuning.space import Choice

__all__ = ["Candidate", "candidates_of"]

_COSTLY = ("batch_size", "epochs")
_ARRAYS = ("sample_weight", "class_weight")
_HOPELESS = "This fit can learn next to nothing"


class Candidate:
    """A batch size and a number of epochs that a trial may have.

    Attributes:
        batches: what its `fit` draws.
        epochs: that it makes.
        relative: its noise multiplier over that of the other candidates.
        scale: times `relative` is its noise multiplier; 1 until it is settled.
        known: of noise, model and records: `generator`, `seeded`, `independence` and `grouping` of a `Release`.
        secret: of the ledger that pays for the search; empty until it is known.
    """

    def __init__(self, batches: Batches, epochs: int, settings: Mapping[str, Any], relative: float = 1.0) -> None:
        self.batches, self.epochs, self.relative, self.scale = batches, epochs, relative, 1.0
        self.known: dict[str, Any] = {}
        self.secret = ""
        self._settings = dict(settings)

    @property
    def steps(self) -> int:
        """Steps of its `fit`."""
        return self.epochs * len(self.batches)

    @property
    def noise_multiplier(self) -> float:
        """The number of five digits that its optimizer gets, at or above what is paid for."""
        return rounded_up(self.scale * self.relative)

    def release(self, scale: float) -> Release:
        """What each step of a trial releases, with a noise multiplier of `scale` times its share."""
        release = Release(
            (GroupNoise("all weights", 1.0, scale * self.relative),),
            self.batches.sampling,
            self.batches.examples,
            seeded=self.batches.seeded,
            declared=self.batches.declared,
            unit=self.batches.unit,
            records_per_unit=self.batches.records_per_unit,
            views=self.batches.views,
            records_per_owner=self.batches.records_per_owner,
            owners=self.batches.owners,
        )
        known = self.known | {"seeded": release.seeded or self.known.get("seeded", False)}
        return replace(release, **known)

    def is_for(self, settings: Mapping[str, Any]) -> bool:
        """Whether a trial of these settings is this one."""
        return all(settings[name] == value for name, value in self._settings.items())

    def refuse_leaps(self, model: Any) -> None:
        """Raises ValueError where a call of a model's step would make more steps than are paid for."""
        if len(self.batches) % int(model.steps_per_execution):
            raise ValueError(
                f"steps_per_execution={int(model.steps_per_execution)} does not divide the {len(self.batches)} steps of"
                " an epoch: the last call would make more steps than the search pays for. Compile with another."
            )

    def fit(self, model: Any) -> None:
        """Trains a model, and leaves in it none of the numbers without noise that its `fit` logged."""
        model.optimizer.multiplier = NoiseMultiplier(self.noise_multiplier)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_HOPELESS)  # the rehearsal says it of the real steps
            model.fit(self.batches, epochs=self.epochs, verbose=0)
        forget_logs(model)

    def made_up(self) -> "Candidate":
        """One epoch on a few records of zeros, drawn alike: nothing of it depends on the private ones."""
        sampling, spec = self.batches.sampling, self.batches.dataset().element_spec
        rows = min(self.batches.examples, 2 * sampling.batch_size)

        def zeros(leaf: Any) -> Any:
            return None if leaf is None else tf.zeros((rows, *(size or 1 for size in leaf.shape[1:])), leaf.dtype)

        each = self.batches.rows_each
        x, y, _ = keras.tree.map_structure(zeros, flat_specs(spec, each))
        batches = PrivateBatches(x, y, sampling, self.batches.physical_batch_size, views=each)
        made = Candidate(batches, 1, {}, self.relative)
        made.scale = self.scale
        made.known = {name: value for name, value in self.known.items() if name != "grouping"}  # of other records
        return made


def candidates_of(
    space: Mapping[str, Any], x: Any, y: Any, fit: Mapping[str, Any], target: Budget
) -> tuple[Candidate, ...]:
    """Every pair of a batch size and epochs that a trial may draw, with noise in proportion to what each alone needs.

    Raises ValueError for arguments that `fit` of a trial does not take, and data that no sampler draws.
    """
    unknown = sorted(set(fit) - {*_COSTLY, *OPTIONS, *_ARRAYS})
    if unknown:
        raise ValueError(
            f"A trial's fit takes {[*_COSTLY, *OPTIONS, *_ARRAYS]}; received {unknown} too. Callbacks see trials that"
            " nobody may see, and what a trial prints would count them."
        )
    costly = {name: _choices(name, space, fit) for name in _COSTLY}
    pairs = [(size, epochs) for size in costly["batch_size"] for epochs in costly["epochs"]]
    found = []
    for size, epochs in pairs:
        options = dict.fromkeys((*OPTIONS, "seed")) | {name: fit[name] for name in OPTIONS if name in fit}
        arguments = {"x": x, "y": y, **{name: fit[name] for name in _ARRAYS if name in fit}}
        batches = as_batches(arguments | ({} if size is None else {"batch_size": size}), options)
        settings = {name: value for name, value in (("batch_size", size), ("epochs", epochs)) if name in space}
        one = Candidate(batches, epochs, settings)
        if len(pairs) > 1:  # any shares are sound; these make trials of about equal cost
            one.relative = estimated_noise_multiplier(
                target.epsilon / 2,
                target.delta,
                batches.sampling,
                batches.examples,
                one.steps,
                records_per_owner=batches.records_per_owner,
            )
        found.append(one)
    return tuple(found)


def _choices(name: str, space: Mapping[str, Any], fit: Mapping[str, Any]) -> list[Any]:
    """The values that a setting with a cost may have."""
    if name not in space:
        value = fit.get(name)
        values = [1 if value is None and name == "epochs" else value]
    elif fit.get(name) is not None or not isinstance(space[name], Choice):
        raise ValueError(
            f"{name} decides what a trial costs, so that every value is paid for: give a list of values in space"
            f" (tfdp tune: --vary {name}=A,B), or one value for all trials, not both, and no range."
        )
    else:
        values = list(dict.fromkeys(space[name].values))
    for value in values:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is not None and (not whole or value < 1):
            raise ValueError(f"{name} must be whole numbers of at least 1. Received: {values}.")
    return [None if value is None else int(value) for value in values]
