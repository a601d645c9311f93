"""DPPCA: one record's influence on what adapt releases, its noise, and that its cost is never forgotten."""

import copy

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers.accounting import GroupNoise, Ledger, Release, calibrate_noise_multiplier, epsilon
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget
from tfdp_layers.layers import adapted as adapted_layers
from tfdp_layers.layers import dp_pca
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

CLIP, DELTA, FEATURES = 1.5, 1e-3, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, FEATURES)).astype("float32")
Y = RNG.integers(0, 3, 40)
HOSTILE = [np.nan, np.inf, -np.inf, 3e38, 1e19, 1e-40, 0.0, 5.0]


def moments(x):
    return np.asarray(dp_pca.second_moments(x, FEATURES, CLIP))


def test_it_releases_the_matrix_of_clipped_records():
    clipped = X.astype(np.float64)
    clipped *= np.minimum(1.0, CLIP / np.linalg.norm(clipped, axis=1))[:, None]
    wanted = clipped.T @ clipped
    upper = wanted[np.triu_indices(FEATURES, 1)]
    np.testing.assert_allclose(moments(X), [*np.diag(wanted), *(np.sqrt(2) * upper)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", HOSTILE, ids=str)
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)], ids=["all", "one"])
def test_no_record_moves_it_by_more_than_the_squared_clip(value, where):
    spoiled = np.copy(X)
    spoiled[-1, where] = value
    assert np.all(np.isfinite(moments(spoiled)))
    assert np.linalg.norm(moments(spoiled) - moments(X[:-1])) <= CLIP**2


@pytest.mark.parametrize("direction", [np.eye(FEATURES)[2], np.ones(FEATURES), X[3]], ids=["axis", "diagonal", "any"])
def test_every_long_record_attains_the_bound(direction):
    """With the same noise on and off the diagonal, only records along an axis would."""
    witness = 1e3 * direction[None].astype("float32")
    moved = np.linalg.norm(moments(np.concatenate([X, witness])) - moments(X))
    assert CLIP**2 * (1 - 1e-4) <= moved <= CLIP**2


def test_off_diagonals_counted_once_and_in_full_would_be_too_much():
    """The planted bug: the plain Frobenius norm of the triangle's entries, doubled for symmetry."""
    doubled = np.copy(moments(1e3 * np.ones((1, FEATURES), "float32")))
    doubled[FEATURES:] *= np.sqrt(2)
    assert np.linalg.norm(doubled) > 1.2 * CLIP**2


def noisy(noise_multiplier=0.7, times=40, **options):
    """What `adapt` released beyond the true vector, by (entries of the diagonal, entries above it)."""
    layer = tfdp.layers.DPPCA(3, noise_multiplier, CLIP)
    kept = []
    original = dp_pca.leading_eigenvectors

    def spy(released, features, components):
        kept.append(released - moments(X))
        return original(released, features, components)

    dp_pca.leading_eigenvectors = spy
    try:
        for _ in range(times):
            layer.adapt(X, **options)
    finally:
        dp_pca.leading_eigenvectors = original
    return layer, np.stack(kept)


@pytest.mark.slow
def test_the_noise_is_what_the_ledger_says():
    layer, noise = noisy(times=80)
    (entry,) = layer.ledger.entries
    assert entry.steps == 80
    (group,) = entry.release.groups
    assert (group.bound, group.stddev) == (CLIP**2, pytest.approx(0.7 * CLIP**2))
    assert_normal(noise, group.stddev)


def test_without_noise_it_is_the_eigenvectors_and_a_projection():
    layer = tfdp.layers.DPPCA(3, 0.0, 1e3)
    layer.adapt(np.reshape(X, (-1, 2, 3)))
    _, vectors = np.linalg.eigh(X.T.astype(np.float64) @ X)
    found = np.asarray(layer.projection)
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, :-4:-1], axis=0)), 1.0, rtol=1e-4)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(layer(np.reshape(X, (-1, 2, 3))), X @ found, rtol=1e-4, atol=1e-5)
    assert epsilon(layer.ledger, DELTA) == np.inf


