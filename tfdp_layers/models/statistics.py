"""Constants of a model that are statistics of the very records that it is trained on."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfdp_layers.accounting.columns import by_design
from tfdp_layers.batches.base import Batches
from tfdp_layers.caller import warn
from tfdp_layers.models.vocabularies import units_in, warn_of_vocabularies
from tfdp_layers.structure import is_container, outputs_of

__all__ = ["warn_of_statistics"]

_EXACT = 1e-5
"""Of a standard deviation, or of a share: constants from elsewhere miss by about one over the square root of the number
of records."""
_CLOSE = 0.015
"""Of such a miss: one constant in a hundred from elsewhere comes so close, a mean and its variance one in thousands."""
_SINGLE, _LARGEST = 1e-6, 1 << 26
_FEWEST, _ROWS = 20, 256
_FEW, _LEVELS, _ROUND, _UNEVEN = 3, 64, 100, 0.01


def warn_of_statistics(
    model: Any, inputs: Sequence[np.ndarray], labels: Sequence[np.ndarray], share: str = Batches.share
) -> None:
    """Warns where a normalisation has these records' own mean and variance, or an output's bias their class shares.

    Or where a `Discretization` has boundaries with equal shares of a column of theirs between them.

    So it does where a lookup layer has their own words: see `warn_of_vocabularies`.
    Nothing is said of what is known without looking at records: a bias whose entries are all equal, shares that
    somebody chose (as many of each class, round ones), and columns of a design (3 values or fewer, as many of each
    level, steps of one size, round mean and variance); nor of biases inside of the model.

    Args:
        inputs, labels: the arrays of x and y, (records, ...); none where they are not looked at.
        share: how one class's is released before `fit`, for the advice: see `share_of`.
    """
    warn_of_vocabularies(model, inputs, units_in(model))
    last = {id(one) for one in _last_layers(model)}
    for own in model._flatten_layers():
        bias = getattr(own, "bias", None) if id(own) in last else None
        if isinstance(own, keras.layers.Normalization) and _normalises(own, inputs):
            what = "mean and variance are those of these records"
            fix = "Take constants from elsewhere, or pay for them: tfdp.layers.PrivateNormalization (docs/data.md)"
        elif isinstance(own, keras.layers.Discretization) and _cuts_evenly(own, inputs):
            what = "boundaries are quantiles of these records"
            fix = "Take public ones (18.5, 25, 30), or pay for them: tfdp.preprocessing.quantiles (docs/data.md)"
        elif bias is not None and any(_log_odds(bias, one) for one in labels):
            what = "bias holds the log odds of the classes of these records"
            fix = f"Let it begin at 0, or pay for a share before fit: {share}"
        else:
            continue
        warn(
            f"Layer {own.name!r} ({type(own).__name__}): its {what}, to the last digits that count. Those are numbers"
            f" of the private records without noise, and no epsilon covers them. {fix}. Where these come from"
            " elsewhere, nothing is lost."
        )
        return


def _last_layers(model: Any) -> Iterator[Any]:
    """The last layers with weights on the way to each output, and those in them; all of a model without a graph."""
    try:
        ahead = [one._keras_history for one in keras.tree.flatten(outputs_of(model))]
    except (AttributeError, ValueError, TypeError):
        yield from model._flatten_layers()
        return
    seen: set[tuple[int, int]] = set()
    while ahead:
        own, node, _ = ahead.pop()
        if (id(own), node) in seen:
            continue
        seen.add((id(own), node))
        if not getattr(own, "weights", None):
            ahead += [one._keras_history for one in own._inbound_nodes[node].input_tensors]
        elif is_container(own):
            yield from _last_layers(own)
        else:
            yield from own._flatten_layers()


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
                exact = _estimated(mean, variance, found, spread, array.size // count)
                exact = exact or _computed_so(mean, variance, array, axes)
                round_ = np.all([np.abs(_ROUND * one - np.rint(_ROUND * one)) < 1e-3 for one in (mean, variance)], 0)
                own = (spread > 0.0) & ~round_
                if exact and any(not _designed(_part(array, axes, place)) for place in np.flatnonzero(own).tolist()):
                    return True
    return False


def _cuts_evenly(layer: Any, inputs: Sequence[np.ndarray]) -> bool:
    """Whether boundaries, most of them of five digits or more, have equal shares of a column between them, exactly."""
    given = getattr(layer, "bin_boundaries", None)
    cuts = np.asarray([] if given is None else given, np.float64).ravel()
    cuts = cuts[np.isfinite(cuts)]
    if len(cuts) < _FEW or sum(abs(one - float(f"{one:.4g}")) > _SINGLE * abs(one) for one in cuts) * 2 < len(cuts):
        return False
    shares = np.arange(1, len(cuts) + 1) / (len(cuts) + 1.0)
    for array in inputs:
        if len(array) < _FEWEST or array.dtype.kind not in "iuf" or array.size > _LARGEST:
            continue
        flat = array.reshape(len(array), -1)
        for column in (*flat.T[:_LEVELS], flat.ravel()):
            if abs(np.mean(column <= cuts[0]) - shares[0]) <= 2.0 / len(column):
                found = np.quantile(column.astype(np.float64), shares)
                if (np.abs(found - cuts) <= _SINGLE * np.abs(found)).all() and not _designed(column):
                    return True
    return False


def _estimated(mean: np.ndarray, variance: np.ndarray, found: np.ndarray, spread: np.ndarray, number: int) -> bool:
    """Whether these are the mean and variance of so many numbers: divided by their number or one less, rounded or not.

    A sample of the same people misses the mean by about sqrt(spread / number), the variance by sqrt(2 / number) of it.
    """
    close = max(_EXACT, _CLOSE / math.sqrt(number))
    if not (np.abs(found - mean) <= close * np.sqrt(spread + 1e-300)).all():
        return False
    close = max(2.0 * _EXACT, math.sqrt(2.0) * close)
    return any((np.abs(one - variance) <= close * one).all() for one in (spread, spread * number / (number - 1)))


def _computed_so(mean: np.ndarray, variance: np.ndarray, array: np.ndarray, axes: tuple[int, ...] | None) -> bool:
    """Whether NumPy gives these of single precision, whose sums over many rows are off by more than a sample's."""
    if array.dtype != np.float32 or array.size > _LARGEST:
        return False
    own = np.ravel(array.mean(axes))
    with np.errstate(all="ignore"):
        if not (np.abs(own - mean) <= _SINGLE * np.abs(own)).all():
            return False
        found = [np.ravel(array.var(axes, ddof=less)) for less in (0, 1)]
        return any((np.abs(spread - variance) <= _SINGLE * spread).all() for spread in found)


