"""A load that is refused changes nothing: no weight, no ledger, and no number is taken for released."""

import threading

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import released as released_numbers

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype("float32"), np.zeros((12, 2), "float32")
PUBLIC = RNG.normal(size=(6, 4)).astype("float32")


def private(units=4, below=(), ledger=None):
    layers = [*below, keras.layers.Dense(units, "tanh"), keras.layers.Dense(2)]
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    if units == 4:
        model.layers[-2].kernel.assign(PUBLIC[: model.layers[-2].kernel.shape[0]])
    if ledger is not None:
        model.ledger = ledger
    return model


def trained(model, **options):
    model.fit(X, Y, batch_size=4, verbose=0, **options)
    return model


@pytest.fixture
def ledger(tmp_path):
    """Of other people, in a file."""
    with_file = tfdp.accounting.Ledger(tmp_path / "ledger.json", dataset="others")
    yield with_file
    with_file.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("loads") / "other.weights.h5"
    trained(private(units=5)).save_weights(path)
    return path


def load_weights(model, path):
    model.load_weights(path)


def set_weights(model, path):
    model.set_weights(trained(private(units=5)).get_weights())


def set_some(model, path):
    model.set_weights(trained(private(units=5)).get_weights()[:2])


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("way", [load_weights, set_weights, set_some])
def test_weights_of_another_network_charge_nothing(way, path, ledger):
    model = private(ledger=ledger)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"could not be loaded|have the shapes"):
        way(model, path)
    assert all(map(np.array_equal, before, model.get_weights()))
    assert ledger.steps == 0
    model.privacy_statement(1e-3)
    assert private().ledger.steps == 0  # of the same public kernel
    assert trained(model).ledger.steps == 3


@pytest.mark.slow
def test_a_backup_of_another_network_charges_nothing(tmp_path, ledger):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                raise KeyboardInterrupt

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    with pytest.raises(KeyboardInterrupt):
        trained(private(units=5), epochs=2, callbacks=[backup(), Stop()])
    model = private(ledger=ledger)
    with pytest.raises(ValueError, match="could not be loaded"):
        trained(model, callbacks=[backup()])
    assert ledger.steps == 0
    assert not model._privacy.unpaid


def test_a_refused_load_leaves_adapted_layers_what_they_paid(tmp_path):
    def adapted():
        layer = tfdp.layers.DPPCA(3, noise_multiplier=1.0)
        layer.adapt(X)
        return layer

    private(units=5, below=[adapted()]).save_weights(path := tmp_path / "m.weights.h5")
    model = private(below=[layer := adapted()])
    with pytest.raises(ValueError, match="could not be loaded"):
        model.load_weights(path)
    assert layer.ledger.steps == model.ledger.steps == 1


def test_a_model_file_that_cannot_be_loaded_makes_no_number_known(tmp_path):
    trained(private(units=5)).save(path := tmp_path / "m.keras")
    known = set(released_numbers._released)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keras.layers.Dense, "load_own_variables", lambda *_: 1 / 0)
        with pytest.raises(ValueError, match="is whole, and no model can be made"):
            tfdp.load_model(path)
    released_numbers.remember_now()
    assert set(released_numbers._released) == known
    assert not released_numbers._later


def test_a_load_that_skips_what_does_not_fit_is_charged(path, ledger):
    model = private()
    model.load_weights(path, skip_mismatch=True)
    assert model.ledger.steps == 3
    named = tfdp.accounting.Ledger(dataset="these")
    trained(private(units=5, ledger=named)).save_weights(other := path.with_name("named.weights.h5"))
    model = private(units=5, ledger=ledger)
    before = model.get_weights()
    with pytest.raises(ValueError, match="was not: it is missing, damaged"):
        model.load_weights(other, skip_mismatch=True)
    assert all(map(np.array_equal, before, model.get_weights()))
    assert ledger.steps == 0


def test_no_other_thread_states_weights_that_are_loaded_and_not_charged_yet(path, monkeypatch):
    model, said, load = private(units=5), [], keras.layers.Dense.load_own_variables

    def looking(layer, store):
        load(layer, store)

        def look():
            try:
                said.append(model.privacy_statement(1e-3))
            except ValueError as error:
                said.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    monkeypatch.setattr(keras.layers.Dense, "load_own_variables", looking)
    model.load_weights(path)
    assert len(said) == 2
    assert all(isinstance(one, ValueError) for one in said)
    assert model.privacy_statement(1e-3).steps == 3


@pytest.mark.slow
def test_an_ordinary_model_around_private_ones_is_told_how_to_state_them(tmp_path):
    inputs = keras.Input((6,))
    ensemble = keras.Model(inputs, keras.layers.Average()([trained(private())(inputs), private()(inputs)]))
    ensemble.save(path := tmp_path / "ensemble.keras")
    with pytest.raises(ValueError, match="what private models and layers of this library in it cost goes along"):
        tfdp.load_model(path)
    assert tfdp.make_private(keras.saving.load_model(path)).ledger.steps == 3


def test_what_keras_file_editor_wrote_is_told_by_name(path, tmp_path):
    """It moves a model's own variables, the ledger among them, though nothing was edited."""
    keras.saving.KerasFileEditor(str(path)).save(tmp_path / "edited.weights.h5")
    model = private(units=5)
    with pytest.raises(ValueError, match=r"KerasFileEditor wrote this file.*Load the file that model\.save"):
        model.load_weights(tmp_path / "edited.weights.h5")
    assert model.ledger.steps == 0
