"""The command `tfdp`: its numbers are the library's, it keeps to the budget, and refuses bad input in one message."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from tfdp_layers import cli, datasets, recipes
from tfdp_layers.accounting import GroupNoise, Ledger, Release, affordable_steps, epsilon
from tfdp_layers.commands import train
from tfdp_layers.commands.training_options import TrainingOptions
from tfdp_layers.sampling import FixedSize, Partition, Poisson

RUN = ["--examples", "60000", "--batch-size", "2048", "--epochs", "10", "--delta", "1e-5"]


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def run_json(capsys, *arguments: object) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def no_training(monkeypatch):
    """Fails the test if a refused run gets as far as training."""

    def trained(*_):
        raise AssertionError("training started")

    monkeypatch.setattr(train, "_fit", trained)


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """A machine without data sets and network."""

    def no_network(name):
        raise Exception("URL fetch failure")

    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(datasets, "_download", no_network)


# epsilon and calibrate ------------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_dp_accounting(capsys):
    result = run_json(capsys, "epsilon", *RUN, "--noise-multiplier", 1.3)
    accountant = dp_accounting.pld.PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(2048 / 60000, dp_accounting.GaussianDpEvent(1.3))
    accountant.compose(step, 300)
    assert result["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)
    assert result["steps"] == 10 * math.ceil(60000 / 2048)
    assert result["relation"] == "add_or_remove_one"
    assert result["accountant"]


def test_steps_and_epochs_say_the_same(capsys):
    by_epochs = run_json(capsys, "epsilon", *RUN, "--noise-multiplier", 2)
    without = RUN[: RUN.index("--epochs")] + RUN[RUN.index("--epochs") + 2 :]
    assert run_json(capsys, "epsilon", *without, "--steps", 300, "--noise_multiplier=2") == by_epochs


@pytest.mark.parametrize(
    ("kind", "sampling"), [("without_replacement", FixedSize(2048)), ("partition", Partition(2048))]
)
def test_each_sampling_is_accounted_as_its_own(capsys, kind, sampling):
    result = run_json(capsys, "epsilon", *RUN, "--noise-multiplier", 4, "--sampling", kind)
    ledger = Ledger()
    ledger.reserve(ledger.begin(Release((GroupNoise("w", 1.0, 4.0),), sampling, 60000)), 300)
    assert result["epsilon"] == epsilon(ledger, 1e-5)
    assert result["relation"] == sampling.relation.name.lower()
    poisson = run_json(capsys, "epsilon", *RUN, "--noise-multiplier", 4)
    assert abs(result["epsilon"] / poisson["epsilon"] - 1) > 0.1


def test_calibrate_keeps_to_the_target_and_wastes_little(capsys):
    result = run_json(capsys, "calibrate", "--epsilon", 2, *RUN)
    assert 0.995 * 2 <= result["epsilon"] <= 2 == result["target_epsilon"]
    noise = result["noise_multiplier"]
    assert run_json(capsys, "epsilon", *RUN, "--noise-multiplier", noise)["epsilon"] == result["epsilon"]
    assert run_json(capsys, "epsilon", *RUN, "--noise-multiplier", 0.99 * noise)["epsilon"] > 2


def test_delta_above_one_over_n_warns_on_stderr(capsys):
    assert run("calibrate", "--epsilon", 2, "--examples", 500, "--batch-size", 50, "--steps", 10, "--delta", 0.01) == 0
    assert "tfdp: warning: delta=0.01 is above 1/examples=0.002" in capsys.readouterr().err


def test_text_says_what_the_number_means(capsys):
    assert run("epsilon", *RUN, "--noise-multiplier", 1.3) == 0
    text = capsys.readouterr().out
    for part in ("epsilon = ", "delta = 1e-05", "300 steps", "Poisson", "one record more"):
        assert part in text


def test_a_ledger_is_read_and_left_alone(capsys, tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    ledger.reserve(ledger.begin(Release((GroupNoise("w", 1.0, 1.5),), Poisson(64), 1000)), 20)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    result = run_json(capsys, "epsilon", "--ledger", path)
    assert result["epsilon"] == epsilon(ledger, 1e-5)
    assert result["steps"] == 20
    assert result["statement"]["steps"] == 20
    assert run("epsilon", "--ledger", path) == 0
    assert "Not covered" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files


def test_a_ledger_that_cannot_be_trusted_is_refused(capsys, tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text('{"format": 1, "entr')
    for arguments in (["--ledger", path], ["--ledger", tmp_path / "none"], ["--ledger", path, "--steps", 3]):
        assert run("epsilon", *arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("tfdp: error: ")
    assert path.read_text() == '{"format": 1, "entr'


def test_help_epsilon_and_calibrate_load_no_tensorflow():
    code = f"""
