"""A small stack of layers of feedback alignment, and its gradients for given records and errors."""

import numpy as np
import tensorflow as tf

from helpers.certify import Release, built
from tfdp_layers.layers import FeedbackStack

FEATURES, UNITS, CLASSES = 5, (6, 4), 3
ALIGNMENTS = ("direct", "sequential")


def stack(**options) -> FeedbackStack:
    defaults = {"activation": "sigmoid", "activation_clip": (1.5, 0.7, 0.9), "error_clip": 0.3, "feedback_seed": 1}
    return built(FeedbackStack(list(UNITS), output_units=CLASSES, **(defaults | options)), (FEATURES,))


def releaser(layer, group: int | None = None, mode: str = "eager") -> Release:
    """(x, e) -> summed gradients of the stack's weights (or of one of its groups) when the error at the logits is e."""
    variables = layer.trainable_variables if group is None else layer.weight_groups()[group].variables

    def sums(x, e):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) * e)
        return tape.gradient(loss, [v.value for v in variables])

    compiled = sums if mode == "eager" else tf.function(sums, autograph=False, jit_compile=mode == "xla")
    return lambda x, e: [np.asarray(g, np.float64) for g in compiled(tf.constant(x), tf.constant(e))]
