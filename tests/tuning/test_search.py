"""A search by `random_search`: one entry of the ledger, and nothing that tells of the trials but the best."""

import unittest.mock
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.searches import PUBLIC, X, Y, build, found
from helpers.variants import slow_but
from tfdp_layers.accounting import BudgetExhausted, Ledger, LedgerError, epsilon, sightings
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.tuning import Choice, LogUniform, NoisyMean, NumberOfTrials, SearchFailed, Uniform


@pytest.mark.slow
def test_a_search_is_one_entry_and_the_best_model_is_charged_for_it_alone(exactly, tmp_path, capsys):
    exactly(2)
    ledger = Ledger(tmp_path / "ledger.json", dataset="d", budget=(4.0, 1e-3))
    best = found(ledger=ledger, verbose=1)
    (entry,) = ledger.entries
    assert (entry.steps, entry.release.kind, entry.release.mean) == (1, "selection", 2.0)
    assert best.model.ledger is ledger
    assert 2.95 < epsilon(ledger, 1e-3) <= 3.0
    assert set(best.settings) == {"rate", "clip"}
    assert best.score == pytest.approx(best.model.evaluate(*PUBLIC, verbose=0, return_dict=True)["accuracy"])
    assert best.model.optimizer.multiplier.number == best.noise_multiplier
    statement = best.model.privacy_statement(1e-3)
    assert "nothing else" in str(statement)
    assert "contribution is proved" in " ".join(str(statement).split())
    assert not statement.void
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1
    assert f"{best.noise_multiplier:g}" in said.out
    # Files and copies of the best go on from that cost; a fit on top of it is charged beside it.
    best.model.save(tmp_path / "best.keras")
    loaded = tfdp.load_model(tmp_path / "best.keras")
    assert loaded.ledger.entries == ledger.entries
    twin = build({})
    twin.set_weights(best.model.get_weights())
    twin.privacy_statement(1e-3)
    assert [e.release.kind for e in twin.ledger.entries] == ["selection"]
    best.model.fit(X, Y, batch_size=32, epochs=1, verbose=0)
    assert [e.release.kind for e in ledger.entries] == ["selection", "step"]


@pytest.mark.slow
def test_a_further_fit_finds_the_noise_for_its_own_budget_and_keeps_to_that_of_the_search_without(exactly, tmp_path):
    exactly(1)
    best = found()
    best.model.save(tmp_path / "best.keras")
    best.model.fit(X, Y, batch_size=32, epochs=1, verbose=0)
    assert best.model.optimizer.noise_multiplier == best.noise_multiplier
    for model in (best.model, tfdp.load_model(tmp_path / "best.keras")):
        budget = tfdp.callbacks.PrivacyBudget(epsilon=6.0, delta=1e-3)
        history = model.fit(X, Y, batch_size=32, epochs=4, callbacks=[budget], verbose=0)
        assert len(history.epoch) == 4
        assert model.optimizer.noise_multiplier != best.noise_multiplier
        assert 5.9 < epsilon(model.ledger, 1e-3) <= 6.0


def told(count, exactly, capsys):
    """All that a search of so many trials leaves behind, but for the values of numbers that were drawn."""
    exactly(count)
    sightings._sightings.clear()  # the statement would tell of an earlier search on these records
    released = len(released_numbers._released)
    ledger, score = Ledger(), iter([1.0, 9.0, *[5.0] * 20])  # of the rehearsal, then of the first trial
    best = found(ledger=ledger, objective=lambda model: next(score), verbose=1)
    captured, layers = capsys.readouterr(), [*best.model.layers, best.model, best.model.optimizer]
    return {
        "printed": captured.out + captured.err,
        "names": [layer.name for layer in layers],
        "weights": [v.path for v in best.model.variables],
        "next": keras.layers.Dense(1).name,
        "entries": [(e.release, e.steps) for e in ledger.entries],
        "statement": str(best.model.privacy_statement(1e-3)),
        "history": best.model.history.history,
        "metrics": best.model.get_metrics_result(),
        "optimizer": int(best.model.optimizer.iterations),
        "remembered": len(released_numbers._released) - released,
    }


@pytest.mark.slow
def test_nothing_tells_how_many_trials_there_were_or_which_one_is_shown(exactly, capsys):
    keras.backend.clear_session()
    one = told(1, exactly, capsys)
    keras.backend.clear_session()
    assert told(3, exactly, capsys) == one
    assert one["history"] == {}
    assert one["metrics"]["loss"] == 0.0


