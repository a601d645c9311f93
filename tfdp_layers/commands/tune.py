"""`tfdp tune`: settings chosen by private trainings, paid for as one entry of the ledger."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from absl import flags

from tfdp_layers.accounting import Ledger, LedgerError, epsilon
from tfdp_layers.commands.command import (
    Command,
    Refusal,
    definers,
    fraction,
    needed,
    positive,
    print_json,
    whole,
    wrapped,
)
from tfdp_layers.commands.quiet_import import quiet_import
from tfdp_layers.commands.train import compiled, fit_arguments
from tfdp_layers.commands.training_options import TrainingOptions
from tfdp_layers.commands.training_plan import Training
from tfdp_layers.zoo import datasets, recipes
from tfdp_layers.zoo.recipes import Recipe
from tfdp_layers.zoo.settings import check_settings

__all__ = ["COMMAND"]

_DESCRIPTION = """
For images, on the command's own data sets and networks; for your own, tfdp.tuning.random_search in Python.
Trains a random number of private models with settings drawn at random, and shows the best one and nothing
else: the whole search costs the epsilon you give, as one entry of the ledger. How many models were trained
is as secret as the others. The test set counts as public: its first half chooses, the second half reports.

Examples:
  tfdp tune --dataset digits --epsilon 3 --delta 1e-5
  tfdp tune --dataset mnist --method dpsgd --epsilon 3 --vary learning_rate=1e-4:1e-2 --vary l2_norm_clip=0.3,1,3
  tfdp tune --dataset digits --epsilon 3 --delta 1e-5 --trials 5 --distribution poisson --ledger digits.json

