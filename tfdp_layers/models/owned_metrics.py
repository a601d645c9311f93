"""Whose a model's metrics are while it trains: the thread's that trains."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.proof.metrics import given_metrics

_lock = threading.RLock()


class _Use:
    """What one thread does with a model's metrics: a training, or else an evaluation."""

    def __init__(self, model: Any, training: bool = False) -> None:
        self.model, self.training = model, training
        self.thread, self.process = threading.get_ident(), os.getpid()  # a fork has what the process did that made it

    def meets(self, other: "_Use") -> bool:
        """Whether another thread's use is of the same metrics, and one of both trains."""
        if self.process != other.process or self.thread == other.thread or not (self.training or other.training):
            return False
        return self.model is other.model or not _metrics(self.model).isdisjoint(_metrics(other.model))


_uses: list[_Use] = []


def _metrics(model: Any) -> set[int]:
    """The ids of a model's metrics, without the caller's code: a property `metrics` may be a class's own."""
    return {id(one) for one in [*keras.Model.metrics.fget(model), *given_metrics(model)]}


def trained_by_another(model: Any) -> bool:
    """Whether another thread trains this model, or one that has a metric in common with it."""
    if not _uses or _stepping(model):
        return False
    here = _Use(model)
    return any(here.meets(one) for one in list(_uses))


def _stepping(model: Any) -> bool:
    """Whether this is a thread that the model's strategy makes for one of its replicas, inside of a step."""
    strategy = model._distribute_strategy
    return strategy is not None and not tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy()


def refuse_elsewhere(model: Any, what: str) -> None:
    """Raises RuntimeError where another thread trains with this model's metrics: they hold numbers of its records."""
    if trained_by_another(model):
        raise RuntimeError(
            f"`{what}` was asked for while a training runs in another thread. Until that ends, the metrics of model"
            f" {model.name!r} belong to that thread: they hold numbers of the training records, without noise, which a"
            " result would tell. Evaluate a copy of the weights, with new metrics of its own: plain = model.to_keras();"
            " plain.compile(loss=..., metrics=[...]); plain.evaluate(x, y). Or evaluate in a callback, or after the"
            " training. `predict` may be called from any thread."
        )


def evaluated_here(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that evaluates: while it runs, no training of another thread begins with the same metrics.

    Raises: as `refuse_elsewhere`.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        use = _Use(self)
        with _lock:
            refuse_elsewhere(self, method.__name__)
            _uses.append(use)
        try:
            return method(self, *args, **kwargs)
        finally:
            _uses.remove(use)

    return call


@contextlib.contextmanager
def trained_here(model: Any) -> Iterator[None]:
    """Inside, the metrics are this thread's. Raises RuntimeError where another one evaluates or trains with them."""
    use = _Use(model, training=True)
    with _lock:
        _refuse_use(use)
        _uses.append(use)
    try:
        yield
    finally:
        _uses.remove(use)


@contextlib.contextmanager
def stepped_here(model: Any) -> Iterator[None]:
    """Inside, this thread makes steps of a loop that another one may have begun. Raises: as `trained_here`."""
    with _lock:
        use = next(one for one in _uses if one.training and one.model is model)
        before, use.thread = use.thread, threading.get_ident()
        try:
            _refuse_use(use)
        except RuntimeError:
            use.thread = before
            raise
    try:
        yield
    finally:
        use.thread = before


def _refuse_use(use: _Use) -> None:
    for other in _uses:
        if other is not use and use.meets(other):
            what = "trains" if other.training else "evaluates"
            raise RuntimeError(
                f"Another thread {what} model {other.model.name!r}, with metrics that model {use.model.name!r} would"
                " train with: its result would hold numbers of the training records, without noise. Let it end before"
                " (thread.join()), or give each model metrics of its own."
            )
