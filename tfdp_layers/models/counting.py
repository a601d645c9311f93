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
                "The noise, a clip, a layer's trainable flag, or steps_per_execution was changed while fit runs: its"
                " certificate and the ledger state the earlier ones. Change it between two calls of fit."
            )
        workers = None if run.replicas is None else run.replicas.workers
        count, optimizer, broken = reserved(model, run, workers), model.optimizer, True
        optimizer.reserve(count)
        try:
            logs = step(iterator)
            broken = False
        finally:
            unused = optimizer.reserved()
            if unused:
                optimizer.reserve(0)
            # Where a step breaks off, weights may have moved before what it reserved was counted down; and another
            # worker may hold what the chief had released already.
            made = count if broken else count - unused
            if run.token is not None:
                model.ledger.settle(run.token, made)
            run.made[0] += made
            run.drawn[0] += int(model.steps_per_execution)
        if unused and run.replicas is not None:
            raise RuntimeError(
                "The replicas held slices of different draws, or one slice twice: that step released nothing. Call fit"
                " again; if it happens again, report it."
            )
        return logs

    return accounted


def reserved(model: Any, run: Any, workers: Any) -> int:
    """How many updates the next call of the step may make; they are in the ledger already: in the chief's."""
    if workers is not None and not workers.chief:
        return workers.number()
    try:
        # Past its limit the optimizer releases nothing, so no more than that is at stake.
        count = afforded(model, min(int(model.steps_per_execution), model.optimizer.releases_left()))
        refuse_gaps(run, count)
        model.ledger.reserve(run.token, count)
    except BaseException:
        if workers is not None:
            workers.abort()
        raise
    return count if workers is None else workers.number(count)


def refuse_gaps(run: Any, count: int) -> None:
    """Raises RuntimeError for updates after a gap, where their cost is that of consecutive ones.

    Of b batches an epoch, k consecutive updates are of ceil(k / b) epochs, in each of which a record is drawn once.
    Draws that were left out in between bring in more epochs than that.
    """
    if count and run.drawn[0] != run.made[0] and run.release.sampling.kind == "partition":
        raise RuntimeError(
            f"{run.drawn[0] - run.made[0]} of this fit's draws were left out, because a limit held, and it was raised"
            f" again: {run.release.sampling} is accounted for consecutive updates. Call fit again, which starts a fresh"
            " permutation, or draw by Poisson sampling."
        )


def afforded(model: Any, count: int) -> int:
    """How many of `count` updates the data set's budget affords; ends `fit` where they are the last."""
    more = model.ledger.affordable(model._privacy.require_run().token, count + 1)
    if more <= count and count:
        warnings.warn(
            f"The budget of the data set {model.ledger.dataset!r} affords {more} more updates: fit ends after them.",
            UserWarning,
            stacklevel=4,
        )
        model.stop_training = True
    return min(count, more)
