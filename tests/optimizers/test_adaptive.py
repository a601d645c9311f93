"""AdaDP: what is summed before and after the switch, its noise, and that its state comes from released values alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.empty_draws import empty_batches
from helpers.normality import assert_normal
from helpers.ordinary import MODELS, added, compiled, gradients_alone, length, mlp, text
from helpers.variants import slow_but
from tfdp_layers.optimizers import adadp, base

CLIP, FACTOR = 0.8, 1.2
MODES = [{}, {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}]


def optimizer(noise=1.0, estimator="coordinate", learning_rate=1.0, **options):
    return tfdp.optimizers.AdaDPOptimizer(
        learning_rate, noise, FACTOR, CLIP, **({"scale_estimator": estimator, "adaptive_rate": False} | options)
    )


def in_state(model, switched, estimator="coordinate"):
    """Puts the optimizer past its switch, with clamps of many sizes; returns the clamp of each weight."""
    own = model.optimizer
    own.build(model.trainable_variables)
    rng = np.random.default_rng(6)
    own._switch.assign(float(switched))
    for moment in own._moments.values():
        moment.assign(np.exp(rng.normal(-5, 2, moment.shape)) if estimator != "query" else rng.normal(-1, 1))
    weights = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return [np.broadcast_to(own.clamp(v, weights), v.shape).astype(np.float64) for v in model.trainable_variables]


def expected(model, x, y, clamps):
    """By a loop over records, one at a time, in float64; clamps None clips instead."""
    total = [np.zeros(v.shape) for v in model.trainable_variables]
    weights = sum(t.size for t in total)
    for gradients in gradients_alone(model, x, y):
        if clamps is None:
            found = [g / max(CLIP, length(gradients)) for g in gradients]
        else:
            found = [np.clip(g / s, -1, 1) / np.sqrt(weights) for g, s in zip(gradients, clamps, strict=True)]
        total = [t + f for t, f in zip(total, found, strict=True)]
    return total


def assert_close(found, wanted):
    gap = length([np.asarray(a) - b for a, b in zip(found, wanted, strict=True)])
    assert gap <= 1e-4 * length(wanted)


@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
@pytest.mark.parametrize("made", slow_but([mlp], MODELS), ids=lambda m: m.__name__)
def test_the_sum_is_that_of_a_loop_over_records_in_both_phases(made, switched):
    model, x, y = compiled(made, optimizer())
    clamps = in_state(model, switched)
    wanted = expected(model, x, y, clamps if switched else None)
    assert_close(model.bounded_gradient_sums(x, y), wanted)
    assert_close(tf.function(model.bounded_gradient_sums, autograph=False)(tf.constant(x), tf.constant(y)), wanted)


@pytest.mark.slow
def test_the_same_under_xla():
    model, x, y = compiled(text, optimizer())
    wanted = expected(model, x, y, in_state(model, True))
    assert_close(
        tf.function(lambda a, b: model.bounded_gradient_sums(a, b), autograph=False, jit_compile=True)(x, y), wanted
    )


@pytest.mark.parametrize("estimator", slow_but(["coordinate"], adadp.ESTIMATORS))
@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
def test_no_record_adds_more_than_the_bound_in_either_phase(switched, estimator):
    model, x, y = compiled(mlp, optimizer(estimator=estimator))
    in_state(model, switched, estimator)
    assert model.sensitivities()[0].bound == 1.0
    for value in (np.nan, np.inf, -np.inf, 3e38, -1e30, 1e18, 1e-40, 0.0, 5.0):
        spoiled = np.copy(x)
        spoiled[-1] = value
        assert added(model, spoiled, y) <= 1 + 1e-5, value
    assert added(model, x, y) > 0.2


def scalar_model(switched):
    model = tfdp.PrivateSequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(optimizer(), "mse")
    in_state(model, switched)
    return model


@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
def test_a_witness_attains_the_bound(switched):
    x, y = np.full((1, 5), 1e3, "float32"), np.full((1, 1), 1e3, "float32")
    model = scalar_model(switched)
    assert 1 - 1e-4 <= length(model.bounded_gradient_sums(x, y)) <= 1.0
    y[0] = np.inf
    assert all(np.all(np.asarray(s) == 0.0) for s in model.bounded_gradient_sums(x, y))


def test_a_clamp_of_the_summed_gradient_is_seen():
    """The planted bug: the clamp on the batch's gradient bounds nobody."""
    model, x, y = compiled(mlp, optimizer())
    clamps = in_state(model, True)
    summed = [sum(g) for g in zip(*gradients_alone(model, x, y), strict=True)]
    with pytest.raises(AssertionError):
        assert_close(
            [np.clip(g / s, -1, 1) for g, s in zip(summed, clamps, strict=True)], expected(model, x, y, clamps)
        )


