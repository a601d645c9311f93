"""Scattering coefficients are kymatio's, in every mode; features of a public prefix are computed once, row by row."""

import functools
import importlib
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.kymatio_reference import FILE, SETTINGS
from helpers.variants import slow_but
from tfdp_layers.layers import ClippedDense, Scattering2D, scattering, wavelets

features = importlib.import_module("tfdp_layers.models.features")  # the package exports a function so named
REFERENCE = np.load(FILE)


def reference(setting: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, height, width, 1), and kymatio's coefficients with the paths last."""
    name = " ".join(map(str, setting))
    return REFERENCE[f"x {name}"][..., np.newaxis], np.moveaxis(REFERENCE[f"y {name}"], 1, -1)


def layer_of(setting: tuple[int, ...]) -> Scattering2D:
    return Scattering2D(setting[2], L=setting[3], max_order=setting[4])


@pytest.mark.parametrize("mode", slow_but(["graph"], ["eager", "graph", "xla"]))
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_values_are_those_of_kymatio(setting: tuple[int, ...], mode: str) -> None:
    x, expected = reference(setting)
    layer = layer_of(setting)
    call = layer if mode == "eager" else tf.function(layer, autograph=False, jit_compile=mode == "xla")
    np.testing.assert_allclose(call(tf.constant(x)), expected, rtol=1e-4, atol=1e-5)
    assert layer.compute_output_shape((None, *x.shape[1:])) == (None, *expected.shape[1:])
    assert not layer.weights


def test_kymatio_itself_agrees_where_it_can_be_had() -> None:
    import scipy.special

    if not hasattr(scipy.special, "sph_harm"):
        pytest.skip("kymatio 0.3.0 does not import beside this SciPy, which dropped sph_harm; the stored values do")
    reason = "kymatio is not installed; its stored values are compared above"
    kymatio = pytest.importorskip("kymatio.numpy", reason=reason)
    x, _ = reference(SETTINGS[0])
    expected = kymatio.Scattering2D(2, (28, 28))(x[..., 0])
    np.testing.assert_allclose(np.moveaxis(layer_of(SETTINGS[0])(x), -1, 1), expected, rtol=1e-4, atol=1e-5)


def test_channels_are_scattered_each_by_itself() -> None:
    x, _ = reference((28, 28, 2, 8, 2))
    three = np.concatenate([x, 2 * x, x[::-1]], axis=-1)
    layer = Scattering2D(2)
    expected = np.concatenate([layer(part) for part in np.split(three, 3, axis=-1)], axis=-1)
    np.testing.assert_allclose(Scattering2D(2)(three), expected, atol=1e-6)


def test_large_steps_are_folded_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    x, expected = reference((8, 8, 3, 8, 2))
    monkeypatch.setattr(scattering, "_PIECES", 2)
    np.testing.assert_allclose(Scattering2D(3)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bug", ["border", "order", "frequencies"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "border":
        monkeypatch.setattr(wavelets, "reflected", lambda size, border: np.arange(-border, size + border) % size)
    if bug == "order":
        honest = scattering.filtered
        monkeypatch.setattr(scattering, "filtered", lambda *args: tf.reverse(honest(*args), [-3]))
    if bug == "frequencies":
        monkeypatch.setattr(wavelets, "periodized", lambda spectrum, coarse: spectrum[:: 1 << coarse, :: 1 << coarse])
    wavelets.wavelets.cache_clear()
    x, expected = reference(SETTINGS[1])
    found = np.asarray(layer_of(SETTINGS[1])(x))
    wavelets.wavelets.cache_clear()
    assert not np.allclose(found, expected, rtol=1e-4, atol=1e-5)


def private(layers: list[Any]) -> Any:
    model = tfdp.PrivateSequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss)
    return model


@pytest.mark.slow
def test_a_private_model_with_it_trains_saves_loads_and_serves(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 8, 8, 3)).astype("float32"), rng.integers(0, 3, 64)
    model = private([keras.Input((8, 8, 3)), Scattering2D(2, L=4), keras.layers.Flatten(), ClippedDense(3)])
    model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert [g.bound for g in model.sensitivities()] == [1.0]
    assert "is proved" in str(model.privacy_statement(1e-5)), "that records do not mix"
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "shape", "words"),
    [
        ({"J": 0}, (8, 8, 1), "`J`"),
        ({"J": 2, "L": 2.5}, (8, 8, 1), "`L`"),
        ({"J": 2, "max_order": 3}, (8, 8, 1), "`max_order`"),
        ({"J": 2}, (8, 10, 1), "divisible by 4"),
        ({"J": 2}, (None, 8, 1), "fixed"),
        ({"J": 2}, (2**15, 2**15, 1), "GiB"),
        ({"J": 2, "L": 10**9}, (8, 8, 1), "an integer from 1 to 1000"),
        ({"J": 2}, (8, 8), "batch, height, width, channels"),
    ],
)
def test_what_it_cannot_scatter_is_refused(options: dict[str, Any], shape: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scattering2D(**options).build((None, *shape))


def test_a_built_layer_takes_images_of_one_size() -> None:
    layer = Scattering2D(1)
    layer(np.zeros((2, 8, 8, 1), "float32"))
    for shape in ((2, 16, 16, 1), (2, 8, 8, 3)):
        with pytest.raises(ValueError, match="expected shape"):
            layer(np.zeros(shape, "float32"))


# Features of a public prefix


def test_features_are_the_prefix_of_each_record() -> None:
    x = np.random.default_rng(0).random((21, 8, 8, 1)).astype("float32")
    prefix = [Scattering2D(1), keras.layers.Flatten(), keras.layers.Dropout(0.5)]
    found = tfdp.features(prefix, x, batch_size=8)
    np.testing.assert_allclose(found, np.reshape(Scattering2D(1)(x), (21, -1)), atol=1e-6)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3)])
    np.testing.assert_allclose(tfdp.features(model, x, batch_size=8), model(x), atol=1e-5)


