"""How far the gradients of a private training can stand out of its noise."""

import math

from tfdp_layers.sampling.correlated import Correlated

__all__ = ["signal_to_noise"]


def signal_to_noise(
    noise_multiplier: float, batch_size: int, steps: int, weights: int, correlated: Correlated | None = None
) -> float:
    """The most that the gradients of a whole training can stand out of its noise: sqrt(T) B / (z sqrt(d)).

    In units in which a record's contribution to a step has norm at most 1, the sum over a batch of B records has norm
    at most B, and T of them at most T B, if all records pull one way in every step. The noise of a step has norm about
    z sqrt(d) for d weights, and that of T steps adds up to z sqrt(T d); correlated noise z_t - a z_{t-1} to z
    sqrt(d (1 + (1 - a)^2 (T - 1))).

    Real gradients pull in many directions, and reach a small part of that. At a given epsilon it depends on the number
    of records and of weights, and hardly on B and T: z is about in proportion to sqrt(T) B.

    Returns: infinity without noise.
    """
    noise, steps = noise_multiplier * math.sqrt(max(1, weights)), max(1, steps)
    added = steps if correlated is None else 1.0 + (1.0 - correlated.number) ** 2 * (steps - 1)
    return steps * batch_size / (noise * math.sqrt(added)) if noise else math.inf
