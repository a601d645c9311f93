"""The command `tfdp` lists what it has, and refuses bad input in one message that leaves nothing behind."""

import contextlib
import importlib.util
import re
import subprocess
import sys

import pytest
from absl import flags

from helpers.command_line import RUN, TRAIN, but, run
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.commands import cli
from tfdp_layers.commands.command import Refusal
from tfdp_layers.sampling import Poisson

# help -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "epsilon", "calibrate", "audit"])
@pytest.mark.parametrize("order", ["after", "before"])
def test_help_lists_the_commands_own_options_and_no_others(capsys, name, order):
    assert run(*((name, "--help") if order == "after" else ("help", name))) == 0
    text = capsys.readouterr().out
    listed = set(re.findall(r"^  --([a-z-]+)", text, flags=re.M))
    defined = {option.replace("_", "-") for option in cli._command(name).options()}
    assert listed == defined
    assert f"tfdp {name} --" in text  # an example
    assert not listed & {"logtostderr", "verbosity", "pdb"}  # absl's own


def test_overview_lists_what_exists(capsys):
    assert run() == 0
    text = capsys.readouterr().out
    assert re.findall(r"^  ([a-z]+)  ", text, flags=re.M) == [
        "train",
        "recipes",
        "epsilon",
        "calibrate",
        "plan",
        "tune",
        "bench",
        "audit",
        "federated",
    ]
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("tfdp-layers ")


# bad input ------------------------------------------------------------------------------------------------------------


