"""Files that version 0.1 wrote are read by every later version: a model with its ledger, and a data set's ledger."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.variants import slow_but
from tfdp_layers.accounting import Budget, Ledger, Statement

DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.mark.slow
@pytest.mark.parametrize(
    "load_model", slow_but(["keras.models.load_model"], ["keras.models.load_model", "tfdp.load_model"])
)
def test_a_model_of_version_0_1_loads_in_a_fresh_process_with_its_ledger(load_model):
    code = f"""
import keras, tfdp_layers as tfdp, numpy as np
model, data = {load_model}(r"{DATA}/version_0_1.keras"), np.load(r"{DATA}/version_0_1.npz")
np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["predictions"], rtol=1e-5)
assert type(model) is tfdp.PrivateSequential
assert type(model.optimizer) is tfdp.optimizers.ClippedOptimizer
assert (model.ledger.steps, int(model.optimizer.releases.numpy())) == (8, 8)
statement = model.privacy_statement(1e-3)  # refuses if the ledger lacked what the optimizer released
assert statement.steps == 8 and 0 < statement.epsilon < 100 and not statement.void, statement
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_ledger_of_version_0_1_loads():
    ledger = Ledger.from_json((DATA / "version_0_1.ledger.json").read_text())
    assert (ledger.steps, ledger.dataset, ledger.budget) == (12, "fixture", Budget(5.0, 1e-5))
    statement = Statement.from_ledger(ledger, 1e-5)
    assert statement.budget == (5.0, 1e-5)
    assert [stated.kind for stated in statement.releases[:2]] == ["step", "step"]
    assert statement.releases[2].name == "accuracy"
