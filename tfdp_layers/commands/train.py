"""`tfdp train`: a private training run from data to statement."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from tfdp_layers.accounting import Ledger, LedgerError, epsilon
from tfdp_layers.accounting.wording import cost_text
from tfdp_layers.commands.command import Command, Refusal, print_json
from tfdp_layers.commands.quiet_import import quiet_import
from tfdp_layers.commands.training_options import TrainingOptions, define_training_options
from tfdp_layers.commands.training_plan import Training, held_out, prepare
from tfdp_layers.commands.training_report import STEPS, plan, result
from tfdp_layers.zoo import datasets
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.recipes import Recipe

__all__ = ["COMMAND", "compiled", "fit_arguments"]

_DESCRIPTION = """
Trains a classifier of images so that what it learned reveals little about any one training image:
the weights are (epsilon, delta)-differentially private. It finds the noise that your budget needs,
shows what it is going to do, trains, stops before the budget is exceeded, and ends with the
privacy statement: what is guaranteed, under which assumptions, and what is not.

Examples:
  tfdp train --epsilon 2.7 --delta 1e-5
  tfdp train --dataset mnist --model mlp --epsilon 1 --log-dir logs --save model.keras
  tfdp train --recipe scattering --dataset mnist --epsilon 1 --cache-dir features
  tfdp train --method dfa --sampling fixed_size --epsilon 2.7
  tfdp train --method adadp --dataset mnist --epsilon 2
  tfdp train --dataset digits --epsilon 8 --epochs 20 --json

The test set counts as public: accuracy is measured on it about ten times, without noise.
A --log-dir that was used before still holds what was spent there, and that counts: take a new one
for another data set.
"""
_EVALUATION_BATCH = 1000
_EVALUATIONS = 10  # in a run of more epochs than that


def _run(values: flags.FlagValues) -> int:
    options = TrainingOptions.from_options(values)
    with quiet_import():
        import tensorflow  # noqa: F401
    first = options.dataset or datasets.DEFAULT
    features, network = _built(options, datasets.black_image(first))
    training = prepare(options)
    if training.data.name != first:  # the digits, where the default cannot be had
        features, network = _built(options, training.data)
    training = _on_features(training, features)
    model = compiled(training, network)
    print(plan(training, model), flush=True)
    training, seconds = _fit(training, model)
    accuracy = model.evaluate(
        training.data.x_test, training.data.y_test, batch_size=_EVALUATION_BATCH, verbose=0, return_dict=True
    )["accuracy"]
    if options.save is not None:
        _save(_whole(training, model), options.save)
    print(f"\n{model.privacy_statement(options.delta)}\n")
    print(f"Test accuracy {accuracy:.4f} after {int(model.optimizer.releases)} steps in {seconds:.0f} s.", flush=True)
    if options.json:
        print_json(result(training, model, accuracy, seconds))
    return 0


def _built(options: TrainingOptions, data: Dataset) -> tuple[Any, Any]:
    """The model that makes features of images such as these, if one does, and the one that is trained.

    Reads the shape of the images alone, so that what Keras refuses of the settings is refused before images are loaded.
    Raises Refusal for it.
    """
    from tfdp_layers.zoo import scattering

    try:
        recipe, features = options.recipe(data.name), None
        if recipe.feature_blocks:
            features = scattering.prefix(data.x_train.shape[1:], recipe)
            data = replace(data, x_train=np.zeros((1, *features.output_shape[1:]), np.float32))
        training = Training(options, data, recipe, options.noise_multiplier or 1.0, Ledger(), data)
        _optimizer(training)
        return features, _network(training)
    except ValueError as error:
        given = "".join(f" --setting {name}={value}" for name, value in options.settings)
        raise Refusal(f"the network cannot be built{given and f' with{given}'}: {error}") from error


def _on_features(training: Training, model: Any) -> Training:
    """The training with what a model makes of the images in their place; as it is if that is None."""
    if model is None:
        return training
    from tfdp_layers.zoo import scattering

    images = len(training.loaded.x_train) + len(training.loaded.x_test)
    print(f"Computing the features of {images:,} images, once: some minutes for tens of thousands.", flush=True)
    data = scattering.on_features(training.loaded, model, training.options.cache_dir)
    return replace(training, data=held_out(data, training.options.holdout), features=model)


def _whole(training: Training, model: Any) -> Any:
    """The trained model of images."""
    if training.features is None:
        return model
    from tfdp_layers.zoo import scattering

    return scattering.whole(training.features, training.prepared, model)


def _network(training: Training) -> Any:
    """A new model of a training."""
    import keras

    from tfdp_layers.zoo import networks

    options = training.options
    if options.seed is not None:
        keras.utils.set_random_seed(options.seed)
    return networks.build(options.model, training.data, options.method, training.recipe)


def compiled(training: Training, network: Any = None) -> Any:
    """The model of a training, a new one if none is given, compiled with its optimizer."""
    import keras

    model = _network(training) if network is None else network
    model.compile(
        optimizer=_optimizer(training),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _optimizer(training: Training) -> Any:
    """The method's private optimizer. All but those of AdaDP wrap Adam, or gradient descent."""
    import keras

    from tfdp_layers import optimizers

    recipe, method, noise = training.recipe, training.options.method, training.noise_multiplier
    correlated = training.options.noise
    schedule = keras.optimizers.schedules.CosineDecay(recipe.learning_rate, training.steps)
    if method in STEPS:
        return optimizers.AdaDPOptimizer(
            schedule,
            noise,
            l2_norm_clip=recipe.l2_norm_clip,
            adaptive_rate=method != "adan",
            adaptive_noise=method != "adal",
            noise=correlated,
        )
    averaged = {"use_ema": True, "ema_momentum": recipe.ema_momentum} if recipe.ema_momentum else {}
    if recipe.momentum:
        stepping = keras.optimizers.SGD(recipe.learning_rate, momentum=recipe.momentum, **averaged)
    else:
        stepping = keras.optimizers.Adam(recipe.learning_rate if averaged else schedule, **averaged)
    if method == "dpsgd":
        return optimizers.ClippedOptimizer(stepping, noise, recipe.l2_norm_clip, noise=correlated)
    if method == "tanh":
        clip, active = recipe.l2_norm_clip, recipe.active_range
        return optimizers.TanhFilteredOptimizer(stepping, noise, clip, active_range=active, noise=correlated)
    return optimizers.NoisyOptimizer(stepping, noise, noise=correlated, noise_allocation=recipe.noise_allocation)


