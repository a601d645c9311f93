"""One writer at a time, whatever happens to the files, and however processes come and go."""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger, LedgerError, locked_file
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

_WRITER = """
import os, sys
from pathlib import Path
from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, Release
from tfdp_layers.sampling import Poisson
STEP = Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)
path = Path(sys.argv[1])
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def run(program, path, *arguments):
    command = [sys.executable, "-c", _WRITER + program, str(path), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


_SECOND = """
try:
    ledger = Ledger(path)
    ledger.reserve(ledger.begin(STEP), 10)
    print("released 10")
except LedgerError as error:
    print("refused")
"""

HARM = {
    "nothing": lambda path: None,
    "what is beside it deleted": lambda path: [file.unlink() for file in path.parent.iterdir() if file != path],
    "the ledger deleted": lambda path: path.unlink(),
    "the ledger moved away": lambda path: path.rename(path.with_name("moved.json")),
    "the ledger replaced by a copy": lambda path: (
        path.with_name("copy").write_bytes(path.read_bytes()),
        path.with_name("copy").replace(path),
    ),
    "the ledger overwritten by a copy": lambda path: path.write_bytes(path.read_bytes()),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_no_second_writer_comes_in_whatever_is_done_to_the_files(path, harm):
    first = Ledger(path)
    token = first.begin(STEP)
    first.reserve(token, 1)
    released = 1
    for _ in range(3):
        harm(path)
        found = run(_SECOND, path)
        released += 10 * (found[0] == "released")
        try:
            first.reserve(token, 1)
        except LedgerError:
            break
        released += 1
    first.close()
    assert Ledger(path).steps >= released
    assert released == 4  # The second never came in, and the first went on.


@pytest.mark.slow
def test_where_both_files_are_gone_the_first_writer_stops(path):
    """Nothing is left that a second one could see: it starts afresh, and the first must not write over it."""
    first = Ledger(path)
    token = first.begin(STEP)
    first.reserve(token, 1)
    for file in list(path.parent.iterdir()):
        file.unlink()
    assert run(_SECOND, path) == ["released", "10"]
    with pytest.raises(LedgerError, match="replaced by another ledger"):
        first.reserve(token, 1)
    assert Ledger(path).steps == 10


@pytest.mark.slow
def test_writers_that_take_turns_lose_no_count(path):
    """Four processes open, count and close one ledger; a fifth deletes all that looks like a lock."""
    Ledger(path).merge(Ledger())
    program = """
import random, time
made = 0
while made < 25:
    ledger = Ledger(path)
    try:
        ledger.reserve(ledger.begin(STEP), 1)
        made += 1
    except LedgerError as error:
        if "Another ledger" not in str(error):
            raise
        time.sleep(random.uniform(0, 0.002))
    ledger.close()
"""
    command = [sys.executable, "-c", _WRITER + program, str(path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    while any(writer.poll() is None for writer in writers):
        path.with_name("ledger.json.lock").unlink(missing_ok=True)
        time.sleep(0.001)
    assert [writer.communicate()[1] for writer in writers] == [""] * 4
    assert Ledger(path).steps == 100


@pytest.mark.slow
def test_a_forked_child_keeps_no_lock_after_its_parent_closed(path):
    assert run(
        """
ledger = Ledger(path)
token = ledger.begin(STEP)
ledger.reserve(token, 1)
done, wait = os.pipe()
child = os.fork()
if child == 0:
    os.close(wait)
    os.read(done, 1)  # lives on, and does nothing
    os._exit(0)
ledger.close()
other = Ledger(path)
other.reserve(other.begin(STEP), 1)
print(Ledger(path).steps)
os.close(wait)
os.waitpid(child, 0)
""",
        path,
    ) == ["2"]


@pytest.mark.slow
def test_a_child_that_outlives_its_killed_parent_keeps_no_lock(path):
    program = """
ledger = Ledger(path)
ledger.reserve(ledger.begin(STEP), 1)
child = os.fork()
if child == 0:
    os.write(1, b"lives\\n")  # what a fork runs in the child has run
    sys.stdin.read()
    os._exit(0)
os.write(1, b"%d\\n" % child)  # one write: two processes print here
sys.stdin.read()
"""
    command = [sys.executable, "-c", _WRITER + program, str(path)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    (child,) = (int(line) for line in (parent.stdout.readline(), parent.stdout.readline()) if line != "lives\n")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    os.kill(child, 0)  # It lives.
    try:
        ledger = Ledger(path)
        ledger.reserve(ledger.begin(STEP), 1)
        assert Ledger(path).steps == 2
    finally:
        parent.stdin.close()
        parent.stdout.close()


@pytest.mark.slow
def test_a_child_that_exits_takes_nothing_from_its_parent(path):
    assert run(
        """