class EachStep(keras.callbacks.Callback):
    """Keeps weights and estimates after every step, and puts the optimizer back into the state that it had."""

    def __init__(self, model):
        super().__init__()
        own = model.optimizer
        self.state = [(v, np.copy(v)) for v in (*own._moments.values(), own._switch)]
        self.weights, self.estimates = [model.get_weights()], []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.model.get_weights())
        self.estimates.append([np.copy(variable) for variable, _ in self.state])
        for variable, value in self.state:
            variable.assign(value)

    def moves(self):
        """For each weight what it was before every step, and after it."""
        history = [np.stack(kept) for kept in zip(*self.weights, strict=True)]
        return [h[:-1] for h in history], [h[1:] for h in history]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:1], [MODES[0], MODES[2]]), ids=["graph", "xla"])
@pytest.mark.parametrize("switched", [False, True], ids=["clipped", "clamped"])
def test_each_weight_gets_its_noise_and_together_they_make_the_noise_multiplier(switched, mode):
    """Lemma 1: the sum over weights of s^2 / sigma^2 is z^-2, sigma measured; and the ledger says z in both phases."""
    z = 1.3
    model, x, y = compiled(mlp, optimizer(noise=z), **mode)
    clamps = in_state(model, switched)
    weights = sum(s.size for s in clamps)
    sizes = clamps if switched else [np.full(s.shape, CLIP / np.sqrt(weights)) for s in clamps]
    keeper = EachStep(model)
    model.fit(empty_batches(x, y), steps_per_epoch=30, verbose=0, callbacks=[keeper])
    moved = [4 * (a - b).ravel() / np.tile(s.ravel(), 30) for a, b, s in zip(*keeper.moves(), sizes, strict=True)]
    over = np.concatenate(moved)
    stddev = z * np.sqrt(weights)
    assert_normal(over, stddev)
    assert weights / np.var(over) == pytest.approx(z**-2, rel=0.2)
    assert [e.release.noise_multiplier for e in model.ledger.entries] == [pytest.approx(z)]


def state_after(monkeypatch, x, y, **options):
    """State and weights after steps on these records, the released values being the same whatever the sums were."""

    def same(source, sums, stddevs):
        rng = np.random.default_rng(8)
        return [
            tf.constant(rng.normal(size=s.shape), tf.float32) if d > 0 else s
            for s, d in zip(sums, stddevs, strict=True)
        ]

    model, _, _ = compiled(mlp, optimizer(variance_threshold=0.0, **options))
    with monkeypatch.context() as patch:
        patch.setattr(base, "add_noise", same)
        model.fit(x, y, sampling=tfdp.sampling.FixedSize(7), epochs=3, verbose=0)
    assert float(model.optimizer._switch) == 1.0
    return np.concatenate([np.ravel(v) for v in (*model.optimizer.variables, *model.get_weights())])


def two_data_sets():
    _, x, y = compiled(mlp, optimizer())
    other = np.copy(x)
    other[0] = 100.0
    return (x, y), (other, y)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", slow_but(["coordinate"], adadp.ESTIMATORS))
def test_given_what_was_released_the_state_does_not_depend_on_a_record(estimator, monkeypatch):
    one, other = two_data_sets()
    same = [state_after(monkeypatch, *data, estimator=estimator) for data in (one, other)]
    np.testing.assert_array_equal(*same)


@pytest.mark.slow
def test_as_published_the_state_does_depend_on_a_record(monkeypatch):
    """The leak of the printed algorithm, and the planted bug for the test above."""
    one, other = two_data_sets()
    a, b = (state_after(monkeypatch, *data, as_published=True) for data in (one, other))
    assert not np.allclose(a, b)


