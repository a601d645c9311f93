"""What callbacks that this library does not know read of private numbers, and do then."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.callbacks.steering import PUBLIC, decides_by, flatten_callbacks
from tfdp_layers.caller import warn
from tfdp_layers.models.watched_logs import WatchedLogs

_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


class Watch:
    """Notes, for the callbacks of one `fit`, which private numbers they read, and what they decide afterwards.

    Whether a decision depended on what was read, nobody can see from outside: so a callback that reads private numbers
    and stops the training, changes the learning rate or takes the weights is reported, once, and nothing is refused.
    What it reads: the logs, and what `evaluate` and `predict` of the model say of the training records. Not seen:
    numbers that it takes from elsewhere (the model's metrics, the history), and decisions of other kinds. Weights that
    a callback changes, by whatever way, are noted: what it took from records for that is in no ledger.

    Args:
        model: in `fit`.
        callbacks: of `fit`.
        private: whether the number of this name in the logs was computed from private records.
        report: called with a sentence, once.
        note: called with a sentence about weights that were changed, once.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Any,
        private: Callable[[str], bool],
        report: Callable[[str], None],
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._private, self._report, self._note = model, private, report, note
        self._numbers: Callable[[], bytes] | None = None
        self._callbacks = list({id(one): one for one in flatten_callbacks(callbacks) if is_unknown(one)}.values())
        self._deciding = [(one, name) for one in flatten_callbacks(callbacks) if (name := decides_by(one)) is not None]
        self._read: dict[int, dict[str, None]] = {id(one): {} for one in self._callbacks}
        self._running: list[Any] = []
        self._settings: Any = None
        self._reported = self._touched = self._moved = False
        self._stepped: bytes | None = None

    def touched(self) -> bool:
        """Whether a hook of an unknown callback ran since this was asked last."""
        touched, self._touched = self._touched, False
        return touched

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, hooks of unknown callbacks get logs that note what is read, and others decide by what they did."""
        changed = []
        try:
            for callback, accepted in self._deciding:
                for name in overridden(callback):
                    changed.append((callback, name, vars(callback).get(name)))
                    vars(callback)[name] = as_accepted(callback, getattr(callback, name), accepted)
            for callback in self._callbacks:
                for name in overridden(callback):
                    changed.append((callback, name, vars(callback).get(name)))
                    # What is logged while the validation data are evaluated is public.
                    private = (
                        self._private if name.startswith(("on_epoch", "on_batch", "on_train")) else lambda _: False
                    )
                    vars(callback)[name] = self._watched(callback, getattr(callback, name), private)
            yield
        finally:
            for callback, name, own in reversed(changed):
                if own is None:
                    del vars(callback)[name]
                else:
                    vars(callback)[name] = own

    def _watched(self, callback: Any, hook: Callable[..., Any], private: Callable[[str], bool]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("logs", args[-1] if args else None)
            if not isinstance(given, dict) or isinstance(given, WatchedLogs):
                return self._decided_in(callback, lambda: hook(*args, **kwargs))
            logs = WatchedLogs(given, private, lambda name: self._read[id(callback)].setdefault(name))
            if "logs" in kwargs:
                kwargs["logs"] = logs
            else:
                args = (*args[:-1], logs)
            before = dict(given)
            try:
                return self._decided_in(callback, lambda: self._written_by(hook, args, kwargs, before, logs))
            finally:  # what a callback writes is seen by those after it
                given.clear()
                given.update(logs.unread())

        return call

    def _written_by(self, hook: Callable[..., Any], args: Any, kwargs: Any, before: Any, logs: WatchedLogs) -> Any:
        """Calls a hook; what it writes under the name of a public number, other callbacks take for one."""
        found = hook(*args, **kwargs)
        for name, value in logs.unread().items():
            if not self._private(name) and before.get(name, self) is not value:
                self.decided(f"wrote {name!r} into the logs, by which others may decide")
        return found

    def _decided_in(self, callback: Any, hook: Callable[[], Any]) -> Any:
        before, self._touched = self._steering(), True
        self._running.append(callback)
        try:
            found = hook()
        except BaseException:
            self.decided("ended fit by an exception")
            raise
        else:
            self._compare(before)
            return found
        finally:
            self._running.pop()

    @property
    def running(self) -> bool:
        """Whether a hook of an unknown callback runs, or the body of a loop."""
        return bool(self._running)

    def _steering(self) -> tuple[Any, ...]:
        optimizer = self._model.optimizer
        if self._numbers is None:  # not before: a model may be built by the first records
            self._numbers = numbers_of(self._model.weights)
        return bool(self._model.stop_training), optimizer.releases_left(), rate_of(optimizer), self._numbers()

    def _compare(self, before: tuple[Any, ...]) -> None:
        """Notes what was decided since `_steering()` was this."""
        stopping, left, rate, numbers = self._steering()
        if stopping and not before[0]:
            self.decided("stopped the training")
        if left != before[1]:
            self.decided("limited the releases")
        if rate != before[2]:
            self.decided("changed the learning rate")
        if numbers != before[3]:
            self.decided("changed the weights")
            self._moved = True
            self._note(f"{self._whose()} changed the weights while fit ran. {CHANGED}")

    def stepped(self) -> None:
        """The last step of an epoch was made: until `over`, what is no hook runs, as a `test_step` or `evaluate`."""
        self._stepped, self._moved = self._steering()[-1], False

    def over(self) -> None:
        """The validation of an epoch is over, and no hook of its end ran yet."""
        stepped, self._stepped = self._stepped, None
        if stepped is not None and not self._moved and self._steering()[-1] != stepped:
            self._note(f"The weights changed in the validation, by a test_step of its own say. {CHANGED}")

    # A loop of the caller's own, which runs where no callback does: it is watched as one between two of its steps ----

    def enter(self, loop: Any) -> None:
        """From here on the body of this loop runs."""
        self._running[:] = [loop]
        self._read.setdefault(id(loop), {})
        self._settings = self._steering()

    def leave(self) -> None:
        """From here on this library runs, until `enter`."""
        self._compare(self._settings)
        self._running.clear()

    def decided_by(self, loop: Any, what: str) -> None:
        """Reports that the loop decided something, if it has read a private number before."""
        self._running[:] = [loop]
        self.decided(what)
        self._running.clear()

    def note(self, loop: Any, name: str) -> None:
        """The body of the loop read a private number, or records, called this."""
        self._read[id(loop)].setdefault(name)

    def asked(self, name: str) -> None:
        """Whoever runs, a hook or the body of a loop, asked the model for numbers of the records, called this."""
        self._read[id(self._running[-1])].setdefault(name)

    def logs(self, loop: Any, given: dict[str, Any]) -> WatchedLogs:
        """Logs for the body of the loop, which note what is read."""
        return WatchedLogs(given, self._private, lambda name: self.note(loop, name))

    def decided(self, what: str) -> None:
        """Reports that the callback whose hook runs decided something, if it has read a private number before."""
        callback = self._running[-1] if self._running else None
        read = [] if callback is None else list(self._read[id(callback)])
        if not read or self._reported:
            return
        self._reported = True
        self._report(f"{self._whose()} read {', '.join(map(repr, read))} and then {what}.")

    def _whose(self) -> str:
        callback = self._running[-1] if self._running else None
        return f"The callback {type(callback).__name__}" if hasattr(callback, "on_train_begin") else "The loop"


def as_accepted(callback: Any, hook: Callable[..., Any], accepted: str) -> Callable[..., Any]:
    """The hook, which raises ValueError once the callback decides by another number than `fit` let it in with."""

    def call(*args: Any, **kwargs: Any) -> Any:
        found = decides_by(callback)
        if found != accepted:
            raise ValueError(
                f"{type(callback).__name__} decided by {accepted!r} when fit began, and now by {found!r}: something"
                " changed that while fit ran. Set it before fit, which refuses numbers of the private data."
            )
        return hook(*args, **kwargs)

    return call


def is_unknown(callback: Any) -> bool:
    """Whether a callback is neither Keras' nor this library's, or has hooks put on it: what it does is not known."""
    if isinstance(callback, keras.callbacks.LambdaCallback | keras.callbacks.LearningRateScheduler):
        return True
    if any(name in vars(callback) for name in _HOOKS):
        return True
    return type(callback).__module__.split(".")[0] not in ("keras", "tfdp_layers", "tensorflow")


def overridden(callback: Any) -> Iterable[str]:
    """The hooks that a callback defines itself."""
    base = keras.callbacks.Callback
    here = [name for name in _HOOKS if hasattr(callback, name)]
    return [n for n in here if n in vars(callback) or getattr(type(callback), n, None) is not getattr(base, n)]


def rate_of(optimizer: Any) -> Any:
    """A value that changes with the learning rate of a private optimizer: its number, or the identity of a schedule."""
    rate = optimizer.inner_optimizer._learning_rate
    return float(rate.numpy()) if hasattr(rate, "numpy") else id(rate)


def is_private(name: str, validated: bool, posing: bool) -> bool:
    """Whether a number in the logs was computed from private records without noise.

    Args:
        validated: whether there are validation data, which are public.
        posing: whether outputs or metrics of the model are named like validation metrics.
    """
    return name not in PUBLIC and not (name.startswith("val_") and validated and not posing)


def numbers_of(variables: Iterable[Any]) -> Callable[[], bytes]:
    """A function whose result changes with the numbers that variables hold: their bytes, or sums of the bits of many.

    It is called around every hook: the sums take 0.4 ms for a million weights, the bytes of a few variables 0.1 ms.
    """
    held = [one.value for one in variables if one.value.dtype.is_floating or one.value.dtype.is_integer]
    if sum(one.shape.num_elements() for one in held) <= _FEW:
        return lambda: b"".join(map(bytes_of, held))
    whole = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
    far = bool(tf.config.list_physical_devices("GPU"))  # where integers would be sent back from, to be added here

    def sum_of(values: tf.Tensor) -> tf.Tensor:
        if far and values.dtype.size < 8:  # a double shows every bit of a shorter number in so large a sum
            return tf.bitcast(tf.reduce_sum(tf.cast(values, tf.float64)), tf.int64)
        bits = tf.bitcast(values, whole[values.dtype.size])
        return tf.cast(tf.reduce_sum(bits if bits.dtype.size > 2 else tf.cast(bits, tf.int32)), tf.int64)

    def sums() -> tf.Tensor:
        return tf.stack([sum_of(tf.convert_to_tensor(one)) for one in held])

    compiled = tf.function(sums, autograph=False)
    return lambda: compiled().numpy().tobytes()


def bytes_of(variable: Any) -> bytes:
    """What a variable holds, or its first copy on replicas."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return np.asarray(variable.numpy()).tobytes()
    # The operation alone: small networks wait for it.
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype).numpy().tobytes()  # type: ignore[no-any-return]


_FEW = 100_000
"""Numbers whose bytes are compared as they are."""

CHANGED = (
    "Averages and copies of released weights cost nothing more; what it took from records, as fit of another model that"
    " shares these layers does, is not in this statement."
)
"""What follows of weights that were changed between two steps."""

STEERED = (
    "If that depended on what it read, the released weights are chosen by numbers of the private data without noise,"
    " and the guarantee does not cover it."
)
"""What follows of a decision by a private number."""


def warn_of_steering(sentence: str) -> None:
    """Warns that a callback may have decided by private numbers, after the sentence that says which."""
    warn(
        f"{sentence} {STEERED} Decide by public validation data (val_...) or by 'epsilon'. The model's privacy"
        " statement says so, too.",
    )
