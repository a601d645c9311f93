"""Ends a `fit` whose weights are no numbers any more, and warns before one whose weights cannot move."""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.caller import warn


class Diverged(FloatingPointError):  # noqa: N818 (named as what happened)
    """Weights are NaN or infinite: a fact of released values, and of no record."""


class FiniteWeights(keras.callbacks.Callback):
    """Looks at the weights after every epoch. They are released values: looking, and stopping by them, costs nothing.

    It comes before callbacks that write checkpoints, so that these keep the last good one. Before the first step it
    warns of decays that are 1 in the type of the weights: each step would cost its epsilon and move nothing.

    Raises: FloatingPointError from `fit` where a weight is NaN or infinite.
    """

    # Before all that do not add to the logs.
    adds_to_logs = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Warns, see the class."""
        inner = getattr(self.model.optimizer, "inner_optimizer", None)
        for dtype in sorted({keras.backend.standardize_dtype(v.dtype) for v in self.model.trainable_variables}):
            for name in rounded_to_one(inner, dtype):
                warn(
                    f"Weights of {dtype} will not move: {type(inner).__name__} computes with {name}="
                    f"{getattr(inner, name)} in their type, where that is 1, so each step costs its epsilon and changes"
                    " nothing. Keep weights in float32, by the policy 'mixed_bfloat16' in the place of 'bfloat16', or"
                    " take another optimizer: keras.optimizers.SGD."
                )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises Diverged, see the class."""
        broken = [v.path for v in self.model.trainable_variables if not is_finite(v)]
        if broken:
            named = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
            raise Diverged(
                f"After epoch {epoch + 1} these weights are NaN or infinite: {named}. No further step can make them"
                f" finite again, so fit ends; the {self.model.ledger.steps} releases in the ledger are spent. Lower the"
                " learning rate, or bound what grows (activations, normalization), and start again from finite weights:"
                " those of a checkpoint, or fresh ones."
            )


def rounded_to_one(inner: Any, dtype: str) -> list[str]:
    """Decays of an optimizer that corrects moments for their start by 1 - decay^step, which is 0 in this type."""
    if not hasattr(inner, "_momentums"):
        return []
    decays = {name: getattr(inner, name, None) for name in ("beta_1", "beta_2")}
    return [
        name for name, beta in decays.items() if isinstance(beta, float) and beta < 1.0 == float(tf.cast(beta, dtype))
    ]


def is_finite(variable: Any) -> bool:
    """Whether all numbers of a variable are finite."""
    value = tf.convert_to_tensor(variable.value)
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))
