"""No random program of public calls ends in a model that states less than what truly reached its weights."""

import os

import pytest

from helpers import programs
from tfdp_layers.models import accounts, opening

PROGRAMS = int(os.environ.get("PROGRAMS", "200"))
PARTS = 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_models_state_at_least_what_reached_their_weights(part, tmp_path):
    released = programs.run_programs(range(part, PROGRAMS, PARTS), tmp_path)
    assert released > PROGRAMS / PARTS  # they did train


def first_failure(tmp_path, programs_tried=40):
    for seed in range(programs_tried):
        try:
            programs.run_program(seed, tmp_path)
        except AssertionError:
            return seed
    return None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("where", "name"), [(accounts, "open_account"), (opening, "remember_released")])
def test_a_planted_bug_is_found(where, name, monkeypatch, tmp_path):
    """Weights that do not say who pays for them; released values that are not recognised in copies."""
    monkeypatch.setattr(where, name, lambda *_: None)
    with pytest.raises(AssertionError, match="states"):
        programs.run_programs(range(60), tmp_path)
