"""What callbacks that this library does not know read of private numbers, and do then."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfdp_layers.accounting.locked_file import LedgerError
from tfdp_layers.callbacks.steering import as_accepted, decides_by, flatten_callbacks, is_unknown
from tfdp_layers.models.beside import Brought
from tfdp_layers.models.deciders import Deciders
from tfdp_layers.models.hooks import Hooks, is_callback, named
from tfdp_layers.models.moments import Moment, Moments, Seen
from tfdp_layers.models.reach import Reach, body_of_loop, passes
from tfdp_layers.models.steered import CHANGED
from tfdp_layers.models.watched_logs import Histories, WatchedLogs

_SWAPPING = getattr(keras.callbacks, "SwapEMAWeights", ())
"""Of Keras' callbacks the one that changes weights for a validation."""
_OFTEN, _ENDS = 16, ("on_epoch_end", "on_train_end")
_OF_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
"""Hooks between which, but for the step, none of Keras' callbacks nor of ours changes weights."""


class Watch:
    """Notes, for the callbacks of one `fit`, which private numbers they read, and what they decide afterwards.

    Whether a decision depended on what was read, nobody can see from outside: so a callback that reads private numbers
    and stops the training, changes the learning rate, charges the ledger or takes the weights is reported, once. So is
    one that decides after another read, where that may leave a number for it (`Reach`), or by another, whose attributes
    it changes (`Deciders`). What is read: the logs, of earlier epochs too, and what the model and its metrics say of
    the training records (`Looking`). Not seen: decisions of other kinds. Weights that a callback changes, by whatever
    way, are noted: what it took from records for that is in no ledger.

    Args:
        model: in `fit`.
        callbacks: of `fit`.
        private: whether the number of this name in the logs was computed from private records.
        report: called with a sentence, once.
        note: called with a sentence about weights that were changed, once.
        brought: called where what the step reads holds other numbers than its last step left, before the next one.
        shown: called before a hook of an unknown callback, or the loop behind its last step, sees what was released.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Any,
        private: Callable[[str], bool],
        report: Callable[[str], None],
        note: Callable[[str], None] = lambda _: None,
        brought: Callable[[], None] = lambda: None,
        shown: Callable[[], None] = lambda: None,
    ) -> None:
        self._model, self._private, self._report, self._note = model, private, report, note
        self._brought, self._shown = brought, shown
        self._last: Seen | None = None  # what the last hook of a batch left, until the next step
        self._opened: Seen | None = None
        given = flatten_callbacks(callbacks)
        self._callbacks = list({id(one): one for one in given if is_unknown(one)}.values())
        self._deciding = [(one, name) for one in given if (name := decides_by(one)) is not None]
        self._moments, self._trained = Moments(model, Deciders(given, note)), Brought(model, note)
        self._swapping = [one for one in given if isinstance(one, _SWAPPING) and not is_unknown(one)]
        self._readers, self._running = list[Any](), list[Any]()
        histories = [one for one in given if isinstance(one, keras.callbacks.History)]
        self._histories = Histories(histories, private, self.asked, self._running)
        self._hooks = Hooks(given, self._around, self._added)
        self._body = contextlib.ExitStack()
        self._read: dict[int, dict[str, None]] = {id(one): {} for one in self._callbacks}
        self._compared: Counter[tuple[int, int]] = Counter()
        self._since: list[Moment] = []  # what a hook, or the body of a loop, began with, or was compared with
        self._touched, self._ran = dict[int, Any](), dict[int, Any]()  # since this was asked last, and before that
        self._reported = self._moved = self._differed = False
        self._stepped: Seen | None = None
        self.inside = 0  # in how many of the model's own methods, as evaluate
        self.evaluated: int | None = None  # after how many steps its metrics became those of public data

    @property
    def looks(self) -> bool:
        """Whether hooks of unknown callbacks run."""
        return bool(self._callbacks)

    def touched(self) -> bool:
        """Whether a hook of an unknown callback ran since this was asked last, before a step."""
        self._ran, self._touched, self._last = self._touched, {}, None
        return bool(self._ran)

    def refused(self, what: str = "ended fit by an exception") -> None:
        """What hooks may have changed since the step before is refused, and ends the training: they decided that."""
        for callback in self._ran.values():
            self.decided_by(callback, what)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, hooks of unknown callbacks get logs that note what is read, and others decide by what they did."""
        try:
            with self._histories.marked(self._model), self._hooks.surrounded():
                yield
        finally:
            self._body.close()

    def _around(self, callback: Any, name: str, hook: Callable[..., Any], late: bool) -> Callable[..., Any]:
        """What is called in the place of a hook: what is set while a training runs, may be anything."""
        if any(one is callback for one in self._swapping):
            hook = self._swapped(hook)
        for one, accepted in self._deciding:
            if one is callback:
                hook = as_accepted(one, hook, accepted)
        if late and id(callback) not in self._read:
            self._read[id(callback)] = {}
            self._callbacks.append(callback)
        return self._watched(callback, hook, name) if any(one is callback for one in self._callbacks) else hook

    def _added(self) -> list[Any]:
        """What Keras adds to the callbacks by itself, and the model shows."""
        return list(filter(is_callback, [vars(self._model).get("history")]))

    def _watched(self, callback: Any, hook: Callable[..., Any], name: str) -> Callable[..., Any]:
        training = name.startswith(("on_epoch", "on_batch", "on_train"))
        private = self._private if training else lambda _: False  # what validation data log is public

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in _ENDS:
                self._shown()
            given = kwargs.get("logs", args[-1] if args else None)
            if not isinstance(given, dict) or isinstance(given, WatchedLogs):
                return self._decided_in(callback, name, lambda: hook(*args, **kwargs))
            logs = WatchedLogs(given, private, lambda name: self.note(callback, name))
            if "logs" in kwargs:
                kwargs["logs"] = logs
            else:
                args = (*args[:-1], logs)
            before = dict(given)
            try:
                return self._decided_in(callback, name, lambda: self._written_by(hook, args, kwargs, before, logs))
            finally:  # what a callback writes is seen by those after it
                given.clear()
                given.update(logs.unread())

        call.__wrapped__ = hook  # type: ignore[attr-defined]
        return call

    def _swapped(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook of a callback that swaps the weights: between two of them nothing else may change them."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._stepped is None:
                return hook(*args, **kwargs)
            self._differed |= self._moments.seen().weights != self._stepped.weights
            found = hook(*args, **kwargs)
            self._stepped = self._stepped._replace(weights=self._moments.seen().weights)
            return found

        call.__wrapped__ = hook  # type: ignore[attr-defined]
        return call

    def _written_by(self, hook: Callable[..., Any], args: Any, kwargs: Any, before: Any, logs: WatchedLogs) -> Any:
        """Calls a hook; what it writes under the name of a public number, other callbacks take for one."""
        found = hook(*args, **kwargs)
        shown = ("learning_rate", "lr") if isinstance(self._running[-1], keras.callbacks.LearningRateScheduler) else ()
        for name, value in logs.unread().items():  # Keras' scheduler shows the rate there, which `_compare` sees
            if name not in shown and not self._private(name) and before.get(name, self) is not value:
                self.decided(f"wrote {name!r} into the logs, by which others may decide")
        return found

    def _decided_in(self, callback: Any, name: str, hook: Callable[[], Any]) -> Any:
        last, self._last = self._last, None
        before, self._touched[id(callback)] = self._moments.now(last if name in _OF_BATCHES else None), callback
        inside, self.inside = self.inside, 0  # a hook of a validation looks by itself
        self._running.append(callback)
        self._since.append(before)
        try:
            with self._histories.watched(vars(self._model).get("history")):
                found = hook()
        except BaseException:
            self.decided("ended fit by an exception")
            with contextlib.suppress(ValueError, LedgerError):
                self.compared()
            raise
        else:
            now = self._compare(self._since[-1])
            self._last = now if name in _OF_BATCHES else None
            return found
        finally:
            self._since.pop()
            self._running.pop()
            self.inside = inside
            self._hooks.look()  # this hook may have set others

    @property
    def running(self) -> bool:
        """Whether a hook of an unknown callback runs, or the body of a loop."""
        return bool(self._running)

    def _compare(self, before: Moment) -> Seen:
        """Notes what was decided since that moment. Returns: what the steps read now."""
        now, then = self._moments.compare(before, self.decided), before.seen
        moved, others = now.weights != then.weights, now.others != then.others
        if moved:
            self.decided("changed the weights")
            self._moved = True
            self._note(f"{self._whose()} changed the weights while fit ran, or the optimizer's state. {CHANGED}")
        elif others:
            self.decided("changed what the steps read")
        if moved or others:
            self._trained(now.others, then.others, self._whose())
            self._brought()
            if self._opened is not None and self._opened[:2] == then[:2]:
                self._opened = now
        return now

    def compared(self) -> None:
        """Notes what the hook, or the body of a loop, that runs has done so far: before a statement, or a file."""
        if self._since:
            before, self._since[-1] = self._since[-1], self._moments.now()
            self._compare(before)
        self._trained.ask()

    def stepped(self) -> None:
        """The last step of an epoch was made: until `over`, what is no hook runs, as a `test_step` or `evaluate`."""
        self._stepped, self._moved, self._differed = self._moments.seen(), False, False

    def over(self) -> None:
        """The validation of an epoch is over, and no hook of its end ran yet."""
        stepped, self._stepped, self._last = self._stepped, None, None
        if stepped is None:
            return
        now = self._moments.seen()
        if not self._moved and (self._differed or now.weights != stepped.weights):
            self._note(f"The weights changed in the validation, by a test_step of its own say. {CHANGED}")
            self._brought()
        if now.others != stepped.others:
            self._trained(now.others, stepped.others, "The validation, by a test_step say,")
            self._brought()

    def opened(self) -> None:
        """All that the steps read is paid for now, and is compared with this before the first of them."""
        self._opened = self._moments.seen() if self._callbacks else None

    def begins(self) -> None:
        """The first step is about to be made: something else than a hook, `set_model` say, may have run before it."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        now = self._moments.seen()
        if opened[:2] != now[:2]:
            self._brought()
        if opened.weights != now.weights:
            self._note(f"The weights changed before the first step, in a callback's set_model say. {CHANGED}")
        self._trained(now.others, opened.others, "Something before the first step, a callback's set_model say,")

    def look(self, anew: bool = False) -> None:
        """Hooks may have been set by what is no hook. `anew`: a step, as it is traced, shows that it reads more."""
        if anew:
            self._moments.look_anew()
            self._last = None
        self._hooks.look()

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Inside, a method of the model runs, which asks for what it needs, and may count as its steps do."""
        counted = self._moments.call() if not self.inside and (self._since or self._stepped) else None
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            if counted is not None:
                self._since[-1:] = [one._replace(seen=counted(one.seen)) for one in self._since[-1:]]
                self._stepped = self._stepped and counted(self._stepped)

    # A loop of the caller's own, which runs where no callback does: it is watched as one between two of its steps ----

    def enter(self, loop: Any, over: bool = False) -> None:
        """From here on the body of this loop runs; what comes behind its last step, if it is `over`."""
        if over:
            self._shown()
        self._running[:] = [loop]
        self._read.setdefault(id(loop), {})
        self._since[:] = [self._moments.now()]
        self._body.enter_context(self._histories.watched(vars(self._model).get("history")))

    def leave(self) -> None:
        """From here on this library runs, until `enter`."""
        self._body.close()
        self._compare(self._since.pop())
        self._running.clear()
        self._hooks.look()

    def decided_by(self, one: Any, what: str) -> None:
        """Reports that the loop, or a callback whose hook is over, decided something, if it read a private number."""
        self._running[:] = [one]
        self.decided(what)
        with contextlib.suppress(ValueError, LedgerError):
            self.compared()
        self._since.clear()
        self._running.clear()

    def note(self, reader: Any, name: str) -> None:
        """A callback, or the body of a loop, read a private number, or records, called this."""
        if not self._read[id(reader)]:
            self._readers.append(reader)
        self._read[id(reader)].setdefault(name)

    def asked(self, name: str) -> None:
        """Whoever runs, a hook or the body of a loop, asked the model for numbers of the records, called this."""
        if self._running:
            self.note(self._running[-1], name)

    def logs(self, loop: Any, given: dict[str, Any]) -> WatchedLogs:
        """Logs for the body of the loop, which note what is read."""
        return WatchedLogs(given, self._private, lambda name: self.note(loop, name))

    def decided(self, what: str) -> None:
        """Reports that the callback whose hook runs decided something, if it has read a private number before, or may
        have it from another one that has.
        """
        if self._reported or not self._running or not self._readers:
            return
        callback, then = self._running[-1], " and"
        reader = callback if self._read[id(callback)] else self._reader_for(callback)
        if reader is None:
            return
        if reader is not callback:
            another = "another " if type(reader) is type(callback) else ""
            then = f", and {another}{type(callback).__name__ if is_callback(callback) else 'the loop'}"
        self._reported = True
        self._report(f"{named(reader)} read {', '.join(map(repr, self._read[id(reader)]))}{then} then {what}.")

    def _reader_for(self, callback: Any) -> Any:
        """One that read a private number and may leave it where this one finds it; None where none may.

        It takes milliseconds, and some decide at every step: then this is asked ever more seldom.
        """
        found: dict[int, Reach] = {}
        for reader in self._readers:
            self._compared[id(reader), id(callback)] = times = self._compared[id(reader), id(callback)] + 1
            if times <= _OFTEN or times & (times - 1) == 0:
                for one in (reader, callback):
                    if id(one) not in found:
                        loop = () if is_callback(one) else (body_of_loop(),)
                        found[id(one)] = Reach(None if loop else one, self._model, *loop)
                if passes(found[id(reader)], found[id(callback)]):
                    return reader
        return None

    def _whose(self) -> str:
        return named(self._running[-1] if self._running else None)
