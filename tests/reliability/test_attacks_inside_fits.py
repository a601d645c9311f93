"""Released weights that are put into a model, or taken from one, while its training runs cost what they cost."""

import copy
import threading

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models import bookkeeping, opening, weight_files

DELTA, EARLIER, NOW = 1e-3, 12, 4
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)).astype("float32"), RNG.integers(0, 2, (24, 1)).astype("float32")


def model_of(frozen=False):
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model = tfdp.make_private(network)
    model.layers[1 if len(model.layers) > 2 else 0].trainable = not frozen
    momentum = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(tfdp.optimizers.ClippedOptimizer(momentum, 1.0), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def trained(steps=EARLIER, model=None, callbacks=()):
    model = model or model_of()
    model.fit(X, Y, batch_size=12, epochs=steps // 2, verbose=0, callbacks=list(callbacks))
    return model


def first(model):
    return next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))


def hook(name, do):
    """A callback that does something to its model in a hook, once."""

    class Once(keras.callbacks.Callback):
        done = False

    def call(self, *args, **kwargs):
        if name == "set_model":
            self._model = args[0]
        if not self.done:
            self.done = True
            do(self.model)

    setattr(Once, name, call)
    return Once()


def whole(earlier):
    weights = earlier.get_weights()
    return lambda model: model.set_weights(weights)


def by_layers(earlier):
    held = [layer.get_weights() for layer in earlier.layers]
    return lambda model: [one.set_weights(w) for one, w in zip(model.layers, held, strict=True)]


def by_variables(earlier):
    held = [v.numpy() for v in earlier.to_keras().trainable_variables]
    return lambda model: [v.assign(w) for v, w in zip(model.trainable_variables, held, strict=True)]


def moments(earlier):
    held = [v.numpy() for v in earlier.optimizer.inner_optimizer.variables]
    return lambda model: [v.assign(w) for v, w in zip(model.optimizer.inner_optimizer.variables, held, strict=True)]


def put_in(earlier, bring, at):
    model, do = model_of(), bring(earlier)
    if at == "a schedule":
        callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: (do(model), rate)[1])]
    elif at == "a lambda":
        callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: do(model))]
    else:
        callbacks = [hook(at, do)]
    return trained(NOW, model, callbacks)


