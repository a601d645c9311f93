"""Random small functions of records, and whether what is proved of them is so in numbers.

A function is drawn operation by operation, with axes, permutations, shapes and indices drawn alike from sensible and
mixing ones. Where a proof says yes, numbers must agree: in batches of several sizes and orders.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from helpers.proof import random_flows, random_shapes
from helpers.proof.random_drawing import FEATURES, Tensors, pick
from tfdp_layers.proof import prove, prove_rows

SPECS = [tf.TensorSpec((None, FEATURES), tf.float64), tf.TensorSpec((None, 3), tf.int32)]
OPERATIONS = [*random_shapes.OPERATIONS, *random_flows.OPERATIONS]


def drawn_function(seed: int, length: int = 8) -> Callable[..., Any]:
    """A function drawn from a seed; operations that do not fit are left out."""

    def function(x, ids):
        rng = np.random.default_rng(seed)
        tensors = [x, ids, tf.reduce_sum(x, axis=1)]
        for _ in range(length):
            make = pick(rng, OPERATIONS)
            try:
                found = make(rng, tensors)
            except (ValueError, TypeError, IndexError, NotImplementedError, tf.errors.OpError):
                continue
            if found.shape.rank is not None and found.shape.rank <= 4:
                tensors.append(found)
        return [t for t in tensors[3:] if t.dtype == tf.float64] or [x]

    return function


def batch(rng: np.random.Generator, count: int) -> Tensors:
    return [tf.constant(rng.normal(size=(count, FEATURES))), tf.constant(rng.integers(-1, 4, (count, 3)), tf.int32)]


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Inside the block functions run operation by operation.

    Grappler takes it for granted that none fails: of a product that fits one record alone it infers that there is one,
    and drops the sums over records.
    """
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


def false_proof(seed: int, length: int = 8) -> tuple[str, int]:
    """(what is proved of the function drawn from a seed, but is not so: "" if nothing; how much was proved)."""
    with as_written():
        return checked(seed, length)


def checked(seed: int, length: int) -> tuple[str, int]:
    traced = tf.function(drawn_function(seed, length), autograph=False).get_concrete_function(*SPECS)
    row_findings, sum_findings = prove_rows(traced).findings, prove(traced).findings
    proofs = [f.status == "proved" for f in (*row_findings, *sum_findings)]
    if not any(proofs):
        return "", 0
    rng = np.random.default_rng(seed)
    for count in (3, 5, 2, 4, 1):
        data = batch(rng, count)
        order = rng.permutation(count)
        try:
            together = traced(*data)
            turned = traced(*[tf.gather(t, order) for t in data])
            alone = [traced(*[t[i : i + 1] for t in data]) for i in range(count)]
        except tf.errors.OpError:
            continue
        for i, (own, one) in enumerate(zip(row_findings, sum_findings, strict=True)):
            values = [np.asarray(v[i]) for v in (together, turned)]
            parts = [np.asarray(v[i]) for v in alone]
            if own.status == "proved" and not rows_agree(values, parts, order):
                return f"output {i} ({own.name}) is not row by row at {count} records", sum(proofs)
            if one.status == "proved" and not sums_agree(values, parts):
                return f"output {i} ({one.name}) is not a sum over {count} records", sum(proofs)
    return "", sum(proofs)


def rows_agree(values: list[np.ndarray], parts: list[np.ndarray], order: np.ndarray) -> bool:
    together, turned = values
    if together.shape[:1] != (len(parts),) or any(p.shape != (1, *together.shape[1:]) for p in parts):
        return False
    return close(together, np.concatenate(parts)) and close(turned, together[order])


def sums_agree(values: list[np.ndarray], parts: list[np.ndarray]) -> bool:
    together, turned = values
    if any(p.shape != together.shape for p in parts):
        return False
    return close(together, sum(parts)) and close(turned, together)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, 1e-6, 1e-6, equal_nan=True))
