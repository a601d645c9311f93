"""Training on two devices, and in two processes, is the mechanism of one device: same sums, one noise, one ledger."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_check_of_replicas_and_workers_holds(tmp_path):
    # In a process of its own: devices and ports of workers must be set before TensorFlow starts; and in one, which
    # imports it once.
    command = [sys.executable, "-m", "helpers.replicas.checks", str(tmp_path)]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500, cwd=tests)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert len(found) == 44, done.stdout
    failed = {name: error for name, error, _ in found if error}
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())
