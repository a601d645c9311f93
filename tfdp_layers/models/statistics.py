"""Constants of a model that are statistics of the very records that it is trained on."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdp_layers.caller import warn

__all__ = ["warn_of_statistics"]

_EXACT = 1e-5
"""Of a standard deviation, or of a share: constants from elsewhere miss by about one over the square root of the number
of records."""
_FEWEST, _ROWS = 20, 256


def warn_of_statistics(model: Any, inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
    """Warns where a normalisation has these records' own mean and variance, or an output's bias their class shares.

    Args:
        inputs, labels: the arrays of x and y, (records, ...); none where they are not looked at.
    """
    for own in model._flatten_layers():
        bias = getattr(own, "bias", None)
        if isinstance(own, keras.layers.Normalization) and _normalises(own, inputs):
            what = "mean and variance are those of these records"
            fix = "Take constants from elsewhere, or pay for them: tfdp.layers.PrivateNormalization (docs/data.md)"
        elif bias is not None and any(_log_odds(bias, one) for one in labels):
            what = "bias holds the log odds of the classes of these records"
            fix = "Let it begin at 0, or pay for a share first: tfdp.release_metric(y == 1, model.ledger, stddev=0.01)"
        else:
            continue
        warn(
            f"Layer {own.name!r} ({type(own).__name__}): its {what}, to the last digits that count. Those are numbers"
            f" of the private records without noise, and no epsilon covers them. {fix}. Where these come from"
            " elsewhere, nothing is lost."
        )
        return


def _normalises(layer: Any, inputs: Sequence[np.ndarray]) -> bool:
    given = getattr(layer, "input_mean", None), getattr(layer, "input_variance", None)
    if given[0] is None or given[1] is None:
        return False
    mean, variance = (np.asarray(one, np.float64).ravel() for one in given)
    for array in inputs:
        if len(array) < _FEWEST or array.dtype.kind not in "iuf":
            continue
        for axes in ((0,), tuple(range(array.ndim - 1)), None):  # of each entry, of the last axis, of all
            count = 1 if axes is None else int(np.prod([array.shape[k] for k in range(array.ndim) if k not in axes]))
            if count == len(mean) == len(variance):
                found, spread = _moments(array, axes)
                near = np.abs(found - mean) <= _EXACT * np.sqrt(spread + 1e-300)
                if near.all() and (np.abs(spread - variance) <= 2.0 * _EXACT * spread).all() and (spread > 0.0).any():
                    return True
    return False


def _moments(array: np.ndarray, axes: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance over the axes, 0 among them, in double precision, part by part."""
    mean = array.mean(axes, np.float64, keepdims=True)
    squares = 0.0
    for start in range(0, len(array), _ROWS):
        part = array[start : start + _ROWS] - mean
        squares = squares + np.square(part, out=part).sum(axes)
    return mean.ravel(), np.ravel(squares) * (mean.size / array.size)


def _log_odds(bias: Any, labels: np.ndarray) -> bool:
    """Whether a bias is the log odds of each label, or log p of the classes' shares and a number more."""
    numbers = np.asarray(bias, np.float64).ravel()
    if labels.ndim > 2 or len(labels) < _FEWEST or labels.dtype.kind not in "biuf" or not numbers.any():
        return False
    flat = labels.reshape(len(labels), -1)
    if flat.shape[1] == 1 < len(numbers):
        classes = np.unique(flat)
        if len(classes) > len(numbers) or not np.isin(classes, np.arange(len(numbers))).all():
            return False
        flat = flat == np.arange(len(numbers))
    if flat.shape[1] != len(numbers) or not np.isin(flat[: 1 << 12], (0, 1)).all():
        return False
    shares = flat.mean(0, np.float64)
    whole = np.exp(numbers - numbers.max())
    own = [1.0 / (1.0 + np.exp(-numbers)), whole / whole.sum()]
    return any((np.abs(one - shares) <= _EXACT * shares).all() and len(shares) > k for k, one in enumerate(own))
