"""Private optimizers: wrappers that let a Keras optimizer see noisy, bounded gradients only."""

from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.noisy import NoisyOptimizer

__all__ = ["NoisyOptimizer", "PrivateOptimizer"]
