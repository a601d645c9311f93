"""Integers that entries of a tensor are said to lie between are compared with the entries."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.proof.intervals import interval_of


def grown(rng: random.Random, x: tf.Tensor) -> tf.Tensor:
    """A tensor made of x, of integers in [-4, 4], by six drawn operations."""
    known = [x, x + rng.randint(-3, 3), tf.constant(rng.randint(-3, 3))]
    for _ in range(6):
        a, b, c = (rng.choice(known) for _ in range(3))
        kind = rng.choice(["add", "less", "shifted", "reversed", "least", "product", "negative"])
        if kind == "add":
            made = a + b
        elif kind == "less":
            made = tf.where(a < b, c, rng.choice(known))
        elif kind == "shifted":
            made = tf.where(a < c, a + b, a) if rng.random() < 0.5 else tf.where(a < c, b, c + a)
        elif kind == "reversed":
            made = tf.reverse(a, [0]) if a.shape.rank else -a
        elif kind == "least":
            made = tf.clip_by_value(a, -2, 2)
        else:
            made = a * b if kind == "product" else -a
        known.append(made)
    return known[-1]


def said(program, spec: tf.TensorSpec) -> tuple[tuple[int, int], tf.types.experimental.ConcreteFunction]:
    """What is said of the entries of a program's result, with the function; of its constants the prover knows all."""
    traced = tf.function(program, autograph=False).get_concrete_function(spec)
    constants = [operation for operation in traced.graph.get_operations() if operation.type == "Const"]
    entries = {one.outputs[0].name: tf.make_ndarray(one.get_attr("value")).ravel().tolist() for one in constants}
    values = {name: SimpleNamespace(entries=numbers) for name, numbers in entries.items()}
    return interval_of(values, traced.outputs[0]), traced


def compared(seed: int) -> tuple[bool, bool]:
    """Whether an entry of a drawn program lies outside of what is said of it, and whether that is the whole type."""
    (low, high), traced = said(
        lambda x: grown(random.Random(seed), tf.clip_by_value(x, -4, 4)), tf.TensorSpec((9,), tf.int32)
    )
    found = [traced(tf.constant(x)).numpy() for x in np.random.default_rng(seed).integers(-4, 5, (20, 9), np.int32)]
    return bool(np.min(found) < low or np.max(found) > high), high == tf.int32.max


@pytest.mark.parametrize("seed", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_entry_lies_outside(seed: int) -> None:
    found = {number: compared(number) for number in range(seed, seed + 30)}
    assert [number for number, (outside, _) in found.items() if outside] == []
    assert sum(whole for _, whole in found.values()) < 10


@pytest.mark.parametrize(("least", "expected"), [(-5, (0, 4)), (0, (0, 4)), (-6, (-1, 4))])
def test_what_counts_from_the_end_lies_inside_of_the_axis(least: int, expected: tuple[int, int]) -> None:
    def program(x: tf.Tensor) -> tf.Tensor:
        places = tf.clip_by_value(x, least, 4)
        return tf.where(places < 0, places + 5, places)

    assert said(program, tf.TensorSpec((None,), tf.int32))[0] == expected
