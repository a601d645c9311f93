"""What oracles of KerasTuner hold, and their folders: trials that the tuner's ledger paid for, and no others."""

import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.src import backend

from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.logs import is_private
from tfdp_layers.instances import shown
from tfdp_layers.models.trials import IN_SEVERAL, in_several_processes

__all__ = ["ELSEWHERE", "known_of", "note_paid", "refuse_private", "refuse_unpaid", "states_in", "trials_of"]

_paid: "weakref.WeakKeyDictionary[Any, tuple[str, dict[int, tuple[Any, Any]]]]" = weakref.WeakKeyDictionary()
"""Which ledger pays for the trials of an oracle: its name, and by their ids those trials with what they reported."""

ELSEWHERE = (
    "that this ledger did not pay for: its scores, which may carry no noise, would choose the next trials and be shown"
    " as this search's."
)
_SEARCHED = ("oracle.json", "trial_*/trial.json")
"""What KerasTuner writes beside the file of a tuner."""

_STATE = {"ledger", "ended_by_an_error", "released"}
"""What the file of a tuner holds; that of a plain one nothing."""


def trials_of(oracle: Any) -> list[Any]:
    """All trials that an oracle holds, or, once none of these runs, shows as the best.

    Raises: ValueError, fatal to a search, where this process cannot read them: then it does not know who paid for them.
        Whatever the oracle's own `get_best_trials` does, once all trials have scores.
    """
    if in_several_processes():
        raise keras_tuner.errors.FatalValueError(IN_SEVERAL)
    trials = getattr(oracle, "trials", None)
    if not isinstance(trials, Mapping):
        raise keras_tuner.errors.FatalValueError(
            f"The trials of this oracle cannot be read in this process: {shown(oracle)} has no dict `trials`. So nobody"
            " knows whether the ledger of this search paid for all of them, and the best one may be of another ledger."
            " Give an oracle that holds its trials itself, as each keras_tuner.Oracle does."
        )
    return [*trials.values(), *(one for one in _best_of(oracle, trials) if one.trial_id not in trials)]


def _best_of(oracle: Any, trials: Mapping[Any, Any]) -> list[Any]:
    """What an oracle with a `get_best_trials` of its own, which may ask another process, shows once no trial runs."""
    own = type(oracle).get_best_trials is not keras_tuner.Oracle.get_best_trials
    status = {one.status for one in trials.values()}
    if not own or not trials or status & {"IDLE", "RUNNING"}:
        return []
    try:
        return list(oracle.get_best_trials(oracle.max_trials))
    except Exception:
        if status == {"COMPLETED"}:
            raise
        return []  # of trials without a score it shows nothing to KerasTuner either


def states_in(folder: str, own: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The names and contents of the files in which tuners left what became of their searches.

    Where KerasTuner left neither an oracle nor a trial there was no search: other files are the user's own.

    Args:
        folder: of the project.
        own: the file of the tuner that asks, which is one whatever it holds, where it is there.
    """
    mine = [Path(own)] if backend.io.exists(own) else []  # as KerasTuner asks, before it reads it
    searched = any(found for pattern in _SEARCHED for found in Path(folder).glob(pattern))
    others = [one for one in Path(folder).glob("*.json") if one.is_file()] if searched else []
    for path in [*mine, *sorted({*others} - {Path(own)})]:
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            held = None
        if path in mine:
            yield path.name, held if isinstance(held, dict) else {}
        elif isinstance(held, dict) and set(held) <= _STATE:
            yield path.name, held


def known_of(oracle: Any, ledger: Ledger) -> dict[int, tuple[Any, Any]]:
    """By their ids, the trials of an oracle that this ledger pays for from now on, with what they reported."""
    if oracle not in _paid or _paid[oracle][0] != ledger.uid:
        _paid[oracle] = ledger.uid, {}
    return _paid[oracle][1]


def note_paid(oracle: Any, ledger: Ledger, trial: Any) -> None:
    """Notes that this ledger pays for a trial, and what that reported so far."""
    known_of(oracle, ledger)[id(trial)] = trial, trial.metrics.get_config()


def refuse_unpaid(oracle: Any, ledger: Ledger) -> None:
    """Raises ValueError, fatal to a search, for an oracle with trials, or scores of such, that are others than noted.

    So it does where its trials cannot be read. One that has only begun says nothing, where the oracle is this ledger's.
    """
    uid, known = _paid.get(oracle, ("", {}))
    mine = uid == ledger.uid

    def is_paid(trial: Any) -> bool:
        _, reported = known.get(id(trial), (None, None))
        begun = trial.status == "RUNNING" and not trial.metrics.metrics
        return mine and (begun or reported == trial.metrics.get_config())

    wrong = [one for one in trials_of(oracle) if not is_paid(one)]
    if wrong:
        raise keras_tuner.errors.FatalValueError(
            f"This oracle holds {len(wrong)} trials {ELSEWHERE} Make a new oracle."
        )


def refuse_private(objective: Any) -> None:
    """Raises ValueError, fatal to a search, for an oracle's objective that is not of validation data."""
    names = [str(one.name) for one in getattr(objective, "objectives", [objective])]
    if any(is_private(name, validated=True, posing=False) for name in names):
        raise keras_tuner.errors.FatalValueError(
            f"The oracle's objective must be a metric of validation data, which are public, such as 'val_accuracy'."
            f" Received: {names}. A number of the training data carries no noise: choosing by it would leak."
        )
