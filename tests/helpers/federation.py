"""A server and parties of a few weights, and the uploads that break each of the server's rules."""

import numpy as np

from tfdp_layers.accounting import Ledger
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.selection import LargestValues, SparseVector, Update
from tfdp_layers.federated.server import Server

SIZE = 20
ALL = LargestValues(1.0)


def upload(indices, values) -> Update:
    return Update(np.array(indices, np.int64), np.array(values, np.float32))


def server_of(fraction: float = 0.2, bound: float = 1.0) -> Server:
    server = Server(np.arange(SIZE), fraction, bound)
    server.start_round()
    return server


def push(target: float):
    """A training that moves every weight towards `target`, by at most 0.1."""
    return lambda weights: weights + np.clip(target - weights, -0.1, 0.1)


BAD = {
    "NaN": (upload([1], [np.nan]), "not finite"),
    "infinity": (upload([1], [-np.inf]), "not finite"),
    "beyond the bound": (upload([1], [np.nextafter(np.float32(1), np.float32(2))]), r"outside \+-1"),
    "duplicates": (upload([1, 1], [0.1, 0.1]), "occurs twice"),
    "index too large": (upload([SIZE], [0.1]), "outside 0..19"),
    "index negative": (upload([-1], [0.1]), "outside 0..19"),
    "too many": (upload([1, 2, 3, 4, 5], [0.1] * 5), "at most 4"),
    "shapes differ": (upload([1, 2], [0.1]), "not one vector each"),
    "matrix": (upload([[1]], [[0.1]]), "not one vector each"),
    "float indices": (Update(np.array([1.0]), np.array([0.1], np.float32)), "int64"),
    "float64 values": (Update(np.array([1]), np.array([0.1])), "float32"),
    "objects": (Update(np.array([1]), np.array([None])), "float32"),
    "lists": (Update([1], [0.1]), "no arrays"),
    "nothing": (None, "no arrays"),
}


SPARSE = SparseVector(0.2, 1.0, 1.0, 0.5)  # 4 tests an upload


def private_party(train=push(1.0), path=None, budget=Budget(8.0, 1e-5), selection=SPARSE) -> Party:  # noqa: B008
    return Party("p", train, selection, np.zeros(SIZE), budget, Ledger(path))
