"""Code in the training steps of a model that is neither Keras' nor TensorFlow's: where it runs in Python, it may keep
numbers there that no variable holds.
"""

import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = ["own_code"]

_LIBRARIES = frozenset({"builtins", "functools", "keras", "numpy", "tensorflow", "tfdp_layers"})


def own_code(model: "keras.Model") -> Iterator[Any]:
    """The objects and functions of a compiled model that run code of one's own.

    Looked at are its layers, losses, metrics, optimizer and variables, and what these have as attributes that can be
    called: activations, regularizers, constraints, initializers, schedules, at any depth. Not seen is what functions
    refer to.
    """
    import keras

    left = [*model._flatten_layers(), *model.variables, *keras.tree.flatten([model.loss, model.metrics])]
    left.append(model.optimizer)
    seen: dict[int, Any] = {}
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if _is_own(one):
            yield one
        left += _held_by(one)


def _held_by(part: Any) -> Iterator[Any]:
    """What can be called, and optimizers, among the attributes of an object, also in lists and dicts."""
    import keras

    if isinstance(part, functools.partial):
        left = [part.func, *part.args, *part.keywords.values()]
    elif hasattr(part, "python_function"):  # of tf.function
        left = [part.python_function]
    else:
        left = [] if isinstance(part, types.FunctionType) else [*getattr(part, "__dict__", {}).values()]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, keras.optimizers.Optimizer) or (callable(one) and not isinstance(one, type)):
            yield one


def _is_own(part: Any) -> bool:
    import keras

    if part is None or isinstance(part, str | types.BuiltinFunctionType) or hasattr(part, "python_function"):
        return False
    if isinstance(part, keras.layers.Lambda):
        return True
    named = getattr(part, "__module__", None) or type(part).__module__
    return str(named).partition(".")[0] not in _LIBRARIES
