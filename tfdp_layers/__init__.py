"""Differentially private training for Keras 3 on TensorFlow.

Public names are imported on first use, so that `tfdp_layers.accounting` and `tfdp_layers.sampling` never load
TensorFlow.
"""

import importlib
from pathlib import Path
from typing import Any

from tfdp_layers._version import __version__

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

_MODULES = {
    "accounting": "accounting",
    "activations": "activations",
    "audit": "audit",
    "callbacks": "callbacks",
    "datasets": "zoo.datasets",
    "federated": "federated",
    "layers": "layers",
    "noise": "noise",
    "optimizers": "optimizers",
    "rules": "rules",
    "sampling": "sampling",
}
_NAMES = {
    "PrivateBatches": "batches.arrays",
    "declare_sampling": "batches.declared",
    "PrivateModel": "models.model",
    "PrivateSequential": "models.model",
    "make_private": "models.model",
    "load_model": "models.loading",
    "release_metric": "metrics",
    "check_independence": "certificates.independence",
    "SensitivityGroup": "sensitivity",
    "sensitivity_of": "sensitivity",
    "per_record_formulas": "per_record",
}
__all__ = ["__version__", *_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"tfdp_layers.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"tfdp_layers.{_MODULES[name]}")
    raise AttributeError(f"module 'tfdp_layers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
