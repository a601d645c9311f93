"""A machine without data sets, and a run that must not reach training."""

import keras  # before KERAS_HOME points elsewhere: its first import writes a file there
import pytest

from tfdp_layers.commands import train
from tfdp_layers.zoo import datasets


@pytest.fixture
def no_training(monkeypatch):
    """Fails the test if a refused run gets as far as training."""

    def trained(*_):
        raise AssertionError("training started")

    monkeypatch.setattr(train, "_fit", trained)


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """A machine without data sets and network."""

    def no_network(name):
        raise Exception("URL fetch failure")

    assert keras.config.floatx()
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(datasets, "_download", no_network)
