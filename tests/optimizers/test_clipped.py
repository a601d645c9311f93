"""What a step of DP-SGD releases: sums, noise, the adaptive threshold; and what the ledger states of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp_layers as tfdp
from helpers.empty_draws import empty_batches
from helpers.normality import assert_normal
from helpers.private_models import CLIP, classifier, mixed, private, sums_of
from helpers.variants import slow_but
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.clipping.norm_clips import AdaptiveClipping
from tfdp_layers.models import sums
from tfdp_layers.optimizers import base

kl = keras.layers
CLIPPINGS = ["flat", "per_layer", "automatic", "adaptive"]
MODES = [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}]
ids = [next(iter(mode), "graph") for mode in MODES]
QUANTILES = [0.2, 0.8]


def data(records: int = 12, *shape: int, outputs: int = 3):
    """Inputs, and labels that are the upstream gradients at the predictions."""
    rng = np.random.default_rng(0)
    shape = shape or (6,)
    return rng.normal(size=(records, *shape)).astype("float32"), rng.normal(size=(records, outputs)).astype("float32")


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


@pytest.mark.few(1)
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_sum_of_a_batch_is_the_sum_over_its_records_alone(clipping):
    model = private(mixed(), clipping)
    x, y = data(4, 6, 5, 2)
    sums = sums_of(model)
    together = sums(x, y)
    alone = [sums(x, y, np.eye(4, dtype=np.float32)[i]) for i in range(4)]
    for whole, *parts in zip(together, *alone, strict=True):
        np.testing.assert_allclose(whole, sum(parts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clipping", ["flat", "adaptive"])
def test_padding_adds_exactly_zero(clipping):
    model = private(mixed(), clipping)
    x, y = data(3, 6, 5, 2)
    for spoiled in (0.0, np.nan, np.inf, 1e30):
        x[2], y[2] = spoiled, spoiled
        padded = model._sums_and_losses(*map(tf.constant, (x, y, np.array([1, 1, 0], np.float32))))[0]
        only = model._sums_and_losses(*map(tf.constant, (x[2:], y[2:], np.array([0], np.float32))))[0]
        rest = model._sums_and_losses(*map(tf.constant, (x[:2], y[:2], np.ones(2, np.float32))))[0]
        for p, o, r in zip(padded, only, rest, strict=True):
            assert not np.asarray(o).any()
            np.testing.assert_allclose(p, r, rtol=1e-5, atol=1e-6)
        if clipping == "adaptive":
            assert abs(float(padded[-1])) <= 1.0


def test_a_record_with_weights_for_positions_is_counted_once():
    model = private(keras.Sequential([keras.Input((4, 6)), kl.Dense(3)]), "adaptive")
    x, y = (np.ones((4, 4, n), np.float32) for n in (6, 3))
    for weights in (np.ones((4, 4)), np.ones((4, 1)), np.ones(4)):
        count = model._sums_and_losses(*map(tf.constant, (x, y, weights.astype("float32"))))[0][-1]
        assert abs(float(count)) == 2.0


def test_counting_padding_is_seen(monkeypatch):
    model = private(classifier(), "adaptive")
    x, y = data(4)
    counted = lambda: float(sums_of(model, "eager")(x, y, np.array([1, 1, 0, 0], np.float32))[-1])  # noqa: E731
    assert abs(counted()) <= 1.0
    monkeypatch.setattr(sums, "present", lambda weights, losses: tf.ones_like(losses))
    model.optimizer._bounding = AdaptiveClipping(1e6, threshold=lambda: 1e6)
    assert counted() == 2.0


# One step of fit ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES), ids=ids)
@pytest.mark.parametrize("clipping", ["flat", "adaptive"])
def test_a_step_without_noise_moves_by_the_bounded_sum(mode, clipping):
    model = private(classifier(), clipping, noise=0.0, **mode)
    x, y = data(12)
    steps = mode.get("steps_per_execution", 1)
    expected = flat(model.bounded_gradient_sums(x, y)) * (CLIP if clipping == "adaptive" else 1.0)
    before = flat(model.get_weights())
    model.fit(x, y, sampling=tfdp.sampling.FixedSize(12), physical_batch_size=4, steps_per_epoch=steps, verbose=0)
    moved = 12 * (before - flat(model.get_weights()))
    assert int(model.optimizer.releases.numpy()) == steps
    if steps == 1:
        np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-5)


# Noise ----------------------------------------------------------------------------------------------------------------


class Keeps(keras.callbacks.Callback):
    """Remembers the weights and the threshold after every step."""

    def on_train_begin(self, logs=None):
        self.weights, self.thresholds = [self.model.get_weights()], [self.threshold()]

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.model.get_weights())
        self.thresholds.append(self.threshold())

    def threshold(self):
        variable = self.model.optimizer.threshold
        return 1.0 if variable is None else float(variable.value)


def noise_of(model, steps=1600):
    """The noise of each group, by name, in units of the group's bound; that of the count last."""
    keeper = Keeps()
    model.fit(empty_batches(*data()), steps_per_epoch=steps, verbose=0, callbacks=[keeper])
    thresholds = np.array(keeper.thresholds)
    moved = {}
    for v, *history in zip(model.weights, *keeper.weights, strict=True):
        steps_of = np.diff(np.stack(history).astype(np.float64), axis=0)
        scale = thresholds[:-1].reshape(-1, *[1] * (steps_of.ndim - 1))
        moved[id(v)] = (-4 * steps_of / scale).ravel()
    found = {g.name: np.concatenate([moved[id(v)] for v in g.variables]) for g in model.sensitivities() if g.variables}
    if model.optimizer.threshold is not None:
        optimizer = model.optimizer
        below = -np.diff(np.log(thresholds)) / optimizer.threshold_rate + optimizer.target_quantile - 0.5
        found[AdaptiveClipping.STATISTIC] = 4 * below
    return found


