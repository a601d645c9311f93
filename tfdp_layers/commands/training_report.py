"""What `tfdp train` says before and after a training."""

import math
import platform
import sys
from importlib.metadata import version
from typing import Any

from tfdp_layers._version import __version__
from tfdp_layers.accounting import epsilon
from tfdp_layers.accounting.wording import cost_text, rounded_up
from tfdp_layers.commands.command import wrapped
from tfdp_layers.commands.training_plan import Training

__all__ = ["STEPS", "plan", "result"]

STEPS = {"adadp": "AdaDP's own steps", "adal": "RMSProp's steps", "adan": "gradient descent"}
"""How the methods step that don't step by Adam."""


def plan(training: Training, model: Any) -> str:
    data, recipe, options = training.data, training.recipe, training.options
    images = data.x_train.shape if training.features is None else training.features.input_shape
    shape = "x".join(map(str, images[1:]))
    spent = (
        f", {rounded_up(epsilon(training.ledger, options.delta))} of it spent before" if training.ledger.steps else ""
    )
    drawn = {
        "poisson": "on average: Poisson sampling",
        "fixed_size": "each: without replacement",
        "partition": "each: fresh disjoint batches in every epoch",
        "cyclic": "each: the same disjoint batches in every epoch",
    }[options.sampling]
    steps = f"{STEPS.get(options.method, 'Adam')}, learning rate {recipe.learning_rate:g}"
    steps += "" if recipe.ema_momentum else " with cosine decay"
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
        "Privacy": f"budget {cost_text(options.epsilon, options.delta, 6)}{spent}; noise multiplier"
        f" {rounded_up(float(training.noise_multiplier))}",
        "Note": "the training loss and accuracy below carry no noise: the guarantee does not cover them",
    }
    if options.holdout is not None:
        rows["Holdout"] = (
            f"tested on are {options.holdout} of the training records, without noise: taken for public. Where they are"
            " private, publish no accuracy of them, and choose nothing by it"
        )
    return "\n".join(wrapped(text, f"{label:10}", 10) for label, text in rows.items())


def result(training: Training, model: Any, accuracy: float, seconds: float) -> dict[str, Any]:
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
