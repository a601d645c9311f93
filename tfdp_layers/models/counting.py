"""The compiled step, counted: reserved in the ledger before it runs, settled after."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.accounting.limits import Limit
from tfdp_layers.caller import warn
from tfdp_layers.models.run import PrivacyState, Run
from tfdp_layers.models.workers import Workers
from tfdp_layers.noise.masks import HiddenSeeds, secret_seeds
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.sampling.forks import refuse_fork
from tfdp_layers.sensitivity import SensitivityGroup

Step = Callable[[Any], Any]

ASKED_EVERY = 32
"""Calls: to ask a small network's settings takes 0.2 ms."""

_OTHER_PROCESS = "Call fit in the process that is to train, on a model made there: by multiprocessing's 'spawn'."

MOST_AHEAD = 32
"""Releases: a write takes a few tenths of a millisecond, or several on a slow disk."""


@dataclass(frozen=True)
class CountedStep:
    """A function of the iterator that reserves in the ledger what a compiled step may release, then runs it.

    A crash over-counts, never under: by the releases of one call, and in a ledger's file by `ahead_of` more. Where the
    compiled step raises, out of a record or the drawing of one perhaps, statements of the model say so.

    Args:
        _step: the compiled step, which makes `together` optimizer steps a call.
        together: Keras' `steps_per_execution`.
        state: of the model: its current run and its account.
        optimizer: of the model; it counts releases down.
        settings: what the certificate of a run would be made from now. What a compiled step does was settled as it was
            traced, and whatever is traced asks by itself: so here they are asked after code of the caller ran between
            two calls, and now and then.
        stop: ends `fit` after the current call.
        seeds: the variables that the layers draw random numbers from, but for those that `hidden` stands in for.
        hidden: what a step draws from in their place.
        numbers: the Python numbers of what follows the noise, by name: only a step may change them.
        eager: whether each step runs Python.

    Raises: RuntimeError if what the ledger states was changed meanwhile, or if the replicas did not hold one draw, or
        not the same weights.
    """

    _step: Step
    together: int
    state: PrivacyState
    optimizer: PrivateOptimizer
    settings: Callable[[Sequence[SensitivityGroup]], Hashable]
    stop: Callable[[], None]
    seeds: Sequence[Any] = ()
    hidden: HiddenSeeds | None = None
    numbers: Callable[[], dict[str, str]] = dict
    eager: bool = False

    def __call__(self, iterator: Any) -> Any:
        run, ledger = self.state.require_run(), self.state.ledger
        refuse_foreign_call(self.state, run, iterator)
        if self.state.watch is not None and not run.drawn:
            self.state.watch.begins()
        if due := is_due(self.state, run, self.together):
            self._refuse_changed(run)
        count, broken = self._reserved(run, ledger), True
        self.optimizer._reserve(count)
        try:
            with self._apart(run):
                self._level(run)
                with self._masked(run), self.optimizer._stepping():
                    logs = self._step(iterator)
            broken = False
        except Exception as error:  # of a record that it drew, perhaps
            self.state.broken_off(run, error, count)
            raise
        finally:
            unused = self.optimizer._reserved()
            if unused:
                self.optimizer._reserve(0)
            # Where a step breaks off, weights may have moved before what it reserved was counted down; and another
            # worker may hold what the chief had released already.
            made = count if broken else count - unused
            run.count(made, self.together, broken)  # before what may fail: weights may hold what was released
            if run.token is not None:
                ledger.settle(run.token, made)
            elif run.following is not None:
                run.following.settle(made)
        if unused and run.replicas is not None:
            raise run.replicas.unreleased()
        if due or self.eager:  # as the first one is, which is traced, and may count in Python
            run.numbers = self.numbers()
        return logs

    def _refuse_changed(self, run: Run) -> None:
        """Raises RuntimeError for what may not be another than in the call before; hooks that set it decide the end."""
        try:
            refuse_changed(run, self.settings)
            refuse_other_update(run, self.numbers())
            if run.replicas is not None:
                run.replicas.level()
        except Exception:
            if self.state.watch is not None:
                self.state.watch.refused()
            raise

    @contextlib.contextmanager
    def _masked(self, run: Run) -> Iterator[None]:
        """Inside, random layers draw from seeds that nobody knows; in a seeded run, which states so, from their own."""
        if self.hidden is not None:
            self.hidden.rekey()
        if run.release.seeded or not self.seeds:
            yield
            return
        scope: Any = contextlib.nullcontext if run.replicas is None else run.replicas.strategy.scope
        with secret_seeds(self.seeds, scope):
            yield

    def _apart(self, run: Run) -> contextlib.AbstractContextManager[None]:
        """Around what the workers compute together: where one fails in it, others may wait there, for no message."""
        workers: Workers | None = None if run.replicas is None else run.replicas.workers
        return contextlib.nullcontext() if workers is None else workers.apart()

    def _level(self, run: Run) -> None:
        """Before a call every worker holds the chief's numbers: its own callbacks may have changed some of them."""
        workers: Workers | None = None if run.replicas is None else run.replicas.workers
        if workers is None or workers.level() or workers.chief or run.levelled:
            return
        run.levelled = True
        warn(
            "This worker held other weights, or another state of the optimizer, than the chief, and goes on with the"
            " chief's. A callback that changes them (set_weights, a learning rate) decides on the chief alone; on other"
            " hardware they differ by rounding."
        )

    def _reserved(self, run: Run, ledger: Ledger) -> int:
        """How many releases the next call may make; they are in the ledger already: in the chief's, and its copies."""
        workers: Workers | None = None if run.replicas is None else run.replicas.workers
        if workers is not None and not workers.chief:
            assert run.following is not None
            count = workers.number(name="step")
            run.following.reserve(count)
            return count
        assert run.token is not None
        check_ledger(ledger)  # a callback may have put a method on it
        # Past its limit the optimizer releases nothing, so no more than that is at stake.
        wanted = min(self.together, self.optimizer.releases_left())
        refuse_gaps(run, wanted)
        last = ledger.exhausted(run.token, wanted)
        count = ledger.reserve(run.token, wanted, ahead_of(run), least=0)  # decides; all before looked ahead
        if wanted:
            self._end(run, ledger, wanted, count, last)
        return count if workers is None else workers.number(count, "step")

    def _end(self, run: Run, ledger: Ledger, wanted: int, count: int, last: Limit | None) -> None:
        """Ends `fit` where a budget affords no release after these `count`."""
        assert run.token is not None
        last = last or (ledger.exhausted(run.token) if count < wanted else None)
        run.explained |= last is not None or count < wanted or wanted == self.optimizer.releases_left()
        if last is not None and last.token != run.token:
            if run.plan is None or run.made + count < run.plan.steps:  # else it ends then anyhow
                warn(
                    f"{last.whose(run.token)} affords {count} more updates: fit ends after them.",
                )
            self.stop()
        elif count < wanted:  # before, it is left to the callback that brought the budget
            run.outspent = True
            self.optimizer.limit_releases(count)
            self.stop()


