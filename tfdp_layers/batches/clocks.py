"""Whether an input tells the time: hours, ages, days since a date. Then what records have in common is the clock's."""

import numpy as np

__all__ = ["is_clock"]

_ROWS, _MOST, _CHANNELS, _PERIODS = 64, 2048, 64, 512
"""Rows that are looked at, steps and numbers a step, the first ones, and how many periods are tried."""
_FEWEST = 6
"""Steps of which a wave is told."""
_NEAR, _ROUNDED, _JUMP = 1e-4, 16 * 2.0**-24, 0.8


def is_clock(array: np.ndarray, still: bool = True) -> bool:
    """Whether all numbers of a step move on as a clock does, in each row that is looked at.

    That is by one constant from step to step, also where it jumps back by about its range (the hour of a day); or as a
    pure wave, by sine and cosine of a time; or so that all comes again after some steps, twice at least. Calendars with
    holidays in them are not known.

    Args:
        array: (records, steps, ...), numbers.
        still: whether what never changes in a row, as a person's age at each step, is so, too.
    """
    if array.ndim < 2 or array.shape[1] < 3 or not array.size:
        return False
    rows = np.unique(np.linspace(0, len(array) - 1, _ROWS).astype(int))
    looked_at = array[rows, :_MOST].reshape(len(rows), min(array.shape[1], _MOST), -1)[:, :, :_CHANNELS]
    looked_at = looked_at.astype(np.float64)
    if looked_at.shape[2] > 1 and _one_of(looked_at):
        looked_at = looked_at.argmax(2)[:, :, None].astype(np.float64)
    if not still and (np.ptp(looked_at, axis=1) == 0.0).any():
        return False
    channels = [looked_at[:, :, place] for place in range(looked_at.shape[2])]
    return all(_moves_on(one) or _waves(one) for one in channels) or _comes_again(looked_at)


def _one_of(values: np.ndarray) -> bool:
    """Whether each step is one of several, as one-hot codes say: of the hours, say."""
    return bool(((values == 0.0) | (values == 1.0)).all() and (values.sum(2) == 1.0).all())


def _close_to(values: np.ndarray) -> float:
    """How far numbers that are rounded to float32 may be from what they were."""
    return _ROUNDED * float(np.abs(values).max()) + 1e-30


def _moves_on(values: np.ndarray) -> bool:
    steps, span, near = np.diff(values, axis=1), float(np.ptp(values)), _close_to(values)
    usual = float(np.median(steps))
    others = steps[np.abs(steps - usual) > near + _NEAR * abs(usual)]
    if not len(others):
        return True
    back = others * -np.sign(usual)
    return 2 * len(others) < steps.size and bool((back >= _JUMP * (span - abs(usual)) - near).all()) and usual != 0.0


def _waves(values: np.ndarray) -> bool:
    """Of a wave d_(t+1) + d_(t-1) = c d_t for its steps d, by one c a row."""
    if values.shape[1] < _FEWEST:
        return False
    steps = np.diff(values, axis=1)
    sums, middle = steps[:, 2:] + steps[:, :-2], steps[:, 1:-1]
    factors = (sums * middle).sum(1) / np.maximum((middle**2).sum(1), 1e-300)
    near = _NEAR * np.abs(steps).max(1) + 4 * _close_to(values)
    return bool((np.abs(sums - factors[:, None] * middle).max(1) <= near).all())


def _comes_again(values: np.ndarray) -> bool:
    near = _close_to(values)
    periods = range(2, min(_PERIODS, values.shape[1] // 2) + 1)

    def again(some: np.ndarray, period: int) -> bool:
        return bool((np.abs(some[:, period:] - some[:, :-period]) <= near).all())

    return any(again(values[:1], period) and again(values, period) for period in periods)
