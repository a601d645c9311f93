"""Model files, loaded without executing or importing what they name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import keras

from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.accounting.released import loading, remember_now
from tfdp_layers.models.classes import CODE, class_of_keras
from tfdp_layers.models.file_limits import LARGEST, MemoryLimit, ModelFileError
from tfdp_layers.models.folders import MEMBERS, opened, refuse_no_model_folder
from tfdp_layers.models.operations import VALUES, operation, refuse_code, runs_functions
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.models.weight_files import declared_public
from tfdp_layers.stand_ins import import_registered

__all__ = ["ModelFileError", "load_model"]

# Where Keras has the functions that it saves by name, as activations, losses and metrics.
_FUNCTIONS = (
    *("keras", "keras.activations", "keras.constraints", "keras.initializers", "keras.layers", "keras.losses"),
    *("keras.metrics", "keras.optimizers", "keras.regularizers"),
)
_VALUES = VALUES | {"__typespec__"}


def load_model(
    path: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    *,
    compile: bool = True,
    public: bool = False,
    max_bytes: float = LARGEST,
) -> PrivateTraining:
    """Loads a private model that `save` wrote, with its optimizer and its ledger.

    Guarantee: nothing in the file is executed, and no module is imported because the file names it: every class and
    function must be one of Keras' public ones that hold no code, one of this library's, or one that the caller gave or
    registered (`keras.saving.register_keras_serializable`); or one of Keras' operations that compute (`h + x`,
    `x[:, :3]`, `keras.ops.clip`), which are given numbers and tensors alone. Those that run functions (`keras.ops.map`,
    `cond`, `while_loop`) are refused. A file that declares more than `max_bytes` is refused before that is read or
    made; how many outputs an operation has (`keras.ops.split`) is not counted.

    Args:
        path: a file `*.keras`, or a folder that `save(folder, zipped=False)` wrote.
        custom_objects: classes and functions of your own by name.
        compile: whether to restore the optimizer and the loss too; False takes none of what `compile` was given.
        public: says that weights saved without a ledger were not computed from private records.
        max_bytes: of the file's members, unpacked, or of the folder's files; of the arrays in its weights; and of the
            variables that are made, model and optimizer together. Each may be as large; 4 GiB unless given.

    Returns: a `PrivateModel` or `PrivateSequential`. What its weights cost is in its ledger.
    Raises: ModelFileError, a ValueError, if the file is missing, damaged, too large, not a private model, or names
        something else.
    """
    refuse_no_path(path, "The path of a model", "model.keras")
    import_registered()
    path, limit = Path(path), MemoryLimit(max_bytes)
    _refuse_no_model(path)
    try:
        with opened(path) as archive:
            limit.check_members(archive)
            config = json.loads(archive.read("config.json"))
            limit.check_arrays(archive)
        if not compile and isinstance(config, dict):
            config.pop("compile_config", None)  # as Keras does: none of it is made
        _refuse_unknown(config, dict(custom_objects or {}))
        with declared_public(public), limit.of_variables(), loading():
            model = keras.saving.load_model(
                path, custom_objects=dict(custom_objects or {}), compile=compile, safe_mode=True
            )
    except ModelFileError:
        raise
    except Exception as error:  # Keras, h5py, zipfile and TensorFlow each raise their own on damaged files.
        raise ModelFileError(_unloaded(path, error, custom_objects)) from error
    remember_now()
    if not isinstance(model, PrivateTraining):
        raise ModelFileError(
            f"{path} holds a {type(model).__name__}, no private model. Load it with keras.saving.load_model, then"
            " tfdp.make_private(model): what private models and layers of this library in it cost goes along. Of its"
            " other weights nothing is known: they must be public."
        )
    return model


def _unloaded(path: Path, error: Exception, custom_objects: Mapping[str, Any] | None) -> str:
    """What to say where Keras made no model of a file whose names are all on the list, or the caller's own."""
    what = f"{type(error).__name__}: {error}"
    whole = _is_whole(path)
    if not custom_objects and not whole:
        return f"{path} is not a whole model file: {what}. Restore it from a backup."
    if not custom_objects:
        return (
            f"{path} is whole, and no model can be made of what it describes: {what}. Make the model anew by the code"
            " that made it, and load the weights with their ledger: model = tfdp.make_private(keras_model), then"
            " model.load_weights(path)."
        )
    given = ", ".join(f"{name!r}: {_called(one)}" for name, one in (custom_objects or {}).items())
    otherwise = (
        "make the model anew by the code that made it, and load the weights: model.load_weights(path)."
        if whole
        else "the file is damaged: restore it from a backup."
    )
    return (
        f"{path} could not be loaded with custom_objects={{{given}}}: {what}. Give the classes and functions that the"
        f" model was saved with, and no others. If these are the ones, {otherwise}"
    )