def within_a_loop(earlier):
    model, weights = model_of(), earlier.get_weights()
    with model.private_run(X, Y, batch_size=12, epochs=NOW // 2, verbose=0) as run:
        for number, batch in enumerate(run):
            if number == 1:
                for variable, value in zip(model.trainable_variables, weights, strict=True):
                    variable.assign(value)
            run.step(batch)
    return model


def frozen_and_put_back(earlier):
    model, theirs = model_of(frozen=True), first(earlier).get_weights()
    own = first(model).get_weights()
    callbacks = [
        hook("on_train_begin", lambda model: first(model).set_weights(theirs)),
        hook("on_train_end", lambda model: first(model).set_weights(own)),
    ]
    return trained(NOW, model, callbacks)


WAYS = {
    "all weights, as it begins": lambda one: put_in(one, whole, "on_train_begin"),
    "all weights, before a step": lambda one: put_in(one, whole, "on_train_batch_begin"),
    "all weights, after an epoch": lambda one: put_in(one, whole, "on_epoch_end"),
    "layer by layer": lambda one: put_in(one, by_layers, "on_epoch_begin"),
    "variable by variable": lambda one: put_in(one, by_variables, "on_train_begin"),
    "before any hook": lambda one: put_in(one, by_variables, "set_model"),
    "a schedule": lambda one: put_in(one, by_variables, "a schedule"),
    "a lambda": lambda one: put_in(one, by_layers, "a lambda"),
    "the optimizer's state": lambda one: put_in(one, moments, "on_train_begin"),
    "a loop": within_a_loop,
    "a frozen layer, put back": frozen_and_put_back,
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_weights_put_in_while_a_training_runs_cost_what_they_cost(way):
    earlier = trained()
    model = WAYS[way](earlier)
    assert model.ledger.holds(earlier.ledger)
    assert model.ledger.steps == EARLIER + NOW
    together = model.privacy_statement(DELTA).epsilon
    assert together > tfdp.accounting.epsilon(earlier.ledger, DELTA)


@pytest.mark.slow
def test_a_planted_bug_is_found(monkeypatch):
    monkeypatch.setattr(bookkeeping, "join_brought", lambda *_: None)
    earlier = trained()
    assert WAYS["layer by layer"](earlier).ledger.steps == NOW


@pytest.mark.slow
def test_a_budget_holds_for_what_is_brought_in_too():
    earlier, model = trained(), model_of()
    alone = tfdp.accounting.epsilon(earlier.ledger, DELTA)
    budget = tfdp.callbacks.PrivacyBudget(epsilon=float(alone), delta=DELTA)
    with pytest.warns(UserWarning, match="budget|affords"):
        trained(NOW, model, [hook("on_train_batch_end", whole(earlier)), budget])
    assert model.ledger.steps < EARLIER + NOW


@pytest.mark.slow
def test_what_cannot_be_added_up_ends_the_training_and_every_statement():
    earlier, model = model_of(), model_of()
    earlier.ledger = tfdp.accounting.Ledger(dataset="first")
    model.ledger = tfdp.accounting.Ledger(dataset="second")
    trained(EARLIER, earlier)
    with pytest.raises(ValueError, match="protect different records"):
        trained(NOW, model, [hook("on_train_begin", by_layers(earlier))])
    for look in (lambda: model.ledger, lambda: model.privacy_statement(DELTA)):
        with pytest.raises(ValueError, match="protect different records"):
            look()


def taken(take, at):
    """A model that is trained on what was taken from another one in its training, and that other one."""
    found, model = [], model_of()

    def once(model):
        found.append(take(model))

    if at == "behind the loop":
        with model.private_run(X, Y, batch_size=12, epochs=EARLIER // 2, verbose=0) as run:
            for batch in run:
                run.step(batch)
            once(model)
            return trained(NOW, on(found[-1])), model
    if at == "between two steps":
        with model.private_run(X, Y, batch_size=12, epochs=EARLIER // 2, verbose=0) as run:
            for number, batch in enumerate(run):
                run.step(batch)
                if number == 3:
                    once(model)
        return trained(NOW, on(found[-1])), model
    callback = keras.callbacks.Callback()
    if at == "on_train_end":
        callback.on_train_end = lambda logs=None: found.append(trained(NOW, on(take(model))))
        trained(EARLIER, model, [callback])
        return found[-1], model
    setattr(callback, at, lambda number, logs=None: once(model) if number == 1 else None)
    trained(EARLIER, model, [callback])
    return trained(NOW, on(found[-1])), model


def on(weights):
    model = model_of()
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    return model


def numbers(model):
    return [v.numpy() for v in model.trainable_variables]


def tree(model):
    def flat(part):
        return [leaf for one in part.values() for leaf in flat(one)] if isinstance(part, dict) else [part]

    return flat(model.get_state_tree("numpy_array")["trainable_variables"])


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("take", "at"),
    [
        (numbers, "on_train_end"),
        (keras.Model.get_weights, "on_train_end"),
        (lambda model: model.get_weights(), "on_train_batch_end"),
        (numbers, "on_epoch_end"),
        (lambda model: model.get_weights(), "on_epoch_end"),
        (numbers, "behind the loop"),
        (lambda model: model.get_weights(), "between two steps"),
        (tree, "on_train_batch_end"),
    ],
)
def test_weights_taken_while_a_training_runs_cost_what_it_spent(take, at):
    model, earlier = taken(take, at)
    assert model.ledger.holds(earlier.ledger)
    assert model.ledger.steps == EARLIER + NOW


@pytest.mark.slow
def test_taken_ones_would_be_free_where_nothing_remembered_them(monkeypatch):
    for room in (opening, weight_files):
        monkeypatch.setattr(room, "remember_handed_out", lambda *_: None)
    model, _ = taken(lambda model: model.get_weights(), "on_epoch_end")
    assert model.ledger.steps == NOW


@pytest.mark.slow
def test_public_weights_under_a_training_stay_free():
    public = model_of()
    base = first(public).get_weights()
    model = model_of(frozen=True)
    first(model).set_weights(base)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: model.get_weights())
    trained(EARLIER, model, [callback])
    other = model_of()
    first(other).set_weights(base)
    trained(NOW, other)
    assert other.ledger.steps == NOW


def test_weights_that_a_callback_puts_back_stay_free():
    """As a search for a learning rate does: every model may begin at them."""
    model = model_of()
    begun = model.get_weights()

    def put_back(epoch, logs):
        if epoch < 3:
            model.set_weights(begun)
            model.get_weights()

    trained(EARLIER, model, [keras.callbacks.LambdaCallback(on_epoch_end=put_back)])
    other = model_of()
    other.set_weights(begun)
    assert other.ledger.steps == 0


@pytest.mark.slow
def test_no_copy_of_a_model_is_made_while_another_thread_trains_it():
    model, raised = trained(NOW), []

    def copied():
        try:
            copy.deepcopy(model)
        except RuntimeError as error:
            raised.append(str(error))

    def beside(batch, logs):
        thread = threading.Thread(target=copied)
        thread.start()
        thread.join()

    trained(NOW, model, [keras.callbacks.LambdaCallback(on_train_batch_end=beside)])
    assert len(raised) == NOW
    assert all("fit runs on these weights in another thread" in one for one in raised)
    assert copy.deepcopy(model).ledger.steps == model.ledger.steps
