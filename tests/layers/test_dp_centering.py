"""DPCentering: one record's influence on what adapt releases, its noise, and that the cost goes with the mean.

What it shares with DPPCA (the ledger, refusals, copies) is tested there.
"""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import calibrate_noise_multiplier, epsilon
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.layers import adapted, dp_centering
from tfdp_layers.sampling import Poisson

CLIP, DELTA = 2.0, 1e-5
RNG = np.random.default_rng(0)
X = RNG.normal(1.0, 1.0, size=(40, 2, 3)).astype("float32")
Y = RNG.integers(0, 3, 40)


def total(x: np.ndarray) -> np.ndarray:
    return np.asarray(dp_centering.clipped_sum(x, CLIP))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e19, 1e-40, 0.0, 5.0], ids=str)
@pytest.mark.parametrize("where", [slice(None), slice(0, 1)], ids=["all", "one"])
def test_no_record_moves_the_sum_by_more_than_the_clip(value: float, where: slice) -> None:
    spoiled = np.copy(X)
    spoiled[-1, :, where] = value
    assert np.all(np.isfinite(total(spoiled)))
    assert np.linalg.norm(total(spoiled) - total(X[:-1])) <= CLIP


def test_every_long_record_attains_the_bound_and_an_unclipped_sum_would_exceed_it() -> None:
    witness = 1e3 * X[:1]
    moved = np.linalg.norm(total(np.concatenate([X, witness])) - total(X))
    assert CLIP * (1 - 1e-4) <= moved <= CLIP
    planted = np.concatenate([X, witness]).sum(axis=0) - X.sum(axis=0)
    assert np.linalg.norm(planted) > 100 * CLIP


@pytest.mark.slow
def test_the_noise_on_the_sum_is_what_the_ledger_says(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tfdp.layers.DPCentering(0.7, CLIP)
    found = []
    monkeypatch.setattr(type(layer), "use", lambda self, released, count, stddev: found.append(released - total(X)))
    for _ in range(200):
        layer.adapt(X)
    (entry,) = layer.ledger.entries
    assert entry.steps == 200
    (group,) = entry.release.groups
    counted = 1.25**0.5  # the number of records is released, too, half as large
    assert (group.bound, group.stddev) == pytest.approx((CLIP * counted, 0.7 * CLIP * counted))
    spread = np.std(found)  # 1,200 numbers: its own standard deviation is 2% of it
    assert 0.9 * group.stddev < spread < 1.1 * group.stddev


def test_without_noise_it_subtracts_the_mean_by_the_declared_number_of_records() -> None:
    layer = tfdp.layers.DPCentering(0.0, 1e3)
    layer.adapt(X)
    np.testing.assert_allclose(layer(X), X - X.mean(axis=0), atol=1e-4)
    assert epsilon(layer.ledger, DELTA) == np.inf
    layer.adapt(X, examples=80)
    np.testing.assert_allclose(layer.mean, X.mean(axis=0) / 2, rtol=1e-4)
    for wrong in (X[:0], X[:, :1], [1.0]):
        with pytest.raises(ValueError, match="record"):
            layer.adapt(wrong)


class Labelled:
    """As a data frame with numbers that are not whole for an index: slices go by labels, their ends included."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.shape = rows, rows.shape

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: slice) -> np.ndarray:
        return self.rows[places.start : None if places.stop is None else places.stop + 1]

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.rows


def test_a_record_counts_once_whatever_slices_of_its_table_hold() -> None:
    rows = np.zeros((4098, 2), "float32")
    rows[4096, 0] = CLIP  # where one piece of the records ends, and the next begins
    layer = tfdp.layers.DPCentering(0.0, CLIP)
    layer.adapt(Labelled(rows), examples=1)
    np.testing.assert_allclose(layer.mean, [CLIP, 0.0], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("flat", [True, False])
def test_a_model_pays_saves_and_converts_it(flat: bool, tmp_path) -> None:
    x = X.reshape(40, 6) if flat else X
    layer = tfdp.layers.DPCentering(5.0, 4.0)
    layer.adapt(x)
    layers = [layer] if flat else [layer, keras.layers.Flatten()]
    model = tfdp.PrivateSequential([keras.Input(x.shape[1:]), *layers, tfdp.layers.ClippedDense(3, gradient_clip=1.0)])
    noise = calibrate_noise_multiplier(2.0, DELTA, Poisson(8), 40, 5, layer.ledger)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", noise), loss)
    kept = np.copy(layer.mean)
    model.fit(x, Y, batch_size=8, verbose=0, callbacks=[PrivacyBudget(2.0, DELTA)])
    assert (model.ledger.steps, model.ledger.updates) == (6, 5)
    assert 1.8 < epsilon(model.ledger, DELTA) <= 2.0
    np.testing.assert_array_equal(layer.mean, kept)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.ledger.steps == 6
    served = loaded.to_keras()
    np.testing.assert_allclose(served(x), model(x), atol=1e-5)
    assert not any(type(part).__module__.startswith("tfdp") for part in served._flatten_layers())
    served.save(tmp_path / "plain.keras")
    np.testing.assert_allclose(keras.models.load_model(tmp_path / "plain.keras")(x), model(x), atol=1e-5)


def test_the_sum_is_by_the_clip_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning, of rows that come twice, is shown by code of the caller, after what is charged was read."""
    layer, kept = tfdp.layers.DPCentering(0.7, CLIP), []

    def looser(*_: object, **__: object) -> None:
        layer.l2_norm_clip = 1e3

    def caught(source: object, sums: list[object], stddevs: list[float]) -> list[object]:
        kept.append((np.asarray(sums[0]), stddevs))
        return sums

    monkeypatch.setattr(adapted, "add_noise", caught)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", looser)
        layer.adapt(1e3 * np.repeat(X, 2, axis=0), examples=2 * len(X))
    assert layer.l2_norm_clip == 1e3  # it was shown
    assert np.linalg.norm(kept[0][0]) <= 2 * len(X) * CLIP
    assert kept[0][1] == [pytest.approx(0.7 * CLIP)]


@pytest.mark.parametrize(
    "kind", [tfdp.layers.DPCentering, tfdp.layers.DPWhitening, lambda noise: tfdp.layers.DPPCA(2, noise)]
)
@pytest.mark.parametrize("clip", [np.int8(17), np.int16(257), np.int64(3), np.float16(300.0)])
def test_the_bound_is_of_the_clip_in_every_type(kind: Callable[[float], Any], clip: Any) -> None:
    """The square of 17 is 33 in eight bits, and the noise was a ninth of what was charged."""
    layer, plain = kind(0.7), kind(0.7)
    layer.l2_norm_clip, plain.l2_norm_clip = clip, float(clip)
    layer.adapt(X)
    plain.adapt(X)
    assert layer.ledger.releases[0].groups == plain.ledger.releases[0].groups
    assert type(layer.get_config()["l2_norm_clip"]) is float
    for wrong in (0, -1.0, np.nan, "3", None):
        with pytest.raises(ValueError, match="`l2_norm_clip` must be a number"):
            layer.l2_norm_clip = wrong
