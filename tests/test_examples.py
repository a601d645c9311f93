"""The examples of loops run, at short settings, and keep to their budgets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def last_line(name, *flags, folder):
    """The JSON object that an example prints last."""
    command = [sys.executable, str(EXAMPLES / name), "--dataset=digits", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_a_generator_is_trained_against_a_private_critic(tmp_path):
    said = last_line("gan.py", "--batch_size=256", "--epochs=2", "--epsilon=6", folder=tmp_path)
    assert 5.9 < said["epsilon"] <= 6.0
    assert said["steps"] == 2 * 6


@pytest.mark.slow
def test_an_autoencoder_with_two_losses_learns(tmp_path):
    said = last_line("autoencoder.py", "--epochs=20", "--epsilon=20", folder=tmp_path)
    assert 0.0 < said["epsilon"] <= 20.0
    assert said["accuracy"] > 0.2  # of ten classes
