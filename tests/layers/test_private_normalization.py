"""PrivateNormalization: one record's influence on what adapt releases, its noise, and the cost in the ledger.

What it shares with DPPCA (refusals, copies, receipts) is tested there.
"""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers.accounting import calibrate_noise_multiplier, epsilon
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.layers import private_normalization
from tfdp_layers.sampling import FixedSize, Poisson

DELTA, FEATURES = 1e-5, 3
BOUND = np.sqrt(2 * FEATURES)
LOWER, UPPER = np.array([-4.0, 0.0, 1e3]), np.array([4.0, 1.0, 1e9])
RNG = np.random.default_rng(0)
X = RNG.uniform(LOWER, UPPER, size=(40, 2, FEATURES)).astype("float32")
Y = RNG.integers(0, 3, 40)
HOSTILE = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0, 0.5, 1e3]


def layer_of(noise=1.0, **options):
    return tfdp.layers.PrivateNormalization(noise, LOWER, UPPER, **options)


def total(x, layer=None):
    layer = layer_of() if layer is None else layer
    if not layer.built:
        layer.build((None, FEATURES))
    return np.asarray(layer.total(x))


@pytest.mark.parametrize("value", HOSTILE, ids=str)
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)], ids=["all", "one"])
def test_no_record_moves_the_sums_by_more_than_the_bound(value, where):
    spoiled = np.copy(X)
    spoiled[-1, :, where] = value
    assert np.all(np.isfinite(total(spoiled)))
    assert np.linalg.norm(total(spoiled) - total(X[:-1])) <= BOUND * (1 + 1e-12)


@pytest.mark.slow
def test_random_and_searched_records_stay_within_it():
    records = RNG.uniform(LOWER - 1.0, UPPER + 1.0, size=(2000, 1, FEATURES))
    alone = np.stack([total(record[None]) for record in records])
    largest = np.max(np.linalg.norm(alone, axis=1))
    assert 0.8 * BOUND < largest <= BOUND


@pytest.mark.parametrize("ends", [UPPER, LOWER, np.where(np.arange(FEATURES) % 2, UPPER, LOWER)], ids=str)
def test_every_record_at_the_ends_attains_the_bound(ends):
    witness = np.broadcast_to(ends, (1, 2, FEATURES))
    moved = np.linalg.norm(total(np.concatenate([X, witness])) - total(X))
    assert moved == pytest.approx(BOUND, rel=1e-6)
    layer = layer_of()
    layer.build((None, FEATURES))
    assert BOUND <= layer.sensitivity <= BOUND * (1 + 2e-5)


def test_a_bound_that_forgets_the_squares_would_be_exceeded(monkeypatch):
    """The planted bugs: sqrt(d), of the means alone; and values that are not clipped."""
    witness = UPPER[None, None]
    assert np.linalg.norm(total(witness)) > 1.4 * np.sqrt(FEATURES)
    monkeypatch.setattr(private_normalization.np, "clip", lambda values, *_: values)
    with pytest.raises(AssertionError):
        test_no_record_moves_the_sums_by_more_than_the_bound(3e38, slice(None))


@pytest.mark.slow
def test_the_noise_is_what_the_ledger_says(monkeypatch):
    layer, found = layer_of(0.7), []
    monkeypatch.setattr(type(layer), "use", lambda self, released, count, stddev: found.append(released - total(X)))
    for _ in range(300):
        layer.adapt(X)
    (entry,) = layer.ledger.entries
    (group,) = entry.release.groups
    assert entry.steps == 300
    counted = 1.25**0.5  # the number of records is released, too, half as large
    assert group.name == "noisy mean and variance"
    assert group.bound == pytest.approx(layer.sensitivity * counted)
    assert group.stddev == pytest.approx(0.7 * BOUND * counted, rel=1e-4)
    assert_normal(np.stack(found), group.stddev)


