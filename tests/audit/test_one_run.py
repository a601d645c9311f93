"""Audits of whole trainings: canaries in and out, scores that tell, claims that stand or fall."""

import json
import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import calibrate_noise_multiplier, together
from tfdp_layers.audit import Canaries, audit_training, audited, make_canaries, with_canaries
from tfdp_layers.commands import audit as command
from tfdp_layers.commands import cli
from tfdp_layers.noise import SeededNoise, add_noise
from tfdp_layers.optimizers import base
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

RECORDS, CANARIES, INPUTS = 100, 300, 300


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(RECORDS, INPUTS)).astype("float32"), rng.integers(0, 5, RECORDS)


def model(noise, seed=1):
    keras.utils.set_random_seed(seed)
    made = tfdp.PrivateSequential([keras.Input((INPUTS,)), keras.layers.Dense(5)])
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise, noise_source=SeededNoise(seed))
    made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def run(noise, sampling, **options):
    x, y = data()
    return model(noise).audit(x, y, CANARIES, sampling=sampling, sampling_seed=2, seed=3, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Poisson(100), FixedSize(100), Partition(100)], ids=lambda s: s.kind)
def test_a_training_that_keeps_its_claim_is_not_refuted_and_the_attack_finds_something(sampling):
    found = run(1.0, sampling, epochs=3)
    assert 0.2 < found.audited_epsilon_lower <= found.claimed_epsilon
    assert found.correct > 1.1 * CANARIES / 2
    assert found.canaries == CANARIES
    assert all(0 <= value <= found.audited_epsilon_lower * 1.02 for value in found.bounds.values())


@pytest.mark.slow
def test_a_training_with_noise_four_times_too_small_is_refuted(monkeypatch):
    sampling = Poisson(RECORDS + CANARIES)  # all in every step: its claim is that of one Gaussian mechanism
    noise = calibrate_noise_multiplier(2.0, 1e-5, sampling, RECORDS + CANARIES, 2)
    monkeypatch.setattr(base, "add_noise", lambda source, sums, s: add_noise(source, sums, [d / 4 for d in s]))
    found = run(noise, sampling, epochs=2)
    assert found.claimed_epsilon == pytest.approx(2.0, rel=1e-2)
    assert found.refuted


@pytest.mark.slow
def test_a_report_says_that_it_is_of_the_records_and_in_no_other_ledger():
    """People print it, and publish "14 of 20 guesses were right", which no epsilon covers."""
    x, y = data()
    twin, used = model(2.0), model(2.0)
    report = twin.audit(x, y, 20, batch_size=50, epochs=1, delta=1e-3)
    said = " ".join(str(report).split())
    assert "Computed from the records that were audited, without noise, and in no ledger of another model" in said
    assert said.endswith("keep these numbers to yourself, or audit on public ones.")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Other ledgers")
        used.fit(x, y, batch_size=50, epochs=1, verbose=0)
    assert together(used.ledger).steps == used.ledger.steps  # as the docstring of `together` and docs/audit.md say
    both = used.ledger.steps + twin.ledger.steps
    used.ledger.merge(twin.ledger)
    assert used.ledger.steps == both


def test_an_attack_that_knows_nothing_finds_nothing():
    trained = model(1.0)
    x, y = data()
    trained.fit(x, y, batch_size=50, epochs=1, verbose=0)
    rng = np.random.default_rng(4)
    found = audited(trained.ledger, rng.normal(size=500), rng.random(500) < 0.5, 1e-5)
    assert found.audited_epsilon_lower == 0.0
    assert not found.refuted


# Canaries -------------------------------------------------------------------------------------------------------------