def is_due(state: PrivacyState, run: Run, together: int) -> bool:
    """Whether the settings are to be asked before the next call."""
    touched = state.watch is not None and state.watch.touched()
    return touched or run.looped or run.drawn // together % ASKED_EVERY == 0


def refuse_changed(run: Run, settings: Callable[[Sequence[SensitivityGroup]], Hashable]) -> None:
    """Raises RuntimeError unless a training's certificate would be made from the same settings now."""
    if settings(run.groups) != run.settings:
        raise RuntimeError(
            "The noise, a clip, a bound, a layer's trainable flag or seeds, which weights are trained (the flag of a"
            " weight, enable_lora, quantize), how TensorFlow rounds products (TensorFloat-32, auto_mixed_precision),"
            " whether it takes checks out of graphs (debug_stripper),"
            " run_functions_eagerly, jit_compile or steps_per_execution was changed while fit runs: its certificate and"
            " the ledger state the earlier ones. Change it between two calls of fit."
        )


@contextlib.contextmanager
def noted_end(state: PrivacyState, settings: Callable[[Sequence[SensitivityGroup]], Hashable]) -> Iterator[None]:
    """Around the steps of a training: notes where it ends early, also by an error that a hook or a loop raises.

    And where hooks behind its last step set what a further step would have refused.
    """
    try:
        yield
    except Exception:  # whoever interrupts it, or lets go of a generator, decides by nothing that was released
        state.ended()
        raise
    run, watch = state.run, state.watch
    if run is not None and watch is not None and watch.touched() and settings(run.groups) != run.settings:
        watch.refused("changed what is trained, or how")
    state.ended()


