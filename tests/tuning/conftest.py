"""A search collects all garbage before each trial: beside what stays anyhow it has little to look through."""

import gc
from collections.abc import Iterator

import pytest

from tfdp_layers.tuning import NumberOfTrials


@pytest.fixture(autouse=True, scope="package")
def little_to_collect() -> Iterator[None]:
    """Leaves out of collections what lives already, TensorFlow's million objects above all."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def exactly(monkeypatch):
    """Sets how many trials the next searches make."""

    def set_to(count):
        monkeypatch.setattr(NumberOfTrials, "draw", lambda self, randomness: count)

    return set_to
