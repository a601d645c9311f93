"""What Keras' loop calls is the step that was proved and is counted, whoever puts another one in its place."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.variants import slow_but

X, Y = np.ones((8, 3), "float32"), np.zeros((8, 1), "float32")
SET = 7.0


def model_of(**options):
    layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)
    model = tfdp.PrivateSequential([keras.Input((3,)), layer])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", **options)
    return model


def own_step(model):
    """Another step: it sees a draw, and what it does with it nobody counts."""

    def step(iterator):
        next(iterator)
        for weight in model.trainable_variables:
            weight.assign(0.0 * weight + SET)
        return {"loss": 0.0}

    return step


def put(model):
    model.train_function = own_step(model)


def put_past_keras(model):
    vars(model)["train_function"] = own_step(model)


def put_a_maker(model):
    model.make_train_function = lambda force=False: put(model) or own_step(model)


def become_another(model):
    model.__class__ = type("Mine", (type(model),), {"train_function": property(own_step)})


class At(keras.callbacks.Callback):
    """Puts another step in the place of the model's, in this hook."""

    def __init__(self, hook, way):
        super().__init__()
        if hook == "set_model":
            self._way = way
        else:
            self._way = lambda model: None
            setattr(self, hook, lambda *args, **kwargs: way(self.model))

    def set_model(self, model):
        super().set_model(model)
        self._way(model)


def looped(model):
    def train(*args, **options):
        with model.private_run(*args, **options) as run:
            for batch in run:
                run.step(batch)

    return train


@pytest.mark.parametrize("way", [put, put_a_maker])
@pytest.mark.parametrize("within", slow_but(["fit"], ["fit", "loop"]))
def test_a_step_that_is_put_before_the_first_one_is_never_called(way, within):
    model = model_of()
    options = {"batch_size": 4, "epochs": 2, "verbose": 0, "callbacks": [At("set_model", way)]}
    train = model.fit if within == "fit" else looped(model)
    with pytest.raises(RuntimeError, match="train_function is another function than the step that was proved"):
        train(X, Y, **options)
    assert model.ledger.steps == 0
    assert not np.any(np.array(model.layers[0].kernel) == SET)


@pytest.mark.parametrize(
    "hook", slow_but(["on_epoch_begin"], ["on_train_begin", "on_epoch_begin", "on_train_batch_end"])
)
def test_a_step_that_is_put_in_a_hook_is_never_called(hook):
    model = model_of()
    with pytest.raises(RuntimeError, match="train_function is another function"):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[At(hook, put)])
    assert not np.any(np.array(model.layers[0].kernel) == SET)
    model.train_function = None
    model.fit(X, Y, batch_size=4, verbose=0)
    assert not np.any(np.array(model.layers[0].kernel) == SET)


def test_one_that_is_put_past_keras_has_no_effect():
    model = model_of()
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[At("on_epoch_begin", put_past_keras)])
    assert model.ledger.steps == 4
    assert not np.any(np.array(model.layers[0].kernel) == SET)


def test_a_model_that_becomes_one_of_another_class_ends_fit_and_the_statement_says_so():
    """The other step is called once: what is seen is that the counted one was not."""
    model = model_of()
    kind = type(model)
    with pytest.raises(RuntimeError, match="In the turn before, the loop of fit called another function"):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[At("on_epoch_begin", become_another)])
    model.__class__ = kind
    assert "called another function than the step that was proved" in str(model.privacy_statement(1e-2)).replace(
        "\n" + " " * 13, " "
    )


def test_the_step_of_an_earlier_fit_with_less_noise_is_another_one():
    model = model_of()
    model.optimizer.noise_multiplier = 0.01
    model.fit(X, Y, batch_size=4, verbose=0)
    weak = model.train_function
    model.optimizer.noise_multiplier = 3.0
    again = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: setattr(model, "train_function", weak))
    with pytest.raises(RuntimeError, match="train_function is another function"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=[again])
    assert [entry.release.noise_multiplier for entry in model.ledger.entries if entry.steps] == [pytest.approx(0.01)]


def test_a_class_with_a_train_function_of_its_own_is_refused():
    kind = type("Mine", (tfdp.PrivateSequential,), {"train_function": property(own_step, lambda model, step: None)})
    model = kind([keras.Input((3,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match="overrides train_function"):
        model.fit(X, Y, batch_size=4, verbose=0)
