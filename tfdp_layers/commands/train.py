"""`tfdp train`: a private training run from data to statement."""

import math
import os
import platform
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from absl import flags

from tfdp_layers._version import __version__
from tfdp_layers.accounting import Ledger, LedgerError, calibrate_noise_multiplier, epsilon
from tfdp_layers.commands.command import Command, Refusal, print_json, wrapped
from tfdp_layers.commands.quiet_import import quiet_import
from tfdp_layers.commands.training_options import SAMPLINGS, TrainingOptions, define_training_options
from tfdp_layers.sampling import Sampling
from tfdp_layers.zoo import datasets
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["COMMAND"]

_DESCRIPTION = """
Trains a classifier of images so that what it learned reveals little about any one training image:
the weights are (epsilon, delta)-differentially private. It finds the noise that your budget needs,
shows what it is going to do, trains, stops before the budget is exceeded, and ends with the
privacy statement: what is guaranteed, under which assumptions, and what is not.

Examples:
  tfdp train --epsilon 2.7 --delta 1e-5
  tfdp train --dataset mnist --model mlp --epsilon 1 --log-dir logs --save model.keras
  tfdp train --recipe scattering --epsilon 2.7
  tfdp train --method dfa --sampling fixed_size --epsilon 2.7
  tfdp train --method adadp --dataset mnist --epsilon 2
  tfdp train --dataset digits --epsilon 8 --epochs 20 --json

The test set counts as public: accuracy is measured on it about ten times, without noise.
A --log-dir that was used before still holds what was spent there, and that counts: take a new one
for another data set.
"""
_EVALUATION_BATCH = 1000
_EVALUATIONS = 10  # in a run of more epochs than that
STEPS = {"adadp": "AdaDP's own steps", "adal": "RMSProp's steps", "adan": "gradient descent"}
"""How the methods step that don't step by Adam."""


@dataclass(frozen=True)
class Training:
    """A run that is ready to start: everything was checked, nothing was released or written."""

    options: TrainingOptions
    data: Dataset
    recipe: Recipe
    noise_multiplier: float
    ledger: Ledger
    loaded: Dataset
    """The data set with the records that `data` holds out."""
    features: Any = None
    """The public model whose outputs `data` holds in place of images, if it does."""

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


def _run(values: flags.FlagValues) -> int:
    options = TrainingOptions.from_options(values)
    with quiet_import():
        import tensorflow  # noqa: F401
    training = _on_features(_prepare(options))
    model = _compiled(training)
    print(_plan(training, model), flush=True)
    seconds = _fit(training, model)
    accuracy = model.evaluate(
        training.data.x_test, training.data.y_test, batch_size=_EVALUATION_BATCH, verbose=0, return_dict=True
    )["accuracy"]
    if options.save is not None:
        _save(_whole(training, model), options.save)
    print(f"\n{model.privacy_statement(options.delta)}\n")
    print(f"Test accuracy {accuracy:.4f} after {int(model.optimizer.releases)} steps in {seconds:.0f} s.", flush=True)
    if options.json:
        print_json(_result(training, model, accuracy, seconds))
    return 0


def _prepare(options: TrainingOptions) -> Training:
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
        ledger = _existing_ledger(options.log_dir)
        noise = options.noise_multiplier
        before = _with_centering(ledger, recipe, sampling, examples)
        if recipe.centering_noise and epsilon(before, options.delta) >= options.epsilon:
            raise Refusal(
                f"--epsilon {options.epsilon:g} is spent before the training, by earlier runs and by the mean of the"
                " features. Give a larger one, or another recipe."
            )
        if noise is None:
            steps = recipe.epochs * sampling.steps_per_epoch(examples)
            noise = calibrate_noise_multiplier(options.epsilon, options.delta, sampling, examples, steps, before)
        return Training(options, data, recipe, noise, ledger, loaded)
    except (ValueError, NotImplementedError, LedgerError, datasets.DatasetNotFound) as error:
        raise Refusal(str(error)) from error


def _with_centering(ledger: Ledger, recipe: Recipe, sampling: Sampling, examples: int) -> Ledger:
    """What was spent, and what the mean of the features will cost."""
    if not recipe.centering_noise:
        return ledger
    from tfdp_layers.layers.adapted import whole_data

    planned = ledger.copy()
    planned.reserve(planned.begin(whole_data("noisy mean", 1.0, recipe.centering_noise, sampling, examples)), 1)
    return planned


