"""What was spent travels with the weights: whoever shares or copies what `fit` released counts it."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS
from helpers.variants import slow_but
from tfdp_layers.accounting import BudgetExhausted, Ledger
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models import accounts

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype("float32"), RNG.integers(0, 3, 12)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
clipped = lambda units: tfdp.layers.ClippedDense(units, **CLIPS)  # noqa: E731


def ready(model, noise=1.0):
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), noise), LOSS, run_eagerly=True)
    return model


def base():
    return keras.Sequential([keras.Input((6,)), clipped(4), clipped(3)])


def private():
    return ready(tfdp.PrivateSequential([keras.Input((6,)), clipped(4), clipped(3)]))


def fit(model, steps=3, **options):
    model.fit(X, Y, batch_size=4, steps_per_epoch=steps, verbose=0, **options)
    return model


def counted(*models):
    """What each of the models states: of one ledger."""
    assert len({id(model.ledger) for model in models}) == 1
    return [model.privacy_statement(1e-2).steps for model in models]


def released(model):
    return int(model.optimizer.releases)


# Weights that are shared ----------------------------------------------------------------------------------------------


def test_two_models_made_of_one_base_are_charged_to_one_ledger():
    plain = base()
    one, two = (ready(tfdp.make_private(plain)) for _ in range(2))
    fit(one, 3)
    fit(two, 2)
    assert counted(one, two) == [5, 5]
    fit(one, 1)
    assert counted(one, two) == [6, 6]
    assert (released(one), released(two)) == (4, 2)


@pytest.mark.slow
def test_two_models_that_count_apart_are_seen(monkeypatch):
    """The planted bug: weights do not say who pays for them, and nobody looks at their values."""
    monkeypatch.setattr(accounts, "open_account", lambda *_: None)
    monkeypatch.setattr(released_numbers, "digest_of_noisy", lambda _: None)
    with pytest.raises(AssertionError):
        test_two_models_made_of_one_base_are_charged_to_one_ledger()


@pytest.mark.slow
def test_a_model_made_before_its_base_is_trained_is_charged_for_both():
    first = private()
    second = ready(tfdp.make_private(first))
    fit(first, 3)
    assert counted(first, second) == [3, 3]
    fit(second, 2)
    assert counted(first, second) == [5, 5]


@pytest.mark.slow
def test_both_are_charged_to_the_file_that_one_of_them_was_given(tmp_path):
    plain = base()
    one, two = (ready(tfdp.make_private(plain)) for _ in range(2))
    one.ledger = Ledger(tmp_path / "ledger.json")
    fit(two, 2)
    fit(one, 3)
    assert counted(one, two) == [5, 5]
    one.ledger.close()
    assert Ledger(tmp_path / "ledger.json").steps == 5


@pytest.mark.slow
@pytest.mark.parametrize("trainable", slow_but([False], [True, False]), ids=["fine-tuned", "frozen"])
def test_a_new_head_on_a_trained_model_starts_from_what_was_spent(trainable):
    body = fit(private(), 3)
    body.trainable = trainable
    inputs = keras.Input((6,))
    whole = ready(tfdp.PrivateModel(inputs, clipped(3)(body(inputs))))
    assert whole.ledger.steps == 3
    fit(whole, 2)
    assert counted(whole, body) == [5, 5]


def test_a_head_made_before_the_model_below_is_trained_takes_over_what_that_costs():
    body = private()
    inputs = keras.Input((6,))
    whole = ready(tfdp.PrivateModel(inputs, clipped(3)(body(inputs))))
    fit(body, 3)
    assert counted(whole, body) == [3, 3]


@pytest.mark.slow
def test_a_weight_trained_by_one_model_and_frozen_in_another_is_counted_in_both():
    layer, inputs = clipped(4), keras.Input((6,))
    hidden = layer(inputs)
    layer.trainable = False
    frozen = ready(tfdp.PrivateModel(inputs, clipped(3)(hidden)))
    layer.trainable = True
    trains = fit(ready(tfdp.PrivateModel(inputs, clipped(3)(hidden))), 3)
    layer.trainable = False
    fit(frozen, 2)
    assert counted(frozen, trains) == [5, 5]


# Weights that are copied ----------------------------------------------------------------------------------------------


def by_set_weights(source, target, tmp_path):
    target.set_weights(source.get_weights())


def by_checkpoint(source, target, tmp_path):
    path = tf.train.Checkpoint(model=source).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(model=target).restore(path)


def by_one_layer(source, target, tmp_path):
    target.layers[0].set_weights(source.layers[0].get_weights())


def by_hand(source, target, tmp_path):
    for mine, theirs in zip(target.trainable_variables, source.trainable_variables, strict=True):
        mine.assign(theirs)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "copied", slow_but([by_checkpoint, by_one_layer], [by_set_weights, by_checkpoint, by_one_layer, by_hand])
)
def test_copied_weights_bring_what_they_cost(copied, tmp_path):
    source, target = fit(private(), 3), private()
    copied(source, target, tmp_path)
    assert target.privacy_statement(1e-2).steps == 3
    fit(target, 2)
    assert target.privacy_statement(1e-2).steps == 5
    assert source.privacy_statement(1e-2).steps == 3  # its weights have seen nothing of the rest


def test_copied_weights_are_paid_for_in_what_is_saved(tmp_path):
    source, target = fit(private(), 3), private()
    by_set_weights(source, target, tmp_path)
    target.save(tmp_path / "model.keras")
    assert tfdp.load_model(tmp_path / "model.keras").ledger.steps == 3


def test_a_model_that_was_served_and_made_private_again_starts_from_what_was_spent():
    source = fit(private(), 3)
    for bounding in (None, "backprop_clipping"):
        assert tfdp.make_private(source.to_keras(), bounding=bounding).ledger.steps == 3
    clone = keras.models.clone_model(source)
    clone.set_weights(source.get_weights())
    assert tfdp.make_private(clone).ledger.steps == 3


@pytest.mark.slow
def test_copied_weights_cost_two_trainings_of_one_model_once():
    source, target = fit(private(), 3), private()
    target.set_weights(source.get_weights())
    fit(target, 1)
    fit(source, 2)
    target.set_weights(source.get_weights())
    assert target.privacy_statement(1e-2).steps == 6
    assert target.ledger.holds(source.ledger)


# Values that no step released -----------------------------------------------------------------------------------------


def wide():
    """A model whose bias of eight zeros would be recognised, if zeros were."""
    return ready(tfdp.PrivateSequential([keras.Input((6,)), clipped(8)]))


@pytest.mark.slow
def test_initial_values_of_a_model_that_was_refused_are_nobodys():
    """Once a budget was spent, no model with a bias of zeros could be charged to another ledger any more."""
    first = wide()
    first.ledger = Ledger(dataset="one", budget=(3.0, 1e-2))
    with pytest.warns(UserWarning, match="budget of the data set"):
        fit(first, 100)
    late = wide()
    keras.utils.set_random_seed(1)
    late.ledger = first.ledger
    initial = late.get_weights()
    with pytest.raises(BudgetExhausted):
        fit(late)
    other = wide()
    other.set_weights(initial)
    other.ledger = Ledger(dataset="two")
    fit(other, 2)
    assert other.ledger.steps == 2


# Two threads ----------------------------------------------------------------------------------------------------------


class Waits(keras.callbacks.Callback):
    """Stops in the middle of the first step's end until it may go on."""

    def __init__(self):
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def on_train_batch_end(self, batch, logs=None):
        self.reached.set()
        assert self.go_on.wait(60)


