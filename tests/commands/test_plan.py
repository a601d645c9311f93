"""`tfdp plan`: the table of `tfdp.plan`, without TensorFlow."""

import json
import re
import subprocess
import sys

import pytest

import tfdp_layers as tfdp
from helpers.command_line import but, run, run_json

RUN = ("--examples", 600, "--epsilon", 2, "--delta", 1e-4, "--batch-sizes", "50,100", "--epochs", "5")


def test_the_command_prints_the_plan_in_text_and_json(capsys):
    found = tfdp.plan(600, 2.0, 1e-4, batch_sizes=[50, 100], epochs=[5])
    assert run_json(capsys, "plan", *RUN) == found.to_json()
    assert run("plan", *RUN) == 0
    assert capsys.readouterr().out == f"{found}\n"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "sampling", "protects"),
    [
        ((), "Poisson: each step draws every record independently", "one record; add or remove one record: data sets"),
        (("--sampling", "without_replacement"), "without replacement: each step", "one record; replace one record:"),
        (("--sampling", "partition"), "partition: every epoch cuts", "one record; zero out one record:"),
        (
            ("--records-per-owner", 2),
            "for each owner of at most 2 of them",
            "what all records hold that one owner owns",
        ),
    ],
)
def test_no_epsilon_is_printed_without_its_relation(capsys, options, sampling, protects):
    """In the words of `tfdp epsilon`: the commands for a budget say whom it is for, too."""
    size = ("--examples", 600, "--delta", 1e-4, *options)
    one = ("--batch-size", 100, "--epochs", 5, *size)
    said = {}
    for name, given in {
        "epsilon": (*one, "--noise-multiplier", 5),
        "calibrate": (*one, "--epsilon", 2),
        "plan": (*size, "--epsilon", 2, "--batch-sizes", 100, "--epochs", 5),
    }.items():
        assert run(name, *given) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
    words = re.search(r"Protects .*?(?= Note:|$)", said["epsilon"]).group()
    assert words.startswith(f"Protects {protects}")
    assert said["plan"].endswith(words)
    assert said["calibrate"].endswith(words)
    assert sampling in said["plan"]
    plan = run_json(capsys, "plan", *size, "--epsilon", 2, "--batch-sizes", 100, "--epochs", 5)
    known = run_json(capsys, "calibrate", *one, "--epsilon", 2)
    assert (plan["relation"], plan["sampling"]) == (known["relation"], known["sampling"])


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
    given = ("plan", *but(RUN, "--batch-sizes", "5e1,1e2"), "--json")
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
        (but(RUN, "--epochs", "5;6"), "whole numbers with commas"),
        (but(RUN, "--batch-sizes", "1,024"), "none within them: 1024"),
        (but(RUN, "--batch-sizes", "1,000"), "none within them: 1024"),
        (but(RUN, "--batch-sizes", "0,5"), "whole numbers from 1 on"),
        (but(RUN, "--batch-sizes", ""), "whole numbers with commas"),
    ],
)
def test_what_is_missing_or_wrong_is_said(capsys, arguments, says):
    assert run("plan", *arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_loads_no_tensorflow():
    code = "import sys, tfdp_layers; tfdp_layers.plan; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
