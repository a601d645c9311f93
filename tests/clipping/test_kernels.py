"""The compiled kernels of filtered sums: the same sums as a loop over records, and the same bounds."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.ordinary import compiled, gradients_alone, length, mlp
from helpers.variants import slow_but
from tfdp_layers.clipping import kernels as kernels_module
from tfdp_layers.clipping.clamps import ClampedEntries


@pytest.fixture
def kernels(monkeypatch):
    """Lets small layers take the kernels too, and counts them."""
    used = []
    monkeypatch.setattr(kernels_module, "SMALLEST", 1)
    monkeypatch.setattr(kernels_module, "_ROWS", 3)  # several blocks, the last of them filled up
    for name in ("filtered_sum", "weighted_filtered_sum"):
        kernel = getattr(kernels_module, name)
        monkeypatch.setattr(kernels_module, name, lambda *a, kernel=kernel: used.append(a) or kernel(*a))
    return used


def tanh():
    return tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, 1.0, 0.7, 0.2, "dimension")


def adadp(estimator):
    return tfdp.optimizers.AdaDPOptimizer(0.1, 1.0, scale_estimator=estimator, l2_norm_clip=0.5)


OPTIMIZERS = {
    "dimension": tanh,
    "query": lambda: adadp("query"),
    "coordinate": lambda: adadp("coordinate"),
}


def ready(name):
    """A model whose optimizer filters; and what its function makes of one record's gradients."""
    model, x, y = compiled(mlp, OPTIMIZERS[name]())
    own, variables = model.optimizer, model.trainable_variables
    weights = sum(int(np.prod(v.shape)) for v in variables)
    if name == "dimension":
        return model, x, y, lambda gradients: [0.7 * np.tanh(g / 0.2) for g in gradients]
    own.build(variables)
    own._switch.assign(1.0)
    rng = np.random.default_rng(6)
    for moment in own._moments.values():
        moment.assign(np.exp(rng.normal(-5, 2, moment.shape)) if name == "coordinate" else rng.normal(-1, 1))
    clamps = [np.asarray(own.clamp(v, weights), np.float64) for v in variables]

    def clamped(gradients):
        return [np.clip(g / s, -1, 1) / np.sqrt(weights) for g, s in zip(gradients, clamps, strict=True)]

    return model, x, y, clamped


def sums_of(model, x, y, known):
    """In a graph, the number of rows being known or not."""
    function = tf.function(model.bounded_gradient_sums)
    if known:
        return function(tf.constant(x), tf.constant(y))
    specs = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in (x, y)]
    return function.get_concrete_function(*specs)(tf.constant(x), tf.constant(y))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        pytest.param("dimension", True, marks=pytest.mark.slow),
        pytest.param("query", False, marks=pytest.mark.slow),
        pytest.param("coordinate", False, marks=pytest.mark.slow),
    ],
)
def test_the_sum_is_that_of_a_loop_over_records(name, known, kernels):
    model, x, y, function = ready(name)
    wanted = [sum(parts) for parts in zip(*map(function, gradients_alone(model, x, y)), strict=True)]
    found = [np.asarray(s) for s in sums_of(model, x, y, known)]
    assert kernels
    assert length([a - b for a, b in zip(found, wanted, strict=True)]) <= 1e-4 * length(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["dimension"], ["dimension", "query"]))
def test_no_record_adds_more_than_the_bound(name, kernels):
    model, x, y, _ = ready(name)
    bound = model.sensitivities()[0].bound
    released = tf.function(model.bounded_gradient_sums, reduce_retracing=True)
    without = [np.asarray(s, np.float64) for s in released(tf.constant(x[:-1]), tf.constant(y[:-1]))]
    for value in (np.nan, np.inf, 3e38, -1e30, 1e18, 1e-40, 0.0, 5.0):
        spoiled = np.copy(x)
        spoiled[-1] = value
        whole = [np.asarray(s, np.float64) for s in released(tf.constant(spoiled), tf.constant(y))]
        assert length([a - b for a, b in zip(whole, without, strict=True)]) <= bound * (1 + 1e-5), value
    assert kernels


# One matrix: wide, and so narrow that the kernels turn it ------------------------------------------------------------

ROWS, THERE = 8, 5
RNG = np.random.default_rng(3)


def matrix(shape):
    """Factors of records, of which the first are there and the others zero; clamps of each weight."""
    x, u = (RNG.normal(size=(ROWS, n)).astype("float32") for n in shape)
    x[THERE:] = 0.0
    return x, u, np.exp(RNG.normal(-1, 1, shape)).astype("float32")


def found_by_kernels(x, u, limit):
    """Sum, weighted sum with weights 0, 1, 2 ..., and squared norms, by compiled kernels."""
    variable = SimpleNamespace(shape=(x.shape[1], u.shape[1]))
    function = ClampedEntries({id(variable): tf.constant(limit)})
    own = [variable, *map(tf.constant, (x, u))]
    weights = tf.range(ROWS, dtype=tf.float32)

    @tf.function(autograph=False)
    def every():
        count = tf.constant(THERE)
        return (
            kernels_module.filtered_sum(*own, function, count),
            kernels_module.weighted_filtered_sum(*own, weights, function, count),
            kernels_module.filtered_squared_norms(*own, function, count)[:THERE],
        )

    return [part.numpy() for part in every()]


def written_out(x, u, limit):
    entries = np.clip(x[:, :, None] * u[:, None, :], -limit, limit).astype("float64")
    norms = np.sum(np.square(entries[:THERE]), axis=(1, 2))
    return entries.sum(0), np.einsum("b,bxu->xu", np.arange(ROWS), entries), norms


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(11, 70), (13, 3)], ids=["wide", "narrow"])
@pytest.mark.parametrize(("alike", "cores"), [(False, 1), (True, 1), (False, 2), (True, 2), (False, 3)])
def test_tiles_and_blocks_add_up_to_the_records_that_are_there(shape, alike, cores, monkeypatch):
    """Several blocks, parts and tiles of which the last overlap, inputs that no round of a loop divides."""
    monkeypatch.setattr(kernels_module, "_ROWS", 4)
    monkeypatch.setattr(kernels_module, "_TILE", 4 * max(shape))
    monkeypatch.setattr(kernels_module, "_SHARED_TILE", 2 * max(shape))
    monkeypatch.setattr(kernels_module, "cores", lambda: cores)
    x, u, limit = matrix(shape)
    limit = np.float32(0.2) if alike else limit
    for found, wanted in zip(found_by_kernels(x, u, limit), written_out(x, u, limit), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_clamps_that_are_not_turned_with_their_matrix_are_seen(monkeypatch):
    """The planted bug: the clamps of a square's transposed weights."""
    x, u, limit = matrix((9, 9))
    monkeypatch.setattr(kernels_module, "laid_along_units", lambda v, x, u, function: (u, x, function, True))
    found, wanted = found_by_kernels(x, u, limit)[0], written_out(x, u, limit)[0]
    assert np.abs(found - wanted).max() > 0.01
