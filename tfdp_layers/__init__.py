"""Differentially private training for Keras 3 on TensorFlow.

Public names are imported on first use, so that `tfdp_layers.accounting` and `tfdp_layers.sampling` never load
TensorFlow. `keras.models.load_model` finds the classes all the same: see `stand_ins`.
"""

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdp_layers._version import __version__ as __version__
from tfdp_layers.calls import explained
from tfdp_layers.stand_ins import stand_in_once_keras_is_imported

_HERE = Path(__path__[0]).absolute()
if (_HERE / "__init__.py").is_file() and not (_HERE / "accounting" / "__init__.py").is_file():
    from tfdp_layers import source_folder

    source_folder.find_all_here(__name__, _HERE)

stand_in_once_keras_is_imported()

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
    "plots": "plots",
    "preprocessing": "preprocessing",
    "rules": "rules",
    "sampling": "sampling",
    "tf_privacy": "tf_privacy",
    "tuning": "tuning",
}
_WITHOUT_KERAS_3 = {
    "accounting",
    "audit",
    "callbacks",
    "datasets",
    "federated",
    "plan",
    "plots",
    "sampling",
    "tf_privacy",
}
_NAMES = {
    "PrivateBatches": "batches.arrays",
    "declare_sampling": "batches.declared",
    "records": "batches.sources",
    "PrivateModel": "models.model",
    "PrivateSequential": "models.model",
    "make_private": "models.model",
    "load_model": "models.loading",
    "features": "models.features",
    "replace_batch_normalization": "models.replacement",
    "release_metric": "metrics",
    "plan": "accounting",
    "check_independence": "certificates.independence",
    "public": "certificates.constants",
    "SensitivityGroup": "sensitivity",
    "sensitivity_of": "sensitivity",
    "per_record_formulas": "per_record",
}

if TYPE_CHECKING:  # What type checkers see. A test compares it with the two tables above.
    from tfdp_layers import accounting as accounting
    from tfdp_layers import activations as activations
    from tfdp_layers import audit as audit
    from tfdp_layers import callbacks as callbacks
    from tfdp_layers import federated as federated
    from tfdp_layers import layers as layers
    from tfdp_layers import noise as noise
    from tfdp_layers import optimizers as optimizers
    from tfdp_layers import plots as plots
    from tfdp_layers import preprocessing as preprocessing
    from tfdp_layers import rules as rules
    from tfdp_layers import sampling as sampling
    from tfdp_layers import tf_privacy as tf_privacy
    from tfdp_layers import tuning as tuning
    from tfdp_layers.accounting import plan as plan
    from tfdp_layers.batches.arrays import PrivateBatches as PrivateBatches
    from tfdp_layers.batches.declared import declare_sampling as declare_sampling
    from tfdp_layers.batches.sources import records as records
    from tfdp_layers.certificates.constants import public as public
    from tfdp_layers.certificates.independence import check_independence as check_independence
    from tfdp_layers.metrics import release_metric as release_metric
    from tfdp_layers.models.features import features as features
    from tfdp_layers.models.loading import load_model as load_model
    from tfdp_layers.models.model import PrivateModel as PrivateModel
    from tfdp_layers.models.model import PrivateSequential as PrivateSequential
    from tfdp_layers.models.model import make_private as make_private
    from tfdp_layers.models.replacement import replace_batch_normalization as replace_batch_normalization
    from tfdp_layers.per_record import per_record_formulas as per_record_formulas
    from tfdp_layers.sensitivity import SensitivityGroup as SensitivityGroup
    from tfdp_layers.sensitivity import sensitivity_of as sensitivity_of
    from tfdp_layers.zoo import datasets as datasets
else:  # What runs: names are imported on first use. Type checkers may not see it, or every name would be there, as Any.
    __all__ = ["__version__", *_MODULES, *_NAMES]

    def __getattr__(name: str) -> Any:
        if name in (_NAMES.keys() | _MODULES.keys()) - _WITHOUT_KERAS_3:
            importlib.import_module("tfdp_layers.structure")  # says what is missing, where Keras is too old
        if name in _NAMES:
            return explained(getattr(importlib.import_module(f"tfdp_layers.{_NAMES[name]}"), name))
        if name in _MODULES:
            return importlib.import_module(f"tfdp_layers.{_MODULES[name]}")
        raise AttributeError(f"module 'tfdp_layers' has no attribute {name!r}{_elsewhere(name)}")

    def _elsewhere(name: str) -> str:
        """Where a public name is that was looked for at the top."""
        for module in _MODULES if name[:1] != "_" else ():
            with contextlib.suppress(Exception):  # one whose packages are not installed
                if name in importlib.import_module(f"tfdp_layers.{_MODULES[module]}").__all__:
                    return f". It is in tfdp_layers.{module}: tfdp.{module}.{name}"
        return ""

    def __dir__() -> list[str]:
        return sorted(__all__)
