"""The strongest attack on a stream of correlated noise: for audits of it."""

import numpy as np
from scipy import signal

__all__ = ["stream_scores"]


def stream_scores(released: np.ndarray, decay: float, places: np.ndarray, gap: int) -> np.ndarray:
    """Log-likelihood ratios, up to a shift and a factor, that each of several records took part in a training.

    Each record adds a known direction of its own to the steps place, place + gap, ..., as `Cyclic` sampling with a gap
    of ceil(examples / batch_size) draws it. The attack takes the correlation of the noise off, y_t = x_t + decay
    y_{t-1}, which leaves independent noise and the record's shift v_t = sum of decay^(t - s) over its visits s <= t; by
    Neyman and Pearson no score is better than sum_t v_t y_t.

    Args:
        released: (steps, records), what each step released along each record's direction.
        decay: of the noise; 0 attacks as if it were independent.
        places: (records,), the step of the first visit.
        gap: steps between two visits.

    Returns: (records,) float64, in units in which independent noise of standard deviation 1 scores with 1.
    """
    steps = len(released)
    visits = (np.arange(steps)[:, None] >= places) & ((np.arange(steps)[:, None] - places) % gap == 0)
    undone = signal.lfilter([1.0], [1.0, -decay], np.asarray(released, np.float64), axis=0)
    shifts = signal.lfilter([1.0], [1.0, -decay], visits.astype(np.float64), axis=0)
    return np.asarray((undone * shifts).sum(0) / np.sqrt((shifts**2).sum(0)))
