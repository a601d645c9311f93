"""Several rows of one unit are bounded as one contribution: sums, bounds, planted bugs, and that units do not mix."""

import importlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.hostile_batches import hostile_batches
from helpers.layer_cases import CASES
from helpers.private_models import CLIP, case, classifier, private, sizes
from helpers.variants import slow_but
from tfdp_layers.batches.rows import flat, shares
from tfdp_layers.per_record import convolutions
from tfdp_layers.per_record.contributions import Stored
from tfdp_layers.per_record.convolutions import KernelGradients
from tfdp_layers.per_record.joining import added, joined
from tfdp_layers.per_record.patches import PatchBlocks
from tfdp_layers.per_record.pixel_grams import PixelGrams
from tfdp_layers.proof.models import prove_traced, traced_sums

recording_module = importlib.import_module("tfdp_layers.per_record.recording")  # the package exports such a function
kl = keras.layers
EACH = 3
UNITS = np.array([[0, 1, 2], [1, 1, 0], [2, 2, 2], [0, 2, 0]])  # which of a case's three records each row holds
WEIGHTS = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 2, 0.5]], np.float32)


def tied():
    """An embedding that is looked up and multiplied with."""
    ids = keras.Input((5,), dtype="int32")
    table = kl.ReversibleEmbedding(7, 4)
    model = keras.Model(ids, table(kl.Dense(4, activation="tanh")(table(ids)), reverse=True))
    return model, tf.constant(np.random.default_rng(0).integers(0, 7, (3, 5)), tf.int32)


MODELS = CASES | ({"tied": tied} if hasattr(kl, "ReversibleEmbedding") else {})
QUICK = ["dense", "conv2d"]
SLOW = ["embedding", "norms", "lstm", "attention", "tied", "shared"]
KINDS = [*MODELS] if "FUZZ" in os.environ else [name for name in (*QUICK, *SLOW) if name in MODELS]
"""All kinds of layers take a minute and a half: FUZZ=1 pytest -m "" tests/per_record/test_joining.py."""


def made(name, clip=CLIP, **options):
    """A private model, and x, y of units: (4, 3, ...)."""
    keras.utils.set_random_seed(1)
    model, records = MODELS[name]()
    model = private(model, "flat", clip, allow_generic=True, **options)
    rng = np.random.default_rng(0)
    x = keras.tree.map_structure(lambda t: tf.gather(t, UNITS), records)
    outputs = model(records)
    y = keras.tree.map_structure(lambda t: tf.constant(rng.normal(size=(4, EACH, *t.shape[1:])), tf.float32), outputs)
    return model, x, y


def one_by_one(model, x, y, clip):
    """The sum over the units of the clipped gradient of the weighted mean of its rows' losses, float64."""
    values = [v.value for v in model.trainable_variables]
    total = [np.zeros(v.shape) for v in values]
    for unit, weights in enumerate(WEIGHTS):
        rows = np.flatnonzero(weights)
        if not len(rows):
            continue
        mine = keras.tree.map_structure(lambda t, unit=unit, rows=rows: tf.gather(t[unit], rows), (x, y))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weights[rows] * model.per_record_losses(*mine))
        found = tape.gradient(loss, values, unconnected_gradients="zero")
        gradients = [np.asarray(tf.convert_to_tensor(g), np.float64) for g in found]
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        total = [a + min(1.0, clip / norm) * g for a, g in zip(total, gradients, strict=True)]
    return total


def gap(found, wanted):
    """The distance of two lists of sums, over the size of the second."""
    difference = sum(np.sum((np.asarray(a) - b) ** 2) for a, b in zip(found, wanted, strict=True))
    return float(np.sqrt(difference / sum(np.sum(b**2) for b in wanted)))


@pytest.mark.parametrize("name", slow_but(QUICK, KINDS))
def test_the_sums_are_those_of_a_loop_over_units(name):
    model, x, y = made(name, 0.02)
    assert gap(model.bounded_gradient_sums(x, y, WEIGHTS, rows_each=EACH), one_by_one(model, x, y, 0.02)) < 1e-4