def test_without_noise_it_normalizes_as_keras_does():
    layer, keras_layer = layer_of(0.0), keras.layers.Normalization()
    layer.adapt(X)
    keras_layer.adapt(X)
    np.testing.assert_allclose(layer(X), keras_layer(X), rtol=1e-3, atol=1e-3)
    assert epsilon(layer.ledger, DELTA) == np.inf
    layer.adapt(np.broadcast_to(np.float32(0.5), (40, FEATURES)))  # all alike: no variance to divide by
    assert np.all(np.isfinite(layer(X)))


def test_with_noise_it_is_near_and_a_variance_below_the_noise_is_not_believed():
    x = RNG.normal([0.5, 0.5, 5e8], [1.0, 1e-4, 1e8], size=(4000, FEATURES)).astype("float32")
    layer = layer_of(5.0, noise_source=tfdp.noise.SeededNoise(3))
    layer.adapt(x)
    np.testing.assert_allclose(layer.mean, x.mean(axis=0), rtol=0.1, atol=0.05)
    np.testing.assert_allclose(np.sqrt(layer.variance)[[0, 2]], [1.0, 1e8], rtol=0.15)
    noise = 5.0 * BOUND / 4000
    assert 0.4 * noise < layer.variance[1] / 0.25 < 5 * noise  # not 1e-8
    assert np.max(np.abs(layer(x))) < 8


@pytest.mark.slow
@pytest.mark.parametrize("flat", [True, False])
def test_a_model_pays_saves_and_converts_it(flat, tmp_path):
    x = X[:, 0] if flat else X
    layer = layer_of(5.0)
    layer.adapt(x)
    layers = [layer] if flat else [layer, keras.layers.Flatten()]
    model = tfdp.PrivateSequential([keras.Input(x.shape[1:]), *layers, tfdp.layers.ClippedDense(3, gradient_clip=1.0)])
    noise = calibrate_noise_multiplier(2.0, DELTA, Poisson(8), 40, 5, layer.ledger)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", noise), loss)
    model.fit(x, Y, batch_size=8, verbose=0, callbacks=[PrivacyBudget(2.0, DELTA)])
    assert (model.ledger.steps, model.ledger.updates) == (6, 5)
    assert 1.8 < epsilon(model.ledger, DELTA) <= 2.0
    assert "noisy mean and variance" in str(model.privacy_statement(DELTA))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.ledger.steps == 6
    served = loaded.to_keras()
    np.testing.assert_allclose(served(x), model(x), rtol=1e-4, atol=1e-4)
    assert not any(type(part).__module__.startswith("tfdp") for part in served._flatten_layers())


def test_its_cost_follows_the_relation_of_the_sampling():
    layer = layer_of(3.0)
    layer.adapt(X, FixedSize(8))
    assert layer.ledger.relation is FixedSize(8).relation


@pytest.mark.parametrize(
    ("lower", "upper", "data"),
    [
        (0.0, 0.0, None),
        (0.0, np.nan, None),
        (-np.inf, 0.0, None),
        (-1.7e308, 1.7e308, None),
        ([[0.0]], 1.0, None),
        ([0.0, 0.0], 1.0, X),
        (0.0, 1.0, X[:0]),
        (0.0, 1.0, X[:, :0]),
        (0.0, 1.0, X.astype(str)),
        (0.0, 1.0, [1.0]),
    ],
    ids=str,
)
def test_bad_settings_and_data_are_refused_before_anything_is_charged(lower, upper, data):
    made = []
    with pytest.raises(ValueError, match=r"lower|record|numbers"):
        made.append(tfdp.layers.PrivateNormalization(1.0, lower, upper)) or made[0].adapt(data)
    assert all(layer.ledger.steps == 0 for layer in made)


def test_other_features_than_before_are_refused():
    layer = layer_of()
    layer.adapt(X)
    with pytest.raises(ValueError, match="3 features"):
        layer.adapt(X[..., :2])
    layer.adapt(X[:, :1])  # other positions are not other features
    assert layer.ledger.steps == 2
