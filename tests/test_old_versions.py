"""Where Keras or TensorFlow is too old to train, an error says so, and what needs no training works."""

import subprocess
import sys

import pytest

OLD = {
    "keras 2": "import keras; keras.__version__ = '2.15.0'",
    "keras 3.9": "import keras; keras.__version__ = '3.9.2'",
    "tensorflow 2.15": "import tensorflow as tf; tf.__version__ = '2.15.1'",
    "another backend": "import keras; keras.backend.backend = lambda: 'jax'",
}
WORKS = """
import tfdp_layers as tfdp
from tfdp_layers.sampling import Poisson
A = tfdp.accounting
release = A.Release((A.GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)
ledger = A.Ledger()
ledger.reserve(ledger.begin(release), 10)
assert 0 < float(A.epsilon(ledger, 1e-5)) < 3
tfdp.callbacks.PrivacyBudget(1.0, 1e-5)
from tfdp_layers.commands.cli import main
"""
NEEDS = [
    "tfdp_layers.PrivateModel",
    "tfdp_layers.layers",
    "tfdp_layers.optimizers",
    "tfdp_layers.load_model",
    "tfdp_layers.PrivateBatches",
]


@pytest.mark.slow
@pytest.mark.parametrize("old", OLD.values(), ids=OLD)
def test_accounting_and_callbacks_work_and_training_says_what_it_needs(old):
    refused = "".join(
        f"""
try:
    {name}
    raise AssertionError({name!r})
except ImportError as error:
    assert "TensorFlow 2.16" in str(error) and "tfdp_layers.accounting" in str(error), error
"""
        for name in NEEDS
    )
    direct = """
try:
    from tfdp_layers.layers import ClippedDense
    raise AssertionError("imported")
except ImportError as error:
    assert "Keras 3" in str(error), error
"""
    code = f"{old}\n{WORKS}\nimport tfdp_layers\n{refused}\n{direct}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
