"""The step: what it equals without noise, what it divides by, its noise, and what it does past a limit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import cnn, compiled, mlp, rows, two_inputs_two_outputs
from helpers.empty_draws import empty_batches
from helpers.normality import assert_normal
from helpers.variants import slow_but
from tfdp_layers.noise import SeededNoise

MODES = [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 3}]
ids = [next(iter(mode), "graph") for mode in MODES]


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def plain_twin():
    """A Keras model, and a private one of the same weights whose clips never bind."""
    wide = {"input_clip": 1e4, "upstream_clip": 1e4}
    kl, tl = keras.layers, tfdp.layers
    stack = lambda conv, dense: [  # noqa: E731
        keras.Input((6, 6, 1)), conv, kl.MaxPooling2D(2), kl.Flatten(), dense,
    ]  # fmt: skip
    plain = keras.Sequential(stack(kl.Conv2D(4, 3, padding="same", activation="tanh"), kl.Dense(3)))
    private = tfdp.PrivateSequential(
        stack(tl.ClippedConv2D(4, 3, padding="same", activation="tanh", **wide), tl.ClippedDense(3, **wide))
    )
    private.set_weights(plain.get_weights())
    return plain, private


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES), ids=ids)
@pytest.mark.parametrize("physical", [None, 4])
def test_without_noise_and_binding_clips_a_step_is_keras_own(mode, physical):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 6, 6, 1)).astype("float32"), rng.integers(0, 3, 12)
    plain, private = plain_twin()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(keras.optimizers.Adam(0.01), loss)
    private.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(0.01), 0.0), loss, **mode)
    plain.fit(x, y, batch_size=12, epochs=6, verbose=0)
    epochs = 6 // mode.get("steps_per_execution", 1)
    sampling = tfdp.sampling.FixedSize(12)
    private.fit(x, y, sampling=sampling, physical_batch_size=physical, epochs=epochs, verbose=0)
    if "steps_per_execution" in mode:
        assert int(private.optimizer.releases.numpy()) == 6
    for a, b in zip(plain.get_weights(), private.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def one_step(sampling, jit=False, physical=None, seed=3):
    """The update of one noiseless SGD step of rate 1, times the expected batch size, and the drawn rows' own sums."""
    model, x, y = mlp()
    model.layers[1].rate = 0.0
    compiled((model, x, y), noise=0.0, jit_compile=jit)
    batches = tfdp.PrivateBatches(x, y, sampling, physical, seed=seed)
    again = tfdp.PrivateBatches(x, y, sampling, physical, seed=seed)
    drawn = next(iter(again.stream()))
    expected = model.bounded_gradient_sums(*drawn)
    before = model.get_weights()
    model.fit(batches, steps_per_epoch=1, verbose=0)
    moved = [(a - b) * sampling.batch_size for a, b in zip(before, model.get_weights(), strict=True)]
    return np.concatenate([m.ravel() for m in moved]), np.concatenate([np.ravel(e) for e in expected]), drawn


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("jit", slow_but([False], [False, True]))
@pytest.mark.parametrize("physical", [None, 2])
def test_padding_adds_nothing_and_the_divisor_is_the_expected_batch_size(jit, physical):
    sizes = set()
    for seed in range(3 if jit else 6):
        moved, expected, drawn = one_step(tfdp.sampling.Poisson(4), jit, physical, seed)
        sizes.add(len(drawn[1]))
        np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-5)
    assert sizes - {4}  # sizes other than the expected one were drawn: dividing by the drawn size would show


@pytest.mark.slow
def test_planted_bugs_of_the_step_are_seen(monkeypatch):
    moved, expected, _ = one_step(tfdp.sampling.Poisson(4), seed=1)
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-5)
    release = tfdp.optimizers.NoisyOptimizer.release

    def divides_by_the_drawn_size(self, sums, variables, groups, batch_size, after):
        return release(self, sums, variables, groups, 3 if batch_size == 4 else 4, after)

    with monkeypatch.context() as patch:
        patch.setattr(tfdp.optimizers.NoisyOptimizer, "release", divides_by_the_drawn_size)
        moved, expected, _ = one_step(tfdp.sampling.Poisson(4), seed=1)
        assert not np.allclose(moved, expected, rtol=1e-3, atol=1e-5)

    from tfdp_layers.batches import arrays

    fill = arrays.fill

    def forgets_the_mask(leaf, count, static):
        filled = fill(leaf, count, static)
        return tf.ones_like(filled) if leaf.dtype == tf.float32 and len(leaf.shape) == 1 else filled

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "fill", forgets_the_mask)
        differs = []
        for seed in range(6):
            moved, expected, _ = one_step(tfdp.sampling.TruncatedPoisson(4), seed=seed)
            differs.append(not np.allclose(moved, expected, rtol=1e-3, atol=1e-5))
        assert any(differs)


def test_an_empty_draw_releases_noise():
    model, x, y = compiled(mlp(), noise=1.0)
    before = weights(model)
    model.fit(empty_batches(x, y), steps_per_epoch=2, verbose=0)
    assert np.isfinite(weights(model)).all()
    assert (weights(model) != before).all()
    assert model.ledger.steps == 2