@pytest.mark.parametrize(
    ("sampling", "multiplier"),
    [(None, 3.0), (TruncatedPoisson(8), 3.0), (FixedSize(8), 1.5), (Partition(8), 3.0)],
    ids=["default", "truncated", "fixed_size", "partition"],
)
def test_the_cost_is_that_of_the_gaussian_mechanism_under_the_relation_of_fit(sampling, multiplier):
    layer = tfdp.layers.DPPCA(2, 3.0)
    for times in (1, 2):
        layer.adapt(X, sampling)
        assert layer.ledger.relation is (sampling or Poisson(1)).relation
        # Under replace-one the certificate's bound counts twice.
        exact = dp_accounting.get_epsilon_gaussian(multiplier / np.sqrt(times), DELTA)
        assert float(epsilon(layer.ledger, DELTA)) == pytest.approx(exact, rel=1e-3)


def model_with(layer, noise=1.0):
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise), loss)
    return model


def adapted(noise=3.0, sampling=None):
    layer = tfdp.layers.DPPCA(2, noise)
    layer.adapt(X, sampling)
    return layer


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("sampling", [Poisson(8), FixedSize(8)], ids=lambda s: s.kind)
def test_the_models_ledger_holds_the_cost_of_both(sampling):
    model = model_with(adapted(sampling=sampling))
    alone = float(epsilon(model.ledger, DELTA))
    assert alone > 0
    model.fit(X, Y, sampling=sampling, verbose=0)
    assert (model.ledger.steps, model.ledger.updates) == (6, 5)
    both = Ledger()
    for release, steps in (
        (Release((GroupNoise("w", 1.0, 1.0),), sampling, 40), 5),
        (Release((GroupNoise("p", 1.0, 3.0),), adapted_layers.whole(sampling, 40), 40, purpose="whole_data"), 1),
    ):
        both.reserve(both.begin(release), steps)
    assert float(epsilon(model.ledger, DELTA)) == pytest.approx(float(epsilon(both, DELTA)))
    assert float(epsilon(both, DELTA)) > alone
    text = str(model.privacy_statement(DELTA))
    assert "1 noisy sum over all records" in " ".join(text.split())
    model.layers[0].adapt(X, sampling)
    assert model.ledger.steps == 7


@pytest.mark.slow
def test_a_budget_counts_it():
    layer = adapted(noise=3.0)
    spent = float(epsilon(layer.ledger, DELTA))
    with pytest.raises(BudgetExhausted):
        model_with(layer).fit(X, Y, batch_size=8, verbose=0, callbacks=[PrivacyBudget(spent, DELTA)])
    target = 2 * spent
    noise = calibrate_noise_multiplier(target, DELTA, Poisson(8), 40, 5, layer.ledger)
    model = model_with(layer, noise)
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[PrivacyBudget(target, DELTA)])
    assert model.ledger.updates == 5
    assert 0.95 * target < epsilon(model.ledger, DELTA) <= target


def test_another_relation_is_refused():
    model = model_with(adapted(sampling=FixedSize(8)))
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        model.fit(X, Y, batch_size=8, verbose=0)


def test_before_adapt_it_is_refused():
    with pytest.raises(ValueError, match="not adapted yet"):
        model_with(tfdp.layers.DPPCA(2, 1.0)).fit(X, Y, batch_size=8, verbose=0)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_saving_keeps_weights_and_cost(suffix, tmp_path):
    model = model_with(adapted())
    model.fit(X, Y, batch_size=8, verbose=0)
    path = tmp_path / f"model{suffix}"
    if suffix == ".keras":
        model.save(path)
        loaded = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        loaded = model_with(tfdp.layers.DPPCA(2, 3.0))
        loaded.load_weights(path)
    np.testing.assert_array_equal(loaded.layers[0].projection, model.layers[0].projection)
    assert epsilon(loaded.ledger, DELTA) == epsilon(model.ledger, DELTA)
    # The layer by itself in another model, too.
    assert model_with(loaded.layers[0]).ledger.steps == 1


