"""What the wrapped optimizer gets: released gradients, those of public rows, and terms of the weights alone."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.noise import numbers_of
from tfdp_layers.sensitivity import SensitivityGroup

__all__ = ["gradients_of"]


def gradients_of(
    optimizer: Any,
    means: list[Any],
    variables: Sequence[Any],
    groups: Sequence[SensitivityGroup],
    batch_size: int,
    weight_terms: Callable[[], Sequence[tf.Tensor | None]] | None,
    public_sums: Callable[[], Sequence[tf.Tensor]] | None,
) -> list[Any]:
    """Their sums, aligned with the variables: see `PrivateOptimizer.release`.

    Args:
        means: released: of the variables, then of the groups without any.
    """
    public: list[Any] = [None] * len(variables)
    if public_sums is not None:  # before `after_noise` moves the state that bounded them
        shown = [tf.cast(total, tf.float32) / batch_size for total in public_sums()]
        public = optimizer.in_units(shown, variables, groups)
    with tf.control_dependencies(numbers_of([*means, *public])):
        gradients = optimizer.after_noise(means[: len(variables)], means[len(variables) :], variables, groups)
    for extra in (public, weight_terms() if weight_terms else [None] * len(variables)):
        pairs = zip(gradients, extra, strict=True)
        gradients = [one if term is None else tf.convert_to_tensor(one) + term for one, term in pairs]
    return gradients
