"""Released weights keep what they cost on every way out of their model, and public ones cost nothing."""

import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models.weight_files import WeightFiles

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
Y = np.zeros(12, "int32")
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(model, **options):
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0), LOSS, **options)
    model.fit(X, Y, batch_size=4, steps_per_epoch=3, verbose=0)
    return model


def with_head(*below):
    """A new private model on layers of another one."""
    return tfdp.make_private(keras.Sequential([keras.Input((6,)), *below, keras.layers.Dense(2)]))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The file of a model with a public layer, one that was trained and then frozen, and a head, after 3 releases."""
    layers = [keras.layers.Dense(n, name=name) for n, name in ((6, "public"), (6, "base"), (2, "head"))]
    layers[0].trainable = False
    model = fit(tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers])), run_eagerly=True)
    layers[1].trainable = False
    file = tmp_path_factory.mktemp("model") / "model.keras"
    model.save(file)
    return file


def as_elsewhere(path):
    """The model as another process loads it, which did not see the training."""
    released_numbers._released.clear()
    return tfdp.load_model(path)


def clone(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


WAYS = {
    "a layer": lambda model: with_head(model.get_layer("base")),
    "a part": lambda model: with_head(keras.Model(model.input, model.get_layer("base").output)),
    "served": lambda model: tfdp.make_private(model.to_keras()),
    "cloned": lambda model: tfdp.make_private(clone(model)),
    "a served layer": lambda model: with_head(model.to_keras().get_layer("base")),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_loaded_model_cost_goes_with_its_weights_frozen_ones_too(path, way):
    assert WAYS[way](as_elsewhere(path)).ledger.updates == 3


@pytest.mark.slow
def test_a_loaded_model_whose_weights_do_not_know_their_cost_is_seen(path, monkeypatch):
    """The planted bug: what was so before."""
    monkeypatch.setattr(WeightFiles, "_share_cost", lambda *_: None)
    assert WAYS["a layer"](as_elsewhere(path)).ledger.updates == 0
    assert WAYS["cloned"](as_elsewhere(path)).ledger.updates == 3  # known by the values that were handed out


@pytest.mark.slow
def test_a_later_change_of_the_loaded_model_does_not_hide_what_was_copied_before(path):
    model = as_elsewhere(path)
    copy = clone(model)
    model.get_layer("base").trainable = True
    fit(model, run_eagerly=True)
    assert tfdp.make_private(copy).ledger.updates == 3


def test_features_of_a_loaded_base_are_refused_and_those_of_a_public_layer_are_not(path):
    model = as_elsewhere(path)
    with pytest.raises(ValueError, match="ledger"):
        tfdp.features(model.get_layer("base"), X)
    assert tfdp.features(model.get_layer("public"), X).shape == X.shape
    assert with_head(model.get_layer("public")).ledger.updates == 0


@pytest.mark.slow
@pytest.mark.parametrize("flags", [None, [0, 0, 1]], ids=["missing", "too few"])
def test_a_file_that_does_not_tell_which_weights_were_trained_means_all_of_them(path, tmp_path, flags):
    members = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            members[name] = archive.read(name)
    weights = tmp_path / "model.weights.h5"
    weights.write_bytes(members["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        del file["vars"]["privacy_paid_weights"]
        if flags is not None:
            file["vars"]["privacy_paid_weights"] = np.asarray(flags, np.uint8)
    members["model.weights.h5"] = weights.read_bytes()
    older = tmp_path / "older.keras"
    with zipfile.ZipFile(older, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert json.loads(members["config.json"])["class_name"] == "PrivateModel"
    assert with_head(as_elsewhere(older).get_layer("public")).ledger.updates == 3


@pytest.mark.slow
def test_copies_of_both_a_loaded_model_and_the_one_within_it_are_known(tmp_path):
    inputs = keras.Input((6,))
    within = tfdp.make_private(keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, name="within")], name="part"))
    model = fit(tfdp.PrivateModel(inputs, keras.layers.Dense(6, name="above")(within(inputs))), run_eagerly=True)
    model.save(tmp_path / "model.keras")
    loaded = as_elsewhere(tmp_path / "model.keras")
    for layer in (loaded.get_layer("above"), loaded.get_layer("part").get_layer("within")):
        copy = keras.layers.Dense(6)
        copy.build((None, 6))
        copy.set_weights(layer.get_weights())
        assert with_head(copy).ledger.updates == 3


# Copies that are computed from released weights ----------------------------------------------------------------------


def lipschitz():
    first = tfdp.layers.LipschitzDense(6, input_clip=1.0)
    model = tfdp.PrivateSequential([keras.Input((6,)), first, tfdp.layers.LipschitzDense(2, upstream_clip=1.0)])
    noisy = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(3.0), 1.0)  # so that kernels are projected
    model.compile(noisy, LOSS, run_eagerly=True)
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    return model


@pytest.mark.slow
def test_a_served_lipschitz_model_keeps_its_cost():
    assert tfdp.make_private(lipschitz().to_keras()).ledger.updates == 1


def adapted():
    layer = tfdp.layers.DPPCA(3, noise_multiplier=1.0)
    layer.adapt(X)
    return layer


def test_a_served_projection_keeps_its_cost():
    model = with_head(adapted())
    assert tfdp.make_private(model.to_keras()).ledger.steps == 1
    assert with_head(model.to_keras().layers[1]).ledger.steps == 1


@pytest.mark.slow
def test_copies_that_are_computed_and_lose_their_cost_are_seen(monkeypatch):
    monkeypatch.setattr("tfdp_layers.models.conversion.remember_copied", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_served_lipschitz_model_keeps_its_cost()
    monkeypatch.setattr("tfdp_layers.layers.adapted.remember", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_served_projection_keeps_its_cost()


@pytest.mark.slow
def test_quantized_weights_keep_their_cost():
    dense = [keras.layers.Dense(n, use_bias=False) for n in (6, 2)]
    model = fit(tfdp.make_private(keras.Sequential([keras.Input((6,)), *dense])), run_eagerly=True)
    model.quantize("int8")
    assert with_head(dense[0]).ledger.updates == 3


# Weights that a layer reads behind Keras' back ------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", slow_but(["adapted"], ["trained", "adapted"]))
def test_weights_that_a_lambda_hides_are_found_in_the_graph(hidden):
    layer = keras.layers.Dense(3)
    if hidden == "trained":
        fit(tfdp.make_private(keras.Sequential([keras.Input((6,)), layer])), run_eagerly=True)
    else:
        layer = adapted()
    hiding = keras.layers.Lambda(lambda x: layer(x))
    with pytest.raises(ValueError, match=r"reads .* which a private training released"):
        tfdp.features(hiding, X)
    model = fit(with_head(hiding))
    assert model.ledger.steps == 3 + (3 if hidden == "trained" else 1)


@pytest.mark.slow
def test_weights_that_a_constraint_reads_bring_what_they_cost():
    first = fit(tfdp.make_private(keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])), run_eagerly=True)
    kernel = first.layers[-1].kernel
    dense = keras.layers.Dense(2, kernel_constraint=lambda weights: 0.0 * weights + kernel)
    second = fit(tfdp.make_private(keras.Sequential([keras.Input((6,)), dense])))
    assert second.ledger.updates == 6


class Watching(keras.layers.Layer):
    """Keeps a mean of what it saw."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = keras.metrics.Mean()

    def call(self, x):
        self.seen.update_state(x)
        return x


