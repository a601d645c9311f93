"""Trainings that are trials of a search by KerasTuner: something must add up what they cost together."""

import os
import sys
from typing import Any

from tfdp_layers.accounting import Ledger
from tfdp_layers.callbacks.steering import flatten_callbacks, of_keras_tuner

__all__ = ["IN_SEVERAL", "in_several_processes", "refuse_uncounted_trials"]

IN_SEVERAL = (
    "KerasTuner's distributed search (KERASTUNER_ORACLE_IP is set) trains in several processes, and shows the best of"
    " all their trials. This process sees neither the trials of the others nor what they cost: each ledger would count"
    " its own part, and none the whole search. Search in one process, without KERASTUNER_ORACLE_IP,"
    " KERASTUNER_ORACLE_PORT and KERASTUNER_TUNER_ID; on several devices of one machine by"
    " tfdp.tuning.PrivateTuner(..., distribution_strategy=tf.distribute.MirroredStrategy()). On several machines make"
    " searches of their own, each in a folder of its own, one after the other with the file of one ledger."
)


def in_several_processes() -> bool:
    """Whether a search by KerasTuner that begins now is one of several processes, as KerasTuner itself finds out."""
    return "KERASTUNER_ORACLE_IP" in os.environ


def refuse_uncounted_trials(callbacks: Any, ledger: Ledger) -> None:
    """Raises ValueError where a tuner trains one model after the other and nothing adds up what they cost together."""
    if not any(of_keras_tuner(callback) for callback in flatten_callbacks(callbacks)):
        return
    # A search goes on after any error but those that KerasTuner calls fatal.
    fatal = getattr(getattr(sys.modules.get("keras_tuner"), "errors", None), "FatalValueError", ValueError)
    if in_several_processes():
        raise fatal(IN_SEVERAL)
    if ledger.dataset is None:
        raise fatal(
            "KerasTuner trains one private model a trial, and this one counts its own steps alone: the trials together"
            " cost far more than any of them states. Let them share one ledger and its budget:"
            " tfdp.tuning.PrivateTuner(oracle, build, ledger=tfdp.accounting.Ledger('ledger.json', dataset='name',"
            " budget=(epsilon, delta))). Cheaper, as it shows the best trial alone: tfdp.tuning.random_search."
        )
