"""Keras models as parties, whole simulations, and the command."""

import dataclasses
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, epsilon
from tfdp_layers.commands import cli
from tfdp_layers.federated.keras_training import CompiledEpochs, KerasTraining, accuracy, flat_weights, set_flat_weights
from tfdp_layers.federated.party import Budget, Party
from tfdp_layers.federated.rounds import run_round
from tfdp_layers.federated.selection import LargestValues
from tfdp_layers.federated.server import Server
from tfdp_layers.federated.simulation import Federation, build_model, make_selection, shares, simulate
from tfdp_layers.zoo import datasets

DIGITS = datasets.load("digits")
PLAN = Federation(parties=3, records=300, rounds=4)
PRIVATE = dataclasses.replace(
    PLAN, upload=0.01, selection="random", bound=0.01, epsilon_per_epoch=20.0, budget=Budget(25.0, 1e-5), rounds=6
)


def test_the_papers_models_have_the_papers_weights():
    mnist = dataclasses.replace(DIGITS, x_train=np.eye(28, dtype=np.float32)[None, :, :, None])
    assert build_model("mlp", mnist, 0.1).count_params() == 140_106
    assert build_model("cnn", mnist, 0.1).count_params() == 105_506
    with pytest.raises(ValueError, match="mlp or cnn"):
        build_model("rnn", DIGITS, 0.1)


def test_nothing_of_the_records_is_in_the_model_before_it_is_trained():
    darker = dataclasses.replace(DIGITS, x_train=DIGITS.x_train / 3)
    own = dataclasses.replace(darker, name="ours")
    front = [build_model("mlp", data, 0.1).layers[0] for data in (DIGITS, darker)]
    assert len({(layer.scale, layer.offset) for layer in front}) == 1
    for data in (DIGITS, own):
        layer = build_model("mlp", data, 0.1).layers[0]
        assert 0.5 < float(np.std(layer(DIGITS.x_train))) < 2.0


def test_parties_hold_disjoint_records_while_there_are_enough():
    marked = dataclasses.replace(DIGITS, y_train=np.arange(len(DIGITS.y_train)))
    rows = np.concatenate([y for _, y in shares(marked, 10, 143, seed=1)])
    assert len(np.unique(rows)) == 1430
    overlapping = [y for _, y in shares(marked, 10, 500, seed=1)]
    assert all(len(np.unique(y)) == 500 for y in overlapping)
    with pytest.raises(ValueError, match="at most the 1437"):
        shares(marked, 2, 1438, seed=1)


def test_flat_weights_go_back_where_they_came_from():
    model = build_model("mlp", DIGITS, 0.1)
    before = [np.array(v) for v in model.trainable_variables]
    weights = flat_weights(model)
    set_flat_weights(model, np.zeros_like(weights))
    assert all(not np.any(v) for v in model.trainable_variables)
    set_flat_weights(model, weights)
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    with pytest.raises(ValueError, match="trainable weights"):
        set_flat_weights(model, weights[1:])


def test_compiled_epochs_take_the_steps_that_fit_takes():
    """One batch that holds all records: no order to differ in."""
    x, y = DIGITS.x_train[:50], DIGITS.y_train[:50]
    model = build_model("mlp", DIGITS, 0.1)
    weights = flat_weights(model)
    fitted = KerasTraining(model, x, y, batch_size=50, epochs=3)(weights)
    compiled = CompiledEpochs(model, batch_size=50, epochs=3).on(x, y)(weights)
    np.testing.assert_allclose(compiled, fitted, atol=1e-5)
    assert np.abs(fitted - weights).max() > 0.01


@pytest.mark.parametrize("order", ["round_robin", pytest.param("synchronous", marks=pytest.mark.slow)])
def test_parties_together_learn_more_than_one_alone(order):
    together = simulate(dataclasses.replace(PLAN, records=100, parties=8, order=order, learning_rate=0.02), DIGITS)
    alone = simulate(dataclasses.replace(PLAN, records=100, parties=1, upload=1.0, learning_rate=0.02), DIGITS)
    assert together.faults == ()
    assert together.test_accuracy > alone.test_accuracy + 0.05
    assert together.epsilon_per_party is None


def test_a_private_run_keeps_each_budget_and_a_continued_one_remembers(tmp_path):
    plan = dataclasses.replace(PRIVATE, folder=tmp_path)
    first = simulate(dataclasses.replace(plan, rounds=2), DIGITS)
    again = simulate(plan, DIGITS)
    assert (first.rounds, again.rounds) == (2, 6)
    spent = [epsilon(Ledger(tmp_path / f"party-{i:03d}.json"), 1e-5) for i in range(3)]
    assert again.epsilon_per_party == max(spent)
    assert first.epsilon_per_party < again.epsilon_per_party <= 25.0
    tight = simulate(dataclasses.replace(plan, budget=Budget(again.epsilon_per_party, 1e-5), rounds=8), DIGITS)
    assert tight.epsilon_per_party == again.epsilon_per_party
    assert tight.halted >= 1
    assert tight.rounds == 8, "the server carries on without the party that halted"
    with np.load(tmp_path / "server.npz") as saved:
        assert np.isfinite(saved["weights"]).all()


