"""Records of several owners: who owns what, what a fit on them charges and states, and what it refuses unspent."""

import collections
import contextlib
import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.accounting_tools import ledger_of
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.batches.owners import Owners
from tfdp_layers.commands.cli import main

N = 40
PAIRS = np.stack([np.arange(N) // 2, 100 + np.arange(N)], axis=1)  # two records share each of the first column's
FEW = np.arange(N) % 10
X = np.random.default_rng(1).normal(size=(N, 3)).astype("float32")
LISTS = np.array([[1, 2], [1], [1, 3], None], object)[:3]
OBJECTS = np.array([["ann", "bob", None], ["cat", "", "cat"], ["dan", np.nan, "bob"]], object)


def counts(owners, **options):
    found = Owners(owners, **options)
    return dict(zip(found.names.tolist(), found.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        ([[1, 2], [2, 3], [2, 2]], {1: 1, 2: 3, 3: 1}),
        (np.array([[1, 2], [2, 3], [2, 2]]), {1: 1, 2: 3, 3: 1}),
        ([["a"], ["a", "b", "a"], "c"], {"a": 2, "b": 1, "c": 1}),
        ([{"a"}, ("b", "a"), frozenset("c")], {"a": 2, "b": 1, "c": 1}),
        (OBJECTS, {"ann": 1, "bob": 2, "cat": 1, "dan": 1}),
        (OBJECTS.tolist(), {"ann": 1, "bob": 2, "cat": 1, "dan": 1}),
        (np.ma.masked_equal([[1, -1], [2, 1], [3, -1]], -1), {1: 2, 2: 1, 3: 1}),
        ([7, 7, 8], {7: 2, 8: 1}),
        ([["1", "2"], ["12"], ["1"]], {"1": 2, "12": 1, "2": 1}),
        ([range(2), collections.deque([1, 5]), {1: "to"}.keys()], {0: 1, 1: 3, 5: 1}),
        ([tf.constant([1, 2]), np.array(1), np.int64(2)], {1: 2, 2: 2}),
        ({"first": [1, 2], "second": [1]}.values(), {1: 2, 2: 1}),
    ],
    ids=[
        *("lists", "array", "ragged", "sets", "objects", "listed", "masked", "one each", "digits"),
        *("collections", "tensors", "values of a dict"),
    ],
)
def test_whoever_is_named_owns_a_record_once(owners, expected):
    assert counts(owners) == expected


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([["a"], [], ["b"]], "1 of the 3 records have no owner"),
        (np.ma.MaskedArray(LISTS, [False, True, False]), "1 of the 3 records have no owner"),
        ([[None, ""], [np.nan], ["b"]], "2 of the 3 records have no owner"),
        (np.array([["", ""]] * 3), "3 of the 3 records have no owner"),
        ([["a"], [1], ["b"]], r"must be integers or strings.*each name `one` in owners as str\(one\)"),
        ([[["a"]], ["a"], ["b"]], "must be integers or strings"),
        (np.array([[1.0, np.nan], [2.0, 3.0], [4.0, 5.0]]), "'Int64'\\), where some are missing"),
        (np.array([[True], [False], [True]]), "must be integers or strings"),
        ({record: [7] for record in range(3)}, "in the order of the records. Received: dict"),
        ({"a", "b", "c"}, "in the order of the records. Received: set"),
        ([{"from": 1}, {"from": 1}, {"from": 1}], "is a dict: whether its keys"),
        ([[(1, 2)], [(1, 3)], [(1, 4)]], "some of these are collections"),  # as strings each would be a person
        ([["a"], ["b"]], r"shape \(2,\), for 3 records"),
        (np.zeros((3, 2, 2), int), r"shape \(3, 2, 2\)"),
        ("sender", r"owners=table\['sender'\]"),
        (3, r"owners of each record.*int"),
        ([], "owners of each record"),
    ],
    ids=[
        *("none", "masked", "blanks", "empty", "mixed", "nested", "floats", "booleans", "dict", "set", "dicts"),
        *("tuples", "few", "cube", "text", "number", "no"),
    ],
)
def test_owners_that_name_nobody_are_refused_with_the_fix(owners, message):
    with pytest.raises(ValueError, match=message):
        Owners(owners, 3)


def fitted(noise=2.0, ledger=None, **options):
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", noise), "mse")
    if ledger is not None:
        model.ledger = ledger
    model.fit(X, X[:, :1], **({"batch_size": 4, "epochs": 1, "verbose": 0} | options))
    return model


