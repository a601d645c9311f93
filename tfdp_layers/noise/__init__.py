"""The Gaussian mechanism: how much noise, where its randomness comes from, and how steps share it."""

from tfdp_layers.noise.gaussian import (
    Allocation,
    add_noise,
    allocated_stddevs,
    as_correlated,
    check_allocation,
    stddevs_beside_statistics,
)
from tfdp_layers.noise.memory import NoiseMemory
from tfdp_layers.noise.sources import NoiseSource, SecureNoise, SeededNoise, as_noise_source
from tfdp_layers.sampling.correlated import Correlated

__all__ = [
    "Allocation",
    "Correlated",
    "NoiseMemory",
    "NoiseSource",
    "SecureNoise",
    "SeededNoise",
    "add_noise",
    "allocated_stddevs",
    "as_correlated",
    "as_noise_source",
    "check_allocation",
    "stddevs_beside_statistics",
]
