"""Which callbacks decide something, and by what: a number without noise may not steer a training."""

import copy
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.accounting.logs import PUBLIC, is_private, reads_as_validation, validation_name
from tfdp_layers.instances import refuse_class

__all__ = [
    "as_accepted",
    "decides_by",
    "flatten_callbacks",
    "hook_names",
    "is_unknown",
    "logs_first",
    "of_keras_tuner",
    "overridden",
    "refuse_steering",
    "top_of",
]


def flatten_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks of a single one, a list, or a keras CallbackList, also of lists inside of these.

    Raises: ValueError for a class of callbacks, what is no callback, and for a CallbackList of the caller's own kind.
    """
    found: list[Any] = []
    for one in tf.nest.flatten([] if callbacks is None else callbacks):
        refuse_class(one, "One of callbacks")
        if not hasattr(one, "set_model") and not isinstance(one, keras.callbacks.CallbackList):
            of_functions = " Of functions make one: keras.callbacks.LambdaCallback(on_epoch_end=...)." * callable(one)
            raise ValueError(
                f"One of callbacks is a {type(one).__name__}, and no keras.callbacks.Callback.{of_functions}"
            )
        if not hasattr(one, "__dict__"):
            raise ValueError(
                f"The callback {type(one).__name__} has __slots__ and no __dict__, so that its hooks cannot be watched."
                " Derive it from keras.callbacks.Callback."
            )
        if not isinstance(one, keras.callbacks.CallbackList):
            found.append(one)
        elif type(one) is keras.callbacks.CallbackList:
            found += flatten_callbacks(one.callbacks)
        else:
            raise ValueError(
                f"callbacks has {type(one).__name__}, a CallbackList with code of its own, which would run around this"
                " library's checks. Give a list of callbacks; what it does belongs in a callback."
            )
    return found


def logs_first(callbacks: Any, *own: keras.callbacks.Callback) -> list[Any]:
    """The callbacks with those that add to the logs (`adds_to_logs`) first, so that all others see what they add.

    Keras hands one dict of logs along the list. Order is kept otherwise, but for those that say `comes_last`. The list
    is a new one: what is appended to the caller's own while `fit` runs was looked at by nobody, and never runs.

    Args:
        own: some of this library's, to be added in place of others of their kinds, at the very ends.
    """

    def rank(callback: keras.callbacks.Callback) -> tuple[bool, bool]:
        first = getattr(callback, "adds_to_logs", False) is True  # a MagicMock has any attribute
        return getattr(callback, "comes_last", False) is True, not first

    kinds = [type(one) for one in own]
    given = [one for one in flatten_callbacks(callbacks) if type(one) not in kinds]
    last = [one for one in own if getattr(one, "comes_last", False) is True]
    return sorted([*(one for one in own if one not in last), *given, *last], key=rank)


def refuse_steering(callback: keras.callbacks.Callback, validated: bool = True, posing: Sequence[str] = ()) -> None:
    """Raises ValueError if a callback that is known to decide does so by a metric of the private data.

    Known are those of Keras that stop, change the rate or choose a checkpoint, and those of KerasTuner.

    Args:
        validated: whether `fit` got validation data, which are public.
        posing: outputs and metrics whose training metrics are named like validation metrics.
    """
    name, monitor = type(callback).__name__, decides_by(callback)
    if isinstance(callback, keras.callbacks.TerminateOnNaN):
        raise ValueError(
            f"{name} stops on the private loss, which carries no noise: when it stops tells about records. Drop it."
        )
    if monitor is None or monitor in PUBLIC:
        return
    private = is_private(monitor, validated=True, posing=False)
    if private and monitor == in_its_names(callback):
        raise ValueError(
            f"{name} writes {monitor!r} into the names of its files, a number computed from private data without noise:"
            f" the names would leak. Leave it out of {str(callback.filepath)!r}; {{epoch}} and {{epsilon:.2f}} are"
            " public."
        )
    if private:
        raise ValueError(
            f"{name} decides by {monitor!r}, a number computed from private data without noise: its decisions would"
            " leak. Train a fixed number of epochs, or decide by validation data that are public, which rows held out"
            " of private ones are not: monitor='val_accuracy' say (a private model's loss may rise while it improves)."
        )
    if not validated:
        raise ValueError(
            f"{name} decides by {monitor!r}, and fit got no validation_data: so a callback of yours must compute that"
            " number, and nothing says that it does so from public data. Train a fixed number of epochs, or give public"
            " data as validation_data=(x, y), which that callback may compute it from as well."
        )
    if posing:
        raise ValueError(
            f"{name} decides by {monitor!r}, and outputs or metrics of the model are called {list(posing)}: their"
            " training metrics, which carry no noise, are named like validation metrics. Give them other names."
        )


def refuse_unknown_direction(callbacks: Any, model: Any) -> None:
    """Raises ValueError where Keras would not know whether a callback's metric is to rise or to fall.

    It asks after the first epoch, which is paid for by then. Of metrics that are not built yet nothing is known.
    """
    compiled = model._compile_metrics
    if compiled is not None and not compiled.built:
        return
    for callback in flatten_callbacks(callbacks):
        if decides_by(callback) is None or not hasattr(callback, "_set_monitor_op"):
            continue
        asked = copy.copy(callback)
        asked.set_model(model)
        try:
            asked._set_monitor_op()
        except ValueError:
            known = sorted({"val_loss", *(validation_name(one.name) for one in (compiled.metrics if compiled else ()))})
            name = type(callback).__name__
            raise ValueError(
                f"{name} decides by {callback.monitor!r}, and whether more or less of it is better is"
                f" unknown: validation gives {known}. Correct the name, or give mode='min' or mode='max'."
            ) from None


def decides_by(callback: keras.callbacks.Callback) -> str | None:
    """The name of the metric that a callback, known to decide something, decides by; None where it is not known to."""
    kc, written = keras.callbacks, in_its_names(callback)
    if written is not None and not reads_as_validation(written):
        return written
    # Of Keras' own, and what is derived of them, all with a monitor: a list of classes would not know the next one.
    known = any(kind.__module__.split(".")[0] == "keras" and kind is not kc.Callback for kind in type(callback).__mro__)
    if known and hasattr(callback, "monitor") and getattr(callback, "save_best_only", True):
        return str(getattr(callback, "monitor", ""))
    if of_keras_tuner(callback):
        objective = getattr(callback, "objective", None)
        return None if objective is None else str(getattr(objective, "name", objective))
    return written


def in_its_names(callback: Any) -> str | None:
    """A metric in the names of a ModelCheckpoint's files, one of training before others; None where there is none.

    Such a name decides which files there are, and which is written over.
    """
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return None
    fields = [name for _, name, _, _ in string.Formatter().parse(str(callback.filepath)) if name]
    metrics = [name for name in fields if name not in ("epoch", "batch", *PUBLIC)]
    return min(metrics, key=reads_as_validation, default=None)


def of_keras_tuner(callback: Any) -> bool:
    """Whether a callback is one that KerasTuner gives its trials."""
    return type(callback).__module__.split(".")[0] in ("keras_tuner", "kerastuner")


_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))
_KNOWN = ("keras", "tfdp_layers", "tensorflow")


def is_unknown(callback: Any) -> bool:
    """Whether a callback is neither Keras' nor this library's, or has functions put on it: it may do anything."""
    if isinstance(callback, keras.callbacks.LambdaCallback | keras.callbacks.LearningRateScheduler):
        return True
    return top_of(type(callback)) not in _KNOWN or bool(put_on(callback))


def put_on(callback: Any) -> list[str]:
    """The attributes of a known callback that are code of somebody else, or stand before code of its class."""
    return [
        name
        for name, value in vars(callback).items()
        if callable(value) and name != "_model" and (callable(getattr(type(callback), name, None)) or not ours(value))
    ]


def ours(code: Any) -> bool:
    """Whether a function is of Keras, NumPy or this library, or an object of theirs."""
    return top_of(getattr(code, "func", code)) in (*_KNOWN, "numpy") or isinstance(code, keras.layers.Layer)


def top_of(code: Any) -> str:
    """The package that a function or a class is from, or the class of what has none of its own."""
    module = getattr(code, "__module__", None)
    return str(module if isinstance(module, str) else type(code).__module__).partition(".")[0]


def hook_names() -> tuple[str, ...]:
    """The names of all hooks that Keras knows."""
    return _HOOKS


def overridden(callback: Any) -> Iterable[str]:
    """The hooks that a callback defines itself."""
    base = keras.callbacks.Callback
    here = {name: getattr(callback, name) for name in _HOOKS if hasattr(callback, name)}
    called = {name: getattr(hook, "__func__", hook) for name, hook in here.items()}  # by __getattribute__ another one
    return [
        n
        for n in here
        if n in vars(callback)
        or any(one is not getattr(base, n) for one in (getattr(type(callback), n, None), called[n]))
    ]


def as_accepted(callback: Any, hook: Callable[..., Any], accepted: str) -> Callable[..., Any]:
    """The hook, which raises ValueError once the callback decides by another number than `fit` let it in with."""

    known = not is_unknown(callback)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = decides_by(callback)
        if found != accepted:
            raise ValueError(
                f"{type(callback).__name__} decided by {accepted!r} when fit began, and now by {found!r}: something"
                " changed that while fit ran. Set it before fit, which refuses numbers of the private data."
            )
        added = [name for name in put_on(callback) if name not in _HOOKS] if known else []
        if added:
            raise ValueError(
                f"{type(callback).__name__} was Keras' own when fit began, and something put {added[0]!r} on it while"
                " fit ran: what it decides by is not known any more. Put it there before fit."
            )
        return hook(*args, **kwargs)

    call.__wrapped__ = hook  # type: ignore[attr-defined]
    return call
