"""DPWhitening: one record's influence on the second moments that adapt releases, their noise, and what they are for.

What it shares with DPPCA (the ledger, refusals, copies) is tested there.
"""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normality import assert_normal
from tfdp_layers.accounting import epsilon
from tfdp_layers.layers import dp_whitening
from tfdp_layers.layers.second_moments import matrix_of, second_moments

CLIP, CHANNELS = 2.0, 4
RNG = np.random.default_rng(0)
TURN = RNG.normal(size=(CHANNELS, CHANNELS))
X = (RNG.normal(size=(60, 3, 2, CHANNELS)) @ TURN).astype("float32")  # six positions, more than channels
FEW = X[:, :1]  # two positions, fewer than channels


def moments(x):
    return np.asarray(second_moments(x, CHANNELS, CLIP))


def matrices(x):
    """Each record's matrix, not clipped."""
    flat = x.reshape(len(x), -1, CHANNELS).astype(np.float64)
    return np.einsum("npc,npd->ncd", flat, flat) / flat.shape[1]


@pytest.mark.parametrize("x", [X, FEW, X[:, 0, 0]], ids=["many", "few", "none"])
def test_it_releases_the_sum_of_the_clipped_matrices(x):
    each = matrices(x)
    norms = np.linalg.norm(each, axis=(1, 2))
    assert 0.1 < np.mean(norms > CLIP**2) < 1.0
    wanted = np.einsum("n,ncd->cd", np.minimum(1.0, CLIP**2 / norms), each)
    np.testing.assert_allclose(matrix_of(moments(x), CHANNELS), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e19, 1e-40, 0.0, 5.0], ids=str)
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)], ids=["all", "one"])
@pytest.mark.parametrize("x", [X, FEW], ids=["many", "few"])
def test_no_record_moves_it_by_more_than_the_squared_clip(value, where, x):
    spoiled = np.copy(x)
    spoiled[-1, ..., where] = value
    assert np.all(np.isfinite(moments(spoiled)))
    assert np.linalg.norm(moments(spoiled) - moments(x[:-1])) <= CLIP**2


@pytest.mark.parametrize("x", [X, FEW], ids=["many", "few"])
def test_every_long_record_attains_the_bound_and_the_wrong_norms_would_exceed_it(x):
    witness = 1e3 * x[:1]
    moved = np.linalg.norm(moments(np.concatenate([x, witness])) - moments(x))
    assert CLIP**2 * (1 - 1e-4) <= moved <= CLIP**2
    (matrix,) = matrices(witness)
    planted = matrix * CLIP**2 / np.max(np.linalg.norm(matrix, axis=0))  # of the largest column in place of all
    assert np.linalg.norm(planted) > 1.1 * CLIP**2


def test_the_noise_is_what_the_ledger_says(monkeypatch):
    x = RNG.normal(size=(20, 16)).astype("float32")
    true = np.asarray(second_moments(x, 16, CLIP))
    layer, kept = tfdp.layers.DPWhitening(0.7, CLIP), []
    monkeypatch.setattr(tfdp.layers.DPWhitening, "use", lambda self, released, *_: kept.append(released - true))
    for _ in range(12):
        layer.adapt(x)
    (entry,) = layer.ledger.entries
    (group,) = entry.release.groups
    bound = pytest.approx(np.sqrt(1.25) * CLIP**2)  # the count's share beside the moments'
    assert (entry.steps, group.bound, group.stddev) == (12, bound, pytest.approx(0.7 * group.bound))
    assert_normal(np.stack(kept), group.stddev)


def test_without_noise_what_comes_out_is_white():
    layer = tfdp.layers.DPWhitening(0.0, 1e3, damping=1e-6)
    np.testing.assert_array_equal(layer(X), X)  # before
    layer.adapt(X)
    white = np.asarray(layer(X)).reshape(-1, CHANNELS)
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(CHANNELS), atol=1e-3)
    assert epsilon(layer.ledger, 1e-5) == np.inf


def test_damping_is_what_the_noise_moves_eigenvalues_by():
    size, noise = 60, 0.3
    draws = RNG.normal(size=(20, size, size)) * noise / np.sqrt(2)
    moved = [
        np.max(np.linalg.eigvalsh(np.triu(d, 1) + np.triu(d, 1).T + np.diag(np.sqrt(2) * np.diag(d)))) for d in draws
    ]
    assert 0.85 < np.mean(moved) / (noise * np.sqrt(2.0 * size)) < 1.05
    spread = np.diag([9.0, 1.0, 1.0, 1.0])
    weak, strong = (np.diag(dp_whitening.whitener_of(spread, edge, None)) for edge in (0.0, 300.0))
    assert weak[1] / weak[0] > 2.8
    assert strong[1] / strong[0] < 1.1
    np.testing.assert_array_equal(dp_whitening.whitener_of(-spread, 1.0, None), np.eye(CHANNELS))


def test_a_model_pays_saves_and_converts_it(tmp_path):
    layer = tfdp.layers.DPWhitening(5.0, 4.0)
    head = [keras.layers.Flatten(), tfdp.layers.ClippedDense(3)]
    model = tfdp.PrivateSequential([keras.Input(X.shape[1:]), layer, *head])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 2.0), "mse")
    layer.adapt(X)
    model.fit(X, np.zeros((60, 3), "float32"), batch_size=20, verbose=0)
    assert sorted(entry.steps for entry in model.ledger.entries) == [1, 3]
    np.testing.assert_allclose(model.to_keras()(X), model(X), rtol=1e-5, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(X), model(X), rtol=1e-6)
    assert loaded.ledger.updates == model.ledger.updates


@pytest.mark.parametrize("damping", [0.0, -1.0, np.nan, "a"])
def test_settings_out_of_range_are_refused(damping):
    with pytest.raises(ValueError, match="damping"):
        tfdp.layers.DPWhitening(1.0, damping=damping)


@pytest.mark.parametrize("layer", [tfdp.layers.DPWhitening, lambda *settings: tfdp.layers.DPPCA(2, *settings)])
def test_a_clip_whose_square_is_out_of_range_is_refused_before_anything_is_paid(layer):
    for clip in (9e-6, 2e19):
        with pytest.raises(ValueError, match="its square bounds"):
            layer(1.0, clip)
    edge = layer(1.0, 1.1e-5)
    edge.adapt(X.reshape(60, -1)[:, :4])
    assert edge.ledger.steps == 1


def test_other_channels_are_refused():
    layer = tfdp.layers.DPWhitening(1.0)
    layer.adapt(X)
    with pytest.raises(ValueError, match="records of 2 channels; the layer has 4"):
        layer.adapt(X[..., :2])
