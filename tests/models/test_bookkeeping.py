"""What a model remembers of what it released: read without a trace, and never loaded with weights but without it."""

import copy
import os
import threading
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS, compiled
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.weight_files import declared_public


def small(**options):
    """A model of one layer of which a step costs nothing to compile, and its records."""
    rng = np.random.default_rng(0)
    model = tfdp.PrivateSequential([keras.Input((6,)), tfdp.layers.ClippedDense(3, **CLIPS)])
    made = model, rng.normal(size=(12, 6)).astype("float32"), rng.integers(0, 3, 12)
    return compiled(made, run_eagerly=True, **options)


def trained(**options):
    model, x, y = small(**options)
    model.fit(x, y, batch_size=4, verbose=0)
    return model, x, y


# Looking --------------------------------------------------------------------------------------------------------------


def all_looks(model):
    """Everything that reads."""
    for _ in range(2):
        ledger = model.ledger
        ledger.to_json(), repr(ledger), ledger.entries, ledger.steps, ledger.updates, ledger.relation
        tfdp.accounting.epsilon(ledger, 1e-2)
        model.privacy_statement(1e-2).to_json()
        model.sensitivities()
        assert (model.current_release, model.made_in_fit) == (None, 0)


def state_of(path):
    return path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(path.parent))


@pytest.mark.slow
def test_looking_changes_no_file_and_takes_no_lock(tmp_path):
    model, x, y = small()
    model.ledger = Ledger(tmp_path / "ledger.json", dataset="twelve", budget=(50.0, 1e-2))
    model.fit(x, y, batch_size=4, verbose=0)
    model.ledger.close()
    before = state_of(tmp_path / "ledger.json")
    all_looks(model)
    all_looks(tfdp.make_private(model))
    assert state_of(tmp_path / "ledger.json") == before
    other = Ledger(tmp_path / "ledger.json")
    other.set_budget(60.0, 1e-2)  # nobody holds it


def test_looking_at_a_fresh_model_makes_no_file(tmp_path):
    model, *_ = small()
    model.ledger = Ledger(tmp_path / "ledger.json")
    written = sorted(os.listdir(tmp_path))
    assert model.ledger.steps == 0
    assert model.privacy_statement(1e-2).steps == 0
    assert sorted(os.listdir(tmp_path)) == written


@pytest.mark.slow
def test_saving_writes_the_ledger_and_leaves_its_file_alone(tmp_path):
    model, x, y = small()
    model.ledger = Ledger(tmp_path / "ledger.json")
    model.fit(x, y, batch_size=4, verbose=0)
    before = (tmp_path / "ledger.json").read_bytes()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    assert (tmp_path / "ledger.json").read_bytes() == before
    for loaded in (tfdp.load_model(tmp_path / "model.keras"), small()[0]):
        loaded.load_weights(tmp_path / "model.weights.h5")
        assert loaded.ledger.steps == 3  # once, though it was loaded twice
        assert loaded.ledger.path is None


@pytest.mark.slow
def test_an_assigned_ledger_takes_over_what_was_spent(tmp_path):
    model, *_ = trained()
    earlier = model.ledger
    model.ledger = Ledger(tmp_path / "ledger.json")
    assert model.ledger.steps == 3
    assert model.ledger.holds(earlier)
    assert Ledger(tmp_path / "ledger.json").steps == 3


# Weights without their cost -------------------------------------------------------------------------------------------


def ledger_in(file):
    """The path in an open file of weights at which the ledger is."""
    names = []
    file.visit(names.append)
    (name,) = [name for name in names if name.endswith("privacy_ledger")]
    return name


def public_weights(path):
    """A file of weights without a ledger, and the weights."""
    model, *_ = small()
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        del file[ledger_in(file)]
    return model.get_weights()