def _is_whole(path: Path) -> bool:
    """Whether all members of a file are what was written, and there."""
    try:
        with opened(path) as archive:
            return set(archive.namelist()) >= MEMBERS and archive.testzip() is None
    except Exception:  # as above
        return False


def _called(one: Any) -> str:
    """A class or function by its full name, anything else by its kind."""
    return f"{one.__module__}.{one.__qualname__}" if hasattr(one, "__qualname__") else f"a {type(one).__name__}"


def _refuse_no_model(path: Path) -> None:
    """Raises ModelFileError where there is no file, or one of another format."""
    fix = "Give the path of a file *.keras that model.save wrote."
    if path.is_dir():
        refuse_no_model_folder(path)
        return
    refuse_no_plain_file(path, fix, ModelFileError)
    if not path.is_file():
        raise ModelFileError(f"There is no file {path} (from {Path.cwd()}). {fix}")
    if path.suffix in (".h5", ".hdf5"):
        raise ModelFileError(
            f"{path} is an HDF5 file: Keras' older format for models, which holds no ledger, or weights alone. Save the"
            " model as *.keras; weights go into a model that is there: model.load_weights(path)."
        )


def _refuse_unknown(config: Any, custom_objects: Mapping[str, Any]) -> None:
    """Raises ModelFileError where the config names a class or function that is not on the list."""
    if isinstance(config, list):
        for item in config:
            _refuse_unknown(item, custom_objects)
    if not isinstance(config, dict):
        return
    if "class_name" in config or "module" in config:
        _refuse_unknown_name(config, custom_objects)
    for item in config.values():
        _refuse_unknown(item, custom_objects)


def _refuse_unknown_name(config: Mapping[str, Any], custom_objects: Mapping[str, Any]) -> None:
    name, module = config.get("class_name"), config.get("module")
    registered, own = config.get("registered_name", name), operation(module, name)
    function = name == "function"
    if function:
        name = registered = config.get("config")
        module = "keras.activations" if module == "builtins" else module
    given = keras.saving.get_registered_object(registered, custom_objects) if isinstance(registered, str) else None
    if own is not None and given not in (None, own):
        raise ModelFileError(
            f"The model file names Keras' own operation {name!r} (of {module}), and {_called(given)} was given or"
            f" registered by that name, which Keras would make in its place. Leave {name!r} out of custom_objects:"
            f" they need not be given. A class of yours is saved by another name, 'my_package>{name}', once"
            " it is registered by keras.saving.register_keras_serializable('my_package')."
        )
    if own is not None:
        refuse_code(config)
    if given is None and own is None and not _listed(module, name, function):
        _refuse(module, name, registered)


def _listed(module: Any, name: Any, function: bool) -> bool:
    """Whether a file may name this, which nobody gave or registered."""
    if not isinstance(name, str) or name in CODE:
        return False
    if function:
        return isinstance(module, str) and module in _FUNCTIONS
    return class_of_keras(module, name) is not None or (module is None and name in _VALUES)


def _refuse(module: Any, name: Any, registered: Any) -> NoReturn:
    """Raises ModelFileError for what is not on the list, with what may be done about it."""
    if isinstance(name, str) and name in CODE:
        raise ModelFileError(
            f"The model file holds code ({name}: a lambda, say, as a loss or in a layer), which is never run from a"
            " file. What was given to compile is left out by tfdp.load_model(path, compile=False): compile anew. Give"
            " functions names, def loss(y, p), to save them by name. A file of your own that you trust is also loaded"
            " by keras.models.load_model(path, safe_mode=False)."
        )
    shown = f"{module}.{name}" if module else name
    if runs_functions(module, name):
        raise ModelFileError(
            f"The model file names {shown!r}, an operation of Keras that runs functions which it is given, or holds"
            " others: it could run code. A file of your own that you trust is also loaded by"
            " keras.models.load_model(path); to be loaded here, the model needs a layer of yours that does the same."
        )
    unlisted = f"The model file names {shown!r}, which is not on the list of what may be loaded: it could run code."
    if isinstance(module, str) and module.split(".")[0] == "keras":
        raise ModelFileError(
            f"{unlisted} The installed Keras ({keras.__version__}) has nothing of that name which models are made of."
            " If a newer Keras saved the file, load it with that one: pip install --upgrade keras."
        )
    key = registered if isinstance(registered, str) else name
    called = key.split(">")[-1] if isinstance(key, str) else ""
    given = f"{{{key!r}: {called}}}" if called.isidentifier() else "{name: class}"
    raise ModelFileError(f"{unlisted} If it is yours, load it by tfdp.load_model(path, custom_objects={given}).")
