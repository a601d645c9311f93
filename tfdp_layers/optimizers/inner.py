"""The ordinary Keras optimizer that a private one wraps, and what else an optimizer keeps for good."""

from collections.abc import Mapping
from typing import Any

import keras

from tfdp_layers.instances import refuse_class
from tfdp_layers.optimizers.learning_rate import LearningRate


class Wrapper:
    """Mixin for private optimizers: attributes that bounds and noise were made from, and what is wrapped, stay sound.

    A bound is a frozen value, noise goes on where it was left: another number beside them would be ignored, and files
    of the optimizer would hold it.
    """

    _FIXED: tuple[str, ...] = ()
    """Attributes that are assigned once."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises AttributeError for a fixed attribute, ValueError for an optimizer that cannot be wrapped."""
        self._refuse_fixed(name)
        if name == "inner_optimizer":
            value = inner_optimizer(value)
            refuse_wrapped(value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Raises AttributeError for a fixed attribute: it could be assigned then."""
        self._refuse_fixed(name)
        super().__delattr__(name)

    def _refuse_fixed(self, name: str) -> None:
        if name in self._FIXED and name in vars(self):
            kind = type(self).__name__
            raise AttributeError(
                f"{kind}.{name} stays what the optimizer was made with: bounds and noise follow that. Make another"
                f" optimizer, and compile with it: model.compile(tfdp.optimizers.{kind}(...), loss=...)."
            )


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
_REFUSED_INSIDE = {
    "gradient_accumulation_steps": "The unit of accounting is the update of one drawn batch. Draw larger batches, and"
    " split them with fit(..., physical_batch_size=64).",
    "loss_scale_factor": "It would scale losses before their gradients are bounded. Leave it out.",
}
"""What `refuse_wrapped` refuses of an optimizer, so that it is not advised."""


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
    for name in _REFUSED_INSIDE:
        if name in given:
            raise TypeError(
                f"{wrapper} has no argument {name}, and wraps no optimizer that has it. {_REFUSED_INSIDE[name]}"
            )
    if given:
        names, cls = ", ".join(sorted(given)), type(inner).__name__
        example = ", ".join(f"{name}=..." for name in sorted(given))
        raise TypeError(
            f"{wrapper} has no argument {names}. What the wrapped optimizer takes is given to it:"
            f" {wrapper}(keras.optimizers.{cls}({example}))."
        )


def refuse_wrapped(inner: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for a wrapped optimizer that is private, or would look at, or add up, unnoised gradients."""
    name = type(inner).__name__
    if isinstance(inner, Wrapper):
        raise ValueError(
            f"{name} is private already: noise added twice is no more private. Wrap a plain Keras optimizer."
        )
    if isinstance(inner, getattr(keras.optimizers, "MultiOptimizer", ())):  # of newer versions of Keras
        raise ValueError(
            f"{name} has several optimizers inside, each with its own rate and state, which are not followed. Wrap one"
            " of them for all weights. Or train by one after the other: freeze the layers of the others"
            " (layer.trainable = False), compile with a private optimizer around this one, and fit; the ledger adds up"
            " both."
        )
    if isinstance(inner, keras.optimizers.LossScaleOptimizer) or inner.loss_scale_factor is not None:
        raise ValueError(
            f"{name} scales losses and decides on un-noised sums whether to step. Wrap the plain optimizer."
        )
    if inner.gradient_accumulation_steps:
        raise ValueError(
            f"{name} has gradient_accumulation_steps={inner.gradient_accumulation_steps}."
            f" {_REFUSED_INSIDE['gradient_accumulation_steps']}"
        )