class KeepsWeights(keras.callbacks.Callback):
    """Remembers the weights after every step."""

    def on_train_begin(self, logs=None):
        self.kept = [self.model.get_weights()]

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(self.model.get_weights())


def noise_of_steps(mode, steps, **options):
    """The noise of each group over steps on nothing (SGD of rate 1), and the standard deviation stated for it."""
    model, x, y = compiled(cnn(), noise=1.3, **mode, **options)
    keeper = KeepsWeights()
    model.fit(empty_batches(x, y), steps_per_epoch=steps, verbose=0, callbacks=[keeper])
    history = [np.stack(kept) for kept in zip(*keeper.kept, strict=True)]
    moved = {id(v): -4 * np.diff(h, axis=0).ravel() for v, h in zip(model.weights, history, strict=True)}
    groups = model.sensitivities()
    return [(np.concatenate([moved[id(v)] for v in g.variables]), 1.3 * np.sqrt(len(groups)) * g.bound) for g in groups]


@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES[:3]), ids=ids[:3])
def test_each_group_has_the_stated_noise(mode):
    for sample, sigma in noise_of_steps(mode, 120):
        assert_normal(sample, sigma)


def test_noise_is_independent_between_weights_steps_and_runs():
    first, second = (np.concatenate([p[0] for p in noise_of_steps({}, 1)]) for _ in range(2))
    assert not np.isclose(first, second).any()  # two runs with keys from the operating system
    source = SeededNoise(5)
    a, b = (np.array(source.normal((2000,))) for _ in range(2))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1
    again = SeededNoise(5)
    np.testing.assert_array_equal(a, again.normal((2000,)))
    again.rekey()  # a second fit goes on, it does not replay
    np.testing.assert_array_equal(b, again.normal((2000,)))


@pytest.mark.slow
def test_a_reused_noise_key_is_seen(monkeypatch):
    model, x, y = compiled(mlp(), noise=1.0, noise_source=SeededNoise(1))

    def largest_repeat():
        declared = empty_batches(x, y)
        steps = [weights(model)]
        for _ in range(2):
            model.fit(declared, steps_per_epoch=1, verbose=0)
            steps.append(weights(model))
        first, second = np.diff(steps, axis=0)
        return np.isclose(first, second, rtol=1e-3).mean()

    assert largest_repeat() < 0.1

    def restarts(self):
        self._generator.state.assign(self._fresh_state())

    monkeypatch.setattr(SeededNoise, "rekey", restarts)
    assert largest_repeat() > 0.9


@pytest.mark.slow
def test_a_seeded_run_repeats_and_others_do_not():
    def run(noise_source, sampling_seed):
        keras.utils.set_random_seed(7)
        model, x, y = compiled(mlp(), noise_source=noise_source)
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, sampling_seed=sampling_seed)
        return weights(model), model

    a, b = run(SeededNoise(1), 2)[0], run(SeededNoise(1), 2)[0]
    np.testing.assert_array_equal(a, b)
    c, model = run("default", None)
    d, _ = run("default", None)
    assert not np.isclose(c, d).any()  # keras.utils.set_random_seed drives nothing private
    assert not model.ledger.entries[0].release.seeded
    assert run(SeededNoise(1), None)[1].ledger.entries[0].release.seeded
    assert run("default", 2)[1].ledger.entries[0].release.seeded


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:2], MODES), ids=ids)
def test_past_the_limit_a_step_releases_nothing(mode):
    model, x, y = compiled(mlp(), optimizer=keras.optimizers.Adam(0.1), **mode)
    batches = tfdp.PrivateBatches(x, y, tfdp.sampling.TruncatedPoisson(4))
    model.fit(batches, steps_per_epoch=1, verbose=0)
    done = int(model.optimizer.releases.numpy())
    begin = model._begin

    def limited(*given):
        begin(*given)
        model.optimizer.limit_releases(2)

    model._begin = limited
    model.fit(batches, epochs=1, steps_per_epoch=2, verbose=0)
    assert int(model.optimizer.releases.numpy()) == done + 2
    before, state = weights(model), [np.array(v) for v in model.optimizer.variables]
    model._begin = lambda *given: (begin(*given), model.optimizer.limit_releases(0))
    model.fit(batches, epochs=3, verbose=0)
    np.testing.assert_array_equal(before, weights(model))
    for old, new in zip(state, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, np.array(new))
    assert model.ledger.steps == done + 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(MODES[-1:], MODES[1:]), ids=ids[1:])
def test_several_inputs_and_outputs_in_every_mode(mode):
    model, x, y = compiled(two_inputs_two_outputs(), **mode)
    public = keras.tree.map_structure(np.copy, (rows(x, slice(0, 4)), rows(y, slice(0, 4))))
    history = model.fit(x, y, batch_size=4, epochs=1, verbose=0, validation_data=public)
    assert np.isfinite(history.history["val_loss"][0])
