"""Accounting: what was released, what it costs, and how to state it. Imports no TensorFlow."""

from tfdp_layers.accounting.events import GroupNoise, Release, joint_noise_multiplier
from tfdp_layers.accounting.ledger import Ledger, LedgerError

__all__ = [
    "GroupNoise",
    "Ledger",
    "LedgerError",
    "Release",
    "joint_noise_multiplier",
]
