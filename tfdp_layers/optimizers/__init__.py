"""Optimizers that add noise before any Keras optimizer steps."""

from tfdp_layers.calls import explain
from tfdp_layers.optimizers.adadp import AdaDPOptimizer
from tfdp_layers.optimizers.base import PrivateOptimizer
from tfdp_layers.optimizers.clipped import ClippedOptimizer
from tfdp_layers.optimizers.filtered import TanhFilteredOptimizer
from tfdp_layers.optimizers.noisy import NoisyOptimizer

__all__ = ["AdaDPOptimizer", "ClippedOptimizer", "NoisyOptimizer", "PrivateOptimizer", "TanhFilteredOptimizer"]

explain(globals(), __all__)