def while_it_trains(model, then):
    """Runs `then` while another thread is in the model's `fit`; returns the steps that `fit` made."""
    waits, failed = Waits(), []

    def trains():
        try:
            fit(model, 3, callbacks=[waits])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=trains)
    thread.start()
    try:
        assert waits.reached.wait(60)
        then()
    finally:
        waits.go_on.set()
        thread.join()
    assert not failed
    return 3


@pytest.mark.slow
def test_a_second_thread_in_fit_is_refused_and_releases_nothing():
    model = private()
    shares = ready(tfdp.make_private(model))
    before = []

    def then():
        for one in (model, shares):
            before[:] = model.get_weights()
            with pytest.raises(RuntimeError, match="fit is running already"):
                fit(one)
            for old, new in zip(before, model.get_weights(), strict=True):
                np.testing.assert_array_equal(old, new)

    while_it_trains(model, then)
    assert released(model) == 3
    assert released(shares) == 0
    assert counted(model, shares) == [3, 3]
    fit(shares, 2)  # one after the other
    assert counted(model, shares) == [5, 5]


def test_a_model_that_is_put_together_while_its_parts_are_trained_counts_it_all():
    model, made = private(), []
    while_it_trains(model, lambda: made.append(ready(tfdp.make_private(model))))
    assert counted(model, made[0]) == [3, 3]


@pytest.mark.slow
def test_models_of_their_own_train_in_two_threads():
    one, two = private(), private()
    while_it_trains(one, lambda: fit(two, 2))
    assert (one.ledger.steps, two.ledger.steps) == (3, 2)


def test_the_ledger_is_not_exchanged_under_a_running_fit(tmp_path):
    model = private()
    shares = tfdp.make_private(model)

    def then():
        for one in (model, shares):
            with pytest.raises(RuntimeError, match="can't be exchanged while fit runs"):
                one.ledger = Ledger(tmp_path / "ledger.json")

    while_it_trains(model, then)
    assert model.ledger.steps == 3
