"""The example deployment, started for real: SuperLink, SuperNodes and app as processes that talk over loopback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install '.[federated]'")

from tfdp_layers.accounting import Ledger, epsilon

SCRIPT = Path(__file__).parents[2] / "examples" / "federation" / "deploy_locally.py"


def test_parties_in_processes_of_their_own_train_privately_and_keep_their_ledgers(tmp_path):
    config = 'model="linear" rounds=2 order="asynchronous" upload=0.1 epsilon-per-upload=1e6'
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--parties", "2", "--run-config", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    logs = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    result = json.loads(done.stdout)
    assert result["faults"] == []
    assert result["rounds"] == 2
    assert 0 < result["uploaded"] <= 2 * 2 * 65
    for number in range(2):
        ledger = Ledger(tmp_path / f"party-{number}.json")
        assert 0.0 < float(epsilon(ledger, 1e-5)) <= 2e6
        assert sum(entry.steps for entry in ledger.entries) <= 2 * 65
        ledger.close()