@pytest.mark.slow
def test_as_published_follows_the_print():
    """E' from the gradient before clip and noise (line 23), decayed by gamma'."""
    model, x, y = compiled(mlp, optimizer(as_published=True, noise=0.5))
    mean = [np.mean(g, axis=0) for g in zip(*gradients_alone(model, x, y), strict=True)]
    model.fit(x, y, sampling=tfdp.sampling.FixedSize(7), steps_per_epoch=1, verbose=0)
    found = [model.optimizer._moments[id(v)].numpy() for v in model.trainable_variables]
    assert_close(found, [0.1 * np.square(g) for g in mean])
    assert float(tfdp.accounting.epsilon(model.ledger, 1e-5)) == np.inf


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("mode", slow_but(MODES[:1], MODES))
@pytest.mark.parametrize("physical", [None, 3])
def test_a_step_in_every_mode(mode, physical):
    model, x, y = compiled(mlp, optimizer(noise=0.0), **mode)
    clamps = in_state(model, True)
    weights = np.sqrt(sum(s.size for s in clamps))
    before, wanted = model.get_weights(), expected(model, x, y, clamps)
    steps = mode.get("steps_per_execution", 1)
    sampling = tfdp.sampling.FixedSize(len(x))
    model.fit(x, y, sampling=sampling, physical_batch_size=physical, steps_per_epoch=steps, verbose=0)
    assert int(model.optimizer.releases) == steps
    if steps == 1:
        moved = [(a - b) * len(x) for a, b in zip(before, model.get_weights(), strict=True)]
        assert_close(moved, [w * s * weights for w, s in zip(wanted, clamps, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("estimator", slow_but(["coordinate"], adadp.ESTIMATORS))
def test_a_saved_model_keeps_its_state(estimator, tmp_path):
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 50)
    options = {"estimator": estimator, "learning_rate": schedule, "variance_threshold": 0.0, "adaptive_rate": True}
    model, x, y = compiled(mlp, optimizer(**options))
    model.fit(x, y, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(loaded.optimizer._switch) == 1.0
    assert_close(loaded.bounded_gradient_sums(x, y), [np.asarray(s) for s in model.bounded_gradient_sums(x, y)])


@pytest.mark.slow
def test_the_ablations():
    """AdaL never clamps; AdaN steps as gradient descent; both cost what the noise multiplier says."""
    model, x, y = compiled(mlp, optimizer(adaptive_rate=True, adaptive_noise=False, variance_threshold=0.0))
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.RMSprop)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert not bool(model.optimizer.switched())
    model, _, _ = compiled(mlp, optimizer())
    assert type(model.optimizer.inner_optimizer) is keras.optimizers.SGD
    model, _, _ = compiled(mlp, optimizer(variance_threshold=1e9))
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert not bool(model.optimizer.switched())
    assert model.ledger.entries[0].release.noise_multiplier == pytest.approx(1.0)


@pytest.mark.slow
def test_the_layer_estimate_is_the_gradients_size_on_average():
    """Unbiased: noise of 20 times the gradient's size cancels, and without its correction it would not."""
    model, x, y = compiled(mlp, optimizer(estimator="layer", noise=30.0, learning_rate=0.0))
    sums = expected(model, x, y, None)
    wanted = np.mean(np.square(sums[0] * CLIP / len(x)))
    model.optimizer.build(model.trainable_variables)
    keeper = EachStep(model)
    model.fit(x, y, sampling=tfdp.sampling.FixedSize(7), steps_per_epoch=300, verbose=0, callbacks=[keeper])
    found = [10 * estimates[0] for estimates in keeper.estimates]
    noise = (30.0 * CLIP / len(x)) ** 2
    error = noise * np.sqrt(2 / 30) / np.sqrt(300)
    assert abs(np.mean(found) - wanted) < 5 * error < noise / 5


@pytest.mark.parametrize(
    "options",
    [{"estimator": "exact"}, {"rate_decay": 1.0}, {"noise_decay": 0.0}, {"variance_threshold": -1.0}],
    ids=lambda o: next(iter(o)),
)
def test_unsound_settings_are_refused(options):
    with pytest.raises(ValueError, match=r"scale_estimator|_decay|variance_threshold"):
        optimizer(**options)
