"""A machine without data sets, and a run that must not reach training."""

import keras  # before KERAS_HOME points elsewhere: its first import writes a file there
import pytest

from tfdp_layers.commands import bench, train
from tfdp_layers.zoo import datasets


@pytest.fixture
def no_training(monkeypatch):
    """Fails the test if a refused run gets as far as training."""

    def trained(*_):
        raise AssertionError("training started")

    monkeypatch.setattr(train, "_fit", trained)


class Loaded(Exception):  # noqa: N818 (no error)
    """The data would have been loaded now."""


@pytest.fixture
def no_loading(monkeypatch):
    """Raises what it returns where a run would load its data, or build the network that it times."""

    def loaded(*_):
        raise Loaded

    monkeypatch.setattr(datasets, "load", loaded)
    monkeypatch.setattr(bench, "_built", loaded)
    return Loaded


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """A machine without data sets and network."""

    def no_network(name):
        raise Exception("URL fetch failure")

    assert keras.config.floatx()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(datasets, "_download", no_network)
