"""Makes the helpers beside the tests importable, and those of the tests per record."""

import sys
from pathlib import Path

import pytest

for folder in ("proof", "per_record"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


@pytest.fixture(autouse=True)
def same_weights():
    import keras

    keras.utils.set_random_seed(0)
