"""All variables that steps read are looked at around hooks and between trainings: of any type, whoever holds them."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.models.fingerprints import held_of
from tfdp_layers.structure import variables_held

X, Y = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.ones((8, 1), "float32")


class Own:
    """Of no library."""


class Centred(keras.layers.Layer):
    """Less a centre that Keras does not list: a tf.Variable, as layers have that were written for TensorFlow 2."""

    def __init__(self, way, dtype="float32"):
        super().__init__()
        self.kept = tf.Variable(np.zeros(3, dtype), trainable=False)
        if way != "an attribute":
            module, own = tf.Module(), Own()
            module.one = own.one = self.kept
            self.all = {"a list": [self.kept], "a dict": {"one": self.kept}, "a module": module, "an object": own}[way]
            del self.kept

    @property
    def centre(self):
        held = getattr(self, "all", None)
        if held is None:
            return self.kept
        return held.one if isinstance(held, tf.Module | Own) else held["one"] if isinstance(held, dict) else held[0]

    def call(self, x):
        return x - tf.cast(self.centre, "float32")


class Counting(keras.layers.Layer):
    """Counts its calls, as it does in steps."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0, trainable=False)

    def call(self, x):
        self.calls.assign_add(1)
        return x


class Running(keras.layers.Layer):
    """Writes what it subtracts whenever it is called, as it does in steps."""

    def __init__(self, listed):
        super().__init__()
        if listed:
            self.centre = self.add_weight(shape=(3,), initializer="zeros", trainable=False)
        else:
            self.centre = tf.Variable(np.zeros(3, "float32"), trainable=False)

    def call(self, x):
        self.centre.assign(self.centre * 1.0)
        return x - tf.convert_to_tensor(self.centre)


def running(teacher):
    """A layer, and a private model whose steps write what it holds: as a teacher in the loss, or as its own layer."""
    layer = Running(listed=teacher)
    if teacher:
        return layer, private(loss=lambda y, p: keras.ops.square(p - layer(y))[:, 0])
    return layer, private(layer)


class Level(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.level = tf.Variable(0, trainable=False)

    def __call__(self, step):
        return 0.1 * 0.1 ** tf.cast(self.level, tf.float32)


class Scaled(keras.optimizers.SGD):
    """Has a number of its own."""

    def build(self, variables):
        super().build(variables)
        self.factor = self.add_variable((), initializer="ones", name="factor")

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.factor, variable, learning_rate)


def private(*layers, inner=None, loss="mse"):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(inner or keras.optimizers.SGD(0.1), noise_multiplier=1.0), loss)
    return model


def fit(model, *do, looks=False, **options):
    """Trains; what is done at the end of each epoch, where it `looks` after a look at the logs."""

    class Doing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            looked = looks and logs["loss"]
            for one in do:
                one(looked)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[Doing()] if do else [], **options)
    return [str(one.message) for one in caught if "and then" in str(one.message)]


def notes(model):
    said = ("steps read", "Steps that are counted here read", "and then", "changed the weights")
    return [note for note in model.privacy_statement(1e-2).notes if any(one in note for one in said)]


def moved(layer):
    return lambda *_: layer.centre.assign(layer.centre + 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "way", slow_but(["an attribute"], ["an attribute", "a list", "a dict", "a module", "an object"])
)
def test_what_a_layer_holds_beside_its_weights_is_noted_where_a_hook_changes_it(way):
    layer = Centred(way)
    model = private(layer)
    fit(model, moved(layer))
    (note,) = notes(model)
    assert note.startswith("The callback Doing changed variables of the model's layers, which the steps read, in fit.")


def test_and_where_it_changes_between_two_trainings():
    layer = Centred("a dict", "int64")
    model = private(layer)
    fit(model)
    moved(layer)()
    assert notes(model) == []
    fit(model)
    assert ["these were changed between two trainings" in note for note in notes(model)] == [True]


@pytest.mark.slow
def test_and_in_the_body_of_a_loop():
    layer = Centred("a list")
    model = private(layer)
    with model.private_run(X, Y, batch_size=4) as run:
        for batch in run:
            run.step(batch)
            moved(layer)()
    assert ["The loop changed variables of the model's layers" in note for note in notes(model)] == [True]


