"""No random program on the files of ledgers ends in one that tells, in whatever way, of less than was released."""

import os

import pytest

from helpers.ledger_programs import run_ledger_program
from tfdp_layers.accounting.view import View

PROGRAMS = int(os.environ.get("LEDGER_PROGRAMS", "80"))


def programs(seeds, folder):
    """How many charges the programs of these seeds made."""
    return sum(len(run_ledger_program(seed, folder).charges) for seed in seeds)


def test_whatever_a_ledger_tells_is_at_least_what_its_file_holds(tmp_path):
    assert programs(range(8), tmp_path) > 8  # they did release


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_the_same_for_many_programs(part, tmp_path):
    assert programs(range(100 + part, 100 + PROGRAMS, 2), tmp_path) > PROGRAMS


def test_a_ledger_that_does_not_look_at_its_file_is_found(monkeypatch, tmp_path):
    """As they were: steps, texts, copies, merges and pictures told of what the ledger had read or written itself."""
    monkeypatch.setattr(View, "_look", lambda self: None)
    with pytest.raises(AssertionError, match="tells of"):
        programs(range(12), tmp_path)
