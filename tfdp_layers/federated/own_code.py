"""Code in the training steps of a model that is neither Keras' nor TensorFlow's: where it runs in Python, it may keep
numbers there that no variable holds.
"""

import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

__all__ = ["is_of_libraries", "own_code", "own_loop"]

_LIBRARIES = frozenset({"builtins", "functools", "keras", "numpy", "tensorflow", "tfdp_layers"})
_FAMILY = _LIBRARIES | {"keras_cv", "keras_hub", "keras_nlp"}
"""Whose models bring a `fit` that keeps nothing of what it is given."""
_TRACED = frozenset(
    {
        *("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics", "compute_loss_and_updates"),
        *("compile", "get_compile_config", "compile_from_config", "metrics", "metrics_names", "loss"),
        *("predict", "predict_on_batch", "predict_function", "make_predict_function"),
    }
)
"""What a step is traced of, and what no turn runs: none of it runs in Python while a party trains."""


def own_loop(model: "keras.Model") -> str | None:
    """What of the model's `fit` is code of one's own that runs in Python: the name of a method or a function.

    `train_step`, and what that calls, is none of it, since its graph shows what it keeps.
    """
    import keras

    trainers = [kind for kind in keras.Model.__mro__ if "trainer" in kind.__module__]
    loop = {name for kind in trainers for name in vars(kind) if not name.startswith("__")} - _TRACED
    for kind in type(model).__mro__:
        if not _is_of(kind, _FAMILY) and (found := sorted(vars(kind).keys() & loop)):
            return found[0]
    held = {name: one for name, one in vars(model).items() if name in loop | {"train_function", "test_function"}}
    return next((name for name, one in held.items() if callable(one) and not _is_of(_behind(one), _FAMILY)), None)


def _behind(function: Any) -> Any:
    """What a function of TensorFlow, or a partial one, runs."""
    return getattr(function, "python_function", None) or getattr(function, "func", function)


def _is_of(part: Any, libraries: frozenset[str]) -> bool:
    code = getattr(part, "__func__", part)
    if isinstance(code, types.FunctionType):  # whose __module__ functools.wraps copies
        named = code.__globals__.get("__name__")
    else:
        named = getattr(part, "__module__", None) or type(part).__module__
    return str(named).partition(".")[0] in libraries


def is_of_libraries(kind: type) -> bool:
    """Whether a class is Python's, Keras', TensorFlow's, NumPy's or this library's."""
    return _is_of(kind, _LIBRARIES)


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
            left.extend(one)  # `left + one` is an error for tuples that Keras wraps
        elif isinstance(one, keras.optimizers.Optimizer) or (callable(one) and not isinstance(one, type)):
            yield one


def _is_own(part: Any) -> bool:
    import keras

    if part is None or isinstance(part, str | types.BuiltinFunctionType) or hasattr(part, "python_function"):
        return False
    if isinstance(part, keras.layers.Lambda):
        return True
    return not _is_of(part, _LIBRARIES)