def test_a_fit_charges_and_states_owners_and_what_it_spent_is_resumed(tmp_path, capsys):
    path = tmp_path / "ledger.json"
    model = fitted(ledger=Ledger(path, dataset="mail", budget=(8.0, 1e-3)), owners=PAIRS, records_per_owner=2)
    (entry,) = model.ledger.entries
    release = entry.release
    assert (release.kind, release.records_per_owner, release.examples, entry.steps) == ("owner_step", 2, N, 10)
    same = Release((GroupNoise("all", 1.0, 2.0),), tfdp.sampling.Poisson(4), N, unit="owner", records_per_owner=2)
    spent = float(epsilon(model.ledger, 1e-3))
    assert spent == pytest.approx(float(epsilon(ledger_of(same, 10), 1e-3)), rel=1e-6)
    text = " ".join(str(model.privacy_statement(1e-3, unit_name="correspondent")).split())
    for part in (
        "what all records hold that one correspondent owns, alone or with others; empty all records of one",
        "Who owns which record is public",
        "no correspondent owns more than 2 records of them, alone or with others",
        "Poisson: each step draws every record independently",
        f"(expected batch 4 of {N} records)",
        "one record moves the sum by at most",
    ):
        assert part in text
    assert "One record is one person" not in text
    model.ledger.close()
    with pytest.raises(ValueError, match=r"protects one owner.*owners="):
        fitted(ledger=Ledger.read(path))
    assert main(["epsilon", "--ledger", str(path), "--delta", "1e-3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["epsilon"] == pytest.approx(spent)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("owners", "limit", "delta", "warned"), [(PAIRS, 2, 0.02, True), (PAIRS, 2, 0.01, False), (FEW, 4, 0.05, False)]
)
def test_delta_is_compared_with_the_number_of_owners(owners, limit, delta, warned):
    """60 people in 40 records, and 10 in 40."""
    budget = tfdp.callbacks.PrivacyBudget(50.0, delta)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fitted(owners=owners, records_per_owner=limit, callbacks=[budget])
    assert [str(one.message) for one in caught if "one over the number of owners" in str(one.message)] == [
        f"delta={delta:g} is above 0.0166667, one over the number of owners: a mechanism that publishes a few of them"
        " as they are could meet it. Choose a smaller delta."
    ] * warned
    assert not any("number of records" in str(one.message) for one in caught)
    assert model.ledger.releases[0].owners == len(np.unique(owners))
    assert ["WARNING: delta" in note for note in model.privacy_statement(delta).notes] == [True] * warned


def test_what_is_released_beside_the_steps_says_how_many_owners_there_are():
    ledger, owned = Ledger(), {"owners": PAIRS, "records_per_owner": 2}
    tfdp.release_metric(np.ones(N), ledger, stddev=0.5, **owned)
    tfdp.preprocessing.vocabulary(["a b"] * N, ledger, noise_multiplier=9.0, failure=1e-6, **owned)
    tfdp.preprocessing.quantiles(X, ledger, [0.5], lower=0.0, upper=1.0, noise_multiplier=9.0, **owned)
    assert [one.owners for one in ledger.releases] == [60] * len(ledger.releases)
    assert Ledger.from_json(ledger.to_json()).releases == ledger.releases


@pytest.mark.slow
def test_a_second_fit_goes_on_where_the_ledger_stands(tmp_path):
    with contextlib.closing(Ledger(tmp_path / "ledger.json")) as ledger:
        fitted(ledger=ledger, owners=PAIRS, records_per_owner=2)
        spent = epsilon(ledger, 1e-3)
    with contextlib.closing(Ledger(tmp_path / "ledger.json")) as again:
        fitted(ledger=again, owners=PAIRS, records_per_owner=2)
        assert again.steps == 20
        assert epsilon(again, 1e-3) > spent
        with pytest.raises(ValueError, match="protects one owner"):
            fitted(ledger=again, unit_ids=np.arange(N))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owners": PAIRS}, r"20 of the 60 owners own more than records_per_owner=1 of the 40 records: 0 owns 2"),
        ({"owners": PAIRS[1:], "records_per_owner": 2}, "for 40 records"),
        ({"owners": PAIRS, "records_per_owner": 0}, "an integer of at least 1"),
        ({"owners": PAIRS, "records_per_owner": 2.0}, "an integer of at least 1"),
        ({"owners": PAIRS, "records_per_owner": True}, "an integer of at least 1"),
        ({"records_per_owner": 2}, "needs to know who owns each record"),
        ({"owners": PAIRS, "unit_ids": np.arange(N)}, "two guarantees"),
        ({"owners": PAIRS, "records_per_owner": 2, "records_per_unit": 2}, "needs to know which records belong"),
        ({"owners": PAIRS, "records_per_owner": 2, "sampling": tfdp.sampling.FixedSize(4)}, "not known here"),
        ({"unit_ids": PAIRS}, "give them to fit as owners="),
    ],
    ids=["over", "few", "zero", "float", "boolean", "alone", "units", "rows", "sampling", "columns"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_spent(options, message):
    ledger = Ledger()
    options = {"sampling": tfdp.sampling.Poisson(4)} | options
    with pytest.raises(ValueError, match=message):
        fitted(ledger=ledger, **(options | {"batch_size": None}))
    assert ledger.steps == 0


@pytest.mark.parametrize("sampling", [tfdp.sampling.Partition(4), tfdp.sampling.Cyclic(4)], ids=lambda s: s.kind)
def test_epochs_charge_an_owner_as_its_records_in_one_batch(sampling):
    batches = tfdp.PrivateBatches(X, X, sampling, owners=PAIRS, records_per_owner=2)
    assert (batches.unit, batches.records_per_owner, batches.examples) == ("owner", 2, N)
    release = Release((GroupNoise("all", 1.0, 6.0),), sampling, N, unit="owner", records_per_owner=2)
    alone = Release((GroupNoise("all", 1.0, 3.0),), sampling, N)
    assert float(epsilon(ledger_of(release, 10), 1e-3)) == float(epsilon(ledger_of(alone, 10), 1e-3))


def test_a_limit_that_is_not_checked_would_be_seen(monkeypatch):
    """Without the check the same call passes, so the refusal above is the check's."""
    monkeypatch.setattr(Owners, "refuse_more", lambda self, limit: None)
    assert tfdp.PrivateBatches(X, X, tfdp.sampling.Poisson(4), owners=PAIRS).records_per_owner == 1


@pytest.mark.slow
def test_a_step_moves_by_as_many_bounds_as_an_owner_has_records_whatever_they_hold():
    """Two outputs are one contribution a record; equal records attain k of them: a bound of one would be exceeded."""
    inputs = keras.Input((3,))
    outputs = {"a": keras.layers.Dense(2, name="a")(inputs), "b": keras.layers.Dense(1, name="b")(inputs)}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 0.5, "flat"), loss={"a": "mse", "b": "mse"})
    hostile = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-38, 0.0, 50.0, 50.0], np.float32)
    owners = [["ann", str(number)] if number % 3 == 0 else [str(number)] for number in range(24)]
    limit = int(max(Owners(owners).counts))
    x, y = np.resize(X, (24, 3)).copy(), {"a": np.ones((24, 2), np.float32), "b": np.ones((24, 1), np.float32)}
    hers = np.array(["ann" in one for one in owners])
    x[hers] = hostile[:limit, None]

    def moved(x):
        rest = {name: label[~hers] for name, label in y.items()}
        pairs = zip(model.bounded_gradient_sums(x, y), model.bounded_gradient_sums(x[~hers], rest), strict=True)
        return float(np.sqrt(sum(np.sum((np.asarray(a, np.float64) - np.asarray(b)) ** 2) for a, b in pairs)))

    assert limit == 8
    assert moved(x) <= 0.5 * limit * (1 + 1e-4)
    x[hers] = 50.0
    assert moved(x) == pytest.approx(0.5 * limit, rel=1e-4)


@pytest.mark.slow
def test_a_loop_of_ones_own_and_a_calibrated_fit_keep_to_a_budget_for_owners():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
    budget = tfdp.callbacks.PrivacyBudget(2.0, 1e-3)
    options = {"batch_size": 4, "owners": PAIRS, "records_per_owner": 2, "callbacks": [budget], "verbose": 0}
    with model.private_run(X, X[:, :1], **options) as run:
        for batch in run:
            run.step(batch)
    assert model.ledger.releases[0].records_per_owner == 2
    assert 1.98 < float(epsilon(model.ledger, 1e-3)) <= 2.0
