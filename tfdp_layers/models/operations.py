"""Keras' own operations in model files, as `h + x` and `keras.ops.clip` put them there: which ones, and on what."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tfdp_layers.models.file_limits import ModelFileError

__all__ = ["VALUES", "operation", "refuse_code", "runs_functions"]

VALUES = frozenset(
    {"__tuple__", "__tensor__", "__numpy__", "__keras_tensor__", "__bytes__", "__ellipsis__", "__slice__"}
)
"""What Keras writes into a config in the place of values that JSON does not know. None of them is code."""
_OPERATIONS = "keras.src.ops."
# Operations that compute with numbers and tensors. A module that a later Keras has is not among them until looked at.
_COMPUTING = frozenset(
    {f"{_OPERATIONS}{name}" for name in ("einops", "image", "linalg", "math", "nn", "numpy")}
    | {"keras.src.activations.activations"}
)
# Beside control flow, which runs functions (Map, Scan, Cond, Switch, the loops), this module has a few of them.
_CORE = f"{_OPERATIONS}core"
_IN_CORE = frozenset(
    {
        "Cast",
        "ConvertToTensor",
        "SaturateCast",
        "Scatter",
        "ScatterUpdate",
        "Slice",
        "SliceUpdate",
        "StopGradient",
        "Unstack",
    }
)
_RUNNING = frozenset({"JVP"})  # of the modules that compute, it alone is given a function


def operation(module: Any, name: Any) -> type | None:
    """Keras' own operation of this name that a model file may name, or None.

    Guarantee: it is a class that this very module of the installed Keras defines, and made from its config's numbers
    and strings as they are: its `from_config` is that of `keras.Operation`. None calls what it is given (a test goes
    over all that the installed Keras has), and `refuse_code` sees to it that it is given nothing to call. No module is
    imported.
    """
    found = _defined(module, name)
    if found is None or (module not in _COMPUTING and not (module == _CORE and name in _IN_CORE)) or name in _RUNNING:
        return None
    base: Any = keras.Operation
    return found if found.from_config.__func__ is base.from_config.__func__ else None


def runs_functions(module: Any, name: Any) -> bool:
    """Whether this is one of Keras' operations that are off the list: they run functions, or hold other operations."""
    return operation(module, name) is None and _defined(module, name) is not None


def _defined(module: Any, name: Any) -> Any:
    """The class of an operation that this module of Keras defines, whatever it does; None where there is none."""
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    if module not in _COMPUTING and not module.startswith(_OPERATIONS):
        return None
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if not isinstance(found, type) or not issubclass(found, keras.Operation) or issubclass(found, keras.layers.Layer):
        return None
    return found if found.__module__ == module else None


def refuse_code(config: Mapping[str, Any]) -> None:
    """Asked of the whole entry of an operation: that it gets numbers, strings and tensors, and no function or class.

    So whatever an operation does with what it is given, it is given nothing to run; and since one tensor of the model
    is among them each time, Keras works out a shape, and computes nothing while it loads. Layers that are called on
    constants alone are not looked at: they compute.

    Raises: ModelFileError, naming what else it gets.
    """
    shown = f"{config.get('module')}.{config.get('class_name')}"
    inner = {key: value for key, value in config.items() if key not in ("class_name", "module", "registered_name")}
    for part in _named(inner):
        if part.get("module") is not None or part.get("class_name") not in VALUES:
            raise ModelFileError(
                f"The model file gives the operation {shown!r} something to run, {part.get('class_name')!r} of"
                f" {part.get('module')!r}, which no operation that Keras saves is given, and which is never run from a"
                " file. Do not load a file that somebody else made in the place of yours."
            )
    nodes = config.get("inbound_nodes", [])
    for node in nodes if isinstance(nodes, list) else [nodes]:
        whole = isinstance(node, dict) and node.keys() <= {"args", "kwargs"}
        if not whole or not _on_tensor(node):
            raise ModelFileError(
                f"The model file calls the operation {shown!r} on no tensor of the model, so it would compute while it"
                " is loaded, at any size. Keras saves no such call: the file is damaged. Restore it from a backup."
            )


def _on_tensor(given: Any) -> bool:
    """Whether a tensor of the model is among what a call is given, and not only within a value of it."""
    if isinstance(given, list):
        return any(map(_on_tensor, given))
    if not isinstance(given, dict) or given.get("class_name") == "__keras_tensor__":
        return isinstance(given, dict)
    if "class_name" in given:  # of tuples alone Keras takes what is in them
        return given["class_name"] == "__tuple__" and _on_tensor(given.get("items", []))
    return any(map(_on_tensor, given.values()))


def _named(config: Any) -> Iterator[Mapping[str, Any]]:
    """All that a config names: what says of itself which class, function or module it is of."""
    if isinstance(config, dict) and ("class_name" in config or "module" in config):
        yield config
    for item in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        yield from _named(item)
