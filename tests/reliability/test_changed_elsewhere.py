"""Weights that something else than a private training changed: frozen, small, loaded and earlier ones, too."""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import left
from tfdp_layers.commands import cli

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)).astype("float32"), RNG.normal(size=(24, 1)).astype("float32")
kl = keras.layers


def network(base_trainable=True):
    inputs = keras.Input((4,))
    base = keras.Sequential([keras.Input((4,)), kl.Dense(5, "tanh", name="hidden")], name="base")
    base.trainable = base_trainable
    scaled = kl.BatchNormalization(name="scaled")
    scaled.trainable = False
    head = kl.Dense(1, name="head")
    return keras.Model(inputs, head(scaled(base(inputs))))


def compiled(model):
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0), "mse")
    return model


def private(base_trainable=True):
    return compiled(tfdp.make_private(network(base_trainable)))


def fit(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y, batch_size=12, verbose=0)
    return model


def ordinary(*layers):
    """An ordinary training of the model that these layers make up."""
    inputs = values = keras.Input((4,))
    for layer in layers:
        values = layer(values)
    model = keras.Model(inputs, kl.Dense(1)(values))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(X, Y, verbose=0)
    return model


def says(model):
    return [note for note in model.privacy_statement(1e-2).notes if "something else changed them" in note]


def moving_average(model):
    model.get_layer("scaled").moving_mean.assign(X.mean() + np.arange(5.0))


def one_number(model):
    model.get_layer("head").bias.assign(Y.mean(0))


def a_frozen_layer(model):
    base = model.get_layer("base")
    base.trainable = True
    trained = ordinary(base)
    base.trainable = False
    return trained


def frozen(model):
    return fit(model)


def trained_then_frozen():
    model = fit(private())
    model.get_layer("base").trainable = False
    return fit(compiled(model))


def loaded(model, tmp_path):
    model.save(tmp_path / "m.keras")
    return tfdp.load_model(tmp_path / "m.keras")


def with_loaded_weights(model, tmp_path):
    model.save_weights(tmp_path / "m.weights.h5")
    other = private()
    other.load_weights(tmp_path / "m.weights.h5")
    return other


def with_set_weights(model, tmp_path):
    other = private()
    other.set_weights(model.get_weights())
    return other


def second_on_the_same_layers(model, tmp_path):
    return compiled(tfdp.make_private(keras.Model(model.inputs, model.outputs)))


MADE = {
    "of a frozen base": lambda _: fit(private(base_trainable=False)),
    "that it trained": lambda _: fit(private()),
    "that it trained and froze": lambda _: trained_then_frozen(),
    "of a loaded model": lambda path: loaded(fit(private()), path),
    "of a model that it loaded before": lambda path: loaded(loaded(fit(private()), path), path),
    "that were loaded": lambda path: with_loaded_weights(fit(private()), path),
    "that were set": lambda path: with_set_weights(fit(private()), path),
    "of a deep copy": lambda _: copy.deepcopy(fit(private())),
    "of a pickled model": lambda _: pickle.loads(pickle.dumps(fit(private()))),
    "of a second model on the same layers": lambda path: second_on_the_same_layers(fit(private()), path),
}
CHANGES = {"a layer": a_frozen_layer, "a moving average": moving_average, "one number": one_number}
CASES = [(made, change) for made in MADE for change in CHANGES]
NOT_SEEN = [("that were set", "one number"), ("that were set", "a moving average")]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("made", "change"), [case for case in CASES if case not in NOT_SEEN])
def test_what_something_else_wrote_into_weights_is_said(made, change, tmp_path, capsys):
    model = MADE[made](tmp_path)
    assert says(model) == []
    CHANGES[change](model)
    assert len(says(model)) == 1
    model.save(tmp_path / "after.keras")
    assert len(says(tfdp.load_model(tmp_path / "after.keras"))) == 1
    cli.main(["epsilon", "--ledger", str(tmp_path / "after.keras"), "--delta", "1e-2"])
    assert "something else changed them" in " ".join(capsys.readouterr().out.split())
    assert len(says(fit(compiled(model)))) == 1  # and the next training hides nothing


def by_keras(model, tmp_path):
    model.save(tmp_path / "m.keras")
    return keras.models.load_model(tmp_path / "m.keras")


LOADED = {
    "by Keras": by_keras,
    "by this library": loaded,
    "weights alone": with_loaded_weights,
    "a deep copy": lambda model, _: copy.deepcopy(model),
    "by pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", LOADED)