@pytest.mark.slow
def test_a_search_that_names_layers_on_is_caught(exactly, capsys, monkeypatch):
    """The planted bug: Keras' numbers in names go on from trial to trial."""
    keras.backend.clear_session()
    one = told(1, exactly, capsys)
    keras.backend.clear_session()
    monkeypatch.setattr("tfdp_layers.tuning.silence.global_state", unittest.mock.MagicMock())
    assert told(2, exactly, capsys)["next"] != one["next"]


@pytest.mark.slow
def test_trials_that_fail_are_trials_of_the_lowest_score(exactly):
    exactly(6)
    calls = []

    def failing(settings):
        calls.append(settings)
        if len(calls) in (3, 5):  # after the two of the rehearsal
            raise RuntimeError("a record said so")
        return build(settings)

    scores = iter([0.0, float("nan"), 2.0, 1.0, 3.0])
    ledger = Ledger()
    best = found(failing, ledger=ledger, objective=lambda model: next(scores))
    assert len(calls) == 8
    assert best.score == 3.0
    assert ledger.steps == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", slow_but([0], [0, 2]))
def test_a_search_without_a_score_is_paid_and_says_nothing_of_records(exactly, count):
    exactly(count)
    scores = iter([0.0])
    ledger = Ledger()
    with pytest.raises(SearchFailed, match="paid for all the same") as raised:
        found(ledger=ledger, objective=lambda model: next(scores), trials=NumberOfTrials(2.0, float("inf")))
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert ledger.steps == 1


@pytest.mark.slow
def test_an_interruption_shows_nothing_and_leaves_the_search_charged(exactly, tmp_path):
    exactly(3)
    scores = iter([0.0, 1.0])

    def interrupted(model):
        for score in scores:
            return score
        raise KeyboardInterrupt

    ledger = Ledger(tmp_path / "ledger.json")
    with pytest.raises(KeyboardInterrupt):
        found(ledger=ledger, objective=interrupted)
    ledger.close()
    assert Ledger(tmp_path / "ledger.json").steps == 1