import sys
from tfdp_layers import cli
for arguments in (["--help"], ["train", "--help"], ["epsilon", *{RUN}, "--noise-multiplier", "1"],
                  ["calibrate", "--epsilon", "3", *{RUN}], ["train", "--epsilon", "-1"]):
    cli.main(arguments)
assert not {{"tensorflow", "keras"}} & set(sys.modules), "TensorFlow was loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


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
    assert re.findall(r"^  ([a-z]+)  ", text, flags=re.M) == ["train", "epsilon", "calibrate", "audit", "federated"]
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("tfdp-layers ")


# bad input ------------------------------------------------------------------------------------------------------------

TRAIN = ["train", "--epsilon", "2", "--dataset", "digits"]
BAD = [
    (["trian"], "train, epsilon, calibrate"),
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
    ([*TRAIN, "--dataset", "imagenet"], "mnist|fashion_mnist|cifar10|digits"),
    ([*TRAIN, "--model", "rnn"], "cnn|mlp"),
    ([*TRAIN, "--method", "hope"], "backprop_clipping"),
    ([*TRAIN, "--method", "dfa", "--model", "cnn"], "dfa_hybrid"),
    ([*TRAIN, "--sampling", "partition"], "poisson|fixed_size"),
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
    (["epsilon", *RUN], "--noise-multiplier is needed"),
    (["epsilon", *RUN, "--noise-multiplier", "0"], "above 0"),
    (["epsilon", *RUN, "--noise-multiplier", "1", "--examples", "100"], "larger than the data"),
    (["calibrate", *RUN], "--epsilon is needed"),
    (["calibrate", *RUN, "--epsilon", "-2"], "above 0"),
    (["calibrate", *RUN, "--epsilon", "2", "--steps", "7"], "either --steps or --epochs"),
]


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


def test_a_real_process_ends_with_status_2_and_no_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "tfdp_layers.cli", "train", "--epsilon", "-1"], capture_output=True, text=True
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


# training -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One real run in a process of its own: (its output, its result, its folder)."""
    folder = tmp_path_factory.mktemp("trained")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tfdp_layers.cli", "train", "--dataset", "digits", "--model", "mlp"),
            *("--epsilon", "8", "--epochs", "3", "--batch-size", "128", "--physical-batch-size", "64", "--seed", "5"),
            *("--log-dir", str(folder / "new" / "logs"), "--save", str(folder / "model.keras"), "--json"),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout.splitlines()[-1]), folder


def test_training_says_what_it_does_and_ends_with_the_statement(trained):
    done, _, _ = trained
    assert done.stderr == "", "the user sees no log of TensorFlow"
    order = ("Data ", "Model ", "Training ", "budget epsilon = 8 at delta = 1e-05", "Epoch 1/3", "epsilon:", "Privacy:")
    positions = [done.stdout.index(part) for part in order]
    assert positions == sorted(positions)
    assert "VOID" not in done.stdout
    assert "Not covered" in done.stdout


def test_training_reports_every_field(trained):
    _, result, _ = trained
    assert {
        *("method", "dataset", "model", "epsilon", "delta", "accountant", "relation", "sampling", "steps"),
        *("noise_multiplier", "test_accuracy", "seconds", "examples_per_second", "seed", "versions"),
    } <= set(result)
    assert result["steps"] == 3 * math.ceil(1437 / 128)
    assert 0.99 * 8 <= result["epsilon"] <= 8
    assert (result["dataset"], result["note"], result["seed"]) == ("digits", "", 5)
    assert result["examples_per_second"] == pytest.approx(result["steps"] * 128 / result["seconds"], rel=1e-2)


@pytest.mark.parametrize(
    ("method", "sampling", "model", "relation"),
    [("dfa", "fixed_size", "mlp", "replace_one"), ("dfa_hybrid", "poisson", "cnn", "add_or_remove_one")],
)
def test_feedback_alignment_trains_under_either_sampling(capsys, method, sampling, model, relation):
    result = run_json(capsys, *TRAIN, "--method", method, "--sampling", sampling, "--epochs", 2, "--seed", 1)
    assert (result["method"], result["model"], result["relation"]) == (method, model, relation)
    assert 1.9 < result["epsilon"] <= 2
    assert result["steps"] == 2 * math.ceil(1437 / result["batch_size"])
    assert result["accountant"] == "PLD"