BAD = [
    (["trian"], "train, recipes, epsilon, calibrate"),
    (["train"], "--epsilon is needed"),
    (["train", "--epsilon", "0"], "above 0"),
    (["train", "--epsilon", "-1"], "above 0"),
    (["train", "--epsilon", "nan"], "above 0"),
    (["train", "--epsilon", "inf"], "finite"),
    (["train", "--epsilon", "much"], "--epsilon"),
    (["train", "--epsilon"], "Missing value"),
    (["train", "--epsilom", "2"], "epsilon"),
    ([*TRAIN, "stray"], "stray"),
    ([*TRAIN, "--delta", "0"], "strictly between 0 and 1"),
    ([*TRAIN, "--delta", "1"], "strictly between 0 and 1"),
    (but(TRAIN, "--dataset", "imagenet"), "mnist|fashion_mnist|cifar10|digits"),
    (but(TRAIN, "--dataset", "mine.csv"), "records of your own train in Python"),
    ([*TRAIN, "--model", "rnn"], "cnn|mlp"),
    ([*TRAIN, "--method", "hope"], "backprop_clipping"),
    ([*TRAIN, "--method", "dfa", "--model", "cnn"], "dfa_hybrid"),
    ([*TRAIN, "--sampling", "balls"], "poisson|fixed_size|partition|cyclic"),
    ([*TRAIN, "--noise", "correlated"], "add --sampling cyclic"),
    ([*TRAIN, "--sampling", "cyclic", "--decay", "0.9"], "--decay is of --noise correlated"),
    ([*TRAIN, "--sampling", "cyclic", "--noise", "correlated", "--decay", "1"], "at least 0 and below 1"),
    ([*TRAIN, "--epochs", "0"], "--epochs"),
    ([*TRAIN, "--batch-size", "-5"], "--batch-size"),
    ([*TRAIN, "--batch-size", "1438"], "larger than the data"),
    ([*TRAIN, "--learning-rate", "-0.1"], "--learning-rate"),
    ([*TRAIN, "--noise-multiplier", "-1"], "--noise-multiplier"),
    ([*TRAIN, "--noise-multiplier", "0"], "--noise-multiplier"),
    ([*TRAIN, "--physical-batch-size", "0"], "--physical-batch-size"),
    ([*TRAIN, "--seed", "-1"], "--seed"),
    ([*TRAIN, "--data-dir", "nowhere"], "--data-dir"),
    ([*TRAIN, "--save", "model.h5"], ".keras"),
    ([*TRAIN, "--save", "nowhere/model.keras"], "must exist"),
    ([*TRAIN, "--save", "file/model.keras"], "must exist"),
    ([*TRAIN, "--log-dir", "file"], "is a file"),
    ([*TRAIN, "--log-dir", "file/logs"], "is a file"),
    ([*TRAIN, "--log-dir", ""], "empty name"),
    ([*TRAIN, "--log-dir", "damaged"], "not a ledger that can be trusted"),
    (["train", "--epsilon", "2", "--dataset", "mnist"], "--data-dir"),
    (["train", "--epsilon", "2", "--dataset", "mnist", "--data-dir", "damaged"], "damaged"),
    (["epsilon", "--examples", "9", "--batch-size", "3", "--noise-multiplier", "1"], "either --steps or --epochs"),
    ([*TRAIN, "--setting", "views=2", "--setting", "views=3"], "--setting names views twice"),
    ([*TRAIN, "--epochs", "2", "--setting", "epochs=1"], "--epochs and --setting epochs=... are one setting"),
    (["epsilon", "--ledger", "a", "--ledger", "b"], "already defined as a. Give it once. Two ledgers are added up"),
    (["epsilon", *RUN], "--noise-multiplier is needed"),
    (["epsilon", *RUN, "--noise-multiplier", "0"], "above 0"),
    (["epsilon", *but(RUN, "--noise-multiplier", "1", "--examples", "100")], "larger than the data"),
    (["epsilon", *RUN, "--noise-multiplier", "1", "--records-per-owner", "99999999"], "more than all records"),
    (["epsilon", *but(RUN, "--noise-multiplier", "1", "--examples", "1e30")], "or less"),
    (["epsilon", *but(RUN, "--noise-multiplier", "1", "--examples", "1e12", "--epochs", "1e12")], "below 2^62"),
    (
        [
            "epsilon",
            *but(RUN, "--noise-multiplier", "1", "--epochs", "1e9"),
            *("--sampling", "cyclic", "--noise", "correlated"),
        ],
        "up to 1,000,000 epochs",
    ),
    (["bench", "--batch-size", "1e9"], "made before the timing"),
    (["tune", "--epsilon", "2", "--dataset", "digits", "--vary", "l2_norm_clip=-1,2"], "takes a number above 0"),
    (["epsilon", "--noise", "1"], "Did you mean --noise-multiplier 1?"),
    (["calibrate", *RUN], "--epsilon is needed"),
    (["calibrate", *RUN, "--epsilon", "-2"], "above 0"),
    (["calibrate", *RUN, "--epsilon", "2", "--steps", "7"], "either --steps or --epochs"),
    (["bench", "--keras-model", "nowhere.keras"], "there is no such file"),
    (["bench", "--keras-model", "file"], "model.save('model.keras') wrote"),
    (["tune", "--epsilon", "2", "--dataset", "digits", "--vary", "learning_rate=2:1"], "0 < LOW < HIGH"),
    (["tune", "--epsilon", "2", "--dataset", "digits", "--vary", "learning_rate=0:1"], "0 < LOW < HIGH"),
    (["calibrate", *RUN, "--epsilon", "2", "--records-per-owner", "99999999"], "more than all records"),
    (["plan", "--examples", "9"], "--epsilon is needed"),
    (["plan", "--examples", "9", "--epsilon", "2", "--records-per-owner", "10"], "more than all records"),
    (["plan", "--examples", "9", "--epsilon", "2", "--batch-sizes", "10"], "fits into 9 records"),
]