def test_parts_of_a_batch_are_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((23, 8, 8, 1)).astype("float32")
    prefix = [Scattering2D(1), keras.layers.Flatten()]
    expected = tfdp.features(prefix, x, jit_compile=False)
    monkeypatch.setattr(features, "_PART", 2)
    monkeypatch.setattr(features, "cores", lambda: 2)
    assert features.rows_at_a_time(prefix, True, 8) == 4
    assert features.rows_at_a_time(prefix, False, 8) == 8
    np.testing.assert_allclose(tfdp.features(prefix, x, batch_size=8), expected, rtol=1e-5, atol=1e-6)
    dense = keras.layers.Dense(2)
    dense.build((None, 4))
    assert features.rows_at_a_time([*prefix, dense], True, 8) == 8, "a layer with weights may hold state"


def test_kept_features_are_found_again_and_never_taken_for_others(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((21, 8, 8, 1)).astype("float32")

    kept_or_computed = functools.partial(tfdp.features, jit_compile=False)  # XLA would take most of the time

    def prefix(scale: int) -> keras.Model:
        images = keras.Input((8, 8, 1))
        return keras.Model(images, keras.layers.Flatten()(Scattering2D(scale)(images)))

    found = kept_or_computed(prefix(1), x, cache=tmp_path / "kept")
    np.testing.assert_allclose(found, kept_or_computed(prefix(1), x), atol=1e-6)
    (file,) = (tmp_path / "kept").glob("features-*")
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    assert file.stat().st_mode & 0o077 == 0, "features are as private as the records"
    made = file.stat().st_mtime_ns
    again = kept_or_computed(prefix(1), x, cache=tmp_path / "kept")  # other names of layers, the same computation
    np.testing.assert_array_equal(found, again)
    assert [(one, one.stat().st_mtime_ns) for one in (tmp_path / "kept").glob("features-*")] == [(file, made)]
    others = [
        kept_or_computed(prefix(2), x, cache=tmp_path / "kept"),
        kept_or_computed(prefix(1), x + 1, cache=tmp_path / "kept"),
        kept_or_computed(prefix(1), x, cache=tmp_path / "kept", dtype="float16"),
    ]
    assert len(list((tmp_path / "kept").glob("features-*"))) == 1 + len(others)
    assert others[2].dtype == np.float16
    np.testing.assert_allclose(others[2], found, rtol=1e-3, atol=1e-3)
    file.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    partial.symlink_to(elsewhere)  # a link that somebody planted is not followed
    np.testing.assert_array_equal(kept_or_computed(prefix(1), x, cache=tmp_path / "kept"), again)
    assert elsewhere.read_text() == "mine"
    kernel = np.random.default_rng(1).normal(size=(8, 2)).astype("float32")
    for name in ("relu", "tanh"):  # which a name in the place of another one would hide
        named = keras.Sequential([keras.Input((8, 8, 8)), keras.layers.Dense(2, name, use_bias=False, name=name)])
        named.layers[-1].kernel.assign(kernel)
        eight = np.repeat(x, 8, axis=-1)
        kept = kept_or_computed(named.layers[-1], eight, cache=tmp_path / "kept")
        np.testing.assert_allclose(kept, named(eight), atol=1e-5)
    weights = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3)])
    first = kept_or_computed(weights, x, cache=tmp_path / "kept")
    weights.layers[0].kernel.assign_add(keras.ops.ones_like(weights.layers[0].kernel))
    assert not np.allclose(kept_or_computed(weights, x, cache=tmp_path / "kept"), first)


def test_features_that_cannot_be_computed_leave_no_file(tmp_path: Path) -> None:
    breaks = keras.layers.Lambda(lambda rows: tf.debugging.check_numerics(rows, "no number"))
    x = np.ones((100, 4), "float32")
    x[-1] = np.nan  # behind the records that are looked at first
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
        tfdp.features(breaks, x, batch_size=8, jit_compile=False, cache=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["features.key"]


def test_a_prefix_that_costs_or_mixes_is_refused() -> None:
    x = np.random.default_rng(0).random((5, 4)).astype("float32")
    with pytest.raises(ValueError, match="ledger"):
        tfdp.features(private([keras.Input((4,)), ClippedDense(3)]), x)
    mixing = keras.layers.Lambda(lambda rows: rows - tf.reduce_mean(rows, axis=0))
    with pytest.raises(ValueError, match="depends on other records"):
        tfdp.features(mixing, x)
    with pytest.raises(ValueError, match="no records"):
        tfdp.features(keras.layers.Flatten(), x[:0])
    with pytest.raises(ValueError, match="no layers"):
        tfdp.features([], x)
