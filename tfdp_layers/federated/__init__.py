"""Distributed selective SGD: parties that do not share their data train one model. Importing it loads no TensorFlow."""

from tfdp_layers.calls import explain
from tfdp_layers.federated.keras_training import CompiledEpochs, KerasTraining, flat_weights, set_flat_weights
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector, Update
from tfdp_layers.federated.server import RefusedUpload, Server

__all__ = [
    "Budget",
    "CompiledEpochs",
    "KerasTraining",
    "LargestValues",
    "Party",
    "RandomAboveThreshold",
    "RefusedUpload",
    "Server",
    "SparseVector",
    "Update",
    "flat_weights",
    "run_round",
    "set_flat_weights",
]

explain(globals(), __all__)
