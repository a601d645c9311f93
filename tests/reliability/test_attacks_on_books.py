"""What a statement once left out: changes of what is no weight, copies, hooks that raise, notes that got lost."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.books import MEAN, X, Y, changed, compiled, file_of, fit, kl, momenta, network, notes, poison, private

# Hooks and loops ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_change_before_an_error_is_noted(error, tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            poison(self.model)
            raise error("now")

    model = private()
    with pytest.raises(error, match="now"):
        fit(model, epochs=3, callbacks=[Hook()])
    assert changed(model)
    assert changed(file_of(model, tmp_path / "m.keras"))
    assert changed(fit(model))


@pytest.mark.few(1)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_change_in_a_loop_before_an_error_is_noted(error):
    model = private()

    def loop():
        with model.private_run(X, Y, batch_size=12, verbose=0) as run:
            run.step(next(iter(run)))
            poison(model)
            raise error("now")

    with pytest.raises(error, match="now"):
        loop()
    assert changed(model)


def test_the_number_of_steps_of_a_loop_is_what_was_planned():
    model = private()
    with model.private_run(X, Y, batch_size=12, verbose=0) as run, pytest.raises(AttributeError, match="planned"):
        run.planned = 30


@pytest.mark.slow
def test_a_statement_and_a_file_inside_a_hook_or_a_loop_say_what_it_changed(tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            poison(self.model)
            self.model.save(tmp_path / "hook.keras")

    fit(private(), callbacks=[Hook()])
    assert changed(tfdp.load_model(tmp_path / "hook.keras"))
    model = private()
    with model.private_run(X, Y, batch_size=12, verbose=0) as run:
        for batch in run:
            run.step(batch)
        poison(model)
        assert changed(model)
        assert changed(file_of(model, tmp_path / "loop.keras"))


@pytest.mark.slow
def test_hooks_that_change_nothing_are_not_noted(tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(tmp_path / "m.keras")
            self.model.privacy_statement(1e-2)
            self.model.evaluate(X[:2] + 1, Y[:2], verbose=0)

    model = fit(private(), epochs=2, callbacks=[Hook()])
    assert notes(model) == []
    assert not changed(tfdp.load_model(tmp_path / "m.keras"))


# What is no weight ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_optimizers_state_that_something_else_wrote_is_noted(tmp_path):
    model = fit(private())
    assert not changed(fit(file_of(model, tmp_path / "m.keras")))
    momenta(model)[0].assign(np.outer(MEAN, np.ones(4)))
    assert changed(model)
    assert changed(file_of(model, tmp_path / "m.keras"))


def test_an_optimizers_state_that_a_hook_wrote_is_noted():
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            momenta(self.model)[0].assign(np.outer(MEAN, np.ones(4)))

    assert changed(fit(private(), epochs=2, callbacks=[Hook()]))


class Centred(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.center = tf.Variable(0.0)

    def call(self, y, p):
        return tf.reduce_mean(tf.square(y - p - self.center), -1)


class Held(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.rate = tf.Variable(0.1)

    def __call__(self, step):
        return self.rate


@pytest.mark.few(2)
@pytest.mark.parametrize("what", ["loss", "schedule"])
@pytest.mark.parametrize("reads", [True, False])
def test_what_steps_read_is_a_decision(what, reads):
    loss, schedule = Centred(), Held()

    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            number = logs["loss"] if reads else 0.1 * epoch + 0.01
            (loss.center if what == "loss" else schedule.rate).assign(number)

    model = compiled(tfdp.make_private(network()), loss, rate=schedule)
    fit(model, epochs=2, callbacks=[Hook()])
    assert any("then changed what the steps read" in one for one in notes(model)) == reads
    assert not changed(model)


@pytest.mark.few(1)
@pytest.mark.parametrize("moment", ["before fit", "after fit", "after load"])
def test_what_an_adapted_layer_holds_is_compared(moment, tmp_path):
    layer = tfdp.layers.PrivateNormalization(3.0, -3.0, 3.0)
    layer.adapt(X)
    model = compiled(tfdp.PrivateSequential([keras.Input((4,)), layer, kl.Dense(1)]))
    assert notes(model) == []
    if moment != "before fit":
        fit(model)
    if moment == "after load":
        model = file_of(model, tmp_path / "m.keras")
        layer = model.layers[0]
    assert not changed(model)
    layer.set_weights([MEAN, X.var(0), *layer.get_weights()[2:]])
    assert changed(model)
    assert changed(fit(model))


def test_an_adapted_layer_that_adapts_again_is_no_change():
    layer = tfdp.layers.PrivateNormalization(3.0, -3.0, 3.0)
    layer.adapt(X)
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), layer, kl.Dense(1)])))
    layer.adapt(X)
    assert notes(model) == []


# Copies ---------------------------------------------------------------------------------------------------------------


def cloned(model):
    made = keras.models.clone_model(model)
    made.set_weights(model.get_weights())
    return made


COPIES = {
    "clipping": lambda model: tfdp.make_private(model, bounding="backprop_clipping"),
    "replaced": lambda model: tfdp.make_private(tfdp.replace_batch_normalization(model)),
    "back and forth": lambda model: tfdp.make_private(model.to_keras()),
    "cloned": cloned,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_copies_made_here_are_compared_too(copy):
    layers = [kl.Dense(4, name="frozen", trainable=False), kl.BatchNormalization(trainable=False), kl.Dense(1)]
    model = fit(compiled(tfdp.make_private(keras.Sequential([keras.Input((4,)), *layers]))))
    made = copy(model)
    assert not changed(made)
    poison(made)
    assert changed(made)
    poison(model)
    assert changed(copy(model)) is (copy is not cloned)  # of set_weights it is known that notes stay behind


@pytest.mark.slow
def test_a_change_stays_one_when_another_model_trains_on_its_copy():
    a, b = fit(private()), private()
    poison(a)
    b.set_weights(a.get_weights())
    fit(b)
    assert changed(a)


def test_notes_go_with_layers_into_ordinary_files(tmp_path):
    frozen = tfdp.layers.ClippedDense(4, name="frozen")
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), frozen, tfdp.layers.ClippedDense(1)])))
    poison(model)
    keras.Sequential([keras.Input((4,)), *model.layers]).save(tmp_path / "m.keras")
    assert changed(tfdp.make_private(keras.models.load_model(tmp_path / "m.keras")))


@pytest.mark.slow
def test_constants_that_no_training_accepted_are_noted(tmp_path):
    trained, scale = fit(private()), kl.Normalization()
    scale.adapt(X)
    inputs = keras.Input((4,))
    whole = tfdp.PrivateModel(inputs, trained(scale(inputs)))
    assert any("'normalization" in one for one in notes(whole))
    assert any("'normalization" in one for one in notes(file_of(whole, tmp_path / "m.keras")))
    tfdp.public(scale)
    assert notes(whole) == []
    accepted = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), scale, kl.Dense(1)])))
    assert notes(accepted) == notes(file_of(accepted, tmp_path / "n.keras")) == []


@pytest.mark.slow
def test_weights_that_are_loaded_answer_for_no_vocabulary(tmp_path):
    def built(words):
        lookup = kl.StringLookup(max_tokens=8)
        lookup.set_vocabulary(words)
        inputs = keras.Input((1,), dtype="string")
        return compiled(
            tfdp.PrivateModel(inputs, kl.Dense(1)(kl.Flatten()(kl.Embedding(8, 2)(lookup(inputs)))))
        ), lookup

    words, labels = np.array([["a"], ["b"]] * 12, object), Y
    model, lookup = built(["a", "b", "c"])
    tfdp.public(lookup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(words, labels, batch_size=12, verbose=0)
    assert notes(model) == []
    model.save_weights(tmp_path / "m.weights.h5")
    other, lookup = built(["Ann", "Bob", "Cleo"])
    other.load_weights(tmp_path / "m.weights.h5")
    assert any("Constants of the layers" in one for one in notes(other))
    loaded = file_of(other, tmp_path / "m.keras")
    assert any("Constants of the layers" in one for one in notes(loaded))
    tfdp.public(loaded)
    assert notes(loaded) == []


@pytest.mark.slow
def test_weights_of_others_that_a_training_leaves_as_they_were_stay_noted():
    model = fit(private())
    poison(model)
    other = compiled(tfdp.make_private(keras.Sequential([keras.Input((4,)), model.get_layer("frozen"), kl.Dense(1)])))
    fit(other)
    assert changed(model)
    assert changed(other)


@pytest.mark.slow
def test_notes_of_what_a_training_went_on_from_go_with_copies_made_here(tmp_path):
    model = fit(private())
    poison(model)
    fit(model)  # which leaves what it found
    copy = tfdp.make_private(model.to_keras())
    assert changed(copy)
    assert changed(file_of(compiled(copy), tmp_path / "m.keras"))
    assert not changed(tfdp.make_private(fit(private()).to_keras()))


def test_momentum_that_starts_anew_is_no_change():
    model = fit(private())
    for one in momenta(model):
        one.assign(np.zeros(one.shape))
    assert notes(model) == []
    assert notes(fit(model)) == []


def test_copies_in_the_middle_of_a_second_training_are_no_change():
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            copies.append(tfdp.make_private(self.model.to_keras()))

    copies, model = [], fit(private())
    fit(model, epochs=2, callbacks=[Hook()])
    assert [changed(one) for one in (*copies, model)] == [False] * 3