def fit_arguments(recipe: Recipe) -> dict[str, Any]:
    """What `fit` of a model takes of a recipe beside the draw; the rest of it `compiled` takes."""
    return {"epochs": recipe.epochs, "views": recipe.views}


def _fit(training: Training, model: Any) -> tuple[Training, float]:
    """Trains; returns what it trained on, and the seconds that it took, evaluations in between included."""
    import keras

    from tfdp_layers.callbacks import BudgetExhausted

    options = training.options
    try:
        callbacks = _callbacks(options)
        if training.recipe.ema_momentum:
            callbacks.append(keras.callbacks.SwapEMAWeights())
        _open_ledger(training, model)
        training = _adapt(training, model)
        data, started = training.data, time.perf_counter()
        model.fit(
            data.x_train,
            data.y_train,
            sampling=training.sampling,
            **fit_arguments(training.recipe),
            physical_batch_size=options.physical_batch_size,
            validation_data=(data.x_test, data.y_test),
            validation_batch_size=_EVALUATION_BATCH,
            validation_freq=max(1, training.recipe.epochs // _EVALUATIONS),
            callbacks=callbacks,
            # Without a terminal, Keras' progress bar would print a line for every update of it.
            verbose=1 if sys.stdout.isatty() else 2,
        )
        return training, time.perf_counter() - started
    except (BudgetExhausted, FloatingPointError, LedgerError, ValueError) as error:
        raise Refusal(str(error)) from error
    except KeyboardInterrupt:
        spent = epsilon(model.ledger, options.delta)
        print(f"\nStopped after {cost_text(spent, options.delta)} was spent.", flush=True)
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


def _adapt(training: Training, model: Any) -> Training:
    """The training on features as what is released of them all makes them, where the recipe says so: paid for here."""
    if training.features is None:
        return training
    from tfdp_layers.zoo import preparation, scattering

    recipe, data = training.recipe, training.data
    prepared = preparation.preparation(recipe, scattering.blocks(training.features.input_shape[1:], recipe))
    if prepared is None:
        return training
    print("Centering and whitening the features, with noise, which the budget counts.", flush=True)
    prepared.ledger = model.ledger
    preparation.adapt(prepared, data.x_train, training.sampling)
    x_train, x_test = (preparation.apply(prepared, x) for x in (data.x_train, data.x_test))
    return replace(training, data=replace(data, x_train=x_train, x_test=x_test), prepared=prepared)


def _save(model: Any, path: Path) -> None:
    """Whole or not at all: an interruption leaves no half of a model behind."""
    from tfdp_layers.models.whole_file import whole_file

    with whole_file(path) as partial:
        model.save(partial)


COMMAND = Command("train", _DESCRIPTION, define_training_options, _run)
