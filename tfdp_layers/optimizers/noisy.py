"""The optimizer for layers that bound themselves."""

import keras

from tfdp_layers.optimizers.base import PrivateOptimizer


@keras.saving.register_keras_serializable(package="tfdp_layers")
class NoisyOptimizer(PrivateOptimizer):
    """Adds Gaussian noise to the gradients of layers that bound each record's influence in their backward pass.

    Formal guarantee: in each step, group g of weights gets noise of standard deviation z sqrt(G) S_g on its summed
    gradient, S_g being the group's bound and G the number of groups; jointly that is one Gaussian mechanism of noise
    multiplier z. The result is divided by the expected batch size and given to the wrapped optimizer.

    Args, Raises: see `PrivateOptimizer`.

    Example:
        optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(2e-3), noise_multiplier=1.3)

    Source: Stevens et al. 2022, arXiv:2202.05089, algorithm 2, with the layers of a step composed as one mechanism.
    """
