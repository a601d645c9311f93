"""Numbers of the training records that a callback, or the body of a loop, asks the model itself for."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp_layers.batches.texts import text_tensors
from tfdp_layers.models.crossing import forget_metrics
from tfdp_layers.models.fit_arguments import shares_records
from tfdp_layers.models.going_by import shown_by, x_of
from tfdp_layers.models.graph_rows import are_generated
from tfdp_layers.models.owned_metrics import evaluated_here, refuse_elsewhere, trained_by_another
from tfdp_layers.models.run import PrivacyState
from tfdp_layers.models.validation_rows import warn_of_private_rows
from tfdp_layers.structure import KerasMixin

__all__ = ["Looking", "choosing", "forget_logs"]


class _Chosen(NamedTuple):
    """What models were trained on that a function of the caller's chooses among, and which of them it evaluated."""

    batches: Any
    evaluated: list[Any]


_CHOSEN_ON: contextvars.ContextVar[_Chosen | None] = contextvars.ContextVar("chosen_on", default=None)
_INSIDE = contextvars.ContextVar("inside", default=False)  # of the model's own methods, in a thread that trains not
_WRITTEN = ("saved_model", ".lite", ".export", ".saving", ".summary", "compute_output")
_METRICS = "metrics of the training"
_CODES = "in a GAN draw codes and labels inside of it"
_UNNOISED = (
    "The objective asks for {what} of the training records: such a score carries no noise, and choosing by it would"
    " leak. Let it score by public data; or choose by the private records, with noise, for a part of the budget:"
    " objective=tfdp.tuning.NoisyMean(lambda model: model.predict(x, verbose=0).argmax(-1) == y, stddev=0.02), or of"
    " one output (model.predict(x, verbose=0)[:, 0] > 0.5) == y."
)


def watch_of(model: Any) -> Any:
    """What notes what is read of a model: while a hook that is watched runs, or the body of a loop, itself; or None."""
    state: PrivacyState | None = getattr(model, "_privacy", None)  # Keras asks before there is one
    watch = None if state is None or state.run is None else state.watch
    here = watch is not None and watch.running and not watch.inside and not _INSIDE.get()
    return watch if here else None


def note(model: Any, watch: Any, what: str) -> None:
    """Notes that the hook that runs, or the body of the loop, asked for this, or another thread meanwhile."""
    watch.asked(f"{what}, by code in another thread" if trained_by_another(model) else what)


@contextlib.contextmanager
def calling(model: Any, watch: Any) -> Iterator[None]:
    """Inside, a method of the model runs, which asks for what it needs: of this thread, and of no other."""
    if not trained_by_another(model):
        with watch.calling():
            yield
        return
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def holds_records(model: Any, x: Any, asked: bool) -> bool:
    """Whether these are records of the training that runs, or copies, where code of the caller `asked` for them."""
    run = model._privacy.run
    shared = shares_records(run.batches, x if isinstance(x, tf.data.Dataset) else (x,))
    return shared or (asked and run.copied.hold(x))


@contextlib.contextmanager
def choosing(batches: Any) -> Iterator[None]:
    """Inside, a function of the caller's chooses among models, and none may tell it anything of these batches' records.

    Args:
        batches: what the models were trained on; None where they may tell anything.
    """
    token = _CHOSEN_ON.set(None if batches is None else _Chosen(batches, []))
    try:
        yield
    finally:
        _CHOSEN_ON.reset(token)


def refuse_chosen(what: str, x: Any, y: Any = None) -> None:
    """Raises ValueError where an objective asks a model for this, of the records that it was trained on.

    Warns of copies of them, as of such among validation data.
    """
    chosen = _CHOSEN_ON.get()
    if chosen is None:
        return
    given = x if isinstance(x, tf.data.Dataset) else (x, y)
    if shares_records(chosen.batches, given):
        raise ValueError(_UNNOISED.format(what=what))
    warn_of_private_rows(chosen.batches, given, "what the objective scores by")


class _Unlogged(dict[str, Any]):
    """A history without what `fit` logged."""

    def __missing__(self, name: str) -> Any:
        if _CHOSEN_ON.get() is None:
            raise KeyError(name)
        raise ValueError(_UNNOISED.format(what=f"what fit logged ({name!r})"))


