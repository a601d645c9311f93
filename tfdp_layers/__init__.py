"""Differentially private training for Keras 3 on TensorFlow.

Public names are imported on first use, so that `tfdp_layers.accounting` and `tfdp_layers.sampling` never load
TensorFlow. `keras.models.load_model` finds the classes all the same: see `stand_ins`.
"""

import importlib
from pathlib import Path
from typing import Any

from tfdp_layers._version import __version__
from tfdp_layers.stand_ins import stand_in_once_keras_is_imported

_HERE = Path(__file__).resolve().parent
if (_HERE.parent / "setup.cfg").exists() and not (_HERE / "accounting").exists():
    try:
        importlib.import_module("tfdp_layers.accounting")
    except ModuleNotFoundError as error:
        if error.name != "tfdp_layers.accounting":
            raise
        raise ImportError(
            f"tfdp_layers was imported from its source folder {_HERE}, which shadows the installed package:"
            " `accounting` and `callbacks` lie beside it there and only an installation maps them in. Run Python from"
            " another folder, or install with `pip install -e .`."
        ) from error

stand_in_once_keras_is_imported()

_MODULES = (
    "accounting",
    "activations",
    "audit",
    "callbacks",
    "federated",
    "layers",
    "noise",
    "optimizers",
    "rules",
    "sampling",
)
_NAMES = {
    "PrivateBatches": "batches",
    "declare_sampling": "declared",
    "PrivateModel": "model",
    "PrivateSequential": "model",
    "make_private": "model",
    "load_model": "model_file",
    "release_metric": "metrics",
    "check_independence": "independence",
    "SensitivityGroup": "sensitivity",
    "sensitivity_of": "sensitivity",
    "per_record_formulas": "per_record",
}
__all__ = ["__version__", *_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"tfdp_layers.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"tfdp_layers.{name}")
    raise AttributeError(f"module 'tfdp_layers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
