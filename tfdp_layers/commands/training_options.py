"""The options of `tfdp train`, checked before anything is loaded."""

import ast
import dataclasses
import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags

from tfdp_layers.commands.command import Refusal, definers, fraction, needed, positive, whole
from tfdp_layers.commands.sampled_run import correlation, define_correlation
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, Sampling
from tfdp_layers.sampling.correlated import Correlated
from tfdp_layers.zoo import datasets, recipes
from tfdp_layers.zoo.recipes import Recipe
from tfdp_layers.zoo.settings import check_settings, checked

SAMPLINGS: dict[str, type[Sampling]] = {
    "poisson": Poisson,
    "fixed_size": FixedSize,
    "partition": Partition,
    "cyclic": Cyclic,
}

__all__ = ["SAMPLINGS", "TrainingOptions", "define_training_options"]

_OWN_FLAGS = ("epochs", "batch_size", "learning_rate")
"""Settings of a recipe that have a flag of their own."""


@dataclass(frozen=True)
class TrainingOptions:
    """What the user asked for; None where it was left out."""

    method: str
    sampling: str
    dataset: str | None
    model: str
    epsilon: float
    delta: float
    epochs: int | None
    batch_size: int | None
    learning_rate: float | None
    noise_multiplier: float | None
    physical_batch_size: int | None
    log_dir: Path | None
    save: Path | None
    data_dir: Path | None
    cache_dir: Path | None
    seed: int | None
    json: bool
    holdout: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    noise: Correlated | None = None

    @classmethod
    def from_options(cls, values: flags.FlagValues) -> "TrainingOptions":
        """Reads and checks the options; writes nothing. Raises Refusal for the first that is not valid."""
        needed("epsilon", values.epsilon, "the privacy budget of the whole training, for example --epsilon 2.7.")
        method, model = _method_and_model(values)
        options = cls(
            method=method,
            sampling=values.sampling,
            dataset=values.dataset,
            model=model,
            epsilon=positive("epsilon", values.epsilon, "the privacy budget"),
            delta=fraction("delta", values.delta, "the probability with which the guarantee may fail"),
            epochs=whole("epochs", values.epochs, "the number of passes over the data"),
            batch_size=whole("batch_size", values.batch_size, "the expected number of records in a step"),
            learning_rate=positive("learning_rate", values.learning_rate, "the optimizer's learning rate"),
            noise_multiplier=positive("noise_multiplier", values.noise_multiplier, "the noise over a record's bound"),
            physical_batch_size=whole("physical_batch_size", values.physical_batch_size, "rows at once", 1, 2**31 - 1),
            log_dir=_path(values.log_dir),
            save=_path(values.save),
            data_dir=_path(values.data_dir),
            cache_dir=_path(values.cache_dir),
            seed=whole("seed", values.seed, "the seed of the initial weights", least=0, most=2**32 - 1),
            json=values.json,
            holdout=whole("holdout", values.holdout, "the number of training records to test on"),
            settings=_settings(values),
            noise=correlation(values),
        )
        if options.noise is not None and options.sampling not in ("cyclic", "partition"):
            raise Refusal(
                "--noise correlated is for epochs: add --sampling cyclic (or partition, which is dearer). Draws by"
                f" chance, as by {options.sampling}, hide records only among independent noise."
            )
        try:
            recipes.check_method(options.method, options.model)
            options.recipe(options.dataset or datasets.DEFAULT)
        except ValueError as error:
            raise Refusal(str(error)) from error
        options.check_paths()
        return options

    def recipe(self, dataset: str) -> Recipe:
        """The defaults for the data set that was found, with what the user chose in their place.

        Raises ValueError for what the model does not have, and for values out of range.
        """
        chosen = {name: getattr(self, name) for name in _OWN_FLAGS} | dict(self.settings)
        tuned = recipes.recipe_for(self.model, dataset, self.method, self.epsilon)
        found = dataclasses.replace(tuned, **{name: value for name, value in chosen.items() if value is not None})
        check_settings(self.model, self.method, found, dataset)
        return found

    def check_paths(self) -> None:
        """Raises Refusal where the model or the logs could not be written later; leaves nothing behind."""
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise Refusal(f"--data-dir {self.data_dir} does not exist or is no folder.")
        if self.cache_dir is not None:
            existing = next(path for path in (self.cache_dir, *self.cache_dir.parents) if path.exists())
            if not existing.is_dir():
                raise Refusal(f"--cache-dir {self.cache_dir}: {existing} is a file, not a folder.")
            _check_writable("--cache-dir", self.cache_dir, existing)
        if self.save is not None:
            if self.save.suffix != ".keras":
                raise Refusal(f"--save names a file that ends in .keras. Received: {self.save}.")
            if self.save.is_dir() or not self.save.parent.is_dir():
                raise Refusal(
                    f"--save {self.save}: the folder {self.save.parent} must exist, and the file be no folder."
                )
            _check_writable("--save", self.save, self.save.parent)
        if self.log_dir is not None:
            existing = next(path for path in (self.log_dir, *self.log_dir.parents) if path.exists())
            if not existing.is_dir():
                raise Refusal(f"--log-dir {self.log_dir}: {existing} is a file, not a folder.")
            _check_writable("--log-dir", self.log_dir, existing)
            if importlib.util.find_spec("tensorboard") is None:
                raise Refusal(
                    "--log-dir writes TensorBoard's files by its package, which is not installed (TensorFlow no longer"
                    " brings it): pip install '.[tensorboard]'. The ledger alone is kept by fit, in Python:"
                    " model.ledger = tfdp.accounting.Ledger('ledger.json')."
                )


