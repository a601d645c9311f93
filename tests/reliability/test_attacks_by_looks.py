"""A look at a model makes what it holds free in no other one: copies of trained weights keep what they cost."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.accounting.left import tells_of_change

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype("float32"), np.zeros((12, 2), "float32")


def compiled(model):
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


def private():
    return compiled(tfdp.PrivateSequential([keras.Input((6,)), keras.layers.Dense(2)]))


def trained(model=None):
    model = model or private()
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def steps_of(model):
    """What a model states, and whether it says that something else changed its weights."""
    statement = model.privacy_statement(1e-3)
    return statement.steps, tells_of_change(statement.notes)


def copy_of(model):
    copied = private()
    copied.set_weights(model.get_weights())
    return copied


def of_people(name):
    """A private model of the data set of some people, which refuses whatever others paid for."""
    model = private()
    model.ledger = tfdp.accounting.Ledger(dataset=name)
    return model


def halves(model):
    return [0.5 * weight for weight in model.get_weights()]


LOOKS = {
    "its statement": lambda trial, path: trial.privacy_statement(1e-3),
    "its file": lambda trial, path: trial.save(path / "trial.keras"),
    "a training": lambda trial, path: trained(trial),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("look", LOOKS)
def test_what_was_tried_in_another_model_before_a_trained_one_got_it_costs_what_that_did(look, tmp_path):
    """Who looked at the average by hand, in a model of its own, made it free for good: copies of A stated 0 of 4.2."""
    model, trial = trained(), private()
    trial.set_weights(average := halves(model))
    LOOKS[look](trial, tmp_path)
    model.set_weights(average)
    assert steps_of(copy_of(model)) == steps_of(model) == (3, True)


def test_so_does_what_came_by_the_file_of_that_other_model(tmp_path):
    model, trial = trained(), private()
    trial.set_weights(halves(model))
    trial.save_weights(tmp_path / "trial.weights.h5")
    model.load_weights(tmp_path / "trial.weights.h5")
    assert steps_of(copy_of(model))[0] == 3


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("by", ["its weights", "its file"])
def test_an_average_that_was_looked_at_every_round_costs_all_rounds_once_the_trained_model_has_it(by, tmp_path):
    """Its first look gave it the cost of one round, and nobody asked again: 20 of 40 steps were stated."""
    model, averaged_model, path = private(), private(), tmp_path / "swa.weights.h5"
    for rounds in range(1, 4):
        trained(model)
        averaged_model.set_weights([weight / rounds for weight in model.get_weights()])
        averaged_model.save_weights(path)
        averaged_model.to_keras()
    assert steps_of(averaged_model) == (3, True)
    if by == "its weights":
        model.set_weights(averaged_model.get_weights())
    else:
        model.load_weights(path)
    copied = copy_of(model)
    assert steps_of(copied)[0] == 9
    assert steps_of(trained(copied))[0] == 12


@pytest.mark.slow
def test_what_one_training_began_with_is_paid_for_where_another_one_gets_it():
    source, first, second = trained(), of_people("these"), trained()
    first.set_weights(beginning := [np.flip(weight) for weight in source.get_weights()])
    trained(first)
    first.set_weights(beginning)
    assert steps_of(copy_of(first)) == (0, False)
    second.set_weights(beginning)
    assert steps_of(copy_of(second))[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [True, False])
def test_an_average_of_other_people_is_refused_and_never_stated_as_its_new_holders_own(earlier):
    """The second look took the holder's own ledger for what the average cost: 0.04 was stated of 94.9."""
    holder = trained(of_people("these")) if earlier else None
    model = trained(of_people("others"))
    model.set_weights(average := halves(model))
    assert steps_of(model) == (3, True)
    holder = holder or trained(of_people("these"))
    own = holder.get_weights()
    holder.set_weights(average)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be added up"):
            steps_of(holder)
    holder.set_weights(own)
    assert steps_of(holder) == (3, False)
    assert steps_of(model) == (3, True)
    if not earlier:  # an earlier one may have made it
        assert steps_of(copy_of(model)) == (3, True)


def test_what_is_averaged_while_the_first_training_of_a_process_runs_costs_what_that_did(monkeypatch, tmp_path):
    """Nothing had been released by a training that was over: so the average, by its file, was free everywhere."""
    monkeypatch.setattr(released_numbers, "_released", {})
    monkeypatch.setattr(released_numbers, "_seen", {})
    model, trial, path = private(), private(), tmp_path / "average.weights.h5"

    def average(epoch, logs):
        trial.set_weights(halves(model))
        trial.save_weights(path)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=average)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[callback])
    model.load_weights(path)
    assert steps_of(copy_of(model)) == steps_of(model) == (3, True)


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["their values", "their file"])
def test_models_trained_after_an_average_was_known_are_no_part_of_it(by, tmp_path):
    """Each was charged to the next one that got the average, and to its source for good: 6, 9, 12 for 6 each."""
    source, path = trained(of_people("these")), tmp_path / "average.weights.h5"
    source.set_weights(average := halves(source))
    source.save_weights(path)
    for _ in range(2):
        holder = trained()
        holder.load_weights(path) if by == "their file" else holder.set_weights(average)
        assert steps_of(holder)[0] == 6
    assert steps_of(source) == steps_of(copy_of(source)) == (3, True)
    assert source.ledger.steps == 3


@pytest.mark.slow
def test_a_model_trained_before_an_average_was_known_may_be_a_part_of_it():
    first, second, copied = trained(), trained(), private()
    first.set_weights(average := [one + other for one, other in zip(halves(first), halves(second), strict=True)])
    assert steps_of(first)[0] == 3
    second.set_weights(average)
    copied.set_weights(average)
    assert steps_of(copied)[0] == 6


@pytest.mark.slow
def test_a_fine_tuned_model_that_is_put_back_to_what_it_began_with_makes_that_no_dearer():
    """Tasks that begin from one privately trained base: each pays for the base, and none for another task."""
    base = trained()
    base.set_weights(halves(base))
    for _ in range(2):
        task = trained(copy_of(base))
        task.set_weights(base.get_weights())
        assert steps_of(task)[0] == 6
        assert steps_of(base)[0] == 3


@pytest.mark.slow
def test_a_frozen_base_that_something_else_changed_costs_no_later_head():
    model, other = trained(), private()
    model.set_weights(halves(model))
    model.privacy_statement(1e-3)
    head = compiled(tfdp.PrivateSequential([keras.Input((6,)), model.layers[0], keras.layers.Dense(2)]))
    model.layers[0].trainable = False
    trained(compiled(head))
    other.set_weights(model.layers[0].get_weights())
    assert steps_of(other)[0] == 3


@pytest.mark.slow
def test_initial_weights_of_a_file_are_free_in_all_models_that_load_them(tmp_path):
    path = tmp_path / "initial.weights.h5"
    private().save_weights(path)
    model, other = of_people("these"), of_people("others")
    for _ in range(2):
        model.load_weights(path)
        assert steps_of(copy_of(model)) == (0, False)
        trained(model)
    other.load_weights(path)
    assert steps_of(other) == (0, False)


def test_a_look_that_makes_values_free_is_seen(monkeypatch, tmp_path):
    """The planted bug: what was so before."""

    def free_everywhere(variables, **_):
        released_numbers._public.update(released_numbers.known_values(variables))

    monkeypatch.setattr("tfdp_layers.models.accounts.begin_with", free_everywhere)
    with pytest.raises(AssertionError):
        test_what_was_tried_in_another_model_before_a_trained_one_got_it_costs_what_that_did("its statement", tmp_path)