@pytest.mark.slow
def test_an_exported_model_holds_no_metric_of_records(tmp_path):
    layer = Watching()
    model = fit(with_head(layer))
    layer.seen.update_state(7.0)  # as by a record, in a call of the model
    model.export(tmp_path / "served", verbose=False)
    held = tf.train.load_checkpoint(str(tmp_path / "served" / "variables" / "variables"))
    scalars = [
        held.get_tensor(name)
        for name, shape in held.get_variable_to_shape_map().items()
        if shape == [] and name.endswith("VARIABLE_VALUE")
    ]
    assert scalars
    assert not any(scalars)


def test_constants_that_a_lambda_hides_are_refused_until_declared():
    layer = keras.layers.Normalization()
    layer.adapt(X)
    hiding = keras.layers.Lambda(lambda x: layer(x))
    with pytest.raises(ValueError, match="its function uses 'normalization"):
        tfdp.features(hiding, X)
    with pytest.raises(ValueError, match="its function uses 'normalization"):
        fit(with_head(hiding), run_eagerly=True)
    tfdp.public(layer)
    assert tfdp.features(hiding, X).shape == X.shape


@pytest.mark.slow
def test_hidden_weights_that_nobody_looks_for_are_seen(monkeypatch):
    monkeypatch.setattr("tfdp_layers.models.opening.join_accounts", lambda *_: None)
    monkeypatch.setattr("tfdp_layers.models.features.refuse_hidden", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_weights_that_a_lambda_hides_are_found_in_the_graph("trained")


# Weights that something else changed ---------------------------------------------------------------------------------


def notes(model):
    return [note for note in model.privacy_statement(1e-2).notes if "something else changed" in note]


@pytest.mark.slow
def test_a_statement_says_that_something_else_changed_the_weights_since():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model = fit(tfdp.make_private(plain), run_eagerly=True)
    twin = tfdp.make_private(plain)
    kept = model.get_weights()
    assert notes(model) == []
    plain.compile("sgd", LOSS)
    plain.fit(X, Y, verbose=0)  # the mistake: the model that was not made private
    assert len(notes(model)) == 1
    model.set_weights(kept)
    assert notes(model) == []
    fit(twin, run_eagerly=True)  # privately, in the ledger of both
    assert notes(model) == []


@pytest.mark.slow
def test_a_change_by_something_else_that_nobody_looks_for_is_seen(monkeypatch):
    monkeypatch.setattr("tfdp_layers.models.bookkeeping.change_of", lambda _: None)
    with pytest.raises(AssertionError):
        test_a_statement_says_that_something_else_changed_the_weights_since()


def test_constants_that_nobody_looks_for_are_seen(monkeypatch):
    monkeypatch.setattr("tfdp_layers.certificates.constants.named_by", lambda _: [])
    with pytest.raises(pytest.fail.Exception):
        test_constants_that_a_lambda_hides_are_refused_until_declared()
