"""A training of `tfdp train` that is ready to start: data, settings, and the noise that keeps to the budget."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdp_layers.accounting import Ledger, LedgerError, calibrate_noise_multiplier, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.choice import for_plans
from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.commands.command import Refusal
from tfdp_layers.commands.training_options import SAMPLINGS, TrainingOptions
from tfdp_layers.sampling import Sampling
from tfdp_layers.zoo import datasets
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["Training", "held_out", "prepare"]


@dataclass(frozen=True)
class Training:
    """A run that is ready to start: everything was checked, nothing was released or written."""

    options: TrainingOptions
    data: Dataset
    recipe: Recipe
    noise_multiplier: float | str
    ledger: Ledger
    loaded: Dataset
    """The data set with the records that `data` holds out."""
    features: Any = None
    """The public model whose outputs `data` holds in place of images, if it does."""
    prepared: Any = None
    """The private model whose outputs on these `data` holds, once they were centered and whitened."""

    @property
    def examples(self) -> int:
        """Records of the training data, taken as public."""
        return len(self.data.y_train)

    @property
    def sampling(self) -> Sampling:
        """How records are drawn."""
        return SAMPLINGS[self.options.sampling](self.recipe.batch_size)

    @property
    def steps(self) -> int:
        """Steps that the epochs take."""
        return self.recipe.epochs * math.ceil(self.examples / self.recipe.batch_size)


def prepare(options: TrainingOptions) -> Training:
    """Loads the data and finds the noise. Raises Refusal for whatever stands in the way of the training."""
    try:
        if options.dataset is None:
            data = datasets.load_default(options.data_dir)
        else:
            data = datasets.load(options.dataset, options.data_dir)
        if data.note:
            print(f"NOTE: {data.note}", flush=True)
        recipe, loaded, data = options.recipe(data.name), data, held_out(data, options.holdout)
        sampling, examples = SAMPLINGS[options.sampling](recipe.batch_size), len(data.y_train)
        sampling.check(examples)
        ledger = existing_ledger(options.log_dir)
        noise = options.noise_multiplier
        before = with_preparation(ledger, recipe, sampling, examples)
        prepared = recipe.centering_noise or recipe.whitening_noise
        if prepared and epsilon(before, options.delta) >= options.epsilon:
            raise Refusal(
                f"--epsilon {rounded_up(options.epsilon, 6)} is spent before the training, by earlier runs and by the"
                " mean and second moments of the features. Give a larger one, another --model, or leave them out:"
                " --setting centering_noise=0 --setting whitening_noise=0."
            )
        if noise is None:
            steps = recipe.epochs * sampling.steps_per_epoch(examples)
            noise = calibrate_noise_multiplier(
                options.epsilon, options.delta, sampling, examples, steps, before, options.noise
            )
        return Training(options, data, recipe, noise, ledger, loaded)
    except (ValueError, NotImplementedError, LedgerError, datasets.DatasetNotFound) as error:
        raise Refusal(str(error)) from error


def with_preparation(ledger: Ledger, recipe: Recipe, sampling: Sampling, examples: int) -> Ledger:
    """What was spent, and what the mean and the second moments of the features will cost."""
    from tfdp_layers.layers.adapted import whole_data

    noises = [("noisy mean", recipe.centering_noise)]
    noises += [("noisy second moments", recipe.whitening_noise)] * recipe.feature_blocks
    planned = for_plans(ledger)
    for group, noise in noises:
        if noise:
            charge(planned, whole_data(group, 1.0, noise, sampling, examples))
    return planned


def held_out(data: Dataset, records: int | None) -> Dataset:
    """The training data without the last records, and these as test data. Raises Refusal where none would be left."""
    if records is None:
        return data
    if records >= len(data.y_train):
        raise Refusal(f"--holdout {records} leaves none of the {len(data.y_train)} training records.")
    x, y = data.x_train, data.y_train
    parts: dict[str, Any] = {
        "x_train": x[:-records],
        "y_train": y[:-records],
        "x_test": x[-records:],
        "y_test": y[-records:],
    }
    return replace(data, **parts)


def existing_ledger(log_dir: Path | None) -> Ledger:
    """What was counted in the log folder so far; it is opened for writing only when the training starts."""
    path = None if log_dir is None else log_dir / "ledger.json"
    return Ledger(path) if path is not None and path.exists() else Ledger()