def forget_logs(model: Any) -> None:
    """Takes what `fit` logged of the training records, without noise, out of its history and its metrics.

    An objective that asks the history for it then gets a ValueError.
    """
    model.history = keras.callbacks.History()
    model.history.history = _Unlogged()
    model.reset_metrics()


def noted(name: str) -> Callable[..., Any]:
    """Keras' method of this name, which notes where a watched callback or loop gives it the training records.

    Outside of trainings, which do it when they end, it leaves nothing in metrics that layers keep: it is called on
    private records as well, for `release_metric` say, and what it computed of them is what it returns.
    """
    method = getattr(keras.Model, name)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("x")
        watch = watch_of(self)
        here = contextvars.copy_context()
        x, shown = x, x
        if watch is not None or _CHOSEN_ON.get() is not None:
            x, shown = shown_by(x, lambda rows: here.run(look, self, watch, f"{name}()", rows), watch is not None)
        args, kwargs = ((x, *args[1:]), kwargs) if args else ((), kwargs | ({"x": x} if "x" in kwargs else {}))
        y = args[1] if name == "evaluate" and len(args) > 1 else kwargs.get("y")
        private = look(self, watch, f"{name}()", shown, y)
        if args:
            args = (text_tensors(args[0]), *args[1:])
        elif "x" in kwargs:
            kwargs |= {"x": text_tensors(kwargs["x"])}
        try:
            with choosing(None), evaluating(self, public=name == "evaluate" and x is not None and not private):
                found = getattr(super(Looking, self), name)(*args, **kwargs)
            if name in ("evaluate", "test_on_batch") and (chosen := _CHOSEN_ON.get()) is not None:
                chosen.evaluated.append(self)
            return found
        finally:
            if self._privacy.run is None and not trained_by_another(self):
                forget_metrics(self)

    return call


def look(model: Any, watch: Any, what: str, x: Any, y: Any = None) -> bool:
    """Notes, or refuses in an objective, that a model is asked for this of training records. Returns: whether it is."""
    private = model._privacy.run is not None and x is not None and holds_records(model, x, watch is not None)
    if watch is not None and private:
        note(model, watch, f"{what} of the training records")
    if watch is None and x is not None:
        refuse_chosen(what, x, y)
    return private


@contextlib.contextmanager
def evaluating(model: Any, public: bool) -> Iterator[None]:
    """Inside, the model's own methods ask it for what they need; afterwards metrics are public where they are of data
    that are no records, and of nothing else.
    """
    watch = model._privacy.watch
    if watch is None or model._privacy.run is None:
        yield
        return
    with calling(model, watch):
        yield
    if public:
        watch.evaluated = model.made_in_fit


def note_metrics(model: Any, what: str, results: bool = False) -> None:
    """Notes that the caller of the model's method, if that is no library, reads metrics of the training records.

    Raises: ValueError where an objective asks for their results, and evaluated nothing before; `refuse_elsewhere`.
    """
    watch, chosen, another = watch_of(model), _CHOSEN_ON.get() if results else None, trained_by_another(model)
    if watch is not None and watch.evaluated == model.made_in_fit:
        watch = None
    if chosen is not None and any(one is model for one in chosen.evaluated):
        chosen = None
    if watch is None and chosen is None and not another:
        return
    frame: Any = sys._getframe(2)
    while frame.f_code.co_name == "get_metrics_result":  # the method of a class that calls this one
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").partition(".")[0] in ("keras", "tfdp_layers") or being_written():
        return
    refuse_elsewhere(model, "metrics")
    if watch is None:
        raise ValueError(_UNNOISED.format(what="the metrics"))
    watch.asked(what)


@contextlib.contextmanager
def looked_at(model: Any, args: Any, kwargs: Any) -> Iterator[None]:
    """Around a call of the model, by whichever of its methods, which is compared with the records."""
    watch, what = watch_of(model), "the model's outputs"
    if not tf.executing_eagerly():
        given = [one for one in keras.tree.flatten((args, kwargs)) if hasattr(one, "__array__") or tf.is_tensor(one)]
        fed, records = ((), None) if watch is None else (model._privacy.run.fed, model._privacy.records)
        if watch is not None and not being_written() and not are_generated(given, model, fed, records):
            note(model, watch, f"{what} in a function of the caller's, on data that nobody compared ({_CODES})")
        watch = None  # nothing is compared there
    elif watch is not None or _CHOSEN_ON.get() is not None:
        given = [one for one in keras.tree.flatten((args, kwargs)) if hasattr(one, "__array__")]
        given = [one for one in given if not keras.backend.is_keras_tensor(one)]  # they hold no numbers
        given = [one for one in given if "GPU" not in str(getattr(one, "device", ""))]  # copies, and slow to fetch
        if given:
            look(model, watch, what, given)
    with contextlib.nullcontext() if watch is None else calling(model, watch):
        yield