@pytest.mark.parametrize("method", recipes.PER_RECORD)
def test_methods_of_ordinary_layers_train_within_the_budget(capsys, method):
    options = ["--model", "mlp", "--batch-size", 128, "--epochs", 2, "--noise-multiplier", 2.5]
    result = run_json(capsys, *TRAIN, "--method", method, *options)
    assert (result["method"], result["noise_multiplier"]) == (method, 2.5)
    ledger = Ledger()
    ledger.reserve(ledger.begin(Release((GroupNoise("all", 1.0, 2.5),), Poisson(128), 1437)), 2 * 12)
    assert (result["steps"], result["epsilon"]) == (24, pytest.approx(epsilon(ledger, 1e-5)))
    assert result["epsilon"] < 2


@pytest.mark.parametrize("method", recipes.PER_RECORD)
def test_each_method_has_its_optimizer(method):
    values = cli._command("train").parse([*TRAIN[1:], "--method", method, "--noise-multiplier", "3"])
    optimizer = train._compiled(train._prepare(TrainingOptions.from_options(values))).optimizer
    names = {"dpsgd": "ClippedOptimizer", "tanh": "TanhFilteredOptimizer"}
    assert type(optimizer).__name__ == names.get(method, "AdaDPOptimizer")
    if method not in names:
        assert (optimizer.adaptive_rate, optimizer.adaptive_noise) == (method != "adan", method != "adal")
    assert not getattr(optimizer, "as_published", False)


def test_the_ledger_holds_what_the_result_reports(trained, capsys):
    _, result, folder = trained
    spent = run_json(capsys, "epsilon", "--ledger", folder / "new" / "logs" / "ledger.json")
    assert (spent["epsilon"], spent["steps"]) == (result["epsilon"], result["steps"])
    accountant = dp_accounting.pld.PLDAccountant()
    noise = dp_accounting.GaussianDpEvent(result["noise_multiplier"])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(128 / 1437, noise), result["steps"])
    assert accountant.get_epsilon(1e-5) <= 8.01
    assert list((folder / "new" / "logs").glob("events*"))


def test_the_saved_model_has_the_reported_accuracy(trained):
    import keras

    _, result, folder = trained
    assert [path.name for path in folder.iterdir() if path.suffix == ".keras"] == ["model.keras"]
    model = keras.models.load_model(folder / "model.keras")
    data = datasets.load("digits")
    accuracy = np.mean(np.argmax(model.predict(data.x_test, verbose=0), axis=1) == data.y_test)
    assert result["test_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert accuracy > 0.3, "the model learned nothing"


def test_a_seed_drives_initialisation_and_nothing_private():
    import keras

    values = cli._command("train").parse([*TRAIN[1:], "--epochs", "1", "--seed", "5", "--model", "mlp"])
    training = train._prepare(TrainingOptions.from_options(values))
    models = [train._compiled(training) for _ in range(2)]
    for first, second in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(first, second)
    for model in models:
        keras.utils.set_random_seed(5)
        train._fit(training, model)
    differ = [np.any(a != b) for a, b in zip(*(model.get_weights() for model in models), strict=True)]
    assert all(differ), "noise or sampling was repeated"


def test_a_given_noise_stops_at_the_budget(capsys):
    options = ["--model", "mlp", "--batch-size", 128, "--epochs", 20, "--noise-multiplier", 1]
    result = run_json(capsys, *TRAIN, *options)
    steps = affordable_steps(2, 1e-5, Poisson(128), 1437, 1.0)
    assert 0 < steps < 20 * math.ceil(1437 / 128)
    assert result["steps"] == steps
    assert result["epsilon"] <= 2


@pytest.mark.usefixtures("no_data")
def test_the_unnamed_data_set_falls_back_and_both_outputs_say_so(capsys):
    arguments = ["train", "--epsilon", 8, "--model", "mlp", "--epochs", 1, "--json"]
    assert run(*arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("NOTE: fashion_mnist is not on this machine") for line in lines)
    result = json.loads(lines[-1])
    assert result["dataset"] == "digits"
    assert "fashion_mnist is not on this machine" in result["note"]


def test_saving_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")

    class Breaks:
        def save(self, place: Path) -> None:
            place.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        train._save(Breaks(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