def test_a_private_selection_of_the_largest_values_is_refused():
    with pytest.raises(ValueError, match="at random above a noisy threshold"):
        make_selection(dataclasses.replace(PRIVATE, selection="largest"))


@pytest.mark.slow
def test_a_party_may_train_with_differential_privacy_for_its_records():
    """Its uploads are then computed from released weights alone, and the model's own ledger says at what cost."""
    clipped = tfdp.layers.ClippedDense(10, input_clip=5.0, upstream_clip=0.1)
    model = tfdp.PrivateSequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), clipped])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(20.0), 0.5), loss)
    train = KerasTraining(model, DIGITS.x_train[:600], DIGITS.y_train[:600], batch_size=200)
    party = Party("private", train, LargestValues(1.0, 10.0), flat_weights(model))
    server = Server(party.weights, 1.0, 10.0)
    for number in (1, 2):
        assert run_round(server, [party], "round_robin", 1.0, np.random.default_rng(0)) == []
        assert model.ledger.steps == 3 * number
    assert epsilon(model.ledger, 1e-5) > 0
    assert accuracy(model, server.weights, DIGITS.x_test, DIGITS.y_test) > 0.3


def test_a_party_whose_first_turn_would_use_the_whole_budget_is_refused():
    model = tfdp.make_private(build_model("mlp", DIGITS, 0.1))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
    with pytest.raises(ValueError, match="the first would plan to use the whole budget"):
        KerasTraining(model, DIGITS.x_train, DIGITS.y_train)


def run_json(capsys, *arguments):
    assert cli.main(["federated", "simulate", "--dataset", "digits", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_command_reports_accuracy_rounds_parties_epsilon_and_seconds(capsys):
    plain = run_json(capsys, "--parties", 3, "--rounds", 3)
    assert {"test_accuracy", "rounds", "parties", "epsilon_per_party", "seconds"} <= set(plain)
    assert (plain["rounds"], plain["parties"], plain["epsilon_per_party"], plain["faults"]) == (3, 3, None, [])
    assert plain["test_accuracy"] > 0.7
    assert plain["records"] == 1437 // 3
    private = run_json(capsys, "--parties", 2, "--rounds", 1, "--upload", 0.01, "--epsilon-per-epoch", 5)
    assert 0 < private["epsilon_per_party"] <= 5
    assert private["selection"] == "random"


def test_the_command_says_that_what_parties_spent_adds_up(capsys):
    """For a record that several of them hold, as where there are too few for all."""
    given = ("--dataset", "digits", "--records", "40", "--parties", "2", "--rounds", "1", "--upload", "0.01")
    assert cli.main(["federated", "simulate", *given, "--epsilon-per-epoch", "5"]) == 0
    said = capsys.readouterr().out
    assert "for its whole data set (what they spent adds up for a record that several parties hold); 0 of 2" in said


BAD = [
    ([], "federated simulate"),
    (["train"], "'train'"),
    (["simulate", "--parties", "0"], "--parties"),
    (["simulate", "--rounds", "-1"], "--rounds"),
    (["simulate", "--upload", "0"], "--upload"),
    (["simulate", "--upload", "1.5"], "--upload"),
    (["simulate", "--download", "nan"], "--download"),
    (["simulate", "--threshold", "-1"], "--threshold"),
    (["simulate", "--epsilon-per-epoch", "0"], "--epsilon-per-epoch"),
    (["simulate", "--epsilon-per-epoch", "3", "--bound", "1e300"], "at most 3.403e+38"),
    (["simulate", "--epsilon", "3"], "--epsilon-per-epoch"),
    (["simulate", "--epsilon-per-epoch", "3", "--selection", "largest"], "not private"),
    (["simulate", "--epsilon-per-epoch", "1e-12"], "too small"),
    (["simulate", "--records", "1438"], "at most the 1437"),
    (["simulate", "--folder", "file"], "cannot be made"),
    (["simulate", "--dataset", "cifar10"], "mnist|fashion_mnist|digits"),
    (["simulate", "--order", "chaos"], "round_robin|random|synchronous"),
    (["simulate", "stray"], "stray"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_is_refused_in_one_message(capsys, tmp_path, monkeypatch, arguments, message):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["federated", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tfdp: error: ")
    assert message in captured.err
    assert "round 1" not in captured.out


def test_without_flower_the_flower_engine_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.delitem(sys.modules, "tfdp_layers.federated.app", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    assert cli.main(["federated", "simulate", "--dataset", "digits", "--engine", "flower"]) == 2
    assert "pip install '.[federated]'" in capsys.readouterr().err


@pytest.mark.slow
def test_parties_servers_and_selections_load_neither_tensorflow_nor_flower():
    modules = "import tfdp_layers.federated.party, tfdp_layers.federated.server, tfdp_layers.federated.rounds, sys;"
    help_ = "from tfdp_layers.commands import cli; cli.main(['federated', 'simulate', '--help']);"
    check = "assert not {'tensorflow', 'keras', 'flwr', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", modules + help_ + check], check=True, capture_output=True)
