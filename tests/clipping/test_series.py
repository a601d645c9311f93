"""The series in place of tanh: its error, its norms, and what becomes of records for which it does not hold."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.filtered_loop import CLIP, RANGE, SCALE, expected
from helpers.ordinary import compiled, length, mlp
from helpers.variants import slow_but
from tfdp_layers.clipping import kernels as kernels_module
from tfdp_layers.clipping import outer_products
from tfdp_layers.clipping.odd_series import TANH, OddSeries, StepwiseSeries, lanes_of
from tfdp_layers.per_record.contributions import Products
from tfdp_layers.rules.norms import sum_by_halves


class Weights:
    """What the sums ask of a variable."""

    def __init__(self, shape):
        self.shape = shape


def value(series, z):
    """In float64."""
    return sum(c * z ** (2 * p + 1) for p, c in enumerate(series.coefficients))


def step_for(size):
    return next(step for step in TANH.steps if size <= step.limit)


def test_every_series_is_tanh_to_a_millionth_and_within_the_bound():
    for step in TANH.steps:
        z = np.linspace(1e-6, step.limit, 20_001)
        assert np.abs(value(step, z) / np.tanh(z) - 1.0).max() < 1e-6
        assert np.all(np.diff(value(step, z)) > 0.0)
        assert value(step, z).max() < 1.0
    assert sorted(TANH.steps, key=lambda step: (step.limit, len(step.coefficients))) == list(TANH.steps)


def factors(size):
    """x and u of four records, the largest entry of whose products is `size`."""
    rng = np.random.default_rng(0)
    x, u = (rng.normal(size=(4, n)).astype("float32") for n in (70, 33))
    return x / np.abs(x).max(axis=1, keepdims=True), size * u / np.abs(u).max(axis=1, keepdims=True)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 0.2, 0.4, 1.0])
def test_norms_and_sums_without_entries_are_those_of_the_entries(size):
    x, u = factors(size)
    entries = value(step_for(size), x[:, :, None].astype(float) * u[:, None, :].astype(float))
    norms, magnitudes = (np.asarray(part) for part in TANH.squared_norms(tf.constant(x), tf.constant(u)))
    wanted = np.sum(np.square(entries), axis=(1, 2))
    error = TANH.norm_error(70, 33) * magnitudes
    assert np.all(np.abs(norms - wanted) <= error + 1e-37)
    weights = np.random.default_rng(1).normal(size=4).astype("float32")
    found = TANH.weighted_sum(tf.constant(x), tf.constant(u), tf.constant(weights))
    np.testing.assert_allclose(found, np.einsum("b,bxu->xu", weights, entries), atol=3e-6 * size)


def beside(size):
    """What three small records add, and their norms, beside one of this size that counts nothing."""
    x, u = factors(0.01)
    u[3] *= np.float32(size / 0.01)
    weights = tf.constant([1.0, 0.5, 0.25, 0.0])
    norms = TANH.squared_norms(tf.constant(x), tf.constant(u))
    return [np.asarray(TANH.weighted_sum(tf.constant(x), tf.constant(u), weights)), *(np.asarray(n)[:3] for n in norms)]


@pytest.mark.parametrize("size", [0.2, 0.4, 0.9])
def test_no_record_changes_the_series_of_another(size):
    for with_small, with_large in zip(beside(0.01), beside(size), strict=True):
        np.testing.assert_array_equal(with_small, with_large)


def test_one_series_for_all_records_of_a_batch_is_seen(monkeypatch):
    """The planted bug: all records take the series that the largest of them needs."""
    own = StepwiseSeries.step_of
    together = lambda self, u: tf.fill(tf.shape(u)[:1], tf.reduce_max(own(self, u)))  # noqa: E731
    monkeypatch.setattr(StepwiseSeries, "step_of", together)
    assert np.abs(beside(0.01)[0] - beside(0.9)[0]).max() > 0.0


def test_lanes_stay_apart_where_xla_compiles_their_sum():
    """Two `reduce_sum` after one another are merged into one over all entries, and this fails."""
    total = tf.function(lambda v: sum_by_halves(lanes_of(v)), jit_compile=True)
    assert "f32[4,56]" in total.experimental_get_compiler_ir(tf.ones((4, 784)))(stage="optimized_hlo")


def test_an_error_of_the_norm_is_seen():
    """The planted bug: the squared series without its cross terms."""
    x, u = np.ones((1, 3), "float32"), np.ones((1, 2), "float32")
    squares = np.square(TANH.steps[-1].coefficients)
    wrong = 6.0 * sum(squares)
    right, magnitude = (float(part[0]) for part in TANH.squared_norms(tf.constant(x), tf.constant(u)))
    assert right == pytest.approx(6.0 * np.tanh(1.0) ** 2, rel=1e-5)
    assert abs(wrong - right) > 100 * TANH.norm_error(3, 2) * magnitude


@pytest.fixture
def kernels(monkeypatch):
    """Lets small layers take the series and the kernels; notes which records were far in each eager look."""
    monkeypatch.setattr(kernels_module, "SMALLEST", 1)
    monkeypatch.setattr("tfdp_layers.clipping.filters.NARROW", 1)
    monkeypatch.setattr(kernels_module, "_ROWS", 3)
    monkeypatch.setattr(kernels_module, "_TILE", 7)  # several tiles, and a rest
    made = []
    of = outer_products.FilteredProducts
    monkeypatch.setattr(of, "near", lambda self, near=of.near: made.append(self) or near(self))
    return made


def ready(**options):
    """Records of which some are within the series' range, and some beyond it."""
    made = tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, CLIP, SCALE, RANGE, **options)
    model, x, y = compiled(mlp, made)
    return model, np.concatenate([0.01 * x[:3], x[3:]]), y


