"""Differentially private training for Keras 3 on TensorFlow.

Public names are imported on first use, so that `tfdp_layers.accounting` and `tfdp_layers.sampling` never load
TensorFlow.
"""

import importlib
from pathlib import Path
from typing import Any

from tfdp_layers._version import __version__

_HERE = Path(__path__[0]).absolute()
if (_HERE / "__init__.py").is_file() and not (_HERE / "accounting" / "__init__.py").is_file():
    from tfdp_layers import source_folder

    source_folder.find_all_here(__name__, _HERE)

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