def _on_features(training: Training) -> Training:
    """The training with features in place of the images, where its model takes those."""
    scales = training.recipe.feature_scales
    if not scales:
        return training
    from tfdp_layers.zoo import scattering

    print("Computing the features, once.", flush=True)
    model = scattering.prefix(training.data.x_train.shape[1:], scales)
    data = scattering.on_features(training.loaded, model, training.options.cache_dir)
    return replace(training, data=held_out(data, training.options.holdout), features=model)


def held_out(data: Dataset, records: int | None) -> Dataset:
    """The training data without the last records, and these as test data. Raises Refusal where none would be left."""
    if records is None:
        return data
    if records >= len(data.y_train):
        raise Refusal(f"--holdout {records} leaves none of the {len(data.y_train)} training records.")
    x, y = data.x_train, data.y_train
    parts = {"x_train": x[:-records], "y_train": y[:-records], "x_test": x[-records:], "y_test": y[-records:]}
    return replace(data, **parts)


def _whole(training: Training, model: Any) -> Any:
    """The trained model of images."""
    if training.features is None:
        return model
    from tfdp_layers.zoo import scattering

    return scattering.whole(training.features, model)


def _existing_ledger(log_dir: Path | None) -> Ledger:
    """What was counted in the log folder so far; it is opened for writing only when the training starts."""
    path = None if log_dir is None else log_dir / "ledger.json"
    return Ledger(path) if path is not None and path.exists() else Ledger()