def being_written() -> bool:
    """Whether a model is written into a file here, described or traced for its graph: that asks for no numbers."""
    running = list(itertools.islice(frames(), 60))
    mapped = any(module.startswith("tensorflow.python.data.") for module, _ in running)  # `dataset.map(model)`
    return not mapped and any(map(is_written, running))


def frames() -> Iterator[tuple[str, str]]:
    """The modules and names of the functions that run, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name
        frame = frame.f_back


def is_written(running: tuple[str, str]) -> bool:
    """Whether a function is one by which models are written into files, or described."""
    module, name = running
    ours = module.startswith(("keras.", "tensorflow."))
    return ours and (name == "get_concrete_function" or any(one in module for one in _WRITTEN))


class _Asked:
    """A method of Keras' models that computes outputs: itself, but where somebody is watched who calls it.

    Args:
        inputs: which of its arguments are inputs.
    """

    def __init__(self, inputs: Callable[[Any], Any]) -> None:
        self._inputs = inputs

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, model: Any, kind: Any = None) -> Any:
        method = getattr(super(Looking, kind if model is None else model), self._name)
        if model is None or (watch_of(model) is None and _CHOSEN_ON.get() is None):
            return method

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with looked_at(model, self._inputs(args), kwargs):
                return method(*args, **kwargs)

        return call


class _Stepping:
    """What Keras made to go through data, `test_function` say: itself, but where somebody is watched who calls it."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __set__(self, model: Any, step: Any) -> None:
        vars(model)[self._name] = step

    def __delete__(self, model: Any) -> None:
        vars(model).pop(self._name, None)

    def __get__(self, model: Any, kind: Any = None) -> Any:
        step, watch = None if model is None else vars(model).get(self._name), watch_of(model)
        if step is not None and self._name == "test_function":
            refuse_elsewhere(model, self._name)
        if step is None or (watch is None and _CHOSEN_ON.get() is None):
            return step
        name = f"{self._name}()"

        def call(iterator: Any) -> Any:
            if isinstance(iterator, tf.data.Iterator):  # it can't be looked into
                if watch is not None:
                    note(model, watch, f"{name} of an iterator")
                return step(iterator)
            first = list(itertools.islice(iterator, 1))
            look(model, watch, name, x_of(first[0]) if first else None)
            again = iterator if isinstance(iterator, list | tuple) else itertools.chain(first, iterator)
            with choosing(None), contextlib.nullcontext() if watch is None else calling(model, watch):
                return step(again)

        return call


class Looking(KerasMixin):
    """Mixin for Keras models: what they say of training records is private, as the logs are."""

    evaluate = evaluated_here(noted("evaluate"))
    predict = noted("predict")
    predict_on_batch = noted("predict_on_batch")
    test_on_batch = evaluated_here(noted("test_on_batch"))

    @functools.wraps(keras.Model.__call__)
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with looked_at(self, args, kwargs):
            return super().__call__(*args, **kwargs)

    call: Any = _Asked(lambda given: given)
    stateless_call: Any = _Asked(lambda given: given[2:])
    test_function: Any = _Stepping()
    predict_function: Any = _Stepping()

    @property
    def metrics(self) -> list[Any]:
        """As in Keras: their results are private, in `fit`."""
        note_metrics(self, _METRICS)
        return list(super().metrics)

    @property
    def metrics_variables(self) -> list[Any]:
        """As in Keras: private, in `fit`."""
        note_metrics(self, _METRICS)
        return list(super().metrics_variables)

    def get_metrics_result(self) -> dict[str, Any]:
        """As in Keras: private, in `fit`."""
        note_metrics(self, _METRICS, results=True)
        return dict(super().get_metrics_result())