def _part(array: np.ndarray, axes: tuple[int, ...] | None, place: int) -> np.ndarray:
    """The numbers that one mean is of."""
    if axes is None:
        return array.ravel()
    flat = array.reshape(len(array), -1) if axes == (0,) else array.reshape(-1, array.shape[-1])
    return flat[:, place]


def _designed(column: np.ndarray) -> bool:
    """Whether a column holds 3 values or fewer, a few whose shares somebody chose, or a grid, each step as often."""
    levels, counts = np.unique(column, return_counts=True)
    if len(levels) >= _FEWEST and counts.min() == counts.max():
        steps = np.diff(levels.astype(np.float64))
        if np.ptp(steps) <= _UNEVEN * steps.mean():
            return True
    return len(counts) <= _FEW or (len(counts) <= _LEVELS and by_design(counts))


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
    if len(numbers) > 1 and np.ptp(numbers) <= _EXACT:
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
    if _chosen(np.rint(shares * len(flat)).astype(int), len(flat)):
        return False
    whole = np.exp(numbers - numbers.max())
    own = [1.0 / (1.0 + np.exp(-numbers)), whole / whole.sum()]
    return any((np.abs(one - shares) <= _EXACT * shares).all() and len(shares) > k for k, one in enumerate(own))


def _chosen(counts: np.ndarray, records: int) -> bool:
    """Whether somebody chose the shares of classes that exclude each other, or each of others."""
    if counts.sum() == records:
        return bool(by_design(counts[counts > 0]))
    return all(by_design(np.array([count, records - count])) for count in counts.tolist() if 0 < count < records)
