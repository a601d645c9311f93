"""No record moves the sum that is released by more than its bound, whatever it holds, with any layer and any clipping."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from certify import HOSTILE, SLACK, extreme
from layer_cases import CASES
from private_models import case, classifier, largest, mixed, private, sums_of

from tfdp_layers import clipping as clipping_module
from tfdp_layers.per_record import contributions

kl = keras.layers
CLIPPINGS = ["flat", "per_layer", "automatic", "adaptive"]
FURTHER = (
    (("equal", 1.0), ("equal", 1.0)),
    (("equal", 1e6), ("cancelling", 1e6)),
    (("equal", 1e18), ("equal", 1e-19)),  # whose squares are not numbers, or zero, when the product is harmless
    (("equal", 1e-19), ("equal", 1e18)),
    (("normal", 1e30), ("normal", 1e-30)),
    (("normal", 1e-20), ("normal", 1e20)),
)


def rows(shape: tuple, kind: str, scale: float, rng: np.random.Generator) -> np.ndarray:
    """One hostile record, (1, *shape)."""
    return extreme(kind, scale, shape, rng)[None]


def records(model, others: int = 3):
    """Yields (x, y) of one hostile record, and at last of ordinary ones: structures like the model's in- and outputs."""
    rng = np.random.default_rng(3)

    def leaf(tensor, kind, scale, count=1):
        shape = tuple(tensor.shape[1:])
        if tensor.dtype in ("int32", "int64"):  # all tokens the same, or any
            return np.full((count, *shape), 1) if kind != "normal" else rng.integers(0, 4, (count, *shape))
        if tensor.dtype == "bool":
            return rng.random((count, *shape)) < 0.7
        if kind == "ordinary":
            return rng.normal(size=(count, *shape)).astype(np.float32)
        return rows(shape, kind, scale, rng)

    inputs, outputs = model.inputs, model.outputs
    for x_kind, y_kind in (*HOSTILE, *FURTHER):
        yield [leaf(t, *x_kind) for t in inputs], [leaf(t, *y_kind) for t in outputs]
    yield [leaf(t, "ordinary", 1.0, others) for t in inputs], [leaf(t, "ordinary", 1.0, others) for t in outputs]


def structured(model, x, y):
    return (x[0] if len(x) == 1 else x), (y[0] if len(y) == 1 else y)


def influences(model, mode: str = "graph") -> list[float]:
    """Of each hostile record, alone and joining ordinary ones: what it adds to the sums, over its bound."""
    sums = sums_of(model, mode)
    *hostile, ordinary = records(model)
    without = sums(*structured(model, *ordinary))
    found = []
    for record in hostile:
        alone = sums(*structured(model, *record))
        joined = keras.tree.map_structure(lambda *a: np.concatenate(a), ordinary, record)
        together = sums(*structured(model, *joined))
        found += [largest(model, alone), largest(model, [a - b for a, b in zip(together, without, strict=True)])]
    return found


ONE_OUTPUT = [name for name in CASES if name != "several inputs and outputs"]


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_every_layer_kind(name):
    found = influences(case(name))
    assert max(found) <= 1 + SLACK
    assert max(found) > 0.99  # the clip binds, so that a missing one would show


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", ["dense by gram", "conv2d", "embedding"])
def test_other_modes(name, mode):
    found = influences(case(name, clip=1e-3), mode)
    assert 0.99 < max(found) <= 1 + SLACK


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize(
    "make", [mixed, lambda: CASES["shared"]()[0], lambda: CASES["lora"]()[0]], ids=["mixed", "shared", "lora"]
)
def test_every_clipping(make, clipping):
    found = influences(private(make(), clipping))
    assert 0.9 < max(found) <= 1 + SLACK


def test_ragged_records_whose_terms_cancel():
    """Positions that cancel each other to the last bit: the norm's error must not let the sum through."""
    rng = np.random.default_rng(0)
    model = private(keras.Sequential([keras.Input((4, 60)), kl.Dense(60)]), clip=1.0)
    sums = sums_of(model)
    others = [rng.normal(size=(64, 4, 60)).astype(np.float32) for _ in range(2)]
    without = sums(*others)
    for gap in (0.0, 1e-7, 1e-6, 1e-4, 1e-2):
        u = np.repeat(rng.normal(size=(1, 1, 60)), 4, 1) * np.array([1, -1 - gap, 1, -1])[None, :, None] * 1e4
        record = [np.repeat(rng.normal(size=(1, 1, 60)), 4, 1).astype(np.float32) * 1e4, u.astype(np.float32)]
        assert largest(model, sums(*record)) <= 1 + SLACK
        joined = sums(*[np.insert(many, 31, one, 0) for many, one in zip(others, record, strict=True)])
        assert largest(model, [a - b for a, b in zip(joined, without, strict=True)]) <= 1 + SLACK


# Planted bugs ---------------------------------------------------------------------------------------------------------


def test_a_row_multiplied_by_zero_is_seen(monkeypatch):
    monkeypatch.setattr(
        contributions,
        "zero_rows",
        lambda values, kept: values * tf.reshape(tf.cast(kept, values.dtype), [-1] + [1] * (len(values.shape) - 1)),
    )
    assert max(influences(case("dense"), "eager")) == np.inf


def test_a_layer_left_out_of_the_norm_is_seen(monkeypatch):
    bounded_sums = clipping_module.bounded_sums

    def forgets_one(variables, parts, scales):
        parts = dict(parts)
        parts[id(variables[0])].largest_squared_norms = lambda: (
            0.0 * tf.reduce_sum(parts[id(variables[0])].gradients(), axis=[1, 2])
        )
        return bounded_sums(variables, parts, scales)

    monkeypatch.setattr(clipping_module, "bounded_sums", forgets_one)
    assert max(influences(private(classifier()), "eager")) > 1.5


def test_squares_that_underflow_are_seen(monkeypatch):
    monkeypatch.setattr(contributions.Products, "underflow", lambda self: 0.0)
    assert max(influences(case("dense", clip=1e-3), "eager")) > 10


def test_squared_norms_added_over_uses_are_seen(monkeypatch):
    recording = importlib.import_module("tfdp_layers.per_record.recording")
    merged = recording.merged

    def adds_squares(uses):
        whole = merged(uses)
        if len(uses) > 1:
            whole.largest_squared_norms = lambda: tf.add_n([use.largest_squared_norms() for use in uses])
        return whole

    monkeypatch.setattr(recording, "merged", adds_squares)
    assert max(influences(case("shared embedding"), "eager")) > 1.2