@pytest.mark.parametrize("name", [*cli._COMMANDS])
def test_an_option_of_one_value_is_given_once(name):
    """The last one would count, and what the first one says be left out without a word."""
    command, first = cli._command(name), ["simulate"] if name == "federated" else []
    options = command.options()
    for one in options:
        kind = options[one].flag_type()
        value = {"float": "1", "int": "1", "string": "a", "multi string": "a=1"}.get(kind)
        value = getattr(options[one].parser, "enum_values", [value])[0]
        given = f"--{one}" if kind == "bool" else f"--{one}={value}"
        twice = [*first, given, given.replace("_", "-")]
        if kind == "multi string":
            assert command.parse(twice)[one].present == 2
        else:
            with pytest.raises(Refusal, match=r"already defined as .*\. Give it once\."):
                command.parse(twice)


@pytest.mark.usefixtures("no_training", "no_data")
@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input_is_refused_in_one_message_and_leaves_nothing_behind(
    capsys, tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "ledger.json").write_text("{}")
    (tmp_path / "damaged" / "mnist.npz").write_text("no archive")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tfdp: error: ")
    assert captured.err.count("tfdp: error: ") == 1
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert sorted(tmp_path.rglob("*")) == before


SMALL = ["--examples", "60", "--batch-size", "6", "--epochs", "2"]
COMPLETE = [
    ["epsilon", *SMALL, "--noise-multiplier", "1"],
    ["train", "--epsilon", "3", "--dataset", "digits", "--model", "mlp"],
    ["epsilon", *SMALL, "--noise-multiplier", "1", "--sampling", "cyclic", "--noise", "correlated"],
    ["calibrate", *SMALL, "--epsilon", "3"],
    ["plan", "--examples", "60", "--epsilon", "3", "--batch-sizes", "6", "--epochs", "2"],
    ["tune", "--epsilon", "3", "--dataset", "digits", "--model", "mlp"],
    ["audit", "--epsilon", "3"],
    ["bench"],
    ["federated", "simulate", "--epsilon-per-epoch", "100"],
]


@pytest.mark.parametrize("line", COMPLETE, ids=" ".join)
def test_every_number_of_every_command_is_taken_or_refused_in_one_message(capsys, no_loading, line):
    """Whole numbers that no ledger counts, or no memory holds, ended in tracebacks."""
    options, number = cli._command(line[0]).options(), flags.IntegerParser | flags.FloatParser
    for name in [name for name in options if isinstance(options[name].parser, number)]:
        for value in ("abc", "-1", "0", "nan", "inf", "1e15", "1e30"):
            with contextlib.suppress(no_loading):
                status = run(*but(line, f"--{name}={value}"))
                assert (status, capsys.readouterr().err.count("tfdp: error: ")) in ((0, 0), (2, 1)), (name, value)


@pytest.mark.parametrize("name", ["epsilon", "calibrate", "plan"])
def test_a_missing_option_is_told_with_a_whole_call_which_runs(capsys, name):
    assert run(name) == 2
    call = capsys.readouterr().err.partition("A whole call: tfdp ")[2]
    assert run(*call.split()) == 0


@pytest.mark.usefixtures("no_training", "no_data")
def test_logs_without_tensorboard_are_refused_before_it_is_loaded(capsys, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else found(name))
    assert run(*TRAIN, "--log-dir", tmp_path / "logs") == 2
    assert "pip install '.[tensorboard]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_real_process_ends_with_status_2_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "tfdp_layers.commands.cli", "train", "--epsilon", "-1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tfdp: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_training")
def test_a_budget_that_was_spent_before_is_refused(capsys, tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(ledger.begin(Release((GroupNoise("w", 1.0, 0.8),), Poisson(64), 1437)), 200)
    ledger.close()
    assert epsilon(ledger, 1e-5) > 2
    before = (tmp_path / "ledger.json").read_bytes()
    assert run(*TRAIN, "--log-dir", tmp_path) == 2
    assert "already holds epsilon" in capsys.readouterr().err
    assert (tmp_path / "ledger.json").read_bytes() == before


def test_interruption_has_its_own_status(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupted)
    assert run("train") == 130
    assert "interrupted" in capsys.readouterr().err
