"""What a trial of a search may begin with, and what its weights are once it is over."""

import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.searches import X, Y, build, found
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger
from tfdp_layers.tuning import SearchFailed
from tfdp_layers.tuning.trial_ledger import TrialLedger


def test_a_trial_takes_over_nothing_that_the_search_did_not_pay_for():
    step = tfdp.accounting.Release((tfdp.accounting.GroupNoise("w", 1.0, 2.0),), tfdp.sampling.Poisson(32), 96)
    trial, other = TrialLedger([(step, 3)]), Ledger()
    trial.reserve(trial.begin(step), 3)
    trial.merge(trial.copy())
    other.reserve(other.begin(step), 1)
    with pytest.raises(ValueError, match="the search did not pay for that"):
        trial.merge(other)
    assert trial.steps == 3


def test_a_build_that_goes_on_from_an_earlier_trial_is_refused_before_anything_is_spent():
    made, ledger = [], Ledger()

    def warm(settings):
        model = build(settings)
        if made:
            model.set_weights(made[-1].get_weights())
        made.append(model)
        return model

    with pytest.raises(ValueError, match="build returned a model whose weights another training paid for"):
        found(warm, ledger=ledger)
    assert ledger.steps == 0


def test_correlated_noise_is_refused_by_name_before_anything_is_spent():
    def correlated(settings):
        model = build(settings)
        optimizer = tfdp.optimizers.ClippedOptimizer("sgd", noise=tfdp.noise.Correlated(0.9))
        model.compile(optimizer, model.loss)
        return model

    ledger = Ledger()
    with pytest.raises(ValueError, match="Leave noise= out of build"):
        found(correlated, ledger=ledger, sampling=tfdp.sampling.Cyclic(32))
    assert ledger.steps == 0


@pytest.mark.slow
def test_trials_that_go_on_from_an_earlier_one_fail(exactly):
    kept, begun = [], []

    def warm(settings):
        model = build(settings)
        begun.append(model)
        if len(kept) > 1:  # the rehearsal's is the first
            model.set_weights(kept[-1].get_weights())
        return model

    exactly(3)
    found(warm, objective=lambda model: float(kept.append(model) or len(kept)))
    assert len(begun) == 5
    assert len(kept) == 2


@pytest.mark.slow
def test_a_trial_that_is_not_the_best_states_nothing(exactly):
    kept = []
    exactly(2)
    best = found(objective=lambda model: float(kept.append(model) or len(kept)))
    assert best.model is kept[-1]
    best.model.privacy_statement(1e-3)
    with pytest.raises(ValueError, match="ledger"):
        kept[-2].privacy_statement(1e-3)


def test_a_build_that_charges_the_ledger_of_the_search_is_refused():
    ledger = Ledger()

    def releasing(settings):
        tfdp.preprocessing.quantiles(X, ledger, [0.5], lower=-3.0, upper=3.0, noise_multiplier=5.0)
        return build(settings)

    with pytest.raises(ValueError, match="would count the trials"):
        found(releasing, ledger=ledger)
    assert ledger.steps == 0


def copies_of(model):
    """Makes other models with the values that this one has now."""
    values, plain = model.get_weights(), model.to_keras()

    def by_values():
        twin = build({})
        twin.set_weights(values)
        return twin

    def converted():
        private = tfdp.make_private(plain)
        private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
        return private

    return {"values": by_values, "to_keras": converted}


@pytest.mark.slow
@pytest.mark.parametrize("way", slow_but(["values"], ["values", "to_keras"]))
def test_weights_of_a_trial_that_was_kept_aside_state_nothing(exactly, way):
    """A model with a copy of them stated 0: only the trial's own model was refused."""
    exactly(2)
    kept, scores = [], iter([0.0, 1.0, 2.0])

    def looking(model):
        kept.append(copies_of(model)[way])
        return next(scores)

    best = found(objective=looking)
    aside, shown = kept[1](), kept[2]()
    with pytest.raises(ValueError, match="or those of a trial that a search did not show"):
        aside.privacy_statement(1e-3)
    with pytest.raises(ValueError, match="or those of a trial that a search did not show"):
        aside.fit(X, Y, batch_size=32, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(3.0, 1e-3)])
    stated = best.model.privacy_statement(1e-3).epsilon
    assert shown.privacy_statement(1e-3).epsilon == pytest.approx(stated)


def test_weights_that_a_broken_trial_began_with_are_nobodys(exactly):
    """They may be public, and other models hold them, too."""
    exactly(2)
    public, calls = [np.full((5, 1), 0.5, "float32") * np.arange(1, 6)[:, None], np.zeros(1, "float32")], []

    def starting(settings):
        model = build(settings)
        model.set_weights(public)
        calls.append(model)
        if len(calls) == 3:  # after the two of the rehearsal
            model.fit = None
        return model

    with pytest.raises(SearchFailed):
        found(starting)
    assert len(calls) == 3
    twin = build({})
    twin.set_weights(public)
    assert twin.privacy_statement(1e-3).epsilon == 0.0