def define_training_options(values: flags.FlagValues) -> None:
    """Defines the options of `tfdp train`."""
    define, choose = definers(values)
    choose("method", recipes.METHODS, "How each record's influence is bounded.", recipes.METHODS[0])
    fallback = f"Images to train on; if left out, {datasets.DEFAULT}, or digits where that cannot be had."
    choose("dataset", datasets.NAMES, fallback)
    choose(
        "model",
        (*recipes.MODELS, *recipes.ON_FEATURES),
        "Network: convolutional, two dense layers, or one on wavelet features; if left out, the best of the method.",
    )
    choose("recipe", tuple(recipes.RECIPES), "A method and a model by one name; `tfdp recipes` lists what they reach.")
    drawn = "How records are drawn. fixed_size: protects one record's replacement; cyclic: the same batches in every"
    choose("sampling", tuple(SAMPLINGS), f"{drawn} epoch; partition: fresh ones in every epoch.", "poisson")
    define_correlation(values)
    define("float", "epsilon", "Privacy budget of the whole training, for example 2.7; smaller is more private.")
    define("float", "delta", "Probability with which the guarantee may fail; choose less than 1 / records.", 1e-5)
    define("integer", "epochs", "Passes over the data; tuned for each model if left out.")
    define("integer", "batch_size", "Expected number of records in a step; tuned if left out.")
    define("float", "learning_rate", "Where the cosine decay starts; tuned if left out.")
    define("float", "noise_multiplier", "Noise over a record's bound; if left out, the least that the budget allows.")
    define("integer", "physical_batch_size", "Most records in memory at once; a larger batch is worked off in pieces.")
    define("string", "log_dir", "Folder for TensorBoard and for ledger.json, which counts what was spent.")
    define("string", "save", "File for the trained model, ending in .keras.")
    define("string", "data_dir", "Folder with the data set (DATASET.npz, or its idx files).")
    define(
        "integer", "holdout", "Train without the last so many training records, and test on them: to choose settings."
    )
    define("multi_string", "setting", "NAME=VALUE for any field of the recipe, such as gradient_clip=1", [])
    define("string", "cache_dir", "Folder that keeps computed features for later runs; as private as the data.")
    define("integer", "seed", "Seed of the initial weights. Noise and sampling never take one.")
    define("bool", "json", "End with one JSON object on the last line.", False)


def _method_and_model(values: flags.FlagValues) -> tuple[str, str]:
    """What is trained and how. Raises Refusal where a recipe is named that the other options contradict."""
    if values.recipe is None:
        return values.method, values.model or recipes.default_model(values.method, on_features=True)
    named = recipes.RECIPES[values.recipe]
    given = {"model": values.model, "method": values.method if values["method"].present else None}
    for name, value in given.items():
        if value not in (None, getattr(named, name)):
            raise Refusal(f"--recipe {values.recipe} is --{name} {getattr(named, name)}. Leave --{name} {value} out.")
    return named.method, named.model


def _settings(values: Any) -> tuple[tuple[str, Any], ...]:
    """Fields and their values. Raises Refusal for one that is given twice, of which the last would count alone."""
    found = tuple(map(_setting, values.setting))
    names = [name for name, _ in found]
    for name in (one for one in _OWN_FLAGS if one in names and getattr(values, one) is not None):
        raise Refusal(f"--{name} and --setting {name}=... are one setting, given twice. Leave one of them out.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Refusal(f"--setting names {', '.join(twice)} twice. Give it once.")
    return found


def _setting(text: str) -> tuple[str, Any]:
    """A recipe's field and its value. Raises Refusal for another name, or a value that it does not take."""
    name, given, value = text.partition("=")
    names = sorted(field.name for field in dataclasses.fields(Recipe))
    if not given or name not in names:
        raise Refusal(f"--setting takes NAME=VALUE. Received: {text!r}. Names: {', '.join(names)}.")
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        found = value
    try:
        return name, checked(name, found)
    except ValueError as error:
        raise Refusal(f"--setting {error}") from error


def _path(value: str | None) -> Path | None:
    if value is not None and not value:
        raise Refusal("a file or folder has an empty name.")
    return None if value is None else Path(value).expanduser().absolute()


def _check_writable(option: str, path: Path, folder: Path) -> None:
    """Writes a file without a name, which is gone at once: permissions alone tell little (root, read-only disks)."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refusal(f"{option} {path} cannot be written: {error.strerror or error}. Choose another place.") from error
