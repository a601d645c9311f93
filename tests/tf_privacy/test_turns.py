"""Only Keras' loop makes a step: whatever else calls it has rows that nobody drew."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

tfp = pytest.importorskip("tensorflow_privacy")
tk = tf.keras
X, Y = np.zeros((40, 6), "float32"), np.zeros(40, "int64")


def own_rows(model):
    model.train_function(iter(tf.data.Dataset.from_tensors((X[:1], Y[:1]))))


def scheduler(model):
    def scheduled(epoch, rate):
        own_rows(model)
        return rate

    return {"callbacks": [tk.callbacks.LearningRateScheduler(scheduled)]}


def validation(model):
    def rows():
        while True:
            own_rows(model)
            yield X[:4], Y[:4]

    return {"validation_data": rows(), "validation_steps": 1}


def callback(model):
    return {"callbacks": [tk.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: own_rows(model))]}


def counted():
    layers = [tk.Input((6,)), tk.layers.Dense(3)]
    model = tfp.DPSequential(l2_norm_clip=0.5, noise_multiplier=1.5, layers=layers, use_xla=False)
    model = tfdp.tf_privacy.with_ledger(model)
    model.compile("sgd", tk.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(("options", "made"), [(scheduler, 0), (validation, 2), (callback, 0)])
def test_what_keras_calls_between_steps_makes_none(options, made):
    model = counted()
    with pytest.raises(RuntimeError, match="called by something other"):
        model.fit(X, Y, batch_size=20, verbose=0, **options(model))
    assert model.ledger.steps == made  # the loop's own


@pytest.mark.parametrize(("hook", "made"), [("on_train_begin", 0), ("on_train_batch_end", 1)])
def test_a_seed_that_is_set_while_fit_runs_is_seen(hook, made):
    """Two trainings had equal noise, and their statements said nothing of a seed."""
    model = counted()
    seeding = tk.callbacks.LambdaCallback(**{hook: lambda *_: tf.random.set_seed(0)})
    tf.random.set_seed(None)  # other tests set one
    try:
        with pytest.raises(RuntimeError, match="set_seed was called while fit runs"):
            model.fit(X, Y, batch_size=20, verbose=0, callbacks=[seeding])
    finally:
        tf.random.set_seed(None)
    assert model.ledger.steps == made
    model.fit(X, Y, batch_size=20, verbose=0)
    assert not any(release.seeded for release in model.ledger.releases)


def another_step(model):
    model.train_function = lambda iterator: next(iterator) and {"loss": 0.0}


class AtOnce(tk.callbacks.Callback):
    def set_model(self, model):
        super().set_model(model)
        another_step(model)


@pytest.mark.parametrize("when", ["before fit", "before the first step", "in a hook", "by another class"])
def test_another_step_in_the_place_of_the_counted_one_is_not_called(when):
    model, kind = counted(), None
    if when == "before fit":
        another_step(model)
    hook = {"on_epoch_begin": lambda *_: another_step(model)} if when == "in a hook" else {}
    if when == "by another class":
        kind = type(model)
        mine = type("Mine", (kind,), {"train_function": property(lambda model: lambda iterator: {"loss": 0.0})})
        hook = {"on_train_begin": lambda *_: object.__setattr__(model, "__class__", mine)}
    callbacks = [AtOnce()] if when == "before the first step" else [tk.callbacks.LambdaCallback(**hook)]
    with pytest.raises(RuntimeError, match="another function than the step that was proved"):
        model.fit(X, Y, batch_size=20, verbose=0, callbacks=callbacks)
    assert model.ledger.steps == 0


def test_a_second_fit_goes_on_with_the_counted_step():
    model = counted()
    for _ in range(2):
        model.fit(X, Y, batch_size=20, verbose=0)
    assert model.ledger.steps == 4