A search takes as long as its trainings: on average --trials times that of `tfdp train`, and now and then
several times that. Interrupted, it shows nothing, and is paid for.
"""
_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
_FACTOR = 4.0


def _define(values: flags.FlagValues) -> None:
    define, choose = definers(values)
    choose("method", recipes.METHODS, "How each record's influence is bounded.", recipes.METHODS[0])
    choose("dataset", datasets.NAMES, f"Images; if left out, {datasets.DEFAULT}, or digits.")
    choose("model", recipes.MODELS, "Network: convolutional, or two dense layers; if left out, that of the method.")
    define("float", "epsilon", "Privacy budget of the whole search, with what the ledger holds; for example 3.")
    define("float", "delta", "Probability with which the guarantee may fail; choose less than 1 / records.", 1e-5)
    define("integer", "epochs", "Passes over the data of a trial; those of the recipe if left out.")
    define("integer", "batch_size", "Expected number of records in a step; that of the recipe if left out.")
    define("float", "trials", "Trials on average: more find more, and need more noise.", 10.0)
    choose("distribution", tuple(_SHAPES), "Of their number: the first costs least and varies most.", "geometric")
    vary = "NAME=LOW:HIGH (drawn by its logarithm) or NAME=A,B,C, for fields of the recipe; if left out, the learning"
    define("multi_string", "vary", f"{vary} rate, to {_FACTOR:g} times more and less.", [])
    define("string", "ledger", "File of the data set's ledger, which pays; what it holds counts.")
    define("string", "save", "File for the best model, ending in .keras.")
    define("string", "data_dir", "Folder with the data set (DATASET.npz, or its idx files).")
    define("bool", "json", "End with one JSON object on the last line.", False)


def _run(values: flags.FlagValues) -> int:
    needed("epsilon", values.epsilon, "the privacy budget of the whole search, for example --epsilon 3.")
    varied, trials = _all_varied(values.vary), positive("trials", values.trials, "the number of trials on average")
    options = _options(values)
    _check_varied(options, varied)
    with quiet_import():
        import tensorflow  # noqa: F401
    _refuse_idle(options, varied)
    training = _prepared(options)
    from tfdp_layers import tuning

    space = {name: tuning.LogUniform(*of) if isinstance(of, tuple) else of for name, of in varied.items()}
    space = space or {"learning_rate": _around(training.recipe.learning_rate)}
    data, half = training.data, len(training.data.y_test) // 2
    ledger = _opened(values.ledger, data.name)
    print(_said(training, space, half), flush=True)
    try:
        found = _search(training, space, tuning.NumberOfTrials(trials, _SHAPES[values.distribution]), ledger)
    except ValueError as error:
        raise Refusal(str(error)) from error
    finally:
        ledger.close()
    public = found.model.evaluate(data.x_test[half:], data.y_test[half:], verbose=0, return_dict=True)["accuracy"]
    if options.save is not None:
        found.model.save(options.save)
    print(f"\n{found.model.privacy_statement(options.delta)}\n")
    settings = ", ".join(f"{name} {value:.4g}" for name, value in found.settings.items())
    print(f"Best settings: {settings}. Accuracy {public:.4f} on the test images that did not choose them.", flush=True)
    if values.json:
        print_json(_result(found, ledger, options, public))
    return 0


def _search(training: Training, space: dict[str, Any], trials: Any, ledger: Ledger) -> Any:
    """What the search found: the first half of the test images chose. Raises Refusal where it was not made."""
    from tfdp_layers import tuning
    from tfdp_layers.callbacks import BudgetExhausted

    data, recipe, options, half = training.data, training.recipe, training.options, len(training.data.y_test) // 2
    of_fit = {"batch_size": recipe.batch_size, **fit_arguments(recipe)}
    try:
        return tuning.random_search(
            lambda settings: compiled(replace(training, recipe=replace(recipe, **settings))),
            space,
            data.x_train,
            data.y_train,
            budget=(options.epsilon, options.delta),
            objective="val_accuracy",
            validation_data=(data.x_test[:half], data.y_test[:half]),
            trials=trials,
            ledger=ledger,
            **{name: value for name, value in of_fit.items() if name not in space},
        )
    except (BudgetExhausted, LedgerError, tuning.SearchFailed) as error:
        raise Refusal(str(error)) from error


def _options(values: flags.FlagValues) -> TrainingOptions:
    """The part that a training has, too. Raises Refusal for what is not valid."""
    options = TrainingOptions(
        method=values.method,
        sampling="poisson",
        dataset=values.dataset,
        model=values.model or recipes.default_model(values.method),
        epsilon=positive("epsilon", values.epsilon, "the privacy budget"),
        delta=fraction("delta", values.delta, "the probability with which the guarantee may fail"),
        epochs=whole("epochs", values.epochs, "the number of passes over the data"),
        batch_size=whole("batch_size", values.batch_size, "the expected number of records in a step"),
        learning_rate=None,
        noise_multiplier=None,
        physical_batch_size=None,
        log_dir=None,
        save=None if values.save is None else Path(values.save).expanduser().absolute(),
        data_dir=None if values.data_dir is None else Path(values.data_dir).expanduser(),
        cache_dir=None,
        seed=None,
        json=values.json,
    )
    try:
        recipes.check_method(options.method, options.model)
        options.recipe(options.dataset or datasets.DEFAULT)
    except ValueError as error:
        raise Refusal(str(error)) from error
    options.check_paths()
    return options


def _prepared(options: TrainingOptions) -> Training:
    """Data and settings of a trial; its noise is left to the search. Raises Refusal where there are none."""
    try:
        if options.dataset is None:
            data = datasets.load_default(options.data_dir)
        else:
            data = datasets.load(options.dataset, options.data_dir)
    except (ValueError, datasets.DatasetNotFound) as error:
        raise Refusal(str(error)) from error
    if data.note:
        print(f"NOTE: {data.note}", flush=True)
    return Training(options, data, options.recipe(data.name), "calibrate", Ledger(), data)


def _opened(path: str | None, dataset: str) -> Ledger:
    """The ledger that pays. Raises Refusal where its file is not that of the data set."""
    try:
        return Ledger(path, dataset=None if path is None else dataset)
    except (ValueError, LedgerError) as error:
        raise Refusal(str(error)) from error


def _all_varied(texts: list[str]) -> dict[str, Any]:
    """From what each setting is drawn. Raises Refusal where one is given twice."""
    found = [_varied(text) for text in texts]
    if len(dict(found)) < len(found):
        raise Refusal(f"--vary names a setting twice: {[name for name, _ in found]}.")
    return dict(found)


def _varied(text: str) -> tuple[str, Any]:
    """A recipe's field, and the ends of a range (a tuple) or values (a list). Raises Refusal for anything else."""
    name, given, value = text.partition("=")
    numbers = {field.name for field in fields(Recipe) if field.type in (int, float)} | {"gradient_clip"}
    if not given or name not in numbers:
        raise Refusal(f"--vary takes NAME=LOW:HIGH or NAME=A,B,C. Received: {text!r}. Names: {sorted(numbers)}.")
    try:
        found = [json.loads(part) for part in value.split(":" if ":" in value else ",")]
    except json.JSONDecodeError:
        found = []
    if not found or not all(type(one) in (int, float) for one in found) or (":" in value and len(found) != 2):
        raise Refusal(f"--vary {name} takes two numbers LOW:HIGH, or numbers with commas. Received: {value!r}.")
    if ":" in value and not 0 < found[0] < found[1]:
        raise Refusal(
            f"--vary {name} draws between LOW and HIGH by the logarithm: 0 < LOW < HIGH. Received: {value!r}."
        )
    return name, tuple(found) if ":" in value else found


