"""`tfdp tune`: one search, one entry, one model; what is wrong is refused before anything is charged."""

import pytest

from helpers.command_line import but, run
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import NumberOfTrials

RUN = ("--dataset", "digits", "--model", "mlp", "--epsilon", 3, "--delta", 1e-4, "--epochs", 2, "--batch-size", 256)


@pytest.mark.slow
def test_a_search_ends_with_one_model_its_settings_and_the_statement(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(NumberOfTrials, "draw", lambda self, randomness: 1)
    varied = ("--vary", "learning_rate=1e-3:1e-2", "--trials", 2, "--distribution", "logarithmic")
    files = ("--ledger", tmp_path / "digits.json", "--save", tmp_path / "best.keras", "--json")
    assert run("tune", *RUN, *varied, *files) == 0
    said = capsys.readouterr().out
    for part in (
        "Noise multiplier",
        "the best of a random number of trials",
        "by a logarithmic",
        "did not choose them",
    ):
        assert part in " ".join(said.split())
    (entry,) = Ledger.read(tmp_path / "digits.json").entries
    assert (entry.release.kind, entry.release.mean, entry.release.shape) == ("selection", 2.0, 0.0)
    assert (tmp_path / "best.keras").exists()
    # A ledger that is spent affords no further search.
    assert run("tune", *RUN, *varied, "--ledger", tmp_path / "digits.json") == 2
    assert "Next to nothing is left of the budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--dataset", "digits"), "--epsilon 3"),
        ((*RUN, "--vary", "learning_rate"), "NAME=LOW:HIGH"),
        ((*RUN, "--vary", "activation=relu,tanh"), "Names:"),
        ((*RUN, "--vary", "learning_rate=1:2:3"), "two numbers"),
        ((*RUN, "--vary", "learning_rate=a,b"), "numbers with commas"),
        ((*RUN, "--vary", "epochs=2,9", "--vary", "epochs=4"), "twice"),
        ((*RUN, "--vary", "epochs=2:9"), "list of values"),
        ((*RUN, "--method", "dpsgd", "--vary", "views=1,4"), "views would change nothing"),
        ((*RUN, "--vary", "l2_norm_clip=1,2", "--vary", "epochs=1,2"), "l2_norm_clip would change nothing"),
        ((*RUN, "--method", "dpsgd", "--vary", "feedback_norm=0.5,0.9"), "feedback_norm would change nothing"),
        ((*RUN, "--trials", "0.5"), "at least 1"),
        (but(RUN, "--delta", "2"), "strictly between"),
        ((*RUN, "--save", "best.h5"), "ends in .keras"),
        ((*RUN, "--method", "dfa_hybrid"), "Choose method 'dfa'"),
    ],
)
def test_what_is_missing_or_wrong_is_said(capsys, arguments, says):
    assert run("tune", *arguments) == 2
    assert says in capsys.readouterr().err


def test_help_says_what_is_secret(capsys):
    assert run("tune", "--help") == 0
    assert "How many models were trained" in capsys.readouterr().out