@pytest.mark.parametrize("name", slow_but([], ["dense", "conv2d"]))
def test_nothing_is_clipped_that_is_within_the_bound(name):
    model, x, y = made(name, 1e4)
    assert gap(model.bounded_gradient_sums(x, y, WEIGHTS, rows_each=EACH), one_by_one(model, x, y, np.inf)) < 1e-5


@pytest.mark.parametrize("name", slow_but(["dense"], ["dense", "conv2d", "tied"] if KINDS == QUICK + SLOW else KINDS))
def test_it_is_proved_that_units_do_not_mix(name):
    assert prove_traced(*traced(*made(name))).status == "proved"


def traced(model, x, y):
    x, y = keras.tree.map_structure(lambda t: tf.TensorSpec((None, *t.shape[1:]), t.dtype), (x, y))
    return model, traced_sums(model, x, y, tf.TensorSpec((None, EACH)), EACH)


def test_rows_of_another_unit_are_found_by_the_proof(monkeypatch):
    """Planted: units are joined of rows that lie as many apart as there are units."""

    def across(part, each):
        rows = part.gradients()
        return Stored(part.variable, tf.reduce_sum(tf.reshape(rows, (each, -1, *rows.shape[1:])), axis=0))

    monkeypatch.setattr(recording_module, "joined", across)
    assert prove_traced(*traced(*made("dense"))).status == "mixed"


def test_one_row_a_unit_is_left_as_it_is():
    part = Stored(keras.Variable([0.0]), tf.ones((3, 1)))
    batch = object()
    assert joined(part, 1) is part
    assert flat(batch, 1) is batch


def test_the_shares_of_a_units_rows_are_those_of_its_mean():
    found = np.asarray(shares(tf.constant(WEIGHTS), tf.zeros((4, 3)), EACH))
    third, half = 1 / 3, 0.5
    np.testing.assert_allclose(found, [third, third, third, half, half, 0, 0, 0, 0, third, 2 * third, 0.5 * third])
    several = shares([tf.constant(WEIGHTS), tf.zeros((4, 3))], tf.zeros((4, 3)), EACH)
    np.testing.assert_allclose(several[0], found)  # present at one output is present


KERNELS = {
    "kernel by kernel": (KernelGradients, {}, 2),
    "patches": (PatchBlocks, {"size": [2, 2], "strides": [2, 2], "padding": "valid"}, 2),
    "pixels": (PixelGrams, {"size": [2, 2], "strides": [2, 2], "padding": "valid"}, 2),
    "pixels, irregular": (PixelGrams, {"size": [3, 3], "strides": [2, 2], "padding": "valid"}, 3),
}