def _check_varied(options: TrainingOptions, varied: dict[str, Any]) -> None:
    """Raises Refusal for a value, or an end of a range, that the recipe does not take."""
    dataset = options.dataset or datasets.DEFAULT
    recipe = options.recipe(dataset)
    try:
        for name, values in varied.items():
            for value in values:
                check_settings(options.model, options.method, replace(recipe, **{name: value}), dataset)
    except ValueError as error:
        raise Refusal(f"--vary {error}") from error


def _refuse_idle(options: TrainingOptions, varied: dict[str, Any]) -> None:
    """Raises Refusal for what is varied though no trial would differ by it: what neither model nor fit is made from."""
    data = datasets.black_image(options.dataset or datasets.DEFAULT)
    read: set[str] = set()

    class Watched(Recipe):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    recipe = options.recipe(data.name)
    watched = Watched(**{field.name: getattr(recipe, field.name) for field in fields(Recipe)})
    read.clear()
    try:
        compiled(Training(options, data, watched, "calibrate", Ledger(), data))
    except ValueError as error:
        raise Refusal(f"the network cannot be built: {error}") from error
    idle = sorted(set(varied) - read - {"epochs", "batch_size"})
    if idle:
        raise Refusal(
            f"--vary {', '.join(idle)} would change nothing: no trial of --model {options.model} --method"
            f" {options.method} is made from it. Leave it out; in tfdp train, --setting takes it."
        )


def _around(rate: float) -> Any:
    from tfdp_layers.tuning import LogUniform

    return LogUniform(rate / _FACTOR, rate * _FACTOR)


def _said(training: Training, space: dict[str, Any], half: int) -> str:
    data, options = training.data, training.options
    drawn = "; ".join(
        f"{name} of {', '.join(map(str, of))}" if isinstance(of, list) else f"{name} from {of.low:g} to {of.high:g}"
        for name, of in space.items()
    )
    rows = {
        "Data": f"{data.name}: {training.examples} training images; {half} public test images choose, the rest report",
        "Model": f"{options.model}, each record's influence bounded by {options.method}",
        "Drawn": drawn,
    }
    return "\n".join(wrapped(text, f"{label:10}", 10) for label, text in rows.items())


def _result(found: Any, ledger: Ledger, options: TrainingOptions, public: float) -> dict[str, Any]:
    spent = epsilon(ledger, options.delta)
    return {
        "settings": found.settings,
        "chosen_by": found.score,
        "test_accuracy": public,
        "epsilon": float(spent),
        "delta": options.delta,
        "accountant": spent.accountant,
        "noise_multiplier": found.noise_multiplier,
    }


COMMAND = Command("tune", _DESCRIPTION, _define, _run)