def without_ledger(path):
    """Takes the ledger out of a model file, in place, as somebody might who edits it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    held = path.with_name("held.h5")
    held.write_bytes(parts["model.weights.h5"])
    with h5py.File(held, "r+") as file:
        del file[ledger_in(file)]
    parts["model.weights.h5"] = held.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


@pytest.mark.slow
def test_weights_without_a_ledger_are_refused_unless_they_are_said_to_be_public(tmp_path):
    path = tmp_path / "public.weights.h5"
    weights = public_weights(path)
    model, x, y = small()
    own = model.get_weights()
    with pytest.raises(ValueError, match=r"saved without a privacy ledger.*load_weights\(path, public=True\)"):
        model.load_weights(path)
    for ours, before in zip(model.get_weights(), own, strict=True):
        np.testing.assert_array_equal(ours, before)
    assert model.privacy_statement(1e-2).steps == 0
    model.load_weights(path, public=True)
    for ours, theirs in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert model.privacy_statement(1e-2).steps == 0
    model.fit(x, y, batch_size=4, verbose=0)
    assert model.ledger.steps == 3


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [True, False], ids=["compiled", "not compiled"])
def test_a_model_file_whose_ledger_is_gone_is_refused_also_where_nothing_is_compiled(compiles, tmp_path):
    model, *_ = trained()
    model.save(tmp_path / "model.keras")
    without_ledger(tmp_path / "model.keras")
    with pytest.raises(ModelFileError, match="saved without a privacy ledger"):
        tfdp.load_model(tmp_path / "model.keras", compile=compiles)
    with pytest.raises(ValueError, match="saved without a privacy ledger"):
        keras.models.load_model(tmp_path / "model.keras", compile=compiles)


def test_saying_that_released_weights_are_public_does_not_hide_the_optimizers_count(tmp_path, monkeypatch):
    model, x, y = trained()
    monkeypatch.setattr(released_numbers, "_released", {})  # as in another process, which did not see the training
    model.save(tmp_path / "model.keras")
    without_ledger(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras", public=True)
    for use in (lambda: loaded.fit(x, y, batch_size=4, verbose=0), lambda: loaded.privacy_statement(1e-2)):
        with pytest.raises(ValueError, match="optimizer counts 3 releases and the ledger 0"):
            use()


def test_a_ledger_that_is_there_counts_though_the_weights_are_said_to_be_public(tmp_path):
    model, *_ = trained()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    assert tfdp.load_model(tmp_path / "model.keras", public=True).ledger.steps == 3
    assert tfdp.load_model(tmp_path / "model.keras", compile=False).ledger.steps == 3
    fresh, *_ = small()
    fresh.load_weights(tmp_path / "model.weights.h5", public=True)
    assert fresh.ledger.steps == 3


def test_a_damaged_ledger_leaves_the_model_as_it_was(tmp_path):
    """Keras loads the layers' weights all the same after such a failure: past this library, the model refuses then."""
    model, *_ = trained()
    model.save_weights(tmp_path / "model.weights.h5")
    with h5py.File(tmp_path / "model.weights.h5", "r+") as file:
        file[ledger_in(file)][5] = 0
    fresh, x, y = small()
    with pytest.raises((ValueError, LedgerError), match="ledger"):
        fresh.load_weights(tmp_path / "model.weights.h5")
    assert fresh.privacy_statement(1e-2).steps == 0
    with pytest.raises((ValueError, LedgerError), match="ledger"):
        keras.Model.load_weights(fresh, tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match="the ledger saved with them was not"):
        fresh.fit(x, y, batch_size=4, verbose=0)


def test_public_is_said_for_a_block_and_a_thread(tmp_path):
    public_weights(tmp_path / "public.weights.h5")

    def refused():
        """Whether a load of these weights is refused, where nothing says anything."""
        model = small()[0]
        try:
            keras.Model.load_weights(model, tmp_path / "public.weights.h5")
        except ValueError:
            return True
        return False

    elsewhere = []
    assert refused()
    with declared_public(True):
        assert not refused()
        thread = threading.Thread(target=lambda: elsewhere.append(refused()))
        thread.start()
        thread.join()
        with declared_public(False):
            assert refused()
        assert not refused()
    assert refused()
    with pytest.raises(KeyError), declared_public(True):
        raise KeyError
    assert refused()
    assert elsewhere == [True]


def test_a_deep_copy_keeps_what_was_spent_and_counts_apart():
    model, *_ = trained()
    copied = copy.deepcopy(model)
    assert copied.ledger is not model.ledger
    assert copied.ledger.steps == 3
    tf.debugging.assert_equal(copied.layers[0].kernel, model.layers[0].kernel)
