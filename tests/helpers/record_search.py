"""Looks for records that move the sums of a step by more than is stated: random networks, and records that climb.

A batch of records changes by one mutation at a time; a change stays where neither the worst record's influence nor the
difference to the records' own sums fell, in sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from helpers.certify import KINDS, SCALES, extreme
from helpers.layer_cases import CASES
from helpers.private_models import mixed, private, sizes, sums_of

Batch = list[np.ndarray]
"""The leaves of inputs and labels, each (records, ...)."""
METHODS = ("flat", "automatic", "per_layer")
MODES = ("graph", "graph", "graph", "graph", "xla")
ROUNDING = 1e-4
"""Of the bound: by how much sums of a few records may differ from those of the records alone."""
FINITE = tuple(kind for kind in KINDS if "nan" not in kind and "infinite" not in kind)


@dataclass
class Found:
    """What the worst batch of a search did.

    Attributes:
        influence: the largest |S(batch) - S(batch without a record)| over the bound of a group; infinite for NaN.
        mixing: the largest |S(batch) - sum of S(record)| over the bound.
        what: network, method and mode.
    """

    influence: float
    mixing: float
    what: str


def program(seed: int, cases: dict[str, Callable[[], Any]] | None = None) -> tuple[Any, str, str]:
    """(model, mode, what): a network of random weights under a random method."""
    rng = np.random.default_rng(seed)
    cases = cases or CASES | {"layers that bound themselves": lambda: (mixed(), None)}
    name, method = str(rng.choice(sorted(cases))), str(rng.choice(METHODS))
    method = "flat" if name == "layers that bound themselves" else method
    keras.utils.set_random_seed(seed)
    model = private(
        cases[name]()[0], method, *(() if method == "flat" else (None,) if method == "automatic" else (0.5,))
    )
    for variable in model.trainable_variables:
        scale = 2.0 ** rng.choice([0, 0, 0, 5, -5, 20, -20, 60])
        variable.assign(scale * rng.choice([rng.normal(size=variable.shape), np.ones(variable.shape)]))
    return model, str(rng.choice(MODES)), f"{name}, {method}"


def drawn(tensor: Any, rng: np.random.Generator) -> np.ndarray:
    """One record for an input or output of a model."""
    shape = tuple(tensor.shape[1:])
    if tensor.dtype in ("int32", "int64"):
        return rng.integers(0, 4, shape) if rng.random() < 0.5 else np.full(shape, rng.integers(0, 4))
    if tensor.dtype == "bool":
        return rng.random(shape) < rng.choice([0.0, 0.5, 1.0])
    kinds = KINDS if rng.random() < 0.1 else FINITE
    return extreme(str(rng.choice(kinds)), float(rng.choice(SCALES)), shape, rng)


def turned_back(leaves: Batch, inputs: int, i: int) -> None:
    """Half of a record's positions again, with opposite gradients from above: its terms cancel."""
    for place, leaf in enumerate(leaves):
        if leaf.ndim > 1:
            half = leaf.shape[1] // 2
            leaf[i, half : 2 * half] = leaf[i, :half] if place < inputs else -leaf[i, :half]
            leaf[i, 2 * half :] = 0


def mutated(batch: Batch, ends: list[Any], inputs: int, rng: np.random.Generator) -> Batch:
    """The batch with one record changed at some of its leaves, the first of which are inputs."""
    batch = [leaf.copy() for leaf in batch]
    i, j = rng.integers(0, len(batch[0]), 2)
    kind = rng.choice(["fresh", "scaled", "copied", "opposite", "repeated", "cancelled", "entry", "turned"])
    if kind == "turned":
        turned_back(batch, inputs, i)
        return batch
    for place in rng.permutation(len(batch))[: rng.integers(1, len(batch) + 1)]:
        leaf = batch[place]
        whole = not np.issubdtype(leaf.dtype, np.floating)
        if kind == "fresh":
            leaf[i] = drawn(ends[place], rng)
        elif kind in ("copied", "opposite"):
            leaf[i] = leaf[j] if whole or kind == "copied" else -leaf[j]
        elif leaf.ndim > 2 and kind in ("repeated", "cancelled"):
            first, second = rng.integers(0, leaf.shape[1], 2)
            leaf[i, first] = leaf[i, second] if whole or kind == "repeated" else -leaf[i, second]
        elif whole:
            leaf[i] = drawn(ends[place], rng)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                entry = (i, *(rng.integers(0, size) for size in leaf.shape[1:])) if kind == "entry" else (i,)
                leaf[entry] = leaf[entry] * np.float32(2.0) ** np.float32(rng.choice([-40, -9, -1, 1, 4, 9, 20, 60]))
    return batch


class Climb:
    """Sums of a model's batches, as a step computes them, and what their records do to them."""

    def __init__(self, model: Any, mode: str, records: int) -> None:
        self.ends = [*model.inputs, *model.outputs]
        self.inputs, self.records = len(model.inputs), records
        self.model, self.run = model, sums_of(model, mode)
        self.groups, self.variables = model.sensitivities(), model.trainable_variables

    def sums(self, batch: Batch, kept: np.ndarray) -> list[np.ndarray]:
        sides = batch[: self.inputs], batch[self.inputs :]
        return self.run(*(side[0] if len(side) == 1 else side for side in sides), kept.astype(np.float32))

    def size(self, sums: list[np.ndarray]) -> float:
        return max(sizes(self.groups, self.variables, sums).values())

    def influence(self, batch: Batch) -> float:
        """Of the worst record: the sums with it less those without it, over the bound."""
        whole, found = self.sums(batch, np.ones(self.records)), []
        for left_out in np.eye(self.records):
            without = self.sums(batch, 1 - left_out)
            found.append(self.size([a - b for a, b in zip(whole, without, strict=True)]))
        return max(found)

    def score(self, batch: Batch) -> float:
        """What climbs: both, the second in units of what is still rounding."""
        return self.influence(batch) + self.mixing(batch) / ROUNDING

    def mixing(self, batch: Batch) -> float:
        """The sums of the batch less those of its records alone, over the bound."""
        moved = self.sums(batch, np.ones(self.records))
        for alone in np.eye(self.records):
            moved = [a - b for a, b in zip(moved, self.sums(batch, alone), strict=True)]
        return self.size(moved)


def search(seed: int, rounds: int = 40, records: int = 3, cases: dict[str, Callable[[], Any]] | None = None) -> Found:
    """The worst batch that some rounds of mutations found for the program of a seed."""
    model, mode, what = program(seed, cases)
    rng, climb = np.random.default_rng([seed, 1]), Climb(model, mode, records)
    batch = [np.stack([drawn(end, rng) for _ in range(records)]) for end in climb.ends]
    best = climb.score(batch)
    for _ in range(rounds):
        other = mutated(batch, climb.ends, climb.inputs, rng)
        found = climb.score(other)
        if found >= best:
            batch, best = other, found
    return Found(climb.influence(batch), climb.mixing(batch), f"{what}, {mode}")
