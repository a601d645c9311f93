"""What is said of weights that are kept while a training runs: which of them are kept may depend on how it goes on."""

import math
import os
import sys
from dataclasses import dataclass
from typing import Any

import keras

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.choice import Counted, kept_in_the_middle, with_planned
from tfdp_layers.callbacks.steering import flatten_callbacks, is_unknown, of_keras_tuner
from tfdp_layers.caller import warn

__all__ = ["Kept", "kept_of", "warn_of_earlier_best"]

_CHOSEN = (
    "These weights were kept as the best of a training, after {made} of its {planned} steps. Which are the best depends"
    " on all its steps, so all are counted here that it planned and its budget allowed: too many if it ended earlier."
    " Where a later training went on with this file, the choice depends on that one, too: see the ledger of the model"
    " that it ended with."
)
_MIDDLE = (
    "These weights were {kept} while a training ran, after {made} of its {planned} steps. If how the training went on"
    " decided which were kept, as for the best of them, the choice costs what the whole training did: see the ledger of"
    " the model that it ended with."
)


@dataclass(frozen=True)
class Kept:
    """What goes with weights that are saved.

    Attributes:
        ledger: what they cost.
        counted: what that counts though it was not released yet; None without any.
        notes: what statements say besides.
    """

    ledger: Ledger
    counted: Counted | None = None
    notes: tuple[str, ...] = ()


def kept_of(run: Any, ledger: Ledger, *, copied: bool = False) -> Kept:
    """What goes with weights that whoever called this saves, or copies.

    The best weights of a training are a function of all its releases: that a file still holds the first ones says that
    none of the later ones were better. So a file of Keras' or KerasTuner's callbacks that keep the best counts what
    the training plans. Of other files and copies nobody sees whether they are chosen: a note says what that would cost.

    Args:
        run: the `Run` of the training that goes on; None outside of one.
        copied: says that it is a copy in memory.
    """
    if run is None or run.plan is None:
        return Kept(ledger)
    steps = {"made": f"{run.made:,}", "planned": f"{run.plan.steps:,}"}
    keepers = callbacks_here()
    if any(map(keeps_best, keepers)) and run.token is not None and not copied:
        chosen, counted = with_planned(ledger, run.token, run.plan.steps - run.made, _CHOSEN.format(**steps))
        return Kept(chosen, counted)
    if run.made >= run.plan.steps:
        return Kept(ledger)
    if keepers and all(map(is_backup, keepers)) and not backed_up_by_others():
        return Kept(ledger)  # whoever goes on from it makes the other steps
    return Kept(kept_in_the_middle(ledger), None, (_MIDDLE.format(kept="copied" if copied else "saved", **steps),))


def warn_of_earlier_best(callbacks: Any) -> None:
    """Warns of checkpoints that go on from an earlier training's best: its file may stay because of this training."""
    for callback in flatten_callbacks(callbacks):
        path, best = str(getattr(callback, "filepath", "")), _number(getattr(callback, "best", None))
        if getattr(callback, "save_best_only", False) is not True or not math.isfinite(best):
            continue
        if "{" not in path and not os.path.exists(path):
            continue
        weights, monitor = getattr(callback, "save_weights_only", False), getattr(callback, "monitor", "best")
        loaded = f"best.load_weights({path!r}) into another model" if weights else f"best = tfdp.load_model({path!r})"
        warn(
            f"{type(callback).__name__} goes on from the best of an earlier training ({monitor} {best:.4g})."
            f" If {path} keeps what it holds, then because this fit found nothing better, and what it states lacks this"
            " fit. Train in one fit, or give each fit a checkpoint and a file of its own. Or count all of it before the"
            f" file goes out: {loaded}, best.ledger.merge(model.ledger), best.save{'_weights' * weights}({path!r})."
        )


def _number(best: Any) -> float:
    """What a callback keeps as its best; NaN for what is no number, as in callbacks of one's own."""
    try:
        return float(best)
    except (TypeError, ValueError):
        return math.nan


def keeps_best(callback: Any) -> bool:
    """Whether a callback writes weights over by others that are better."""
    if of_keras_tuner(callback):
        return getattr(callback, "objective", None) is not None
    return bool(getattr(callback, "save_best_only", False))


def is_backup(callback: Any) -> bool:
    """Whether a callback saves whatever a training has come to, as Keras does: one derived of it may choose."""
    return type(callback) is keras.callbacks.BackupAndRestore and not is_unknown(callback)


def backed_up_by_others() -> bool:
    """Whether a function that is no library's had a callback save: it may have chosen when."""
    calls = calls_here()
    frame = calls[-1].f_back if calls else None
    while frame is not None and isinstance(frame.f_locals.get("self"), keras.callbacks.CallbackList):
        frame = frame.f_back  # which may be one that others made
    return bool(calls) and top_of_frame(frame) not in ("keras", "tfdp_layers")


def callbacks_here() -> list[Any]:
    """The callbacks whose code called this, the innermost first."""
    return [frame.f_locals[frame.f_code.co_varnames[0]] for frame in calls_here()]


def calls_here() -> list[Any]:
    """The frames of the methods of callbacks, but for lists of them, that called this, the innermost first."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, keras.callbacks.Callback) and type(first) is not keras.callbacks.CallbackList:
            found.append(frame)
        frame = frame.f_back
    return found


def top_of_frame(frame: Any) -> str:
    """The package whose function a frame is of."""
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]
