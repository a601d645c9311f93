"""Several ledgers of one file in a process: one charges at a time, and what one states is what the file holds."""

import pickle
import subprocess
import sys
import threading

import pytest

from helpers import accounting_tools
from helpers.accounting_tools import release_of
from helpers.threads import held_elsewhere
from tfdp_layers.accounting import Ledger, LedgerError, Statement, epsilon, together
from tfdp_layers.plots.sources import epsilon_points
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def charged(ledger, steps=1):
    return accounting_tools.charged(ledger, STEP, steps)


def trained(ledger):
    """As `fit` does, without a budget, and broken off in the middle of a step."""
    token = ledger.begin(STEP)
    ledger.require(token)
    ledger.reserve(token, 1, ahead=30)
    ledger.settle(token, 1)
    ledger.end(token)
    return ledger


def interrupted(ledger):
    """Between the reservation of a step and its end, where it takes the longest: in the writing of the file."""
    token = ledger.begin(STEP)
    ledger.require(token)
    ledger.reserve(token, 4)
    ledger.end(token)
    return ledger


def taking_over(ledger):
    """As `model.ledger = ledger`."""
    ledger.merge(Ledger())
    return ledger


IDLE = {
    "released": charged,
    "trained": trained,
    "interrupted": interrupted,
    "assigned to a model": taking_over,
    "named": lambda ledger: ledger,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("before", IDLE.values(), ids=IDLE)
def test_a_ledger_on_which_nothing_runs_lets_another_charge(path, before):
    """A cell that runs again opens the file again, and what it made before is held by the last error, or a name."""
    held = before(Ledger(path, dataset="patients"))
    was = held.steps
    again = charged(Ledger(path), 10)
    assert again.steps == Ledger.read(path).steps == was + 10
    charged(held, 5)  # and back again: nothing is lost
    assert held.steps == Ledger.read(path).steps == was + 15
    assert charged(again).steps == Ledger.read(path).steps == was + 16


def required(ledger):
    ledger.require(ledger.begin(STEP))


def limited(ledger):
    ledger.keep_to(ledger.begin(STEP), (9.0, 1e-5))
    ledger.lock()


BUSY = {"a step is reserved": lambda ledger: ledger.reserve(ledger.begin(STEP), 1), "fit began": required} | {
    "a budget is in force": limited
}


@pytest.mark.parametrize("runs", BUSY.values(), ids=BUSY)
def test_a_ledger_on_which_something_runs_lets_nobody_charge(path, runs):
    held = Ledger(path)
    runs(held)
    with pytest.raises(LedgerError, match=r"a training which runs in this process.*kernel is shut down.*ledger.close"):
        charged(Ledger(path))
    charged(held)


def test_a_ledger_that_another_thread_uses_lets_nobody_charge_and_nobody_waits(path):
    held = charged(Ledger(path))
    with held_elsewhere(held._threads), pytest.raises(LedgerError, match="Another ledger"):
        charged(Ledger(path))
    assert charged(Ledger(path)).steps == 2


STATES = {
    "epsilon": lambda ledger: float(epsilon(ledger, 1e-5)),
    "a statement": lambda ledger: Statement.from_ledger(ledger, 1e-5).epsilon,
    "together": lambda ledger: float(epsilon(together(ledger), 1e-5)),
    "its text": lambda ledger: float(epsilon(Ledger.from_json(ledger.to_json()), 1e-5)),
    "a copy": lambda ledger: float(epsilon(ledger.copy(), 1e-5)),
    "a pickle": lambda ledger: float(epsilon(pickle.loads(pickle.dumps(ledger)), 1e-5)),
    "another that takes it over": lambda ledger: float(epsilon(merged(ledger), 1e-5)),
    "counts": lambda ledger: (ledger.steps, ledger.updates, sum(entry.steps for entry in ledger.entries)),
    "whether it holds another": lambda ledger: ledger.holds(Ledger.read(ledger.path or LAST[0])),
    "a picture": lambda ledger: epsilon_points(ledger, 1e-5),
}
LAST = []


def merged(ledger):
    found = Ledger()
    found.merge(ledger)
    return found


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_what_is_stated_of_a_ledger_is_what_its_file_holds(path, state):
    """A statement says that it counts all that was charged to the data set's ledger, also by others meanwhile."""
    mine, closed = Ledger(path, dataset="patients"), charged(Ledger(path))
    closed.close()
    charged(Ledger(path), 400)
    LAST[:] = [path]
    whole = state(Ledger.read(path))
    assert [state(one) for one in (mine, closed)] == [whole, whole]
    assert mine.steps == closed.steps == 401
    assert mine.dataset == closed.dataset == "patients"


LOOKS = {"nobody": lambda ledger: None, "epsilon": lambda ledger: epsilon(ledger, 1e-5)}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_a_training_counted_ahead_and_gave_back_is_counted_nowhere(path, look):
    """The file counts ahead while it trains; whoever read it then, and charges it later, must not write that back."""
    writer = Ledger(path)
    token = writer.begin(STEP)
    writer.require(token)
    writer.reserve(token, 1)
    writer.reserve(token, 9, ahead=30)
    reader = Ledger(path)
    look(reader)
    assert reader.steps == 40
    writer.settle(token, 7)
    writer.end(token)
    assert charged(reader).steps == Ledger.read(path).steps == 8
    assert charged(writer).steps == 9
    assert float(epsilon(reader, 1e-5)) == float(epsilon(writer, 1e-5)) == float(epsilon(Ledger.read(path), 1e-5))


def test_what_an_older_copy_of_the_file_lacks_is_kept(path):
    mine, other = Ledger(path), charged(Ledger(path), 3)
    older = path.read_bytes()
    charged(other, 4)
    assert Statement.from_ledger(mine, 1e-5).steps == 7
    for ledger in (mine, other):
        ledger.close()
    path.write_bytes(older)
    assert Statement.from_ledger(mine, 1e-5).steps == 7
    assert charged(mine).steps == Ledger.read(path).steps == 8


def test_what_a_restored_copy_lacks_is_kept_where_it_is_known(path):
    """Whoever answers for the data went on from a backup; a ledger that read the file before knows what is missing."""
    mine, other = Ledger(path), charged(Ledger(path), 3)
    older = path.read_bytes()
    charged(other, 4)
    assert Statement.from_ledger(mine, 1e-5).steps == 7
    other.close()
    path.write_bytes(older)
    with pytest.warns(UserWarning, match="restored=True goes on"):
        restored = charged(Ledger(path, restored=True), 2)
    assert restored.steps == 5
    assert Statement.from_ledger(mine, 1e-5).steps == 9
    assert charged(mine).steps == Ledger.read(path).steps == 10


@pytest.mark.slow
def test_what_another_process_wrote_is_stated(path):
    mine = charged(Ledger(path))
    mine.close()
    program = (
        "from test_ledger_turns import *\n"
        "ledger = charged(Ledger(sys.argv[1], dataset='patients', budget=(9.0, 1e-5)), 400)"
    )
    tests = str(__file__).rsplit("/", 2)[0]
    setting = f"import sys; sys.path[:0] = [{tests!r}, {tests + '/accounting'!r}]\n"
    subprocess.run([sys.executable, "-c", setting + program, str(path)], check=True, timeout=60)
    statement = Statement.from_ledger(mine, 1e-5)
    assert (statement.steps, statement.dataset, statement.budget) == (401, "patients", (9.0, 1e-5))


def test_a_file_that_is_gone_or_older_takes_nothing_from_what_is_stated(path):
    mine = charged(Ledger(path), 3)
    older = path.read_bytes()
    charged(mine, 4)
    whole = float(epsilon(mine, 1e-5))
    mine.close()
    path.write_bytes(older)
    assert float(epsilon(mine, 1e-5)) == whole
    path.unlink()
    assert float(epsilon(mine, 1e-5)) == whole


def test_a_file_in_which_another_ledger_lies_is_not_stated(path):
    mine = charged(Ledger(path), 3)
    mine.close()
    for file in list(path.parent.iterdir()):
        file.unlink()
    charged(Ledger(path))
    with pytest.raises(LedgerError, match="replaced by another ledger"):
        epsilon(mine, 1e-5)


def test_what_is_printed_is_what_the_file_holds_and_never_an_error(path):
    first, second = Ledger(path), Ledger(path)
    charged(second, 5)
    second.close()
    assert "steps=5" in str(first)
    path.write_text("no ledger", encoding="utf-8")
    assert "steps=5" in repr(first)
    assert "as it was read last" in repr(first)


def test_printing_does_not_wait_for_a_thread_that_charges(path):
    ledger, held = Ledger(path), threading.Event()
    done = threading.Event()

    def charge():
        with ledger._threads:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=charge)
    thread.start()
    held.wait(10)
    assert "steps=0" in str(ledger)
    done.set()
    thread.join()
