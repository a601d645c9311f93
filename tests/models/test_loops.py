"""Loops of the caller's own: the steps of `fit`, its refusals and its ledger, whatever the loop does with its draws."""

import re
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import mistakes
from helpers.loops import DELTA, Noting, X, Y, loop, model_of, settings
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, epsilon, sightings
from tfdp_layers.callbacks import PrivacyBudget
from tfdp_layers.models.accounts import forget_released, released_values
from tfdp_layers.models.loops import DrawnBatch
from tfdp_layers.models.training import PrivateTraining


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    slow_but(["graph"], [{"jit_compile": True}, {"run_eagerly": True}, "graph"]),
    ids=str,
)
def test_a_loop_makes_the_steps_of_fit_to_the_last_bit(options):
    options = {} if options == "graph" else options
    epochs, public = 2, (np.zeros((4, 4), "float32"), np.zeros(4, "int32"))
    told = {}

    def train(call, name):
        model, told[name] = model_of(**options), []
        callbacks = [PrivacyBudget(50.0, DELTA), Noting(told[name])]
        call(model, X, Y, **settings(epochs=epochs, callbacks=callbacks, validation_data=public))
        told[name].append(str(model.privacy_statement(DELTA)))
        forget_released(released_values(model))  # both end with the same, which one alone pays for
        sightings._sightings.clear()  # of the same records
        return model

    fitted, looped = train(PrivateTraining.fit, "fit"), train(loop, "loop")
    for a, b in zip(fitted.get_weights(), looped.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert told["fit"] == told["loop"]
    assert list(fitted.history.history) == list(looped.history.history)
    for name, values in fitted.history.history.items():
        np.testing.assert_allclose(values, looped.history.history[name], rtol=1e-6)
    (a,), (b,) = fitted.ledger.entries, looped.ledger.entries
    assert (a.release, a.steps) == (b.release, b.steps)
    assert b.release.independence == "proved" or "run_eagerly" in options


def said(mistake):
    """What is raised; else what is warned of."""
    sightings._sightings.clear()  # of the mistakes before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            mistake()
        except Exception as error:
            return _without_numbers(f"{type(error).__name__}: {error}")
    return {_without_numbers(str(one.message)) for one in caught if one.category is UserWarning}


def _without_numbers(text):
    """Keras numbers the names of layers and models."""
    return re.sub(r"_\d+", "", text)


@pytest.mark.slow
def test_what_fit_refuses_a_loop_refuses_in_the_same_words(monkeypatch):
    by_fit = {name: said(mistake) for name, mistake in mistakes.MISTAKES.items()}
    monkeypatch.setattr(PrivateTraining, "fit", loop)
    sightings._told.clear()  # the warning that is said in full once
    assert {name: said(mistake) for name, mistake in mistakes.MISTAKES.items()} == by_fit
    assert all(by_fit.values())


def test_models_that_do_not_step_once_a_call_on_one_device_are_refused():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        replicated = model_of()
    for model, why in ((model_of(steps_per_execution=2), "steps_per_execution=2"), (replicated, "strategy")):
        with pytest.raises(ValueError, match=why), model.private_run(X, Y, **settings()):
            pass
        assert model.ledger.steps == 0


@pytest.fixture
def run():
    with model_of().private_run(X, Y, **settings()) as running:
        yield running


@pytest.mark.slow
def test_a_draw_is_stepped_once_and_as_itself(run):
    first = next(run)
    with pytest.raises(RuntimeError, match="was not stepped"):
        next(run)
    for other in (None, (X[:4], Y[:4]), first.records()):
        with pytest.raises(RuntimeError, match="the object itself"):
            run.step(other)
    run.step(first)
    with pytest.raises(RuntimeError, match="the object itself"):
        run.step(first)
    assert run.made == run._model.ledger.steps == 1
    run.step(next(run))
    assert run.made == 2


@pytest.mark.slow
def test_what_is_done_to_copies_of_a_draw_moves_no_step():
    def train(change):
        model = model_of()
        with model.private_run(X, Y, **settings()) as run:
            for batch in run:
                if change:
                    x, y, weight = batch.records()
                    assert len(x) == len(y) == len(weight)
                    x[:], y[:], weight[:] = 1e3, 1, 0.0
                run.step(batch)
        return model.get_weights()

    for a, b in zip(train(True), train(False), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_loop_may_be_left_early_and_a_second_run_goes_on():
    model = model_of()
    with model.private_run(X, Y, **settings(epochs=3, callbacks=[PrivacyBudget(90.0, DELTA)])) as run:
        for batch in run:
            run.step(batch)
            if run.made == 2:
                break
    assert (run.made, run.planned, model.ledger.steps) == (0, 12, 2)  # outside of a run none is made in it
    assert len(model.history.history["epsilon"]) == 1  # the epoch that was begun is ended
    assert "left" not in str(model.privacy_statement(DELTA))
    for late in (lambda: run.step(batch), lambda: next(run)):
        with pytest.raises(RuntimeError, match="has ended"):
            late()
    again = loop(model, X, Y, **settings(epochs=1))
    assert again is not run
    assert model.ledger.steps == 6
    model.fit(X, Y, **settings())
    assert model.ledger.steps == 10
    assert len(model.ledger.entries) == 1


@pytest.mark.slow
def test_an_exception_in_the_block_ends_the_run_and_keeps_the_count(tmp_path):
    model = model_of()
    model.ledger = Ledger(tmp_path / "ledger.json")
    ended = []
    callback = keras.callbacks.LambdaCallback(on_train_end=lambda logs: ended.append(logs))

    def broken():
        with model.private_run(X, Y, **settings(callbacks=[callback])) as run:
            run.step(next(run))
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert Ledger.from_json((tmp_path / "ledger.json").read_text()).steps == model.ledger.steps == 1
    assert not ended  # as in Keras
    assert model.current_release is None
    loop(model, X, Y, **settings())
    assert model.ledger.steps == 5


def test_a_step_that_breaks_off_counts_whole_and_its_draw_is_gone(run):
    def breaks(epoch, logs=None):
        raise OSError("broken")

    run._callbacks.callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=breaks))
    batch = next(run)
    with pytest.raises(OSError, match="broken"):
        run.step(batch)
    assert run._model.ledger.steps == 1
    with pytest.raises(RuntimeError, match="has ended"):
        run.step(batch)