class Masked(keras.layers.Layer):
    def __init__(self, dtype):
        super().__init__()
        self.mask = self.add_weight(shape=(1,), dtype=dtype, initializer="zeros", trainable=False)

    def call(self, x):
        return x * tf.cast(self.mask, tf.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", slow_but(["bool"], ["bool", "int32", "int64"]))
def test_weights_of_another_layer_that_are_no_real_numbers_are_noted(dtype):
    teacher = Masked(dtype)
    model = private(loss=lambda y, p: keras.ops.square(p - teacher(y))[:, 0])
    fit(model, lambda _: teacher.mask.assign(tf.cast(1 - tf.cast(teacher.mask, tf.int32), dtype)))
    assert ["Doing changed weights of another model" in note for note in notes(model)] == [True]


def counts(model):
    return lambda *_: model.optimizer.iterations.assign(0)


def number(model):
    return lambda *_: model.optimizer.inner_optimizer.factor.assign(0.5)


def level(model):
    schedule = model.optimizer.inner_optimizer._learning_rate
    return lambda *_: schedule.level.assign_add(1)


DECISIONS = {
    "counts": (lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)), counts),
    "number": (lambda: Scaled(0.1), number),
    "level": (lambda: keras.optimizers.SGD(Level()), level),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("looks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("decision", DECISIONS)
def test_what_steers_an_optimizer_is_a_decision_after_a_look_and_nothing_without_one(decision, looks):
    inner, decide = DECISIONS[decision]
    model = private(inner=inner())
    model.optimizer.build(model.trainable_variables)
    words = "changed " + (
        "what the steps read" if decision == "level" else "the optimizer's count of steps, or another"
    )
    found = fit(model, decide(model), looks=looks)
    assert [f"read 'loss' and then {words}" in one for one in found] == [True] * looks
    assert len(notes(model)) == looks


@pytest.mark.slow
def test_a_loop_that_sets_the_count_of_steps_after_a_look_is_reported():
    model = private()
    with model.private_run(X, Y, batch_size=4, epochs=2) as run:
        for batch in run:
            if run.step(batch)["loss"] > 0:
                counts(model)()
    words = "The loop read 'loss' and then changed the optimizer's count of steps"
    assert [words in note for note in notes(model)] == [True]


def test_what_steps_count_themselves_the_model_may_count_too_when_it_is_asked():
    layer = Counting()
    model = private(layer, keras.layers.Dropout(0.5))
    asked = [
        lambda _: model.predict(X[:4] + 1, verbose=0),
        lambda _: model.evaluate(X[:4] + 1, Y[:4], verbose=0),
        lambda _: model(X[:4] + 1, training=True),
    ]
    assert fit(model, *asked, looks=True, validation_data=(X[:4] + 1, Y[:4])) == []
    model.predict(X[:4] + 1, verbose=0)
    assert fit(model) == notes(model) == []


def test_what_steps_count_is_noted_where_a_hook_sets_it_even_if_it_asks_the_model():
    layer = Counting()
    model = private(layer)
    found = fit(model, lambda _: (layer.calls.assign(7), model.predict(X[:4] + 1, verbose=0)), looks=True)
    assert ["changed what the steps read" in one for one in found] == [True]
    assert any("changed variables of the model's layers" in note for note in notes(model))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_weight_of_a_loss_that_follows_the_epoch_is_set_freely(dtype):
    beta = tf.Variable(np.zeros((), dtype))
    model = private(loss=lambda y, p: tf.cast(beta, tf.float32) * keras.ops.square(y - p)[:, 0])
    assert fit(model, lambda _: beta.assign_add(1)) == []
    beta.assign(beta * 0)
    assert fit(model) == notes(model) == []


def test_words_differ_by_what_they_are():
    one = tf.Variable(["a", "b"])
    look = held_of([one])
    before = look()
    one.assign(["a", "b"])
    assert look() == before
    one.assign(["a", "c"])
    assert look() != before


def generated(model, change):
    def rows():
        change()
        yield X + 1, Y

    model.evaluate(rows(), verbose=0)


def by_a_callback(model, change):
    other = keras.callbacks.LambdaCallback(on_predict_end=lambda logs: change())
    model.predict(X + 1, verbose=0, callbacks=[other])


@pytest.mark.parametrize("way", [generated, by_a_callback])
@pytest.mark.parametrize("teacher", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_is_changed_within_a_call_of_the_model_is_noted_though_steps_write_it(teacher, way):
    layer, model = running(teacher)
    found = fit(model, lambda _: way(model, moved(layer)), looks=True)
    assert ["read 'loss' and then changed what the steps read" in one for one in found] == [True]
    whose = "weights of another model" if teacher else "variables of the model's layers"
    assert any(note.startswith(f"The callback Doing changed {whose}") for note in notes(model))


@pytest.mark.slow
@pytest.mark.parametrize("teacher", [True, False])
def test_and_in_a_validation_by_a_test_step(teacher):
    class Changing(tfdp.PrivateModel):
        def test_step(self, data):
            layer.centre.assign(layer.centre + 1)
            return super().test_step(data)

    layer = Running(listed=teacher)
    kept, inputs = [layer], keras.Input((3,))
    model = Changing(inputs, keras.layers.Dense(1)(inputs if teacher else layer(inputs)))
    loss = (lambda y, p: keras.ops.square(p - kept[0](y))[:, 0]) if teacher else "mse"
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise_multiplier=1.0), loss)
    fit(model, validation_data=(X + 1, Y))
    assert ["The validation, by a test_step say, changed" in note for note in notes(model)] == [True]


@pytest.mark.parametrize("teacher", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_and_between_two_trainings_where_both_write_it(teacher):
    layer, model = running(teacher)
    fit(model)
    fit(model)
    assert notes(model) == []
    moved(layer)()
    fit(model)
    assert ["these were changed between two trainings" in note for note in notes(model)] == [True]


def test_what_a_layer_takes_from_what_it_is_given_within_a_call_is_noted():
    class Adapting(Running):
        def call(self, x, training=False):
            self.centre.assign(self.centre * 1.0 if training else tf.reduce_mean(x, 0))
            return x - self.centre

    model = private(Adapting(listed=False))
    found = fit(model, lambda _: model(X))
    assert ["the model's outputs of the training records\" and then changed" in one for one in found] == [True]


def test_what_objects_around_a_layer_hold_is_not_held_by_it():
    class Around(keras.regularizers.Regularizer):
        def __call__(self, x):
            return self.one * 0.0

    inside, around, back, layer = Own(), Around(), Own(), keras.layers.Dense(1)
    inside.all, around.one, back.one, back.model = {"one": tf.Variable(1.0)}, tf.Variable(1.0), tf.Variable(1.0), layer
    layer.all, layer.kernel_regularizer, layer.back = [inside], around, back
    layer.function = lambda: back.one
    assert variables_held(layer) == [inside.all["one"]]