ledger = Ledger(path)
token = ledger.begin(STEP)
ledger.reserve(token, 1)
if os.fork() == 0:
    ledger.close()
    os._exit(0)
os.wait()
try:
    other = Ledger(path)
    other.reserve(other.begin(STEP), 1)
except LedgerError:
    print("refused")
ledger.reserve(token, 1)
print(Ledger(path).steps)
""",
        path,
    ) == ["refused", "2"]


@pytest.mark.slow
def test_a_fork_while_another_thread_counts_does_not_hang(path):
    assert run(
        """
import threading
ledger = Ledger(path)
token = ledger.begin(STEP)
with ledger._threads:
    pid = []
    def fork():
        pid.append(os.fork())
        if pid[0] == 0:
            ledger.reserve(token, 1)  # The thread that held the lock is not in this process.
            os._exit(7)
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid[0], 0)[1]))
""",
        path,
    ) == ["7"]


def test_a_writer_of_version_0_1_keeps_this_one_out(path):
    """It holds `ledger.json.lock` and knows nothing of the mark."""
    import fcntl
    from pathlib import Path

    path.write_bytes((Path(__file__).parents[1] / "data" / "version_0_1.ledger.json").read_bytes())
    with open(f"{path}.lock", "a") as old:
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ledger = Ledger(path)
        token = ledger.begin(ledger.entries[0].release)
        with pytest.raises(LedgerError, match="Another ledger"):
            ledger.reserve(token, 1)
    ledger.reserve(token, 1)
    with open(f"{path}.lock", "a") as old, pytest.raises(BlockingIOError):
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ledger.close()
    assert Ledger(path).steps == 13


@pytest.mark.slow
def test_who_looks_while_another_writes_sees_a_whole_ledger_that_only_grows(path):
    program = """
import tfdp_layers.accounting.history as history
history._SHORTEST_LOG = 50  # so that the file is replaced now and then
for _ in range(6):
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    for _ in range(150):
        ledger.reserve(token, 1)
    ledger.close()
"""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER + program, str(path)])
    seen = 0
    while writer.poll() is None:
        for look in (Ledger, Ledger.read) if path.exists() else (Ledger,):
            found = look(path).steps
            assert found >= seen
            seen = found
    assert writer.returncode == 0
    assert Ledger(path).steps == 900


def test_the_ledger_of_a_model_that_is_gone_keeps_nobody_out(path):
    """As where a cell of a notebook runs again: Keras' models are circles, which Python frees when it gets to it."""

    class Model:
        def __init__(self):
            self.ledger, self.itself = Ledger(path), self
            self.ledger.reserve(self.ledger.begin(STEP), 10)

    gc.disable()
    try:
        for _ in range(3):
            model = None
            model = Model()
    finally:
        gc.enable()
    with pytest.raises(LedgerError, match="Another ledger"):  # of one that is still there
        Ledger(path).lock()
    assert model.ledger.steps == 30


_FORKED_WITH_SIGHTINGS = """
import threading
from tfdp_layers.accounting import sightings, together
held, done = threading.Event(), threading.Event()
def hold():
    with sightings._lock:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    together(Ledger())
    os._exit(0)
print("child", os.waitpid(child, 0)[1])
done.set()
"""


@pytest.mark.slow
def test_a_fork_while_another_thread_notes_records_does_not_hang(path):
    assert run(_FORKED_WITH_SIGHTINGS, path) == ["child", "0"]


def test_where_files_cannot_be_locked_a_ledger_stays_in_memory(path, monkeypatch):
    """Windows: two trainings wrote one file without a lock, and the counts of one were lost."""
    written = Ledger(path)
    written.reserve(written.begin(STEP), 3)
    written.close()
    monkeypatch.setattr(locked_file, "fcntl", None)
    for ledger in (Ledger(path), Ledger(path.with_name("new.json"))):
        with pytest.raises(LedgerError, match="WSL"):
            ledger.reserve(ledger.begin(STEP), 1)
    assert not path.with_name("new.json").exists()
    assert Ledger.read(path).steps == 3
    memory = Ledger()
    memory.reserve(memory.begin(STEP), 1)
    assert memory.steps == 1