@pytest.mark.slow
def test_the_budget_ends_the_loop_before_the_step_that_would_exceed_it():
    model = model_of()
    budget = PrivacyBudget(4.0, DELTA)
    with pytest.warns(UserWarning, match="ends training after"):
        run = loop(model, X, Y, **settings(epochs=50, callbacks=[budget]))
    assert budget.exhausted
    assert 0 < model.ledger.steps < run.planned
    assert 3.0 < epsilon(model.ledger, DELTA) <= 4.0
    with pytest.raises(tfdp.callbacks.BudgetExhausted):
        loop(model, X, Y, **settings(callbacks=[PrivacyBudget(4.0, DELTA)]))


@pytest.mark.slow
def test_noise_is_found_from_the_budget_for_all_planned_steps(capsys):
    model = model_of("calibrate")
    options = settings(epochs=2, callbacks=[PrivacyBudget(3.0, DELTA)])
    options.pop("verbose")
    loop(model, X, Y, **options)
    assert "after 8 steps (2 epochs)" in capsys.readouterr().out
    assert 2.9 < epsilon(model.ledger, DELTA) <= 3.0


def test_what_is_changed_while_it_runs_is_refused_as_in_fit(run):
    run.step(next(run))
    run._model.optimizer.noise_multiplier = 0.1
    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        run.step(next(run))
    assert run._model.ledger.steps == 1


@pytest.mark.slow
def test_a_loss_that_was_not_certified_takes_no_step(run):
    model = run._model
    run.step(next(run))

    def worse():
        model.compile(model.optimizer, lambda y, p: keras.ops.mean((p[:, 0] - keras.ops.mean(p)) ** 2))

    with pytest.raises(RuntimeError, match="compile was called while fit runs"):
        worse()
    run.step(next(run))
    assert run.made == 2


