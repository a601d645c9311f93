"""A process killed while it writes its ledger, at random moments: `benchmarks/kill.py` does it to whole trainings."""

import os
import subprocess
import sys

import pytest

_KILLS = """
import mmap, os, random, signal, struct, sys, time
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.sampling import Poisson

path, kills, together = sys.argv[1], 10, 3
release = Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)
released = mmap.mmap(-1, 8)
count = lambda: struct.unpack("q", released[:])[0]

def train():
    ledger = Ledger(path, dataset="killed")
    token = ledger.begin(release)
    while True:
        ledger.reserve(token, together)
        for _ in range(together):
            released[:] = struct.pack("q", count() + 1)
            time.sleep(0.0002)  # a step takes its time, and a kill comes before or after it as well
        ledger.settle(token, together)

rng, trained = random.Random(0), 0
for kill in range(kills):
    before, child = count(), os.fork()
    if child == 0:
        train()
    while count() == before and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    trained += count() > before
    counted = Ledger(path).steps
    assert count() <= counted <= count() + together * (kill + 1), (kill, count(), counted)
assert trained == kills, trained
print("sound", count())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "counted after the release"])
def test_after_every_kill_the_ledger_holds_at_least_what_was_released(tmp_path, planted):
    program = _KILLS.replace("ledger.reserve(token, together)", "pass") if planted else _KILLS
    command = [sys.executable, "-c", program, str(tmp_path / "ledger.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.startswith("sound") != planted, done.stderr
    assert ("AssertionError" in done.stderr) == planted