def test_copied_weights_without_their_cost_are_refused():
    source, other = model_with(adapted()), model_with(adapted())
    other.set_weights(source.get_weights())  # its own adapt is paid for, but not this one
    for use in (
        lambda: other.privacy_statement(DELTA),
        lambda: tfdp.PrivateModel(other.inputs, other.outputs),
        lambda: other.fit(X, Y, batch_size=8, verbose=0),
    ):
        with pytest.raises(ValueError, match="without the record"):
            use()
    other.layers[0].ledger.merge(source.layers[0].ledger)
    other.privacy_statement(DELTA)
    assert other.ledger.steps == 2


def test_a_checkpoint_without_ledger_is_refused(tmp_path):
    source, other = model_with(adapted()), model_with(tfdp.layers.DPPCA(2, 3.0))
    tf.train.Checkpoint(model=source).write(str(tmp_path / "c"))
    tf.train.Checkpoint(model=other).read(str(tmp_path / "c"))
    assert other.layers[0].adapted
    with pytest.raises(ValueError, match="without the record"):
        other.privacy_statement(DELTA)


def test_copies_and_conversions_keep_the_cost():
    layer = adapted()
    plain = keras.Sequential([keras.Input((FEATURES,)), layer, keras.layers.Dense(3)])
    for model in (
        tfdp.make_private(plain),
        tfdp.make_private(plain, bounding="backprop_clipping"),
        copy.deepcopy(model_with(layer)),
    ):
        assert model.ledger.steps == 1
        served = model.to_keras()
        np.testing.assert_allclose(served(X), model(X), rtol=1e-5, atol=1e-6)
        assert not any(type(part).__module__.startswith("tfdp") for part in served._flatten_layers())


@pytest.mark.slow
def test_the_optimizers_releases_are_not_paid_by_it(tmp_path):
    """The planted bug: counting adapt as an update would let one unpaid update through."""
    source = model_with(adapted())
    source.fit(X, Y, batch_size=8, steps_per_epoch=1, verbose=0)
    other = model_with(adapted())
    other.optimizer.build(other.trainable_variables)
    other.optimizer.releases.assign(1)
    with pytest.raises(ValueError, match="counts 1 releases and the ledger 0"):
        other.privacy_statement(DELTA)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdp.layers.DPPCA(0, 1.0),
        lambda: tfdp.layers.DPPCA(2, -1.0),
        lambda: tfdp.layers.DPPCA(2, 1.0, np.nan),
        lambda: tfdp.layers.DPPCA(7, 1.0).adapt(X),
        lambda: tfdp.layers.DPPCA(2, 1.0).adapt(X[:0]),
        lambda: tfdp.layers.DPPCA(2, 1.0).adapt(X, "poisson"),
        lambda: tfdp.layers.DPPCA(2, 1.0, noise_source=3),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match=r"components|noise|clip|record|sampling"):
        make()


def test_a_seeded_source_voids_the_statement():
    layer = tfdp.layers.DPPCA(2, 3.0, noise_source=tfdp.noise.SeededNoise(1))
    layer.adapt(X)
    assert model_with(layer).privacy_statement(DELTA).void


def test_a_budget_of_the_data_set_refuses_it_before_anything_is_released():
    layer = adapted(noise=50.0)
    model = model_with(layer)
    model.ledger = Ledger(dataset="d", budget=(1.0, DELTA))
    spent, before = model.ledger.steps, np.array(layer.receipt)
    layer.noise_multiplier = 0.3
    with pytest.raises(BudgetExhausted, match="about to be released"):
        layer.adapt(X)
    assert model.ledger.steps == layer.ledger.steps == spent
    np.testing.assert_array_equal(before, layer.receipt)
    layer.noise_multiplier = 50.0
    layer.adapt(X)
    assert model.ledger.steps == spent + 1
    assert float(epsilon(model.ledger, DELTA)) <= 1.0
