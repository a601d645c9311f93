"""`tfdp bench`: private steps of a network beside its ordinary ones."""

import zipfile

import keras
import pytest

from helpers.command_line import run, run_json

kl = keras.layers
SHORT = ("--rounds", 2, "--steps", 2, "--batch-size", 8)


def saved(path, *layers):
    keras.Sequential([keras.Input((6,), dtype="int32"), kl.Embedding(9, 4), *layers]).save(path)
    return path


@pytest.mark.slow
def test_a_model_of_ones_own_is_timed_in_each_way(capsys, tmp_path):
    path = saved(tmp_path / "model.keras", kl.GlobalAveragePooling1D(), kl.Dense(2))
    found = run_json(capsys, "bench", "--keras-model", path, "--ways", "in_layer,flat", "--clock", "cpu", *SHORT)
    assert list(found["ways"]) == ["keras", "in_layer", "flat"]
    assert found["weights"] == 9 * 4 + 4 * 2 + 2
    for one in found["ways"].values():
        assert one["least"] <= one["ratio"] <= one["most"]
        assert one["examples_per_second"] == pytest.approx(8e3 / one["milliseconds"])
    assert found["ways"]["keras"]["ratio"] == 1.0


def test_what_a_way_refuses_is_said_and_the_others_are_timed(capsys, tmp_path):
    path = saved(tmp_path / "model.keras", kl.BatchNormalization(), kl.Flatten(), kl.Dense(2))
    assert run("bench", "--keras-model", path, "--ways", "flat", *SHORT) == 0
    out = capsys.readouterr().out
    assert "replace_batch_normalization" in out
    assert "examples/s" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ways", "flat,fast"), "Received: 'fast'"),
        (("--keras-model", "nowhere.keras"), "no such file"),
        (("--rounds", 0), "--rounds"),
    ],
)
def test_bad_input_is_refused(capsys, arguments, says):
    assert run("bench", *arguments) == 2
    assert says in capsys.readouterr().err


def test_a_model_of_strings_and_one_that_cannot_be_loaded_are_refused_in_a_few_lines(capsys, tmp_path):
    class Own(kl.Layer):
        def call(self, x):
            return x

    path, words = tmp_path / "model.keras", kl.StringLookup(vocabulary=["a"], output_mode="one_hot")
    keras.Sequential([keras.Input((1,), dtype="string"), words, kl.Dense(2)]).save(path)
    assert run("bench", "--keras-model", path, *SHORT) == 2
    assert "takes strings" in capsys.readouterr().err
    saved(path, Own(), kl.Flatten(), kl.Dense(2))
    assert run("bench", "--keras-model", path, *SHORT) == 2
    said = capsys.readouterr().err
    assert "'Own'" in said
    assert len(said) < 800
    zipfile.ZipFile(path, "w").close()
    assert run("bench", "--keras-model", path, *SHORT) == 2
    assert "cannot be loaded" in capsys.readouterr().err


@pytest.mark.slow
def test_a_private_model_is_timed_as_the_network_that_it_is(capsys, tmp_path):
    import tfdp_layers as tfdp

    path = tmp_path / "model.keras"
    tfdp.make_private(keras.Sequential([keras.Input((3,)), kl.Dense(2)])).save(path)
    assert list(run_json(capsys, "bench", "--keras-model", path, "--ways", "flat", *SHORT)["ways"]) == ["keras", "flat"]


def test_a_model_that_leaves_sizes_open_is_refused(capsys, tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((None, 3)), kl.LSTM(2)]).save(path)
    assert run("bench", "--keras-model", path, *SHORT) == 2
    assert "leaves sizes open" in capsys.readouterr().err
