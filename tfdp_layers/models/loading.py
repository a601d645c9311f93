"""Model files, loaded without executing or importing what they name."""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfdp_layers.accounting.plain_files import refuse_no_path, refuse_no_plain_file
from tfdp_layers.accounting.released import loading, remember_now
from tfdp_layers.models.file_limits import LARGEST, MemoryLimit, ModelFileError
from tfdp_layers.models.training import PrivateTraining
from tfdp_layers.models.weight_files import declared_public
from tfdp_layers.stand_ins import import_registered

__all__ = ["ModelFileError", "load_model"]

_KERAS = (
    "",
    ".activations",
    ".constraints",
    ".dtype_policies",
    ".initializers",
    ".layers",
    ".losses",
    ".metrics",
    ".optimizers",
    ".optimizers.schedules",
    ".regularizers",
    ".src.models.functional",
    ".src.models.sequential",
)
_MODULES = {f"keras{name}" for name in _KERAS}
# They hold code, or load it: byte code of Python, pickles of torch, graphs of TensorFlow and JAX.
_CODE = {"Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer", "__lambda__"}
_VALUES = {"__tuple__", "__tensor__", "__numpy__", "__keras_tensor__", "__typespec__", "__bytes__", "__ellipsis__"}


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
    registered (`keras.saving.register_keras_serializable`). A file that declares more than `max_bytes` is refused
    before that is read or made.

    Args:
        path: a file `*.keras`.
        custom_objects: classes and functions of your own by name.
        compile: whether to restore the optimizer and the loss too; False takes none of what `compile` was given.
        public: says that weights saved without a ledger were not computed from private records.
        max_bytes: of the file's members, unpacked; of the arrays in its weights; and of the variables that are made,
            model and optimizer together. Each of the three may be as large; 4 GiB unless given.

    Returns: a `PrivateModel` or `PrivateSequential`. What its weights cost is in its ledger.
    Raises: ModelFileError, a ValueError, if the file is missing, damaged, too large, not a private model, or names
        something else.
    """
    refuse_no_path(path, "The path of a model", "model.keras")
    import_registered()
    path, limit = Path(path), MemoryLimit(max_bytes)
    _refuse_no_model(path)
    try:
        with zipfile.ZipFile(path) as archive:
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
        raise ModelFileError(
            f"{path} is not a whole model file: {type(error).__name__}: {error}. Restore it from a backup."
        ) from error
    remember_now()
    if not isinstance(model, PrivateTraining):
        raise ModelFileError(
            f"{path} holds a {type(model).__name__}, no private model, so nothing is known of what its weights cost."
            " Load it with keras.saving.load_model, and tfdp.make_private(model) if they are public."
        )
    return model


def _refuse_no_model(path: Path) -> None:
    """Raises ModelFileError where there is no file, or one of another format."""
    fix = "Give the path of a file *.keras that model.save wrote."
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
    name, module, registered = (config.get(key) for key in ("class_name", "module", "registered_name"))
    if name == "function":
        name = registered = config.get("config")
        module = "keras.activations" if module == "builtins" else module
    if isinstance(registered, str) and keras.saving.get_registered_object(registered, custom_objects) is not None:
        return
    known = isinstance(module, str) and module in _MODULES
    if isinstance(name, str) and name not in _CODE and (known or (module is None and name in _VALUES)):
        return
    if isinstance(name, str) and name in _CODE:
        raise ModelFileError(
            f"The model file holds code ({name}: a lambda, say, as a loss or in a layer), which is never run from a"
            " file. What was given to compile is left out by tfdp.load_model(path, compile=False): compile anew. Give"
            " functions names, def loss(y, p), to save them by name. A file of your own that you trust is also loaded"
            " by keras.models.load_model(path, safe_mode=False)."
        )
    shown = f"{module}.{name}" if module else name
    given = f"{{{name!r}: {name}}}" if isinstance(name, str) and name.isidentifier() else "{name: class}"
    raise ModelFileError(
        f"The model file names {shown!r}, which is not on the list of what may be loaded: it could run code. If it is"
        f" yours, load it by tfdp.load_model(path, custom_objects={given})."
    )
