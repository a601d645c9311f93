"""One `fit` of a tensorflow-privacy model, and its step, counted."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdp_layers.accounting import BudgetExhausted, Release
from tfdp_layers.accounting.charging import check_ledger
from tfdp_layers.sampling.forks import refuse_fork
from tfdp_layers.tf_privacy.mechanism import Mechanism, mechanism_of

__all__ = ["CountedStep", "Run", "has_global_seed"]


@dataclass
class Run:
    """One `fit`: what each step releases, its place in the ledger, and how many steps were made of those planned.

    Attributes:
        limit: of all steps; past it none is made. None: no limit.
        outspent: whether its budget refuses steps that it had planned.
        begun: whether Keras' loop, and nothing else, makes the next step: see `Turns`.
        making: whether its counted step is being made now, or traced.
        process: that of `fit`.
    """

    mechanism: Mechanism
    release: Release
    token: str
    planned: int
    made: int = 0
    limit: int | None = None
    outspent: bool = False
    begun: bool = False
    making: bool = False
    process: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class CountedStep:
    """Keras' compiled step, in the ledger before it is made: a crash over-counts by one, never under."""

    step: Callable[[Any], Any]
    model: Any

    def __call__(self, iterator: Any) -> Any:
        run, ledger, outside = self.model._require_run(), self.model.ledger, self.model._tfdp_outside
        self._refuse_changed(run)
        check_ledger(ledger)  # a callback may have put a method on it
        last = ledger.exhausted(run.token, 1)
        if last is not None and run.made + 1 < run.planned:  # it affords this step and no other
            self.model.stop_training = True
            if last.token == run.token:  # the callback that brought it says so
                run.outspent, run.limit = True, run.made + 1
        outside.steps(self.model, run.made)
        ledger.reserve(run.token, 1)
        run.made += 1
        run.making = True
        try:
            return self.step(iterator)
        finally:
            run.making = False
            outside.stepped(self.model)

    def _refuse_changed(self, run: Run) -> None:
        """Raises RuntimeError unless `fit` calls it, with what the ledger states; BudgetExhausted past its limit."""
        refuse_fork(run.process, "A training goes on, with its draws and noise,", "Call fit in the other process.")
        begun, run.begun = run.begun, False
        if not begun:
            raise RuntimeError(
                "The compiled step was called by something other than the fit that runs: on which records, and how they"
                " were drawn, is unknown, and so is the cost. Let fit call it."
            )
        if mechanism_of(self.model) != run.mechanism:
            raise RuntimeError(
                "The noise, the clip or num_microbatches was changed while fit runs: the ledger states others."
            )
        if has_global_seed() and not run.release.seeded:
            raise RuntimeError(
                "tf.random.set_seed was called while fit runs: noise that is drawn by a seed is known, and the ledger"
                " states that it is not. Set seeds before fit, which the statement then says, or none."
            )
        if self.model.releases_left() == 0:
            raise BudgetExhausted("The budget affords no further step, and a callback went on. Nothing was released.")


def has_global_seed() -> bool:
    """Whether TensorFlow has a global seed, which repeats the noise."""
    return bool(tf.compat.v1.get_seed(None) != (None, None))
