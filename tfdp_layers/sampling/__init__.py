"""How the records of a step are drawn. A sampler owns its neighbouring relation, its cost and its draws."""

from tfdp_layers.calls import explain
from tfdp_layers.sampling.base import Sampling, entropy_generator
from tfdp_layers.sampling.samplers import (
    Cyclic,
    FixedSize,
    Partition,
    Poisson,
    TruncatedPoisson,
    drawing_all,
    is_sampler,
    sampling_from_json,
)

__all__ = [
    "Cyclic",
    "FixedSize",
    "Partition",
    "Poisson",
    "Sampling",
    "TruncatedPoisson",
    "drawing_all",
    "entropy_generator",
    "is_sampler",
    "sampling_from_json",
]

explain(globals(), __all__)