def is_foreign(state: PrivacyState | None, step: Any) -> bool:
    """Whether a training runs that another step than this is made for; hooks that set it decided the end.

    There is none before Keras made it; and while a model is written, which a hook may do, Keras takes it away.
    """
    run, watch = (None, None) if state is None else (state.run, state.watch)
    if state is None or run is None or step is state.step:
        return False
    inside = watch is not None and watch.running
    if step is None and (inside or not run.stepping):
        return False
    if watch is not None and not inside and watch.touched():
        watch.refused()
    return True


def refuse_other_update(run: Run, numbers: dict[str, str]) -> None:
    """Raises RuntimeError where Python numbers of what follows the noise are others than the last step left."""
    before = run.numbers
    if before is not None and numbers != before:
        names = sorted(name for name in {*before, *numbers} if before.get(name) != numbers.get(name))
        raise RuntimeError(
            f"{', '.join(map(repr, names))} of the wrapped optimizer or of its schedule was changed while fit runs, by"
            " something else than its steps: a compiled step keeps to what it was made with. Change it between two"
            " calls of fit."
        )


def refuse_anew(state: PrivacyState) -> None:
    """Raises RuntimeError where a step would be made again in the middle of a training, by a hook or a loop's body.

    The new one would be of what Python holds by now, which whoever asks for it may have set by private numbers.
    """
    run, watch = state.run, state.watch
    if run is not None and (run.drawn or (watch is not None and watch.running)):
        raise RuntimeError(
            "make_train_function was to make the step again while fit runs: of what layers and optimizers hold by now,"
            " and the training keeps to the step that it began with. Change what it is made of between two calls of"
            " fit."
        )


def ahead_of(run: Run) -> int:
    """How many releases a ledger's file may count ahead: 1% of the planned ones, and few in any case."""
    return 0 if run.plan is None else min(MOST_AHEAD, run.plan.steps // 100)


def refuse_foreign_call(state: PrivacyState, run: Run, iterator: Any) -> None:
    """Raises RuntimeError unless the running `fit`, or the loop of `private_run`, calls the step on its own draws.

    A callback, another thread, the body of a loop, a scheduler's function or a generator of validation data would step
    on rows that no sampler drew, charged as a draw.
    """
    refuse_fork(run.process, "A training goes on, with its draws and noise,", _OTHER_PROCESS)
    hooked = state.watch is not None and state.watch.running
    begun, run.begun = run.begun, run.begun and run.thread != threading.get_ident()
    if not begun or not (iterator is run.offered if run.looped else run.thread == threading.get_ident() and not hooked):
        raise RuntimeError(
            "The compiled step was called by something other than the training that runs: on which records, and how"
            " they were drawn, is unknown, and so is the cost. Let fit call it, or write run.step(batch) in the loop of"
            " model.private_run."
        )
    run.begun = False


def refuse_gaps(run: Run, count: int) -> None:
    """Raises RuntimeError for releases after a gap, where their cost is that of consecutive ones.

    Of b batches an epoch, k consecutive releases are of ceil(k / b) epochs, in each of which a record is drawn once.
    Draws that were left out in between bring in more epochs than that.
    """
    if count and run.drawn != run.made and run.release.sequential:
        raise RuntimeError(
            f"{run.drawn - run.made} of this fit's draws were left out, because a limit held, and it was raised"
            f" again: {run.release.sampling} is accounted for consecutive steps. Call fit again, which starts a pass"
            " over the data anew, or draw by Poisson sampling."
        )
