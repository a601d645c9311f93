"""Tuning that is paid for: settings are chosen by private trainings, and the ledger holds what the search costs."""

import importlib
from typing import TYPE_CHECKING, Any

from tfdp_layers.calls import explain, explained
from tfdp_layers.tuning.best_of import NumberOfTrials
from tfdp_layers.tuning.objective import NoisyMean
from tfdp_layers.tuning.search import Found, SearchFailed, random_search
from tfdp_layers.tuning.space import Choice, LogUniform, Uniform

if TYPE_CHECKING:
    from tfdp_layers.tuning.tuner import PrivateTuner as PrivateTuner
    from tfdp_layers.tuning.tuner import keras_tuner_space as keras_tuner_space

__all__ = ["Choice", "Found", "LogUniform", "NoisyMean", "NumberOfTrials", "SearchFailed", "Uniform", "random_search"]
explain(globals(), __all__)
_OF_KERAS_TUNER = ("PrivateTuner", "keras_tuner_space")


def __getattr__(name: str) -> Any:
    if name in _OF_KERAS_TUNER:
        return explained(getattr(importlib.import_module("tfdp_layers.tuning.tuner"), name))
    raise AttributeError(f"module 'tfdp_layers.tuning' has no attribute {name!r}")
