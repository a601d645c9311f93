"""Tables that are read and multiplied with: joint norms, written out nowhere, and what rounding may hide of them."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.layer_cases import CASES, ids, normal, tied
from helpers.oracle import error_of
from helpers.private_models import case, private
from tfdp_layers.per_record import contributions, tables

kl = keras.layers
recording_module = importlib.import_module("tfdp_layers.per_record.recording")
RTOL = 1e-4
VOCABULARY, WIDTH = 7, 3


def parts(tokens, u, x, logits):
    """A table's contribution of lookups of `tokens` with gradients u, and of logits with gradients of inputs x."""
    table = keras.Variable(np.zeros((VOCABULARY, WIDTH)))
    lookups = contributions.Lookups(table, tf.constant(tokens), tf.constant(u, tf.float32))
    products = contributions.Products(table, tf.constant(logits, tf.float32), tf.constant(x, tf.float32))
    return tables.merged([lookups, products])


def written(tokens, u, x, logits):
    """The same gradients in float64, written out."""
    found = np.einsum("btv,btw->bvw", np.float64(logits), np.float64(x))
    for i, row in enumerate(tokens):
        for p, token in enumerate(row):
            found[i, token] += u[i, p]
    return found


def drawn(seed, positions=4, steps=3, batch=3):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCABULARY, (batch, positions))
    shapes = [(batch, positions, WIDTH), (batch, steps, WIDTH), (batch, steps, VOCABULARY)]
    return tokens, *[rng.normal(size=shape).astype(np.float32) for shape in shapes]


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
def test_tied_tables_have_the_norms_and_sums_of_what_is_written_out(seed, positions, steps):
    arguments = drawn(seed, positions, steps)
    part, exact = parts(*arguments), written(*arguments)
    assert type(part) is tables.Tied
    norms = np.linalg.norm(exact, axis=(1, 2))
    np.testing.assert_allclose(np.sqrt(part.squared_norms()), norms, rtol=RTOL)
    assert np.all(np.sqrt(part.largest_squared_norms()) >= norms)
    weights = np.array([0.5, -1.0, 2.0], np.float32)
    np.testing.assert_allclose(part.weighted_sum(tf.constant(weights)), np.tensordot(weights, exact, 1), atol=1e-5)
    one = part.rows(1, 1)
    np.testing.assert_allclose(one.gradients()[0], exact[1], atol=1e-5)
    kept = part.keep(tf.constant([True, False, True]))
    np.testing.assert_allclose(kept.squared_norms(), norms**2 * [1, 0, 1], rtol=RTOL, atol=1e-6)


@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_uses_that_cancel(gap, size):
    """What is read takes back what is multiplied: the norm is rounding alone, and may hide no more than that."""
    rng = np.random.default_rng(1)
    tokens = np.tile(np.arange(VOCABULARY), (3, 1))
    x, logits = rng.normal(size=(3, 2, WIDTH)) * size, rng.normal(size=(3, 2, VOCABULARY)) * size
    u = -(1 - gap) * np.einsum("btv,btw->bvw", logits, x)
    part = parts(tokens, u, x, logits)
    for i in range(3):
        alone = np.eye(3, dtype=np.float32)[i]
        added = np.linalg.norm(np.float64(part.weighted_sum(tf.constant(alone))))
        assert added <= np.sqrt(float(part.largest_squared_norms()[i])) * (1 + 1e-6)


def test_products_that_underflow_are_counted():
    """Gradients whose dot products are zero in float32 meet others that are as large."""
    ones = np.ones((1, 1, WIDTH))
    part = parts([[0]], 1e-30 * ones, 1e-16 * ones, 1e30 * np.ones((1, 1, VOCABULARY)))
    cross = 2 * 1e-30 * 1e-16 * 1e30 * WIDTH
    assert float(part.cross()[0]) == 0.0
    assert float(part.underflow()[0]) >= cross


