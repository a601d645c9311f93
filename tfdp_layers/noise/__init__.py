"""The Gaussian mechanism: how much noise, where its randomness comes from, and how steps share it."""

from tfdp_layers.calls import explain
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
from tfdp_layers.noise.sparsity import (
    SparsityPreserving,
    add_noise_to_selected,
    as_sparsity_preserving,
    mapped,
    numbers_of,
)
from tfdp_layers.sampling.correlated import Correlated

__all__ = [
    "Allocation",
    "Correlated",
    "NoiseMemory",
    "NoiseSource",
    "SecureNoise",
    "SeededNoise",
    "SparsityPreserving",
    "add_noise",
    "add_noise_to_selected",
    "allocated_stddevs",
    "as_correlated",
    "as_noise_source",
    "as_sparsity_preserving",
    "check_allocation",
    "mapped",
    "numbers_of",
    "stddevs_beside_statistics",
]

explain(globals(), __all__)
