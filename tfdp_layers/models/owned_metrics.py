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


def _unlock() -> None:
    """In a process that is forked nobody holds the lock, whoever of its parent's threads did."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


class _Use:
    """What a thread does with a model's metrics: a training, or else an evaluation.

    A loop's body may go from thread to thread, as a generator does that a web server runs in a pool: its training is of
    the thread that entered it, and of the one that drew or stepped last. While a step is made, it is of that one alone.
    """

    def __init__(self, model: Any, training: bool = False) -> None:
        self.model, self.training = model, training
        self.entered = threading.current_thread()  # the object: numbers of threads that ended are given anew
        self.threads, self.process = {self.entered}, os.getpid()  # a fork has what the process did that made it

    def meets(self, other: "_Use") -> bool:
        """Whether another thread's use is of the same metrics, and one of both trains."""
        if self.process != other.process or self.threads & other.threads or not (self.training or other.training):
            return False
        return self.model is other.model or not _metrics(self.model).isdisjoint(_metrics(other.model))

    @contextlib.contextmanager
    def held(self, refuse: Callable[[], None]) -> Iterator[None]:
        """Inside, others meet it. Raises: as `refuse`, which is called before."""
        try:
            with _lock:
                refuse()
                _uses.append(self)
            yield
        finally:
            if self in _uses:
                _uses.remove(self)


_uses: list[_Use] = []


def _metrics(model: Any) -> set[int]:
    """The ids of a model's metrics, without the caller's code: a property `metrics` may be a class's own."""
    return {id(one) for one in [*keras.Model.metrics.fget(model), *given_metrics(model)]}


def _trained_elsewhere(model: Any) -> Any:
    """The model that another thread trains with metrics of this one: itself, maybe. None where none does."""
    if not _uses or _stepping(model):
        return None
    here = _Use(model)
    return next((one.model for one in list(_uses) if here.meets(one)), None)


def trained_by_another(model: Any) -> bool:
    """Whether another thread trains this model, or one that has a metric in common with it."""
    return _trained_elsewhere(model) is not None


def _stepping(model: Any) -> bool:
    """Whether this is a thread that the model's strategy makes for one of its replicas, inside of a step."""
    strategy = model._distribute_strategy
    return strategy is not None and not tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy()


def _named(other: Any, model: Any) -> str:
    """How a message says which model another thread uses, beside this one."""
    if other is model:
        return f"model {model.name!r} itself"
    return f"{'another model named' if other.name == model.name else 'model'} {other.name!r}"


_OWN = " Give each model metrics of its own: make metric objects inside of the function that builds the model."


def refuse_elsewhere(model: Any, what: str) -> None:
    """Raises RuntimeError where another thread trains with this model's metrics: they hold numbers of its records."""
    other = _trained_elsewhere(model)
    if other is not None:
        own = "" if other is model else _OWN
        raise RuntimeError(
            f"`{what}` was asked for while a training of {_named(other, model)} runs in another thread. Until that"
            f" ends, the metrics of model {model.name!r} belong to that thread: they hold numbers of the training"
            f" records, without noise, which a result would tell.{own} Evaluate a copy of the weights, with new metrics"
            " of its own: plain = model.to_keras(); plain.compile(loss=..., metrics=[...]); plain.evaluate(x, y). Or"
            " evaluate in a callback, or after the training. `predict` may be called from any thread."
        )


def evaluated_here(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that evaluates: while it runs, no training of another thread begins with the same metrics.

    Raises: as `refuse_elsewhere`.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Use(self).held(lambda: refuse_elsewhere(self, method.__name__)):
            return method(self, *args, **kwargs)

    return call


def trained_here(model: Any) -> contextlib.AbstractContextManager[None]:
    """Inside, the metrics are this thread's. Raises RuntimeError where another one evaluates or trains with them."""
    use = _Use(model, training=True)
    return use.held(lambda: _refuse_use(use))


@contextlib.contextmanager
def stepped_here(model: Any) -> Iterator[None]:
    """Inside, this thread makes steps of a loop that another one may have begun. Raises: as `trained_here`."""
    here = threading.current_thread()
    with _lock:
        use = next(one for one in _uses if one.training and one.model is model)
        before, use.threads = use.threads, {here}
        try:
            _refuse_use(use)
        except RuntimeError:
            use.threads = before
            raise
    try:
        yield
    finally:
        use.threads = {use.entered, here} if use.entered in before else before  # else this is inside of a step


def _refuse_use(use: _Use) -> None:
    for other in _uses:
        if other is not use and use.meets(other):
            what, own = "trains" if other.training else "evaluates", "" if other.model is use.model else _OWN
            raise RuntimeError(
                f"Another thread {what} {_named(other.model, use.model)}, with metrics that model {use.model.name!r}"
                f" would train with: its result would hold numbers of the training records, without noise.{own} Let it"
                " end before (thread.join())."
            )
