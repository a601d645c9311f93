"""`tfdp epsilon` and `tfdp calibrate`: their numbers are the library's, and they load no TensorFlow."""

import io
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import dp_accounting
import h5py
import numpy as np
import pytest

from helpers.command_line import RUN, run, run_json
from tfdp_layers.accounting import GroupNoise, Ledger, Release, Statement, UnitRelease, epsilon
from tfdp_layers.sampling import FixedSize, Partition, Poisson

SAVED_MODEL = Path(__file__).parents[1] / "data" / "version_0_1.keras"


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


def test_correlated_noise_is_calibrated_and_accounted_alike(capsys):
    options = [*RUN, "--sampling", "cyclic", "--noise", "correlated"]
    result = run_json(capsys, "calibrate", "--epsilon", 2, *options)
    assert 0.995 * 2 <= result["epsilon"] <= 2
    assert result["relation"] == "replace_special"
    noise, decay = result["noise_multiplier"], result["decay"]
    assert run_json(capsys, "epsilon", *options, "--noise-multiplier", noise)["epsilon"] == result["epsilon"]
    b, squared, v = math.ceil(60000 / 2048), 0.0, 0.0
    for step in range(10 * b):
        v = decay * v + (step % b == 0)
        squared += v * v
    exact = dp_accounting.get_epsilon_gaussian(noise / math.sqrt(squared), 1e-5)
    assert result["epsilon"] == pytest.approx(exact, rel=1e-6)
    assert run("epsilon", *RUN, "--noise-multiplier", 4, "--noise", "correlated") == 2
    assert "tfdp.sampling.Cyclic or Partition" in capsys.readouterr().err
    assert run("epsilon", *RUN, "--noise-multiplier", 4, "--decay", 0.9) == 2
    assert "--decay is of --noise correlated" in capsys.readouterr().err


@pytest.mark.slow
def test_owners_are_calibrated_and_accounted_alike(capsys):
    run_of = ["--examples", 2000, "--batch-size", 50, "--steps", 40, "--records-per-owner", 3]
    found = run_json(capsys, "calibrate", *run_of, "--epsilon", 3, "--delta", 1e-4)
    assert 2.99 < found["epsilon"] <= 3
    assert (found["records_per_owner"], found["relation"]) == (3, "replace_special")
    noise = ["--delta", 1e-4, "--noise-multiplier", found["noise_multiplier"]]
    assert run_json(capsys, "epsilon", *run_of, *noise)["epsilon"] == found["epsilon"]
    assert run("epsilon", *run_of, *noise) == 0
    text = capsys.readouterr().out
    assert "what all records hold that one owner owns" in " ".join(text.split())
    assert "an owner has at most 3 of them" in " ".join(text.split())
    assert run("epsilon", *run_of, *noise, "--sampling", "truncated_poisson") == 2
    assert "not known here" in capsys.readouterr().err


def test_delta_above_one_over_n_warns_on_stderr(capsys):
    assert run("calibrate", "--epsilon", 2, "--examples", 500, "--batch-size", 50, "--steps", 10, "--delta", 0.01) == 0
    assert "tfdp: warning: delta=0.01 is above 0.002, one over the number of records" in capsys.readouterr().err


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


def test_the_statement_of_a_ledger_calls_units_by_their_name(capsys, tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    ledger.reserve(ledger.begin(UnitRelease((GroupNoise("w", 1.0, 1.5),), Poisson(64), 1000)), 20)
    assert run("epsilon", "--ledger", path, "--unit-name", "patient") == 0
    assert "one patient, with all records it owns" in " ".join(capsys.readouterr().out.split())
    assert run("epsilon", "--ledger", path, "--unit-name", "9") == 2
    assert run("epsilon", *RUN, "--noise-multiplier", 1.3, "--unit-name", "patient") == 2


def test_a_ledger_that_cannot_be_trusted_is_refused(capsys, tmp_path):
    path = tmp_path / "ledger.json"
    path.write_text('{"format": 1, "entr')
    for arguments in (["--ledger", path], ["--ledger", tmp_path / "none"], ["--ledger", path, "--steps", 3]):
        assert run("epsilon", *arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("tfdp: error: ")
    assert path.read_text() == '{"format": 1, "entr'


@pytest.mark.slow
def test_help_epsilon_and_calibrate_load_no_tensorflow():
    code = f"""
import sys
from tfdp_layers.commands import cli
for arguments in (["--help"], ["train", "--help"], ["epsilon", *{RUN}, "--noise-multiplier", "1"],
                  ["epsilon", "--ledger", {str(SAVED_MODEL)!r}], ["calibrate", "--epsilon", "3", *{RUN}],
                  ["train", "--epsilon", "-1"]):
    cli.main(arguments)
assert not {{"tensorflow", "keras"}} & set(sys.modules), "TensorFlow was loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_ledger_in_a_saved_model_is_read(capsys):
    assert run("epsilon", "--ledger", SAVED_MODEL, "--delta", "1e-3") == 0
    with zipfile.ZipFile(SAVED_MODEL) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        ledger = Ledger.from_json(np.asarray(file["vars/privacy_ledger"]).tobytes().decode())
    assert str(Statement.from_ledger(ledger, 1e-3)) in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"hello", b'{"a": 1}', b"PK\x03\x04 no archive", b"\x89HDF\r\n\x1a\n and no more"])
def test_another_file_is_told_from_a_damaged_ledger(content, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert run("epsilon", "--ledger", path) == 2
    said = capsys.readouterr().err
    assert "is not a ledger, or its beginning is damaged. Give the file" in said or "no whole model file" in said
    assert "codec" not in said
    assert path.read_bytes() == content


def test_a_folder_of_logs_stands_for_its_ledger_and_a_model_without_one_is_told_so(tmp_path, capsys):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(ledger.begin(Release((GroupNoise("w", 1.0, 1.5),), Poisson(64), 1000)), 1)
    ledger.close()
    assert run("epsilon", "--ledger", tmp_path) == 0
    with h5py.File(tmp_path / "plain.weights.h5", "w") as file:
        file["vars/0"] = 1.0
    assert run("epsilon", "--ledger", tmp_path / "plain.weights.h5") == 2
    assert "holds a model without a ledger" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["60000", "60,000", "60_000", "6e4", "6.0e4", "+60000"])
def test_whole_numbers_are_read_as_people_write_them(number, capsys):
    told = ("--batch-size", 64, "--steps", "300", "--noise-multiplier", 1.3)
    assert run_json(capsys, "epsilon", "--examples", number, *told)["examples"] == 60_000


@pytest.mark.parametrize("number", ["60k", "6,00", "60,0000", "6.5", "6.00005e4", "", "1e999999999", "6e4e4"])
def test_what_is_no_whole_number_is_refused_with_an_example(number, capsys):
    assert run("plan", "--examples", number, "--epsilon", 1) == 2
    assert "give a whole number, for example 60000, 60,000 or 6e4" in capsys.readouterr().err