def test_coins_decide_who_takes_part_as_the_samplers_neighbours_are():
    x, y = data()
    canaries = make_canaries(x, y, 50, seed=1)
    included = int(canaries.included.sum())
    assert 10 < included < 40
    poisson = with_canaries(x, y, canaries, Poisson(10))
    assert (len(poisson._store._leaves[0]), poisson.examples) == (RECORDS + included, RECORDS + 50)
    replaced = with_canaries(x, y, canaries, FixedSize(10))
    put = np.asarray(replaced._store._leaves[0])[RECORDS:]
    np.testing.assert_array_equal(put[canaries.included], canaries.x[canaries.included])
    np.testing.assert_array_equal(put[~canaries.included], 0.0)
    zeroed = with_canaries(x, y, canaries, Partition(10))
    np.testing.assert_array_equal(np.asarray(zeroed._store._leaves[2])[RECORDS:], canaries.included.astype("float32"))
    with pytest.raises(ValueError, match="TruncatedPoisson"):
        with_canaries(x, y, canaries, TruncatedPoisson(10))


def test_each_kind_of_canary_is_what_it_says():
    x, y = data()
    far = make_canaries(x, y, 300, "gradient", seed=2)
    assert np.abs(far.x).min() > 2 * np.abs(x).max()
    noise = make_canaries(x, y, 300, "noise", seed=2)
    assert x.min() <= noise.x.min() < noise.x.max() <= x.max()
    wrong = make_canaries(x, y, 150, "mislabelled", seed=2)
    rows = [int(np.flatnonzero((x == one).all(axis=1))[0]) for one in wrong.x]
    assert (wrong.y != y[rows]).all()
    tokens = make_canaries(np.arange(12).reshape(4, 3), np.zeros(4, int), 20, seed=2)
    assert tokens.x.dtype.kind == "i"
    assert 0 <= tokens.x.min() <= tokens.x.max() <= 11


def test_canaries_that_cannot_be_made_are_refused():
    x, y = data()
    for arguments, message in [
        ((x, y, 10, "loud"), "`kind`"),
        ((x, y, 0), "`count`"),
        (({"a": x}, y, 10), "make your own"),
        ((x, y.astype("float32"), 10, "mislabelled"), "integer labels"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_canaries(*arguments)
    with pytest.raises(ValueError, match="one row for each"):
        Canaries(x, y[:3], np.ones(len(x), bool), x, y)
    with pytest.raises(ValueError, match=r"A canary is one record.*\['unit_ids'\]"):
        tfdp.audit.audit_training(None, x, y, np.int64(10), unit_ids=y)
    with pytest.raises(ValueError, match="Compile the model first"):
        tfdp.PrivateSequential([keras.Input((INPUTS,)), keras.layers.Dense(5)]).audit(x, y)


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_ends_with_one_json_object_and_status_one_where_the_claim_falls(capsys, monkeypatch):
    arguments = "audit --method dpsgd --dataset digits --epsilon 3 --canaries 80 --records 80 --epochs 1"
    assert cli.main([*arguments.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["claimed_epsilon"] == pytest.approx(3.0, rel=1e-2)
    assert 0 <= result["audited_epsilon_lower"] <= result["claimed_epsilon"]
    assert result["confidence"] == 0.95

    steps = ["audit", "--method", "dpsgd", "--attack", "steps", "--epsilon", "1", "--runs", "60"]
    monkeypatch.setattr(base, "add_noise", lambda source, sums, s: add_noise(source, sums, [d / 8 for d in s]))
    assert cli.main(steps) == 1
    assert "REFUTED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--method dpsgd", "--epsilon is needed"),
        ("--epsilon 1 --canaries 3", "--canaries"),
        ("--epsilon 1 --confidence 1", "--confidence"),
        ("--epsilon 1 --attack steps --method dfa_hybrid", "dfa_hybrid"),
    ],
)
def test_the_command_refuses(arguments, message, capsys):
    assert cli.main(["audit", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_every_method_of_the_command_compiles():
    from tfdp_layers.zoo import datasets

    small = datasets.load("digits")
    for method in command.METHODS:
        assert command.compiled(method, small, 1.0).sensitivities(), method


def test_public_names_can_be_had():
    assert all(getattr(tfdp.audit, name) is not None for name in tfdp.audit.__all__)
    assert tfdp.audit.audit_training is audit_training
