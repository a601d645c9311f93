"""No record moves the released sum by more than its bound, whatever it holds, with any layer and any clipping."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import hostile_batches, influences
from helpers.layer_cases import CASES, FEW
from helpers.private_models import case, classifier, mixed, private, sizes, sums_of
from helpers.variants import slow_but
from tfdp_layers.clipping import norm_clips as clipping_module
from tfdp_layers.per_record import contributions
from tfdp_layers.rules import rows

kl = keras.layers
CLIPPINGS = ["flat", "per_layer", "automatic", "adaptive"]


def shared_embedding():
    return CASES["shared embedding"]()[0]


def test_one_record_in_a_batch_of_one():
    model = case("dense")
    for x, y in hostile_batches(model):
        sums = [np.asarray(g, np.float64) for g in model.bounded_gradient_sums(x[-1:], y[-1:])]
        (size,) = sizes(model.sensitivities(), model.trainable_variables, sums).values()
        assert size <= 1 + SLACK


@pytest.mark.few(1)
@pytest.mark.parametrize("name", slow_but(FEW, CASES))
def test_every_layer_kind(name):
    found = influences(case(name))
    assert 0.99 < max(found) <= 1 + SLACK  # the clip binds, so that a missing one would show


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", slow_but(["dense by gram"], ["dense by gram", "conv2d", "embedding"]))
def test_other_modes(name, mode):
    found = influences(case(name, clip=1e-3), mode)
    assert 0.99 < max(found) <= 1 + SLACK


def test_rows_behind_a_branch(monkeypatch):
    """As wide as in use: see `few`."""
    monkeypatch.setattr(rows, "FEW", -1)
    found = influences(case("dense by gram", clip=1e-3))
    assert 0.99 < max(found) <= 1 + SLACK


@pytest.mark.few(2)
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("make", slow_but([mixed], [mixed, shared_embedding]), ids=["mixed", "shared"])
def test_every_clipping(make, clipping):
    found = influences(private(make(), clipping))
    assert 0.9 < max(found) <= 1 + SLACK


def test_records_whose_terms_cancel():
    """Positions that cancel each other to the last bit: the norm's error must not let the sum through."""
    rng = np.random.default_rng(0)
    model = private(keras.Sequential([keras.Input((4, 60)), kl.Dense(60)]), clip=1.0)
    sums = sums_of(model)
    others = [rng.normal(size=(64, 4, 60)).astype(np.float32) for _ in range(2)]
    without = sums(*others)
    for gap in (0.0, 1e-7, 1e-6, 1e-4, 1e-2):
        u = np.repeat(rng.normal(size=(1, 1, 60)), 4, 1) * np.array([1, -1 - gap, 1, -1])[None, :, None] * 1e4
        record = [np.repeat(rng.normal(size=(1, 1, 60)), 4, 1).astype(np.float32) * 1e4, u.astype(np.float32)]
        joined = sums(*[np.insert(many, 31, one, 0) for many, one in zip(others, record, strict=True)])
        for moved in (sums(*record), [a - b for a, b in zip(joined, without, strict=True)]):
            assert np.sqrt(sum(np.sum(g**2) for g in moved)) <= 1 + SLACK


def looked_up(layer, **options):
    return private(keras.Sequential([keras.Input((2,), dtype="int32"), layer(2, WIDTH, **options)]), clip=1.0)


def with_a_small_input_clip():
    clips = {"input_clip": 1e-6, "upstream_clip": 1.0}
    return private(keras.Sequential([keras.Input((2, 1)), tfdp.layers.ClippedDense(WIDTH, **clips)]), clip=1.0)


WIDTH = 400
CANCELLING = {
    "embedding": lambda: looked_up(kl.Embedding),
    "one that bounds itself": lambda: looked_up(tfdp.layers.ClippedEmbedding, gradient_clip=1.0),
    "a bias": with_a_small_input_clip,
}


