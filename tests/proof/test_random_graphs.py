"""Random functions of records: what is proved of them is so in numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from helpers.proof import random_graphs

found = [random_graphs.false_proof(seed) for seed in range({}, {})]
assert [fault for fault, _ in found if fault] == [], found
assert sum(count for _, count in found) > 20, "hardly any proof was checked"
"""


@pytest.mark.parametrize(("first", "last"), [(0, 25), pytest.param(25, 130, marks=pytest.mark.slow)])
def test_what_is_proved_of_random_functions_is_so_in_numbers(first: int, last: int) -> None:
    """In a process without oneDNN: that of TensorFlow 2.21 writes beyond its memory in some products that broadcast."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first, last)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
