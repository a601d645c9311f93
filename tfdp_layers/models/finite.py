"""Ends a `fit` whose weights are no numbers any more."""

from typing import Any

import keras
import tensorflow as tf


class Diverged(FloatingPointError):  # noqa: N818 (named as what happened)
    """Weights are NaN or infinite: a fact of released values, and of no record."""


class FiniteWeights(keras.callbacks.Callback):
    """Looks at the weights after every epoch. They are released values: looking, and stopping by them, costs nothing.

    It comes before callbacks that write checkpoints, so that these keep the last good one.

    Raises: FloatingPointError from `fit` where a weight is NaN or infinite.
    """

    # Before all that do not add to the logs.
    adds_to_logs = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises Diverged, see the class."""
        broken = [v.path for v in self.model.trainable_variables if not is_finite(v)]
        if broken:
            named = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
            raise Diverged(
                f"After epoch {epoch + 1} these weights are NaN or infinite: {named}. No further step can mend them, so"
                f" fit ends; the {self.model.ledger.steps} releases in the ledger are spent. Lower the learning rate,"
                " or bound what grows (activations, normalization), and start again from finite weights: those of a"
                " checkpoint, or fresh ones."
            )


def is_finite(variable: Any) -> bool:
    """Whether all numbers of a variable are finite."""
    value = tf.convert_to_tensor(variable.value)
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))