def graph(model, x, y):
    specs = [tf.TensorSpec((None, *a.shape[1:]), a.dtype) for a in (x, y)]
    function = tf.function(model.bounded_gradient_sums, input_signature=specs)
    return lambda a, b: [np.asarray(s, np.float64) for s in function(tf.constant(a), tf.constant(b))]


@pytest.mark.slow
@pytest.mark.parametrize("bound", slow_but(["dimension"], ["clip", "dimension"]))
def test_the_sum_is_that_of_a_loop_over_records(bound, kernels):
    model, x, y = ready(bound=bound)
    wanted = expected(model, x, y, bound == "clip")
    gap = length([a - b for a, b in zip(graph(model, x, y)(x, y), wanted, strict=True)])
    assert kernels
    assert gap <= 1e-4 * length(wanted)


@pytest.mark.slow
def test_the_same_under_xla(kernels):
    model, x, y = ready()
    function = tf.function(lambda a, b: model.bounded_gradient_sums(a, b), autograph=False, jit_compile=True)
    found = [np.asarray(s, np.float64) for s in function(tf.constant(x), tf.constant(y))]
    wanted = expected(model, x, y)
    assert length([a - b for a, b in zip(found, wanted, strict=True)]) <= 1e-4 * length(wanted)


@pytest.mark.slow
def test_a_series_beyond_its_range_is_seen(kernels, monkeypatch):
    """The planted bug: every record counts as near."""
    endless = StepwiseSeries((OddSeries(TANH.steps[-1].coefficients, 1e30),))
    monkeypatch.setattr("tfdp_layers.clipping.filters.TANH", endless)
    model, x, y = ready()
    wanted = expected(model, x, y)
    assert length([a - b for a, b in zip(graph(model, x, y)(x, y), wanted, strict=True)]) > 0.01 * length(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1.0, pytest.param(1e-3, marks=pytest.mark.slow)])
def test_no_record_adds_more_than_the_bound(spread, kernels):
    model, x, y = ready()
    released = graph(model, x, y)
    without = released(x[:-1], y[:-1])
    for hostile in (np.nan, np.inf, 3e38, -1e30, 1e18, 1e-20, 1e-40, 0.0, 5.0):
        for columns in (slice(None), slice(0, 1)):
            spoiled = np.copy(x) * spread
            spoiled[:-1] = x[:-1]
            spoiled[-1, columns] = hostile
            whole = released(spoiled, y)
            reached = length([a - b for a, b in zip(whole, without, strict=True)])
            assert reached <= CLIP * (1 + 1e-5), (hostile, columns)


def test_records_that_are_refused_or_far_are_none_of_the_series(kernels):
    x = np.array([[0.5, 1.0], [3.0, 4.0], [np.nan, 1.0], [1e-37, 0.0]], "float32")
    u = np.array([[0.1, 0.2], [1.0, 2.0], [0.1, 0.1], [1e30, 0.0]], "float32")
    part = Products(Weights((2, 2)), x[:, None], u[:, None])
    filtered = outer_products.FilteredProducts(part, None, tf.constant([False, False, True, False]), TANH)
    near, scaled, other = (np.asarray(t) for t in filtered.near())
    np.testing.assert_array_equal(near, [True, False, False, True])
    np.testing.assert_allclose(
        scaled[:, :, None] * other[:, None, :],
        np.where(near[:, None, None], x[:, :, None] * u[:, None, :], 0),
        rtol=1e-6,
    )
    assert np.abs(scaled).max() == 1.0


def test_a_scale_that_hides_entries_from_the_norm_is_refused():
    with pytest.raises(ValueError, match="output_scale"):
        tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, l2_norm_clip=1.0, output_scale=1e20)
