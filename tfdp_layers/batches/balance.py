"""Whether weights were counted from the private labels."""

from typing import Any

import numpy as np

from tfdp_layers.accounting.columns import by_design
from tfdp_layers.batches.records import classes_of
from tfdp_layers.caller import warn

__all__ = ["warn_of_balanced"]

_EQUAL = 1e-5  # relative: float32 rounds a hundred times finer, and whoever writes two digits counted nothing


def warn_of_balanced(y: Any, weights: Any, share: str) -> None:
    """Warns where classes weigh exactly inversely to how many of the records they have, whatever the common factor.

    Such weights are scikit-learn's 'balanced', or were counted alike: numbers of the private labels, without noise.
    Nothing is said where somebody chose how many records of each class there are, as for a study of 9 controls a case.

    Args:
        y: the labels, (records,) or (records, 1) class numbers, or one-hot; of anything else nothing is said.
        weights: (records,).
        share: how one class's is released before `fit`, for the advice: see `share_of`.
    """
    if not isinstance(y, np.ndarray) or not isinstance(weights, np.ndarray) or weights.shape != y.shape[:1]:
        return
    try:
        _, places, counts = np.unique(classes_of(y), return_inverse=True, return_counts=True)
    except ValueError:  # no classes
        return
    places = places.reshape(-1)
    least, most = np.full(len(counts), np.inf), np.zeros(len(counts))
    np.minimum.at(least, places, weights)
    np.maximum.at(most, places, weights)
    shares = least * counts
    inverse = (least == most).all() and np.ptp(shares) <= _EQUAL * shares.max()
    if inverse and counts.min() < counts.max() and not by_design(counts):
        warn(
            "The classes weigh exactly inversely to how many records each has: such weights (scikit-learn's 'balanced',"
            " say) are counted from the private labels, without noise, and no epsilon covers them. Take the classes'"
            f" shares from elsewhere; or release them before fit, by {share} say, and compute the weights from what it"
            " returns (docs/choosing.md, Rare classes). Where they come from elsewhere, nothing is lost."
        )