def test_a_change_before_the_first_look_is_not_taken_for_what_the_file_brought(name, change, tmp_path):
    """The numbers that a file brings are looked at as the loading ends, not when somebody asks."""
    first = fit(private())
    model = LOADED[name](first, tmp_path)
    CHANGES[change](model)
    assert len(says(model)) == 1
    twin = private()
    twin.set_weights(first.get_weights())
    twin.get_layer("base").set_weights(model.get_layer("base").get_weights())
    assert twin.ledger.holds(first.ledger)
    assert bool(says(twin)) is (change == "a layer")  # nor are they right in other models


def low_rank():
    layers = [kl.Dense(5, "tanh", use_bias=False, name="hidden"), kl.Dense(1, use_bias=False)]
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), *layers])))
    model.get_layer("hidden").enable_lora(2)
    return model


@pytest.mark.slow
def test_low_rank_weights_that_something_else_trained_are_said():
    model = low_rank()
    assert says(model) == []
    outer = keras.Model(model.inputs, model.outputs)
    outer.compile(keras.optimizers.Adam(0.1), "mse")
    outer.fit(X, Y, verbose=0)
    assert len(says(model)) == 1
    assert len(says(fit(compiled(model)))) == 1


@pytest.mark.slow
def test_low_rank_weights_that_a_private_training_trains_are_not_said():
    assert says(fit(compiled(low_rank()))) == []


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("made", ["of a frozen base", "of a loaded model"])
def test_the_next_training_warns_of_an_ordinary_one_before_it(made, tmp_path):
    model = MADE[made](tmp_path)
    by = a_frozen_layer(model)  # once that is collected nobody can tell who changed what the statement notes
    with pytest.warns(UserWarning, match="step of an ordinary optimizer"):
        model.fit(X, Y, batch_size=12, verbose=0)
    assert by is not None


def new_head(model):
    sequential = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), kl.Dense(3), kl.Dense(1)])))
    sequential.pop()
    sequential.add(kl.Dense(1))
    return compiled(sequential)


def twin(model):
    other = second_on_the_same_layers(model, None)
    fit(other)
    return model


def set_back(model):
    kept = model.get_weights()
    one_number(model)
    model.set_weights(kept)
    return model


def declared(model):
    outer = ordinary(model.get_layer("base"))
    tfdp.public(outer)
    return model


def evaluated(model):
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    return model


def quantized(model):
    model.quantize("int8")
    return model


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("harmless", [new_head, twin, set_back, declared, evaluated, quantized])
def test_what_takes_nothing_from_records_is_not_said(harmless):
    assert says(harmless(fit(private()))) == []


@pytest.mark.slow
def test_constants_that_are_declared_public_say_nothing_of_other_weights(tmp_path):
    """Whoever loads a model declares them anew: what something else wrote into its head meanwhile stays noted."""
    layer = kl.Normalization(name="normal")
    layer.adapt(X)
    model = tfdp.PrivateSequential([keras.Input((4,)), layer, kl.Dense(3), kl.Dense(1, name="head")])
    tfdp.public(model)
    again = loaded(fit(compiled(model)), tmp_path)
    one_number(again)
    tfdp.public(again)
    assert len(says(again)) == 1
    assert len(says(fit(compiled(again)))) == 1


@pytest.mark.slow
def test_of_what_is_declared_public_once_later_changes_are_said():
    model = declared(fit(private()))
    moving_average(model)
    assert len(says(model)) == 1


@pytest.mark.slow
def test_a_file_that_skips_some_weights_hides_no_change_of_those(tmp_path):
    small = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), kl.Dense(5, name="hidden"), kl.Dense(1)])))
    small.save_weights(tmp_path / "m.weights.h5")
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), kl.Dense(5, name="hidden"), kl.Dense(2)])))
    model.layers[-1].kernel.assign(np.ones((5, 2)) * X[:5, :2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.load_weights(tmp_path / "m.weights.h5", skip_mismatch=True)
        except ValueError:
            pytest.skip("this Keras refuses it")
    assert len(says(model)) == 1


def test_untrained_models_have_nothing_to_say(tmp_path):
    model = private()
    moving_average(model)
    assert says(model) == []
    assert says(loaded(model, tmp_path)) == []


def test_by_a_look_at_trained_weights_alone_it_is_missed(monkeypatch):
    """The planted bug."""
    leave = left.leave

    def trainable_alone(arrays, but=(), **options):
        leave([one for one in arrays if one.trainable], but, **options)

    monkeypatch.setattr("tfdp_layers.models.bookkeeping.leave", trainable_alone)
    model = fit(private(base_trainable=False))
    moving_average(model)
    assert says(model) == []
