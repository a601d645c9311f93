"""The compiled step, counted: reserved in the ledger before it runs, settled after."""

import warnings
from collections.abc import Callable
from typing import Any


def counted(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of the iterator that reserves in the model's ledger what `step` may release, then runs it.

    A crash over-counts, never under.

    Raises: RuntimeError if what the ledger states was changed meanwhile, or if the replicas did not hold one draw.
    """

    def accounted(iterator: Any) -> Any:
        run = model._privacy.require_run()
        if model._settings(run.groups) != run.settings:
            raise RuntimeError(
                "The noise, a clip, or a layer's trainable flag was changed while fit runs: its certificate and the"
                " ledger state the earlier ones. Change it between two calls of fit."
            )
        ledger, optimizer = model.ledger, model.optimizer
        # Past its limit the optimizer releases nothing, so no more than that is at stake.
        count = afforded(model, min(int(model.steps_per_execution), optimizer.releases_left()))
        ledger.reserve(run.token, count)
        optimizer.reserve(count)
        try:
            logs = step(iterator)
        finally:
            unused = optimizer.reserved()
            if unused:
                optimizer.reserve(0)
            made = count - unused
            ledger.settle(run.token, made)
            run.made[0] += made
        if unused and run.replicas is not None:
            raise RuntimeError(
                "The replicas held slices of different draws, or one slice twice: that step released nothing. Call fit"
                " again; if it happens again, report it."
            )
        return logs

    return accounted


def afforded(model: Any, count: int) -> int:
    """How many of `count` updates the data set's budget affords; ends `fit` where they are the last."""
    more = model.ledger.affordable(model._privacy.require_run().token, count + 1)
    if more <= count and count:
        warnings.warn(
            f"The budget of the data set {model.ledger.dataset!r} affords {more} more updates: fit ends after them.",
            UserWarning,
            stacklevel=3,
        )
        model.stop_training = True
    return min(count, more)