@pytest.mark.parametrize("kind", slow_but(["patches", "pixels"], KERNELS))
def test_kernels_of_convolutions_are_joined_however_they_are_measured(kind, monkeypatch):
    monkeypatch.setattr(convolutions, "_STORED", 0)  # as if they were large: norms without the gradients written out
    made_by, geometry, size = KERNELS[kind]
    kernel = keras.Variable(tf.zeros((size, size, 2, 3)))
    rng = np.random.default_rng(0)
    x, u = (tf.constant(rng.normal(size=shape), tf.float32) for shape in ((6, 7, 7, 2), (6, 3, 3, 3)))
    weights = tf.constant([0.5, -2.0])

    convolution = lambda x, k: tf.nn.conv2d(x, k, 2, "VALID")  # noqa: E731
    found = joined(made_by(kernel, x, u, convolution, size * size, **geometry), EACH)
    norms, total = found.squared_norms(), found.weighted_sum(weights)
    second = found.rows(1, 1).weighted_sum(weights[1:])
    gradients = found.gradients()  # last: once they are written out, the others are taken from them
    patches = tf.image.extract_patches(x, [1, size, size, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    rows = np.einsum("rhwp,rhwf->rpf", patches, u).reshape(2, EACH, size, size, 2, 3)
    exact = rows.sum(axis=1)
    np.testing.assert_allclose(gradients, exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(norms, np.sum(exact**2, axis=(1, 2, 3, 4)), rtol=1e-4)
    np.testing.assert_allclose(total, 0.5 * exact[0] - 2.0 * exact[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second, -2.0 * exact[1], rtol=1e-4, atol=1e-4)


# The bound ------------------------------------------------------------------------------------------------------------


def linear():
    """One weight matrix, whose gradient for a row is x y'."""
    return private(keras.Sequential([keras.Input((2,)), kl.Dense(2, use_bias=False)]))


def witness():
    """A unit whose rows all pull one way, as far as anything can: its gradient is 2 C, that of each row as well."""
    x = np.tile(np.float32([2 * CLIP, 0.0]), (1, EACH, 1))
    return x, np.tile(np.float32([0.0, 1.0]), (1, EACH, 1))


def contribution(model, x, y, each=EACH):
    sums = [np.asarray(s) for s in model.bounded_gradient_sums(x, y, rows_each=each)]
    return max(sizes(model.sensitivities(), model.trainable_variables, sums).values())


def test_a_witness_attains_the_bound():
    assert contribution(linear(), *witness()) == pytest.approx(1.0, rel=1e-4)


class RowsApart(Stored):
    """Planted: the gradient of a unit, with the squared norms of its rows added up, without the terms between them."""

    def __init__(self, part, each):
        super().__init__(part.variable, added(part.gradients(), each))
        self.apart = tf.reduce_sum(tf.reshape(part.squared_norms(), (-1, each)), axis=1)

    def squared_norms(self):
        return self.apart


def test_squared_norms_of_rows_that_are_added_up_exceed_the_bound(monkeypatch):
    monkeypatch.setattr(recording_module, "joined", RowsApart)
    assert contribution(linear(), *witness()) > 1.5


def test_layers_that_bound_each_row_are_refused():
    clipped = tfdp.layers.ClippedDense(2, input_clip=1.0, upstream_clip=1.0)
    model = private(keras.Sequential([keras.Input((2,)), clipped]))
    with pytest.raises(ValueError, match=r"bounds each row by itself.*views at 1"):
        model.bounded_gradient_sums(*witness(), rows_each=EACH)


def influences(model, each=EACH):
    """What units of hostile rows add to the sums, over the bound: all rows alike, and one among ordinary ones."""
    groups, variables = model.sensitivities(), model.trainable_variables
    function = tf.function(
        lambda x, y, w: model._sums_and_losses(x, y, w, each)[0], autograph=False, reduce_retracing=True
    )
    units = np.array([[0, 1, 2], [3, 3, 3], [0, 3, 1]])
    for x, y in hostile_batches(model):
        x, y = keras.tree.map_structure(lambda t: tf.constant(t[units]), (x, y))
        without, alone, joining = (np.repeat(np.float32(one), each).reshape(-1, each) for one in np.eye(3))
        for hostile in (alone, joining):
            sums = [
                [np.asarray(s, np.float64) for s in function(x, y, w)] for w in (hostile, without + hostile, without)
            ]
            moved = [a - b for a, b in zip(sums[1], sums[2], strict=True)]
            yield from (max(sizes(groups, variables, found).values()) for found in (sums[0], moved))


HOSTILE = {
    "dense": lambda: private(classifier()),
    "automatic": lambda: private(classifier(), "automatic"),
    "adaptive": lambda: private(classifier(), "adaptive"),
    "tied": lambda: private(tied()[0]),
} | {name: lambda name=name: case(name) for name in KINDS if name in ("conv2d",)}


@pytest.mark.parametrize("name", slow_but(["dense"], HOSTILE))
def test_no_rows_whatever_they_hold_add_more_than_the_bound(name):
    assert max(influences(HOSTILE[name]())) <= 1 + 1e-5


def test_hostile_rows_show_squared_norms_that_are_added_up(monkeypatch):
    monkeypatch.setattr(recording_module, "joined", RowsApart)
    assert max(influences(linear())) > 1.5
