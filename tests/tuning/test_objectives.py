"""An objective chooses by public data, or by a noisy number of private records: of a number that is known."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from helpers.searches import X, Y, found
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import NoisyMean

OTHERS = np.random.default_rng(8).normal(size=(40, 5)).astype("float32")
LABELS = (OTHERS[:, :1] > 0).astype("float32")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "private",
    [
        lambda model: model.evaluate(X, Y, verbose=0)[1],
        lambda model: model.evaluate(x=X[10:60], y=Y[10:60], verbose=0)[1],
        lambda model: ((model.predict(X, verbose=0) > 0) == Y).mean(),
        lambda model: ((model.predict_on_batch(X) > 0) == Y).mean(),
        lambda model: ((np.asarray(model(X)) > 0) == Y).mean(),
    ],
)
def test_a_score_of_the_training_records_is_refused_before_anything_is_charged(private):
    ledger = Ledger()
    with pytest.raises(ValueError, match="of the training records: such a score carries no noise"):
        found(objective=private, ledger=ledger)
    assert ledger.steps == 0


@pytest.mark.parametrize(
    "private",
    [
        lambda model: -model.history.history["loss"][-1],
        lambda model: -float(model.get_metrics_result()["loss"]),
    ],
    ids=["the history", "the metrics"],
)
def test_what_fit_logged_is_no_score(private):
    """It chose the best trial by the training loss, without a note."""
    ledger = Ledger()
    with pytest.raises(ValueError, match="of the training records: such a score carries no noise"):
        found(objective=private, ledger=ledger)
    assert ledger.steps == 0


@pytest.mark.slow
def test_metrics_and_history_tell_an_objective_nothing_of_the_training(exactly):
    exactly(1)
    seen = []

    def look(model):
        seen.append([float(value) for one in model.metrics for value in one.variables])
        seen.append(model.history.history)
        logs = model.evaluate(OTHERS, LABELS, verbose=0, return_dict=True)
        assert float(model.get_metrics_result()["loss"]) == pytest.approx(
            logs["loss"]
        )  # of public data, as they are now
        return -logs["loss"]

    model = found(objective=look).model
    for numbers, history in zip(seen[::2], seen[1::2], strict=True):
        assert not any(numbers)
        assert history == {}
    assert model.history.history == {}
    with pytest.raises(KeyError):
        model.history.history["loss"]
    assert not any(map(float, model.metrics_variables))


@pytest.mark.slow
def test_copies_of_the_training_records_bring_a_warning_and_public_records_no_word(exactly):
    exactly(1)
    with pytest.warns(
        UserWarning, match="Most rows of what the objective scores by each equal one row of the training"
    ):
        found(objective=lambda model: model.evaluate(X[Y[:, 0] > 0], Y[Y[:, 0] > 0], verbose=0)[1])
    public = [
        lambda model: model.evaluate(OTHERS, LABELS, verbose=0)[1],
        lambda model: model.evaluate(tf.data.Dataset.from_tensor_slices((OTHERS, LABELS)).batch(8), verbose=0)[1],
        lambda model: ((np.asarray(model(OTHERS)) > 0) == LABELS).mean(),
        lambda model: float(np.linalg.norm(model.get_weights()[0])),
    ]
    for objective in public:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*objective.*")
            best = found(objective=objective)
    best.model.predict(X, verbose=0)  # afterwards it is the caller's own business


def hits(x, y):
    return lambda model: (model.predict(x, verbose=0) > 0)[:, 0] == (y[:, 0] > 0)


@pytest.mark.slow
def test_a_noisy_score_of_held_out_records_is_divided_by_their_own_number(exactly):
    exactly(1)
    ledger = Ledger()
    said = r"numbers of 40 records, and the training is on 96: .*examples=40\).* round number"
    with pytest.raises(ValueError, match=said):
        found(objective=NoisyMean(hits(OTHERS, LABELS), 0.05), ledger=ledger)
    assert ledger.steps == 0
    best = found(objective=NoisyMean(lambda _: np.ones(40), 0.05, examples=40), ledger=ledger, budget=(30.0, 1e-3))
    assert best.score == pytest.approx(1.0, abs=0.3)
    ((_, (release, count)),) = ledger.entries[0].release.candidates
    assert (release.examples, count, release.groups[0].stddev) == (40, 1, pytest.approx(2.0))


@pytest.mark.slow
def test_a_noisy_score_of_the_training_records_needs_no_number(exactly):
    exactly(1)
    for fit in ({}, {"examples": 100}):  # declared, for the 96 that there are
        best = found(objective=NoisyMean(hits(X, Y), 0.05), **fit)
        assert -0.5 < best.score < 1.5
    ids = np.arange(96) // 2
    found(objective=NoisyMean(hits(X, Y), 0.05, unit_ids=ids), unit_ids=ids, batch_size=16)
    owned = NoisyMean(lambda _: np.ones(40), 0.05, unit_ids=np.arange(40) // 2)
    with pytest.raises(ValueError, match=r"numbers of 20 units, and the training is on 48: .*examples=20\)"):
        found(objective=owned, unit_ids=ids, batch_size=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        lambda model: model.predict(X, verbose=0) > 0,
        lambda model: model.predict(X, verbose=0).argmax(-1) == Y,
        lambda model: ["yes"] * len(X),
    ],
    ids=["a column", "a table", "texts"],
)
def test_noisy_values_that_are_not_one_a_record_are_refused_before_a_trial_is_paid_for(values):
    """All trials would fail, which a search does not show, and it would be paid for."""
    ledger = Ledger()
    with pytest.raises(ValueError, match="values must be one number or boolean a record"):
        found(objective=NoisyMean(values, 0.05), ledger=ledger)
    assert ledger.steps == 0
