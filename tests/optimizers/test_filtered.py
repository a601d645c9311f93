"""Tanh-filtered DP-SGD: what is summed, the bound on one record, and what the ledger says of the printed algorithm."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.filtered_loop import CLIP, RANGE, SCALE, expected
from helpers.ordinary import MODELS, added, compiled, gradients_alone, length, mlp, text
from helpers.variants import slow_but
from tfdp_layers.clipping import filters


def optimizer(noise=1.0, clip=CLIP, learning_rate=1.0, **options):
    return tfdp.optimizers.TanhFilteredOptimizer(
        keras.optimizers.SGD(learning_rate), noise, clip, SCALE, RANGE, **options
    )


MODES = [{}, {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}]


def assert_close(found, wanted):
    np.testing.assert_allclose(length(found), length(wanted), rtol=1e-3)
    gap = length([np.asarray(a) - b for a, b in zip(found, wanted, strict=True)])
    assert gap <= 1e-4 * length(wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("chunk", [1_000_000, 60], ids=["at_once", "in_chunks"])
@pytest.mark.parametrize("bound", ["clip", "dimension"])
@pytest.mark.parametrize("made", slow_but([mlp, text], MODELS), ids=lambda m: m.__name__)
def test_the_filtered_sum_is_that_of_a_loop_over_records(made, bound, chunk, monkeypatch):
    monkeypatch.setattr(filters, "_CHUNK", chunk)
    model, x, y = compiled(made, optimizer(bound=bound))
    wanted = expected(model, x, y, bound == "clip")
    assert_close(model.bounded_gradient_sums(x, y), wanted)
    assert_close(tf.function(model.bounded_gradient_sums, autograph=False)(tf.constant(x), tf.constant(y)), wanted)


@pytest.mark.slow
def test_the_same_under_xla(monkeypatch):
    monkeypatch.setattr(filters, "_CHUNK", 60)
    model, x, y = compiled(text, optimizer())
    sums = tf.function(lambda a, b: model.bounded_gradient_sums(a, b), autograph=False, jit_compile=True)
    assert_close(sums(tf.constant(x), tf.constant(y)), expected(model, x, y, True))


def test_a_filter_of_the_summed_gradient_is_seen():
    """The planted bug: the filter on the batch's gradient bounds nobody."""
    model, x, y = compiled(mlp, optimizer(bound="dimension"))
    summed = [sum(g) for g in zip(*gradients_alone(model, x, y), strict=True)]
    with pytest.raises(AssertionError):
        assert_close([SCALE * np.tanh(g / RANGE) for g in summed], expected(model, x, y, False))


HOSTILE = [np.nan, np.inf, -np.inf, 3e38, -1e30, 1e18, 1e-40, 0.0, 5.0]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("bound", ["clip", "dimension"])
@pytest.mark.parametrize("mode", slow_but(["chunks"], ["eager", "chunks"]))
def test_no_record_adds_more_than_the_bound(bound, mode, monkeypatch):
    if mode == "chunks":
        monkeypatch.setattr(filters, "_CHUNK", 60)
    model, x, y = compiled(mlp, optimizer(bound=bound))
    (group,) = model.sensitivities()
    weights = sum(np.prod(v.shape) for v in model.trainable_variables)
    assert group.bound == pytest.approx(CLIP if bound == "clip" else SCALE * np.sqrt(weights))
    ordinary = added(model, x, y)
    for value in HOSTILE:
        spoiled = np.copy(x)
        spoiled[-1] = value
        assert added(model, spoiled, y) <= group.bound * (1 + 1e-5), value
        spoiled[-1, 1:] = x[-1, 1:]
        assert added(model, spoiled, y) <= group.bound * (1 + 1e-5), value
    assert ordinary > 0.2 * group.bound  # the clip does bind, or the filter does: a missing one would be seen


def scalar_model(bound):
    """One unit, so that a record's gradient is (its input, 1) times its loss's: any vector can be had."""
    model = tfdp.PrivateSequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(optimizer(bound=bound), "mse")
    return model


@pytest.mark.parametrize("bound", ["clip", "dimension"])
def test_a_witness_attains_the_bound(bound):
    model = scalar_model(bound)
    x, y = np.full((1, 5), 1e3, "float32"), np.full((1, 1), 1e3, "float32")
    reached = length(model.bounded_gradient_sums(x, y))
    assert reached == pytest.approx(model.sensitivities()[0].bound, rel=1e-4)
    assert reached <= model.sensitivities()[0].bound


@pytest.mark.parametrize("bound", ["clip", "dimension"])
def test_infinite_gradients_add_exactly_zero(bound):
    """tanh(infinity) = 1 must not count."""
    model = scalar_model(bound)
    y = np.full((1, 1), 1e3, "float32")
    for value in (np.inf, -np.inf, np.nan, 3e38):
        for x in (np.full((1, 5), value, "float32"), np.array([[value, 0, 0, 0, 0]], "float32")):
            assert all(np.all(np.asarray(s) == 0.0) for s in model.bounded_gradient_sums(x, y)), value
    label = np.array([[np.inf]], "float32")
    assert all(np.all(np.asarray(s) == 0.0) for s in model.bounded_gradient_sums(np.ones((1, 5), "float32"), label))


def test_without_its_refusal_an_infinite_gradient_would_count(monkeypatch):
    monkeypatch.setattr(filters, "magnitudes", lambda part: tf.zeros(tf.shape(part.gradients())[:1]))
    model = scalar_model("dimension")
    x, y = np.full((1, 5), 1e3, "float32"), np.full((1, 1), -np.inf, "float32")
    assert length(model.bounded_gradient_sums(x, y)) > 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES))
@pytest.mark.parametrize("physical", [None, 3])
def test_a_step_releases_the_sum_whatever_the_mode(mode, physical):
    model, x, y = compiled(mlp, optimizer(noise=0.0), **mode)
    before = model.get_weights()
    wanted = expected(model, x, y, True)
    sampling, steps = tfdp.sampling.FixedSize(len(x)), mode.get("steps_per_execution", 1)
    if steps > 1:
        model.optimizer.learning_rate = 0.0
    model.fit(x, y, sampling=sampling, physical_batch_size=physical, steps_per_epoch=steps, verbose=0)
    assert int(model.optimizer.releases) == steps
    if steps == 1:
        assert_close([(a - b) * len(x) for a, b in zip(before, model.get_weights(), strict=True)], wanted)


@pytest.mark.slow
def test_a_saved_model_keeps_its_settings(tmp_path):
    model, x, y = compiled(mlp, optimizer(bound="dimension"))
    model.fit(x, y, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert_close(loaded.bounded_gradient_sums(x, y), [np.asarray(s) for s in model.bounded_gradient_sums(x, y)])


@pytest.mark.parametrize(
    "options", [{"bound": "norm"}, {"clip": 0.0}, {"clip": np.nan}, {"clip": True}], ids=lambda o: str(next(iter(o)))
)
def test_unsound_settings_are_refused(options):
    with pytest.raises(ValueError, match=r"bound|l2_norm_clip"):
        optimizer(**options)
