"""How far the gradients of a private training can stand out of its noise."""

import math

__all__ = ["signal_to_noise"]


def signal_to_noise(noise_multiplier: float, batch_size: int, steps: int, weights: int) -> float:
    """The most that the gradients of a whole training can stand out of its noise: sqrt(T) B / (z sqrt(d)).

    In units in which a record's contribution to a step has norm at most 1, the sum over a batch of B records has norm
    at most B, and T of them at most T B, if all records pull one way in every step. The noise of a step has norm about
    z sqrt(d) for d weights, and that of T steps adds up to z sqrt(T d).

    Real gradients pull in many directions, and reach a small part of that. At a given epsilon it depends on the number
    of records and of weights, and hardly on B and T: z is about in proportion to sqrt(T) B.

    Returns: infinity without noise.
    """
    noise = noise_multiplier * math.sqrt(max(1, weights))
    return math.sqrt(max(1, steps)) * batch_size / noise if noise else math.inf