def test_logits_of_a_large_vocabulary_write_no_table_out():
    """128 MB a record if it did: the tables of 64 records would not fit."""
    rng = np.random.default_rng(0)
    table = keras.Variable(np.zeros((100, 4)))
    x, u = tf.constant(rng.normal(size=(2, 5, 4)), tf.float32), tf.constant(rng.normal(size=(2, 5, 100)), tf.float32)
    tokens = tf.constant(rng.integers(0, 100, (2, 5)))

    @tf.function
    def norms(x, u):
        uses = [contributions.Lookups(table, tokens, x), contributions.Products(table, u, x)]
        return tables.merged(uses).largest_squared_norms()

    graph = norms.get_concrete_function(x, u).graph
    largest = max(t.shape.num_elements() or 0 for op in graph.get_operations() for t in op.outputs)
    assert largest <= 2 * 5 * 100


@pytest.mark.parametrize("start", [0, 2])
def test_rows_in_order(start):
    table = keras.Variable(np.zeros((6, 2)))
    u = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    part = tables.Rows(table, tf.constant(u), start)
    exact = np.zeros((3, 6, 2), np.float32)
    exact[:, start : start + 4] = u
    np.testing.assert_allclose(part.gradients(), exact)
    np.testing.assert_allclose(part.squared_norms(), np.sum(exact**2, axis=(1, 2)), rtol=1e-5)
    np.testing.assert_allclose(
        part.weighted_sum(tf.constant([1.0, 2.0, -1.0])), np.tensordot([1, 2, -1], exact, 1), 1e-5
    )
    np.testing.assert_allclose(part.keep(tf.constant([True, False, True])).gradients()[1], 0.0)
    np.testing.assert_allclose(part.rows(1, 2).gradients(), exact[1:3])


def test_ids_of_all_records_of_a_small_table_are_added_by_row():
    """Positions that all records share, as a relative position bias has them, need no sorting."""

    class Common(kl.Layer):
        def build(self, shape):
            self.table = kl.Embedding(3, 2)
            self.table.build((1, 5))

        def call(self, x):
            return x + self.table(tf.constant([[0, 2, 2, 1, 0]]))

    model = keras.Sequential([keras.Input((5, 2)), Common()])
    assert error_of(model, normal(5, 2)) < RTOL


# Planted bugs ---------------------------------------------------------------------------------------------------------


def test_uses_whose_squared_norms_are_added_are_seen(monkeypatch):
    """Without the cross term a record that reads what it writes would exceed its bound."""
    monkeypatch.setattr(tables.Tied, "cross", lambda self: tf.zeros(tf.shape(self.lookups.u)[:1]))
    assert error_of(*tied()) > 100 * RTOL
    part, exact = parts(*drawn(3)), written(*drawn(3))
    norms = np.linalg.norm(exact, axis=(1, 2))
    assert np.any(np.sqrt(part.largest_squared_norms()) < norms * (1 - 1e-3))


def test_ids_of_one_record_taken_for_those_of_all_are_seen(monkeypatch):
    """A lookup that adds up by the first record's ids: the loop, and the proof, must see it."""
    model = keras.Sequential([keras.Input((6,), dtype="int32"), kl.Embedding(5, 3)])
    of_each = recording_module.Recorder.of_each_record

    def first_of_all(self, tokens):
        return of_each(self, tokens[:1])

    assert error_of(model, ids(6)) < RTOL
    monkeypatch.setattr(recording_module.Recorder, "of_each_record", first_of_all)
    with pytest.raises(Exception):  # noqa: B017, PT011
        assert error_of(model, ids(6)) < RTOL


def test_a_frozen_parent_that_hides_its_parts_is_seen(monkeypatch):
    """Keras' own list of what a frozen layer trains is empty, and the LoRA within it would be bounded by nothing."""
    registry = importlib.import_module("tfdp_layers.per_record.registry")
    assert case("lora in a frozen layer").sensitivities()
    monkeypatch.setattr(registry, "trained_weights", lambda layer: layer.trainable_weights)
    model, _ = CASES["lora in a frozen layer"]()
    model.layers[0].dense.trainable = model.layers[0].heads.trainable = model.layers[0].table.trainable = False
    assert not list(registry.layers_to_record(model))
    for part in (model.layers[0].dense, model.layers[0].heads, model.layers[0].table):
        for v in part.variables:
            v.trainable = "lora" in v.name
    with pytest.raises(ValueError, match="used outside its layer"):
        private(model).sensitivities()
