"""Makes the helpers beside the tests importable, and gives every test the same initial weights."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def same_weights():
    import keras

    keras.utils.set_random_seed(0)
