"""One hostile record among ordinary ones, for a model of any inputs and outputs, and what it adds to the sums."""

import keras
import numpy as np

from helpers.certify import HOSTILE, extreme
from helpers.private_models import sizes, sums_of

FURTHER = (
    (("equal", 1.0), ("equal", 1.0)),
    (("equal", 1e6), ("cancelling", 1e6)),
    (("equal", 1e18), ("equal", 1e-19)),  # whose squares are not numbers, or zero, when the product is harmless
    (("equal", 1e-19), ("equal", 1e18)),
    (("normal", 1e30), ("normal", 1e-30)),
    (("normal", 1e-20), ("normal", 1e20)),
)


OTHERS = 3


def leaf(tensor, kind, scale, rng, count=1):
    """Rows for one input or output of a model: hostile where a kind says so, ordinary otherwise."""
    shape = (count, *tensor.shape[1:])
    if tensor.dtype in ("int32", "int64"):  # any tokens, or all of them the same
        return rng.integers(0, 4, shape) if kind in ("normal", "ordinary") else np.full(shape, 1)
    if tensor.dtype == "bool":
        return rng.random(shape) < 0.7
    if kind == "ordinary":
        return rng.normal(size=shape).astype(np.float32)
    return extreme(kind, scale, shape[1:], rng)[None]


def hostile_batches(model):
    """Yields (x, y) of one hostile record behind ordinary ones."""
    rng = np.random.default_rng(3)
    ends = model.inputs, model.outputs
    ordinary = [[leaf(t, "ordinary", 1.0, rng, OTHERS) for t in tensors] for tensors in ends]
    for kinds in (*HOSTILE, *FURTHER):
        hostile = [[leaf(t, *kind, rng) for t in tensors] for tensors, kind in zip(ends, kinds, strict=True)]
        joined = keras.tree.map_structure(lambda *rows: np.concatenate(rows), ordinary, hostile)
        yield tuple(side[0] if len(side) == 1 else side for side in joined)


def influences(model, mode: str = "graph") -> list[float]:
    """Of each hostile record, over its bound: what it adds to the sums alone (among padding), and joining others."""
    groups, variables, sums = model.sensitivities(), model.trainable_variables, sums_of(model, mode)
    record = np.array([0.0] * OTHERS + [1.0], np.float32)
    found, without = [], None
    for x, y in hostile_batches(model):
        if without is None:
            without = sums(x, y, 1.0 - record)
        joined = sums(x, y, np.ones_like(record))
        moved = [a - b for a, b in zip(joined, without, strict=True)]
        found += [max(sizes(groups, variables, total).values()) for total in (sums(x, y, record), moved)]
    return found
