"""The sums of tanh-filtered gradients by a loop over records, and the filter's scale, range and clip in these tests."""

import numpy as np

from helpers.ordinary import gradients_alone, length

SCALE, RANGE, CLIP = 0.7, 0.2, 0.9


def expected(model, x, y, clip=True):
    """One record at a time, in float64."""
    total = [np.zeros(v.shape) for v in model.trainable_variables]
    for gradients in gradients_alone(model, x, y):
        found = [SCALE * np.tanh(g / RANGE) for g in gradients]
        factor = min(1.0, CLIP / length(found)) if clip else 1.0
        total = [t + factor * f for t, f in zip(total, found, strict=True)]
    return total
