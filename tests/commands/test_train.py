"""`tfdp train` keeps to the budget and reports what it did."""

import contextlib
import json
import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from helpers.command_line import TRAIN, run, run_json
from helpers.variants import slow_but
from tfdp_layers import PrivateBatches
from tfdp_layers.accounting import GroupNoise, Ledger, Release, affordable_steps, epsilon
from tfdp_layers.commands import cli, train, training_options
from tfdp_layers.commands.training_options import TrainingOptions
from tfdp_layers.sampling import Poisson
from tfdp_layers.zoo import datasets, recipes, scattering


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One real run in a process of its own: (its output, its result, its folder)."""
    folder = tmp_path_factory.mktemp("trained")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tfdp_layers.commands.cli", "train", "--dataset", "digits", "--model", "mlp"),
            *("--epsilon", "8", "--epochs", "3", "--batch-size", "128", "--physical-batch-size", "64", "--seed", "5"),
            *("--log-dir", str(folder / "new" / "logs"), "--save", str(folder / "model.keras"), "--json"),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout.splitlines()[-1]), folder


@pytest.mark.slow
def test_training_says_what_it_does_and_ends_with_the_statement(trained):
    done, _, _ = trained
    assert done.stderr == "", "the user sees no log of TensorFlow"
    order = ("Data ", "Model ", "Training ", "budget epsilon = 8 at delta = 1e-05", "Epoch 1/3", "epsilon:", "Privacy:")
    positions = [done.stdout.index(part) for part in order]
    assert positions == sorted(positions)
    assert "VOID" not in done.stdout
    assert "Not covered" in done.stdout


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(["dpsgd"], recipes.PER_RECORD))
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
    training = train.prepare(TrainingOptions.from_options(values))
    model = train.compiled(training)
    optimizer = model.optimizer
    names = {"dpsgd": "ClippedOptimizer", "tanh": "TanhFilteredOptimizer"}
    assert type(optimizer).__name__ == names.get(method, "AdaDPOptimizer")
    if method not in names:
        assert (optimizer.adaptive_rate, optimizer.adaptive_noise) == (method != "adan", method != "adal")
    assert not getattr(optimizer, "as_published", False)
    assert ("Adam" in train.plan(training, model)) == (method in names)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_seed_drives_initialisation_and_nothing_private():
    import keras

    values = cli._command("train").parse([*TRAIN[1:], "--epochs", "1", "--seed", "5", "--model", "mlp"])
    training = train.prepare(TrainingOptions.from_options(values))
    models = [train.compiled(training) for _ in range(2)]
    for first, second in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(first, second)
    for model in models:
        keras.utils.set_random_seed(5)
        train._fit(training, model)
    differ = [np.any(a != b) for a, b in zip(*(model.get_weights() for model in models), strict=True)]
    assert all(differ), "noise or sampling was repeated"


@pytest.mark.slow
def test_a_given_noise_stops_at_the_budget(capsys):
    options = ["--model", "mlp", "--batch-size", 128, "--epochs", 20, "--noise-multiplier", 1]
    result = run_json(capsys, *TRAIN, *options)
    steps = affordable_steps(2, 1e-5, Poisson(128), 1437, 1.0)
    assert 0 < steps < 20 * math.ceil(1437 / 128)
    assert result["steps"] == steps
    assert result["epsilon"] <= 2


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_recipe_on_features_trains_and_saves_a_model_of_images(capsys, tmp_path):
    import tfdp_layers as tfdp

    file = tmp_path / "model.keras"
    options = ["--recipe", "scattering", "--setting", "centering_noise=30", "--setting", "whitening_noise=30"]
    options += ["--log-dir", tmp_path / "logs"]
    result = run_json(capsys, *TRAIN, *options, "--epochs", 2, "--save", file)
    assert (result["model"], result["method"]) == ("scattering", "backprop_clipping")
    data = datasets.load("digits")
    model = tfdp.load_model(file)
    assert model.input_shape == (None, 8, 8, 1)
    assert result["steps"] == 2 * math.ceil(1437 / 256)
    assert model.ledger.steps == result["steps"] + 4, "the steps, the mean that centers, and three second moments"
    assert float(epsilon(model.ledger, 1e-5)) == pytest.approx(result["epsilon"], rel=1e-6)
    spent = run_json(capsys, "epsilon", "--ledger", tmp_path / "logs" / "ledger.json")
    assert (spent["epsilon"], spent["steps"]) == (result["epsilon"], result["steps"] + 4)
    found = np.mean(model.predict(data.x_test, verbose=0).argmax(-1) == data.y_test)
    assert found == pytest.approx(result["test_accuracy"], abs=1e-3)


@pytest.mark.slow
def test_a_recipe_on_features_keeps_them_centers_them_and_tests_the_mean_of_the_weights(capsys, tmp_path, monkeypatch):
    """With records held out; the mean of the features is in the budget."""
    kept, adapted = tmp_path / "kept", []
    adapt = train._adapt
    monkeypatch.setattr(train, "_adapt", lambda training, model: adapted.append(model) or adapt(training, model))
    options = ["--recipe", "scattering", "--cache-dir", kept, "--holdout", 300, "--setting", "feature_scales=(1,)"]
    options += ["--setting", "centering_noise=30", "--setting", "whitening_noise=30"]
    assert run(*TRAIN, *options, "--epochs", 3, "--setting", "gradient_clip=1", "--json") == 0
    said = capsys.readouterr().out
    assert "300 of the training records, without noise: taken for public" in " ".join(said.split())
    result = json.loads(said.splitlines()[-1])
    assert (result["examples"], result["steps"], result["holdout"]) == (1137, 3 * 5, 300)
    assert len(list(kept.glob("features-*.npy"))) == 2
    assert 1.9 < result["epsilon"] <= 2
    (model,) = adapted
    assert next(entry.release.purpose for entry in model.ledger.entries) == "whole_data"
    assert model.ledger.steps == 3 * 5 + 2
    inner = model.optimizer.inner_optimizer
    assert inner.use_ema
    np.testing.assert_array_equal(model.get_weights()[-2], inner._model_variables_moving_average[0])
    assert model.sensitivities()[0].bound == 1.0


def test_a_mean_that_the_budget_does_not_cover_is_refused(capsys, no_training):
    line = ["train", "--dataset", "digits", "--recipe", "scattering", "--setting", "centering_noise=0.1"]
    assert run(*line, "--epsilon", 1, "--noise-multiplier", 5) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--epsilon 1 is spent before the training" in said
    assert "leave them out: --setting centering_noise=0 --setting whitening_noise=0." in said


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs", "NAME=VALUE"),
        ("magic=1", "Names: activation"),
        ("epochs=2.5", "takes a whole number from 1"),
        ("learning_rate=nan", "takes a number above 0"),
        ("learning_rate=-1", "takes a number above 0"),
        ("feature_scales=2", "takes a tuple of whole numbers"),
        ("momentum=True", "takes a number of at least 0 and below 1"),
        ("mirrored=1", "takes True or False"),
        ("gradient_clip=abc", "'automatic' or None. Received: 'abc'"),
        ("l2_norm_clip=-1", "takes a number above 0"),
        ("scales=(1,2,3)", "one number for each"),
        ("kernels=(9,9)", "output size would be zero or negative"),
        ("activation=foo", "activation function identifier: foo"),
        ("noise_allocation=foo", "`noise_allocation` must be"),
        ("bound=foo", "`bound` says"),
    ],
)
def test_settings_that_no_recipe_has_are_refused_before_data_are_loaded(capsys, no_loading, setting, message):
    assert run(*TRAIN, "--model", "cnn", "--setting", setting) == 2
    assert message in capsys.readouterr().err


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("dpsgd", "mlp"),
        *((name, recipes.default_model(name)) for name in recipes.METHODS),
        ("backprop_clipping", "scattering"),
    ],
)
def test_every_setting_of_every_method_is_taken_or_refused_in_one_message(capsys, no_loading, method, model):
    """Each went on to the training, or ended in a traceback, some of them after minutes of computing features."""
    for field in fields(recipes.Recipe):
        for value in ("abc", "-1", "0", "nan", "inf", "1e30", "(0, 0)"):
            with contextlib.suppress(no_loading):
                line = ["--method", method, "--model", model, "--setting", f"{field.name}={value}"]
                assert run(*TRAIN, *line) == 2
                assert capsys.readouterr().err.count("tfdp: error: ") == 1, line


@pytest.mark.parametrize("method", ["dpsgd", "tanh"])
def test_momentum_goes_with_methods_that_wrap_an_optimizer(capsys, no_training, method):
    """The optimizer that it gave DP-SGD bounded no record, which was refused only by fit, in a traceback."""
    line = [*TRAIN[1:], "--method", method, "--model", "mlp", "--noise-multiplier", "3", "--setting", "momentum=0.9"]
    model = train.compiled(train.prepare(TrainingOptions.from_options(cli._command("train").parse(line))))
    assert [group.bound for group in model.sensitivities()] == [1.0]
    assert model.optimizer.inner_optimizer.momentum == 0.9
    assert run(*TRAIN, "--method", "adan", "--setting", "momentum=0.9") == 2
    assert "would change nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "setting", "message"),
    [
        ("scattering", "feature_scales=()", "has no features"),
        ("scattering", "feature_scales=('a',)", "takes a tuple of whole numbers"),
        ("scattering", "feature_scales=(-1,)", "takes a tuple of whole numbers"),
        ("scattering", "feature_scales=(2000,)", "`J` must be"),
        ("scattering", "feature_scales=(9,)", "too wide for images of [8, 8]"),
        ("scattering", "random_filters=100000", "`filters` must be"),
        ("cnn", "random_filters=4", "would change nothing"),
        ("mlp", "feature_scales=(2,)", "would change nothing"),
        ("tanh_cnn", "whitening_noise=3", "would change nothing"),
        ("scattering", "views=2", "trains on features: views would change nothing"),
        ("scattering", "flips=True", "trains on features: flips would change nothing"),
        ("cnn", "views=2", "bounds each row by itself"),
        ("cnn", "views=0", "takes a whole number from 1"),
        ("cnn", "shift=1.5", "at least 0 and below 1"),
    ],
)
def test_features_that_no_image_or_model_has_are_refused(capsys, no_training, model, setting, message):
    """Filters without wavelets were left out, and the images trained on; others ended in a traceback or all memory."""
    assert run("train", "--dataset", "digits", "--model", model, "--epsilon", 3, "--setting", setting) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("scales", [(), (1,)])
def test_random_filters_alone_or_beside_wavelets_are_what_is_trained_on(capsys, scales):
    line = ["--setting", "random_filters=4", "--setting", f"feature_scales={scales}", "--epochs", 1]
    assert run("train", "--dataset", "digits", "--recipe", "scattering", "--epsilon", 3, *line) == 0
    recipe = recipes.Recipe(1, 1, 1.0, (), (), feature_scales=scales, random_filters=4)
    features = sum(places * channels for places, channels in scattering.blocks((8, 8, 1), recipe))
    assert f"scattering, {10 * (features + 1)} weights" in capsys.readouterr().out


@pytest.mark.slow
def test_views_enter_the_fit_and_the_network_moves_and_mirrors_each(capsys, monkeypatch):
    batches, models = [], []
    own, made = PrivateBatches.__init__, train.compiled
    monkeypatch.setattr(PrivateBatches, "__init__", lambda self, *a, **k: [own(self, *a, **k), batches.append(self)][0])
    monkeypatch.setattr(train, "compiled", lambda *given: [models.append(made(*given)), models[0]][1])
    changes = ("views=3", "shift=0.1", "flips=True")
    line = [part for change in changes for part in ("--setting", change)]
    found = run_json(capsys, "train", "--dataset", "digits", "--method", "dpsgd", "--epsilon", 3, "--epochs", 1, *line)
    assert [one.views for one in batches] == [3]
    assert [type(layer).__name__ for layer in models[0].layers[:2]] == ["RandomTranslation", "RandomFlip"]
    assert found["epsilon"] <= 3


def test_a_whole_number_is_a_number():
    name, found = training_options._setting("learning_rate=4")
    assert (name, found, type(found)) == ("learning_rate", 4.0, float)


def test_more_records_held_out_than_there_are_and_no_folder_for_features_are_refused(capsys, no_training, tmp_path):
    assert run(*TRAIN, "--holdout", 1437) == 2
    assert "leaves none of the 1437" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run(*TRAIN, "--cache-dir", tmp_path / "file") == 2
    assert "is a file, not a folder" in capsys.readouterr().err


def test_settings_follow_the_nearest_budget():
    near = {
        epsilon: recipes.recipe_for("scattering", "fashion_mnist", epsilon=epsilon)
        for epsilon in (0.1, 1.0, 1.5, 3.0, 50)
    }
    assert near[1.0] == near[1.5] != near[3.0] != near[50]
    least, whole = near[0.1], near[1.0]
    assert least.learning_rate == pytest.approx(whole.learning_rate / 10)
    assert least.centering_noise == pytest.approx(10 * whole.centering_noise)
    assert least.whitening_noise == pytest.approx(10 * whole.whitening_noise)
    assert replace(least, learning_rate=0.0, centering_noise=0.0, whitening_noise=0.0) == replace(
        whole, learning_rate=0.0, centering_noise=0.0, whitening_noise=0.0
    )
    assert recipes.recipe_for("scattering", "fashion_mnist") == near[3.0]
    assert recipes.recipe_for("mlp", "mnist") == recipes.recipe_for("mlp", "mnist", epsilon=8.0)


def test_a_recipe_and_options_that_contradict_it_are_refused(capsys, no_training):
    assert run(*TRAIN, "--recipe", "scattering", "--model", "cnn") == 2
    assert "--recipe scattering is --model scattering. Leave --model cnn out." in capsys.readouterr().err
    assert run(*TRAIN, "--recipe", "dfa", "--method", "dpsgd") == 2
    assert "Leave --method dpsgd out." in capsys.readouterr().err
    assert run(*TRAIN, "--method", "dpsgd", "--model", "scattering") == 2
    assert "method 'backprop_clipping'" in capsys.readouterr().err


def test_recipes_are_listed_with_what_they_reach(capsys):
    assert run("recipes") == 0
    shown = capsys.readouterr().out
    for name, recipe in recipes.RECIPES.items():
        assert name in shown
        recipes.check_method(recipe.method, recipe.model)
        for one in recipe.measured:
            assert f"{one.dataset}, epsilon {one.epsilon:g}: {100 * one.accuracy:.1f}%" in shown
    listed = run_json(capsys, "recipes")
    assert list(listed) == list(recipes.RECIPES)