@pytest.mark.slow
@pytest.mark.parametrize("clipping", [pytest.param("per_layer", marks=pytest.mark.slow), "adaptive"])
def test_each_group_has_the_noise_that_the_ledger_states(clipping):
    model = private(classifier(), clipping, noise=0.3, **({"threshold_rate": 0.01} if clipping == "adaptive" else {}))
    found = noise_of(model)
    stated = {noise.name: noise.stddev for noise in model.ledger.entries[0].release.groups}
    assert stated.keys() == found.keys()
    for name, sample in found.items():
        assert_normal(sample, stated[name])
    joint = sum((n.bound / n.stddev) ** 2 for n in model.ledger.entries[0].release.groups) ** -0.5
    assert joint == pytest.approx(0.3, rel=1e-6)


@pytest.mark.slow
def test_a_threshold_from_a_count_without_noise_is_seen(monkeypatch):
    add_noise = base.add_noise

    def forgets_the_count(source, sums, stddevs):
        return add_noise(source, sums, [*stddevs[:-1], 0.0])

    monkeypatch.setattr(base, "add_noise", forgets_the_count)
    model = private(classifier(), "adaptive", noise=0.3)
    count = noise_of(model, 60)[AdaptiveClipping.STATISTIC]
    (stddev,) = [n.stddev for n in model.ledger.entries[0].release.groups if n.name == AdaptiveClipping.STATISTIC]
    assert stats.kstest(count, "norm", args=(0, stddev)).pvalue < 1e-6


# The adaptive threshold -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", slow_but([QUANTILES[0]], QUANTILES))
def test_the_threshold_moves_to_the_quantile_of_the_norms(quantile):
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((1,)), kl.Dense(1, use_bias=False)])
    x = rng.uniform(1.0, 9.0, size=(256, 1)).astype("float32")  # each record's gradient is its x
    model = private(model, "adaptive", noise=1e-3, target_quantile=quantile, threshold_rate=0.5)
    model.fit(x, np.ones((256, 1), np.float32), sampling=tfdp.sampling.FixedSize(256), epochs=60, verbose=0)
    assert float(model.optimizer.threshold.value) == pytest.approx(np.quantile(x, quantile), rel=0.1)


@pytest.mark.slow
def test_the_threshold_is_saved_with_the_model(tmp_path):
    inputs = keras.Input((6,))
    model = tfdp.PrivateModel(inputs, kl.Dense(3)(inputs))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(), 1.0, 0.25, "adaptive", target_quantile=0.7)
    model.compile(optimizer, "mse")
    x, y = data()
    assert float(optimizer.current_threshold()) == 0.25
    model.bounded_gradient_sums(x, y)  # before any fit
    model.fit(x, y, batch_size=4, verbose=0)
    moved = float(optimizer.threshold.value)
    assert moved != 0.25
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert float(again.optimizer.threshold.value) == moved
    assert again.optimizer.clipping == "adaptive"
    assert again.optimizer.target_quantile == 0.7
    assert again.ledger.steps == model.ledger.steps
    again.fit(x, y, batch_size=4, verbose=0)
    assert again.ledger.steps == 2 * model.ledger.steps


# The ledger -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("clipping", slow_but(["flat", "adaptive"], CLIPPINGS))
def test_epsilon_is_that_of_the_noise_multiplier(clipping):
    model = private(mixed(), clipping, noise=1.1)
    x, y = data(12, 6, 5, 2)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    plain = Ledger()
    release = Release((GroupNoise("all", 1.0, 1.1),), tfdp.sampling.Poisson(4), 12)
    token = plain.begin(release)
    plain.reserve(token, 3)
    plain.settle(token, 3)
    assert tfdp.accounting.epsilon(model.ledger, 1e-5) == pytest.approx(tfdp.accounting.epsilon(plain, 1e-5), rel=1e-6)
    assert (AdaptiveClipping.STATISTIC in str(model.privacy_statement(1e-5))) == (clipping == "adaptive")


def test_groups_cover_each_weight_once():
    groups = private(mixed(), "per_layer").sensitivities()
    assert [g.self_bounded for g in groups] == [True, True, False, False, False]
    assert sum(g.bound**2 for g in groups if not g.self_bounded) == pytest.approx(CLIP**2)


def test_a_clip_for_each_layer_by_name():
    layers = [kl.Dense(4, name="first"), kl.Dense(3, name="second")]
    model = private(keras.Sequential([keras.Input((6,)), *layers]), "per_layer", {"first": 0.1, "second": 0.7})
    assert [(g.name, g.bound) for g in model.sensitivities()] == [("first", 0.1), ("second", 0.7)]
    with pytest.raises(ValueError, match="exactly the layers"):
        private(keras.Sequential([keras.Input((6,)), *layers]), "per_layer", {"first": 0.1}).sensitivities()