@pytest.mark.slow
def test_a_draw_is_no_pair_and_a_second_loop_over_a_run_is_reported(run):
    with pytest.raises(TypeError, match=r"run.step\(batch\)"):
        _, _ = next(run)
    run.step(run._batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in run:  # goes on where the first one ended
            run.step(batch)
    with pytest.warns(UserWarning, match="All 4 steps of this run are made") as told:
        assert not list(run)
    assert told[0].filename == __file__


@pytest.mark.slow
def test_a_step_inside_of_a_compiled_function_is_refused(run):
    batch = next(run)
    with pytest.raises(RuntimeError, match="outside"):
        tf.function(lambda: run.step(batch), autograph=False)()
    assert run._model.ledger.steps == 0
    run.step(batch)


@pytest.mark.slow
def test_one_model_trains_in_one_run_at_a_time(run):
    model = run._model
    for second in (model.fit, lambda *a, **k: loop(model, *a, **k)):
        with pytest.raises(RuntimeError, match="running already"):
            second(X, Y, **settings())
    run.step(next(run))
    assert model.ledger.steps == 1


@pytest.mark.slow
def test_threads_share_a_run_without_a_step_too_many(run):
    errors, made = [], []

    def work(batch):
        try:
            run.step(batch)
            made.append(1)
        except RuntimeError as error:
            errors.append(str(error))

    for _ in range(run.planned):
        batch = next(run)
        threads = [threading.Thread(target=work, args=(batch,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == run.planned == run.made == run._model.ledger.steps
    assert len(errors) == 3 * run.planned
    assert all("once" in error for error in errors)


@pytest.mark.slow
def test_a_draw_for_which_another_run_left_no_budget_is_not_used():
    first, second = model_of(), model_of()
    second.ledger = first.ledger
    options = settings(epochs=40)
    with (
        first.private_run(X, Y, **options, callbacks=[PrivacyBudget(5.0, DELTA)]) as one,
        second.private_run(X, Y, **options, callbacks=[PrivacyBudget(5.0, DELTA)]) as other,
    ):
        draw = next(one)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the budget ends it
            for batch in other:
                other.step(batch)
        weights = first.get_weights()
        with pytest.warns(UserWarning, match="ends training after 0 of 160 planned steps"):
            one.step(draw)
        assert next(one, None) is None
    assert (one.made, first.ledger.steps) == (0, second.ledger.steps)
    assert 0 < first.ledger.steps < 160
    for a, b in zip(weights, first.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_leaving_waits_for_a_step_of_another_thread():
    model, inside, left, order = model_of(), threading.Event(), threading.Event(), []

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            inside.set()
            left.wait(0.5)  # nobody sets it: the block is left while this step runs
            order.append("step")

        def on_train_end(self, logs=None):
            order.append("end")

    def work(run, batch):
        run.step(batch)

    with model.private_run(X, Y, **settings(callbacks=[Slow()])) as run:
        thread = threading.Thread(target=work, args=(run, next(run)))
        thread.start()
        assert inside.wait(60)
    thread.join()
    assert order == ["step", "end"]
    assert model.ledger.steps == 1
    assert model.current_release is None


@pytest.mark.slow
def test_two_runs_on_one_ledger_keep_to_one_budget():
    first, second = model_of(), model_of()
    second.ledger = first.ledger
    budgets = [PrivacyBudget(5.0, DELTA), PrivacyBudget(5.0, DELTA)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with (
            first.private_run(X, Y, **settings(epochs=40, callbacks=budgets[:1])) as one,
            second.private_run(X, Y, **settings(epochs=40, callbacks=budgets[1:])) as other,
        ):
            for a, b in zip(one, other, strict=False):
                one.step(a)
                other.step(b)
                made = (one.made, other.made)
    assert min(made) > 1
    assert first.ledger.steps == sum(made) < 320
    assert 4.0 < epsilon(first.ledger, DELTA) <= 5.0


@pytest.mark.slow
def test_a_model_that_a_run_feeds_has_its_ledger():
    critic = model_of()
    generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)])
    with critic.private_run(X, Y, **settings()) as run:
        run.feeds(generator)
        for batch in run:
            run.step(batch)
    private = tfdp.make_private(generator)
    assert private.ledger is critic.ledger
    assert private.ledger.steps == 4


@pytest.mark.slow
def test_a_run_is_entered_once():
    """It ended in an AttributeError of contextlib; the run went on, and counted."""
    model = model_of()
    block = model.private_run(X, Y, **settings())
    with block as run:
        run.step(next(run))
        with pytest.raises(RuntimeError, match="was entered before, and is one run"):
            block.__enter__()
        run.step(next(run))
    with pytest.raises(RuntimeError, match="was entered before, and is one run"):
        block.__enter__()
    assert model.ledger.steps == 2


def test_a_draw_is_no_pair_by_place_either():
    with pytest.raises(TypeError, match=r"x, y, sample_weight = batch.records\(\)"):
        DrawnBatch(None, None)[0]
