"""`tfdp plan`: the table of `tfdp.plan`, without TensorFlow."""

import json
import subprocess
import sys

import pytest

import tfdp_layers as tfdp
from helpers.command_line import run, run_json

RUN = ("--examples", 600, "--epsilon", 2, "--delta", 1e-4, "--batch-sizes", "50,100", "--epochs", "5")


def test_the_command_prints_the_plan_in_text_and_json(capsys):
    found = tfdp.plan(600, 2.0, 1e-4, batch_sizes=[50, 100], epochs=[5])
    assert run_json(capsys, "plan", *RUN) == found.to_json()
    assert run("plan", *RUN) == 0
    assert capsys.readouterr().out == f"{found}\n"


def test_a_picture_is_written_where_matplotlib_is_there(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert run("plan", *RUN, "--plot", tmp_path / "plan.png") == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tfdp_layers.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(tfdp, "plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run("plan", *RUN, "--plot", "plan.png") == 2
    assert "needs matplotlib" in capsys.readouterr().err


def test_numbers_are_read_as_everywhere_and_a_terminal_is_told_what_is_going_on(capsys, monkeypatch):
    given = ("plan", *RUN, "--batch-sizes", "5e1,1e2", "--json")
    assert run(*given) == 0
    quiet = capsys.readouterr()
    assert ([row["batch_size"] for row in json.loads(quiet.out)["runs"]], quiet.err) == ([50, 100], "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(*given) == 0
    told = capsys.readouterr()
    assert told.out == quiet.out
    assert told.err.startswith("Finding the noise")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--epsilon", 2), "--examples 60000"),
        ((*RUN, "--epochs", "5;6"), "whole numbers with commas"),
        ((*RUN, "--batch-sizes", "1,024"), "none within them: 1024"),
        ((*RUN, "--batch-sizes", ""), "whole numbers with commas"),
    ],
)
def test_what_is_missing_or_wrong_is_said(capsys, arguments, says):
    assert run("plan", *arguments) == 2
    assert says in capsys.readouterr().err


def test_the_plan_loads_no_tensorflow():
    code = "import sys, tfdp_layers; tfdp_layers.plan; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