def _compiled(training: Training) -> Any:
    import keras

    from tfdp_layers.zoo import networks

    options, recipe = training.options, training.recipe
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    model = networks.build(options.model, training.data, options.method, recipe)
    model.compile(
        optimizer=_optimizer(training),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _optimizer(training: Training) -> Any:
    """The method's private optimizer. All but those of AdaDP wrap Adam."""
    import keras

    from tfdp_layers import optimizers

    recipe, method, noise = training.recipe, training.options.method, training.noise_multiplier
    schedule = keras.optimizers.schedules.CosineDecay(recipe.learning_rate, training.steps)
    if method in STEPS:
        return optimizers.AdaDPOptimizer(
            schedule,
            noise,
            l2_norm_clip=recipe.l2_norm_clip,
            adaptive_rate=method != "adan",
            adaptive_noise=method != "adal",
        )
    if recipe.momentum:
        averaged = {"use_ema": True, "ema_momentum": recipe.ema_momentum} if recipe.ema_momentum else {}
        descent = keras.optimizers.SGD(recipe.learning_rate, momentum=recipe.momentum, **averaged)
        return optimizers.NoisyOptimizer(descent, noise, noise_allocation=recipe.noise_allocation)
    adam = keras.optimizers.Adam(schedule)
    if method == "dpsgd":
        return optimizers.ClippedOptimizer(adam, noise, recipe.l2_norm_clip)
    if method == "tanh":
        return optimizers.TanhFilteredOptimizer(adam, noise, recipe.l2_norm_clip, active_range=recipe.active_range)
    return optimizers.NoisyOptimizer(adam, noise, noise_allocation=recipe.noise_allocation)


def _fit(training: Training, model: Any) -> float:
    """Trains; returns the seconds that it took, evaluations in between included."""
    import keras

    from tfdp_layers.callbacks import BudgetExhausted

    options, data = training.options, training.data
    try:
        callbacks = _callbacks(options)
        if training.recipe.ema_momentum:
            callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        _open_ledger(training, model)
        _adapt(training, model)
        started = time.perf_counter()
        model.fit(
            data.x_train,
            data.y_train,
            sampling=training.sampling,
            epochs=training.recipe.epochs,
            physical_batch_size=options.physical_batch_size,
            validation_data=(data.x_test, data.y_test),
            validation_batch_size=_EVALUATION_BATCH,
            validation_freq=max(1, training.recipe.epochs // _EVALUATIONS),
            callbacks=callbacks,
            # Without a terminal, Keras' progress bar would print a line for every update of it.
            verbose=1 if sys.stdout.isatty() else 2,
        )
        return time.perf_counter() - started
    except (BudgetExhausted, LedgerError) as error:
        raise Refusal(str(error)) from error
    except KeyboardInterrupt:
        spent = epsilon(model.ledger, options.delta)
        print(f"\nStopped after epsilon = {float(spent):.4g} at delta = {options.delta:g} was spent.", flush=True)
        raise


def _callbacks(options: TrainingOptions) -> list[Any]:
    from tfdp_layers.callbacks import PrivacyBudget, PrivacyTensorBoard

    callbacks: list[Any] = [PrivacyBudget(options.epsilon, options.delta)]
    if options.log_dir is not None:
        try:
            callbacks.append(PrivacyTensorBoard(options.log_dir))
        except (ImportError, OSError, ValueError) as error:
            raise Refusal(f"--log-dir: {error}") from error
    return callbacks


def _open_ledger(training: Training, model: Any) -> None:
    """Lets the model count into the log folder's ledger, what is in it already included."""
    if training.options.log_dir is not None:
        try:
            training.options.log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"--log-dir {training.options.log_dir} cannot be made: {error.strerror}.") from error
        model.ledger = Ledger(training.options.log_dir / "ledger.json")


def _adapt(training: Training, model: Any) -> None:
    """Lets the layers that pay for what they take from the data do so."""
    from tfdp_layers.layers.adapted import AdaptedLayer

    for layer in model.layers:
        if isinstance(layer, AdaptedLayer):
            layer.adapt(training.data.x_train, training.sampling)


def _save(model: Any, path: Path) -> None:
    """Writes beside the file and renames, so that an interruption leaves no half of a model behind."""
    partial = path.with_name(f".{path.stem}.partial.keras")
    try:
        model.save(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _plan(training: Training, model: Any) -> str:
    data, recipe, options = training.data, training.recipe, training.options
    images = data.x_train.shape if training.features is None else training.features.input_shape
    shape = "x".join(map(str, images[1:]))
    spent = (
        f", {float(epsilon(training.ledger, options.delta)):.4g} of it spent before" if training.ledger.steps else ""
    )
    drawn = {"poisson": "on average: Poisson sampling", "fixed_size": "each: without replacement"}[options.sampling]
    steps = f"{STEPS.get(options.method, 'Adam')}, learning rate {recipe.learning_rate:g} with cosine decay"
    if recipe.momentum:
        steps = f"gradient descent with momentum {recipe.momentum:g}, learning rate {recipe.learning_rate:g}"
    if recipe.ema_momentum:
        steps += f"; tested and saved is the mean of the released weights (each step keeps {recipe.ema_momentum:g})"
    rows = {
        "Data": f"{data.name}: {training.examples} training and {len(data.y_test)} test images of {shape}, from"
        f" {data.source}",
        "Model": f"{options.model}, {model.count_params()} weights; each record's influence is bounded by"
        f" {options.method}",
        "Training": f"{recipe.epochs} epochs of {math.ceil(training.examples / recipe.batch_size)} steps, on"
        f" {recipe.batch_size} records ({drawn}); {steps}",
        "Privacy": f"budget epsilon = {options.epsilon:g} at delta = {options.delta:g}{spent}; noise multiplier"
        f" {training.noise_multiplier:.4g}",
        "Note": "the training loss and accuracy below carry no noise: the guarantee does not cover them",
    }
    return "\n".join(wrapped(text, f"{label:10}", 10) for label, text in rows.items())


def _result(training: Training, model: Any, accuracy: float, seconds: float) -> dict[str, Any]:
    options, recipe = training.options, training.recipe
    spent = epsilon(model.ledger, options.delta)
    steps = int(model.optimizer.releases)
    return {
        "method": options.method,
        "dataset": training.data.name,
        "dataset_source": training.data.source,
        "model": options.model,
        "epsilon": float(spent),
        "delta": options.delta,
        "accountant": spent.accountant,
        "relation": None if spent.relation is None else spent.relation.name.lower(),
        "sampling": spent.sampling,
        "examples": training.examples,
        "batch_size": recipe.batch_size,
        "epochs": recipe.epochs,
        "steps": steps,
        "noise_multiplier": training.noise_multiplier,
        "learning_rate": recipe.learning_rate,
        "holdout": options.holdout,
        "test_accuracy": accuracy,
        "seconds": round(seconds, 3),
        # From the expected batch size: the number of records really drawn is private.
        "examples_per_second": round(steps * recipe.batch_size / seconds, 1),
        "seed": options.seed,
        "note": training.data.note,
        "versions": {
            "tfdp_layers": __version__,
            "python": platform.python_version(),
            "dp_accounting": version("dp-accounting"),
            **{name: sys.modules[name].__version__ for name in ("tensorflow", "keras", "numpy")},
        },
    }


COMMAND = Command("train", _DESCRIPTION, define_training_options, _run)