@pytest.mark.slow
def test_a_budget_that_is_spent_affords_no_search(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", dataset="d", budget=(3.0, 1e-3))
    found(ledger=ledger, trials=1.0)
    for budget in ((3.0, 1e-3), (9.0, 1e-3)):
        with pytest.raises(BudgetExhausted, match="Next to nothing is left"):
            found(ledger=ledger, budget=budget)
    assert ledger.steps == 1
    with pytest.raises(LedgerError, match="copy"):
        found(ledger=Ledger(dataset="d").copy(), budget=(9.0, 1e-3))


@pytest.mark.slow
def test_batch_sizes_and_epochs_may_be_drawn_and_all_are_paid_for(exactly):
    exactly(2)
    ledger, seen = Ledger(), []

    def noted(settings):
        model = build(settings)
        seen.append(settings)
        return model

    best = found(noted, {"batch_size": [16, 48], "epochs": Choice(1, 2)}, ledger=ledger, batch_size=None, epochs=None)
    (entry,) = ledger.entries
    assert len(entry.release.candidates) == 4
    assert {s.batch_size for s in (r.sampling for r in entry.release.releases)} == {16, 48}
    assert set(best.settings) == {"batch_size", "epochs"}
    steps = best.settings["epochs"] * -(-96 // best.settings["batch_size"])
    assert int(best.model.optimizer.iterations) == steps
    assert 2.95 < epsilon(ledger, 1e-3) <= 3.0


@pytest.mark.slow
def test_a_score_of_private_records_is_released_with_noise_and_paid_for(exactly):
    exactly(2)
    values = NoisyMean(lambda model: (model.predict(X, verbose=0) > 0)[:, 0] == (Y[:, 0] > 0), 0.05)
    ledger, public = Ledger(), Ledger()
    best = found(ledger=ledger, objective=values)
    (entry,) = ledger.entries
    ((_, metric),) = entry.release.candidates
    assert (metric[0].purpose, metric[1], metric[0].generator) == ("metric", 1, "secure")
    assert -0.5 < best.score < 1.5
    assert epsilon(ledger, 1e-3) <= 3.0
    assert best.noise_multiplier > found(ledger=public).noise_multiplier
    assert "noisy means 'score'" in str(best.model.privacy_statement(1e-3))


def test_a_trial_cannot_release_what_was_not_paid_for(exactly):
    exactly(2)

    def greedy(model):
        if model.ledger.steps:
            tfdp.release_metric(np.ones(96), model.ledger, stddev=0.1)
        return 1.0

    with pytest.raises(ValueError, match="did not pay for"):
        found(objective=greedy)


ONE = build({})


def shared(settings):
    return ONE


def with_noise(settings):
    model = build(settings)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "binary_crossentropy")
    return model


def in_leaps(settings):
    model = build(settings)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse", metrics=["accuracy"], steps_per_execution=2)
    return model


REFUSED = [
    ({"build": shared}, "new layers in build"),
    ({"build": with_noise}, "leave it open"),
    ({"build": in_leaps}, "steps_per_execution"),
    ({"build": lambda settings: keras.Sequential()}, "compiled private model"),
    ({"objective": "accuracy"}, "carries no noise"),
    ({"objective": "val_auc"}, "no metric 'auc'"),
    ({"objective": "val_accuracy", "validation_data": None}, "PUBLIC"),
    ({"validation_data": (X[:50], Y[:50])}, "private training data itself"),
    ({"objective": "val_thing"}, "mode='max'"),
    ({"mode": "up"}, "mode must be"),
    ({"callbacks": []}, "Callbacks see trials"),
    ({"space": {}}, "LogUniform"),
    ({"space": {"rate": 0.1}}, "drawn from nothing known"),
    ({"space": {"rate": (1e-3, 0.1)}}, "and two values as a list"),
    ({"space": {"batch_size": [16, 32]}}, "not both"),
    ({"space": {"epochs": Uniform(1, 3)}, "epochs": None}, "list of values"),
    ({"budget": 3.0}, "pair"),
    (
        {"budget": tfdp.callbacks.PrivacyBudget(3.0, 1e-4)},
        r"PrivacyBudget\(epsilon=3, delta=0.0001\).*\(budget.epsilon, budget.delta\)",
    ),
    ({"trials": 0.5}, "at least 1"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_wrong_is_said_before_anything_is_charged(options, match):
    ledger = Ledger()
    with pytest.raises(ValueError, match=match):
        found(ledger=ledger, **options)
    assert ledger.steps == 0


@pytest.mark.slow
def test_a_search_that_can_learn_nothing_says_so(exactly):
    exactly(0)
    with pytest.warns(UserWarning, match="learn next to nothing"), pytest.raises(SearchFailed):
        found(budget=(0.01, 1e-3), trials=20.0)


@pytest.mark.parametrize("space", [lambda: Uniform(2, 1), lambda: LogUniform(0, 1), lambda: Choice()])
def test_a_distribution_of_nothing_is_refused(space):
    with pytest.raises(ValueError, match="needs"):
        space()


WHOLE = np.r_[X, X[:32] + 1.0], np.r_[Y, Y[:32]]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("given", "says"),
    [([one[96:] for one in WHOLE], "are parts of one array"), (PUBLIC, "each equal one row")],
    ids=["rows of one array", "copies"],
)
def test_validation_data_that_are_private_are_told_of_once_before_the_trials(given, says, exactly):
    exactly(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tfdp.tuning.random_search(
            build,
            {"rate": [0.1, 0.2]},
            *[one[:96] for one in WHOLE],
            budget=(3.0, 1e-3),
            objective="val_accuracy",
            validation_data=given,
            batch_size=32,
            verbose=0,
        )
    assert len([one for one in caught if says in str(one.message)]) == 1


@pytest.mark.slow
def test_records_that_every_trial_would_hold_are_told_of_before_the_trials(exactly):
    exactly(1)
    table = tf.constant(X)

    def holding(settings):
        layer = keras.layers.Lambda(lambda q: q @ tf.transpose(table), output_shape=(96,))
        model = tfdp.make_private(keras.Sequential([keras.Input((5,)), layer, keras.layers.Dense(1)]))
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd"), "mse")
        return model

    with pytest.warns(UserWarning, match="holds rows that are private records"):
        found(build=holding, space={"rate": [0.1]}, objective=lambda model: 0.0)


@pytest.mark.slow
def test_validation_data_that_no_trial_could_use_end_the_search_before_it_is_paid_for():
    ledger = Ledger()
    with pytest.raises(ValueError, match="In validation_data, "):
        found(validation_data=(X[:32, :2].copy(), Y[:32].copy()), ledger=ledger)
    assert ledger.steps == 0