def moved_among_terms_that_cancel(name):
    """How far an ordinary record moves the sum, over its bound, among records whose terms are of opposite signs."""
    model = CANCELLING[name]()
    labels = np.zeros((WIDTH + 3, 2, WIDTH), np.float32)
    labels[:2, 0] = 0.0281
    labels[2, 0] = 100.0
    labels[3:, 0], labels[3:, 1] = 1e6 * np.eye(WIDTH), -1e6 * np.eye(WIDTH)
    x = np.ones((WIDTH + 3, *model.input_shape[1:]), model.inputs[0].dtype)
    without = np.arange(WIDTH + 3) != 2
    both = [model.bounded_gradient_sums(*rows) for rows in ((x, labels), (x[without], labels[without]))]
    moved = [np.asarray(a, np.float64) - b for a, b in zip(*both, strict=True)]
    (size,) = sizes(model.sensitivities(), model.trainable_variables, moved).values()
    return size


@pytest.mark.parametrize("name", CANCELLING)
def test_terms_that_cancel_do_not_round_other_records(name):
    """In each entry the terms of one record, of opposite signs, were 2 million bounds: what others add was rounded to
    steps of a sixteenth of the bound, and a record that adds a little to each entry moved them all by a step."""
    assert 0.99 < moved_among_terms_that_cancel(name) <= 1.002


# Planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CANCELLING)
def test_norms_that_leave_out_the_sizes_of_terms_are_seen(name, monkeypatch):
    for module in (contributions, rows):
        monkeypatch.setattr(module, "CANCELLING", 0.0)
    assert moved_among_terms_that_cancel(name) > 1.1


def test_a_row_multiplied_by_zero_is_seen(monkeypatch):
    monkeypatch.setattr(
        contributions,
        "zero_rows",
        lambda values, kept: values * tf.reshape(tf.cast(kept, values.dtype), [-1] + [1] * (len(values.shape) - 1)),
    )
    assert max(influences(case("dense"), "eager")) == np.inf


@pytest.mark.slow
def test_a_layer_left_out_of_the_norm_is_seen(monkeypatch):
    bounded_sums = clipping_module.bounded_sums

    def forgets_one(variables, parts, scales):
        parts = dict(parts)
        parts[id(variables[0])].largest_squared_norms = lambda: (
            0.0 * tf.reduce_sum(parts[id(variables[0])].gradients(), axis=[1, 2])
        )
        return bounded_sums(variables, parts, scales)

    monkeypatch.setattr(clipping_module, "bounded_sums", forgets_one)
    assert max(influences(private(classifier()), "eager")) > 1.2


def test_squares_that_underflow_are_seen(monkeypatch):
    model = keras.Sequential([keras.Input((40,)), kl.Dense(5, use_bias=False)])
    assert max(influences(private(model, clip=1e-3), "eager")) <= 1 + SLACK
    monkeypatch.setattr(contributions.Products, "underflow", lambda self: 0.0)
    model = keras.Sequential([keras.Input((40,)), kl.Dense(5, use_bias=False)])
    assert max(influences(private(model, clip=1e-3), "eager")) > 10


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


@pytest.mark.parametrize("written", [False, True])
def test_products_by_gram_matrices_and_written_out_have_the_norms_of_what_is_added(written):
    """Terms that cancel: a Gram matrix errs in proportion to them, and says so; what is written out does not."""
    rng = np.random.default_rng(0)
    x, u = (rng.normal(size=(5, 3, 40)).astype("float32") for _ in range(2))
    x[:, 1], u[:, 1] = x[:, 0], -u[:, 0] * np.float32(1 - 1e-4)
    part = contributions.Products(keras.Variable(np.zeros((40, 40))), tf.constant(x), tf.constant(u))
    assert part.by_gram
    if written:
        part.written()
    norms = np.linalg.norm(np.einsum("bpi,bpj->bij", x.astype("float64"), u.astype("float64")), axis=(1, 2))
    np.testing.assert_allclose(np.sqrt(part.squared_norms()), norms, rtol=1e-4)
    assert (part.rounding() is None) == written
    assert np.all(np.sqrt(part.largest_squared_norms()) >= norms * (1 - 1e-6))
    weights = np.eye(5, dtype="float32")[2]
    added = np.linalg.norm(np.asarray(part.weighted_sum(tf.constant(weights)), np.float64))
    assert added <= np.sqrt(float(part.largest_squared_norms()[2])) * (1 + 1e-6)
