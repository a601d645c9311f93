"""The ordinary Keras optimizer that a private one wraps."""

from collections.abc import Mapping
from typing import Any

import keras

from tfdp_layers.instances import refuse_class
from tfdp_layers.optimizers.learning_rate import LearningRate


def inner_optimizer(given: Any) -> keras.optimizers.Optimizer:
    """A Keras optimizer, of an instance, a name or a config; "adam" and its like with the rate of `learning_rate`."""
    refuse_class(given, "The optimizer", otherwise=", or give its name: 'adam'")
    rate = LearningRate(given)
    found = rate.made(given) if rate.by_name else keras.optimizers.get(given)
    if found is None:
        raise ValueError(
            "A private optimizer wraps one of Keras, and got None. Give its name, 'adam' say, or an object."
        )
    return found


_CLIP = "The largest norm of a record's gradient is l2_norm_clip=1.0, say; left out, every gradient is brought to one."
_NOISE = "The noise over that norm is noise_multiplier=1.0, say; left out, fit finds it for its PrivacyBudget."
_ELSEWHERE = {
    **dict.fromkeys(("max_grad_norm", "clip_norm", "norm_clip", "l2_norm", "clip"), _CLIP),
    **dict.fromkeys(("noise_scale", "sigma", "noise_stddev", "stddev"), _NOISE),
    **dict.fromkeys(
        ("num_microbatches", "microbatches", "microbatch_size", "batch_size"),
        "Each record's own gradient is bounded; how many are computed at a time is fit(..., physical_batch_size=64).",
    ),
    **dict.fromkeys(
        ("target_epsilon", "target_delta", "delta", "budget"),
        "A budget is a callback of fit: callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=2.7, delta=1e-5)].",
    ),
}
"""What other libraries, or other parts of this one, call such an argument; `epsilon` is Adam's own."""


def refuse_options(given: Mapping[str, Any], wrapper: str, inner: keras.optimizers.Optimizer) -> None:
    """Raises TypeError for arguments that a private optimizer does not have: they may be the wrapped one's."""
    if "sparsity_preserving" in given:
        raise TypeError(
            f"{wrapper} does not select rows of embeddings: only ClippedOptimizer counts what each record looks up. Use"
            " tfdp.optimizers.ClippedOptimizer(..., sparsity_preserving=True), or leave it out."
        )
    for name, where in _ELSEWHERE.items():
        if name in given:
            raise TypeError(f"{wrapper} has no argument {name}. {where}")
    if given:
        names, cls = ", ".join(sorted(given)), type(inner).__name__
        example = ", ".join(f"{name}=..." for name in sorted(given))
        raise TypeError(
            f"{wrapper} has no argument {names}. What the wrapped optimizer takes is given to it:"
            f" {wrapper}(keras.optimizers.{cls}({example}))."
        )


def refuse_wrapped(inner: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for a wrapped optimizer that would look at, or add up, gradients before the noise."""
    name = type(inner).__name__
    if isinstance(inner, keras.optimizers.LossScaleOptimizer) or inner.loss_scale_factor is not None:
        raise ValueError(
            f"{name} scales losses and decides on un-noised sums whether to step. Wrap the plain optimizer."
        )
    if inner.gradient_accumulation_steps:
        raise ValueError(
            f"{name} has gradient_accumulation_steps={inner.gradient_accumulation_steps}: the unit of accounting is the"
            " update of one drawn batch. Draw larger batches, and split them with physical_batch_size."
        )
