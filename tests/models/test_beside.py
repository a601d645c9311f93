"""What a step reads of another model counts as its weights do: who else trained that is named, and noted."""

import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but

X, Y = np.random.default_rng(0).normal(size=(8, 3)).astype("float32"), np.ones((8, 1), "float32")


def teacher_of(steps=0):
    teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)], name="teacher")
    teacher.compile(keras.optimizers.SGD(0.01), "mse")
    if steps:
        teacher.fit(X, Y, batch_size=8, epochs=steps, verbose=0)
    return teacher


class Distilled(keras.losses.Loss):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def call(self, x, p):
        return tf.reduce_mean((p - tf.stop_gradient(self.teacher(x))) ** 2, -1)


class Near(keras.constraints.Constraint):
    def __init__(self, teacher):
        self.teacher = teacher

    def __call__(self, w):
        return w + 0.0 * tf.reduce_sum(self.teacher.layers[1].kernel)


class Rate(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, teacher):
        self.teacher = teacher

    def __call__(self, step):
        return 0.1 + 0.0 * tf.reduce_sum(self.teacher.layers[0].kernel)


class Proximal(keras.optimizers.SGD):
    """Pulls towards what another model holds; by a handle of it, of which nothing else is known."""

    def __init__(self, teacher):
        super().__init__(0.1)
        self._teacher = teacher.layers[0].kernel.value

    def update_step(self, gradient, variable, learning_rate):
        held = tf.raw_ops.ReadVariableOp(resource=self._teacher.handle, dtype=tf.float32)
        super().update_step(gradient + 0.0 * tf.reduce_sum(held), variable, learning_rate)


def private(teacher, way="loss"):
    dense = {"regularizer": {"kernel_regularizer": lambda w: tf.reduce_sum((w - teacher.layers[1].kernel[:3]) ** 2)}}
    dense["constraint"] = {"kernel_constraint": Near(teacher)}
    layers = [keras.layers.Dense(1, **dense.get(way, {}))]
    if way == "Lambda":
        layers.insert(0, keras.layers.Lambda(lambda v: tf.concat([v, teacher(v)], -1), output_shape=(4,)))
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), *layers], name="student"))
    rate = {"schedule": Rate, "optimizer": Proximal}.get(way)
    inner = keras.optimizers.SGD(0.1) if rate is None else rate(teacher)
    if way == "schedule":
        inner = keras.optimizers.SGD(inner)
    losses = {"loss": lambda x, p: Distilled(teacher).call(x, p), "class": Distilled(teacher)}
    model.compile(tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=1.0), losses.get(way, "mse"))
    return model


def fit(model, way="loss", **options):
    return model.fit(X, X if way in ("loss", "class") else Y, batch_size=4, verbose=0, **options)


def said(do, *given, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do(*given, **options)
    return [str(one.message) for one in caught if "of an ordinary optimizer" in str(one.message)]


def notes(model):
    return [note for note in model.privacy_statement(1e-2).notes if "another model" in note or "ordinary" in note]


WAYS = ["loss", "class", "regularizer", "constraint", "schedule", "optimizer", "Lambda"]


@pytest.mark.few(2)
@pytest.mark.parametrize("way", slow_but(["loss", "optimizer"], WAYS))
def test_a_teacher_that_an_ordinary_optimizer_trained_is_named_and_noted(way, tmp_path):
    model = private(teacher_of(3), way)
    (message,) = said(fit, model, way)
    assert "Model 'teacher' took 3 steps of an ordinary optimizer (SGD), and steps of the private" in message
    assert "tfdp.public(that model), before fit" in message
    assert said(fit, model, way) == []  # once
    assert len(notes(model)) == 1
    model.save_weights(tmp_path / "m.weights.h5")
    assert "ordinary" in model.ledger.noted


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", slow_but(["loss"], WAYS))
def test_one_that_was_declared_public_or_took_no_step_is_not(way):
    for teacher in (tfdp.public(teacher_of(3)), teacher_of()):
        model = private(teacher, way)
        assert said(fit, model, way) == []
        assert notes(model) == []


@pytest.mark.slow
def test_a_loop_is_asked_as_fit_is():
    model = private(teacher_of(1))

    def run():
        with model.private_run(X, X, batch_size=4) as steps:
            for batch in steps:
                steps.step(batch)

    assert len(said(run)) == 1
    assert len(notes(model)) == 1


class Each(keras.callbacks.Callback):
    def __init__(self, do):
        super().__init__()
        self.on_epoch_begin = lambda epoch, logs=None: do(epoch) if epoch else None


def test_a_peer_that_is_trained_between_steps_is_noted_unless_it_is_declared_each_time():
    for declared in (False, True):
        teacher = teacher_of()

        def train(epoch, teacher=teacher, declared=declared):
            teacher.train_on_batch(X, Y)
            if declared:
                tfdp.public(teacher)

        model = private(teacher)
        fit(model, epochs=3, callbacks=[Each(train)])
        assert [("Each changed weights of another model" in one) for one in notes(model)] == [True] * (not declared)


@pytest.mark.slow
def test_variables_of_a_loop_that_an_ordinary_optimizer_steps_are_noted_and_a_weight_by_the_epoch_is_not():
    beside, sgd = keras.Variable(np.ones(3, "float32")), keras.optimizers.SGD(0.1)

    def loss(x, p):
        return tf.reduce_sum(beside * x, -1, keepdims=True) * (p - 1) ** 2

    plain, trained = (lambda epoch: beside.assign(beside * 0.5)), (lambda epoch: sgd.apply([beside * 0.1], [beside]))
    for do in (plain, trained):
        model = private(teacher_of(), "mse")
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss)
        fit(model, epochs=3, callbacks=[Each(do)])
        assert len(notes(model)) == (do is trained)


@pytest.mark.slow
def test_copies_of_what_is_released_are_no_change_of_a_target():
    target = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model = private(target)
    fit(model, epochs=3, callbacks=[Each(lambda epoch: target.set_weights(model.get_weights()))])
    assert notes(model) == []


def test_a_target_that_is_trained_once_among_many_copies_is_noted():
    target = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    target.compile("sgd", "mse")
    model = private(target)

    def copied(epoch):
        target.set_weights(model.get_weights())
        if epoch == 3:  # neither the first, the second nor the fourth change
            target.train_on_batch(X, Y)

    fit(model, epochs=5, callbacks=[Each(copied)])
    assert [("Each changed weights of another model" in one) for one in notes(model)] == [True]


@pytest.mark.few(1)
@pytest.mark.parametrize("declared", [False, True])
def test_a_teacher_that_changed_between_two_trainings_is_noted(declared):
    teacher = teacher_of()
    model = private(teacher)
    fit(model)
    assert notes(model) == []
    if declared:
        teacher.train_on_batch(X, Y)
        tfdp.public(teacher)
    else:
        teacher.set_weights([weight + 1 for weight in teacher.get_weights()])
    assert said(fit, model) == []
    assert ["between two trainings" in one for one in notes(model)] == [True] * (not declared)


def test_an_optimizer_that_stepped_a_teacher_in_a_training_is_named_as_the_next_one_begins():
    teacher = teacher_of()
    model = private(teacher)
    fit(model, epochs=2, callbacks=[Each(lambda epoch: teacher.train_on_batch(X, Y))])
    (message,) = said(fit, model)
    assert "Model 'teacher' took 1 step of an ordinary optimizer" in message


def tune(teacher):
    """As a loop in a function does, whose optimizer is gone afterwards."""
    teacher.weights[0].assign(teacher.weights[0] * 0.5)


def trained(teacher):
    """A teacher that is a private model itself."""
    model = tfdp.make_private(teacher)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return fit(model, "mse") and model


@pytest.mark.few(1)
@pytest.mark.parametrize("between", ["another is read, too", "none is read", "a file is loaded"])
def test_what_a_training_left_in_a_teacher_is_known_as_it_is_read_again(between, tmp_path):
    teacher, second = teacher_of(), teacher_of()
    model = private(teacher)
    losses = {
        "none is read": "mse",
        "another is read, too": lambda x, p: Distilled(teacher).call(x, p) + Distilled(second).call(x, p),
    }
    fit(model)
    if between == "none is read":
        model.compile(model.optimizer, losses[between])
        fit(model, "mse")
    tune(teacher)
    if between == "a file is loaded":
        model.save_weights(tmp_path / "m.weights.h5")
        model.load_weights(tmp_path / "m.weights.h5")
    model.compile(model.optimizer, losses["another is read, too"])
    fit(model)
    assert ["between two trainings" in one for one in notes(model)] == [True]


@pytest.mark.few(2)
@pytest.mark.parametrize("when", ["before", "in a hook", "between"])
def test_what_else_changed_a_private_teacher_is_said_of_its_reader(when):
    teacher = trained(teacher_of())
    model = private(teacher)
    if when == "before":
        tune(teacher)
    fit(model, epochs=2, callbacks=[Each(lambda epoch: tune(teacher))] * (when == "in a hook"))
    if when == "between":
        assert notes(model) == []
        tune(teacher)
        fit(model)
    found = "Each changed weights of another model" if when == "in a hook" else "between two trainings"
    assert [found in one for one in notes(model)] == [True]


@pytest.mark.slow
def test_ordinary_steps_under_a_private_teacher_are_said_of_its_reader_when_their_optimizer_is_gone():
    teacher = teacher_of(1)
    holder, optimizer = tfdp.make_private(teacher), weakref.ref(teacher.optimizer)
    del teacher
    gc.collect()
    assert optimizer() is None
    model = private(holder)
    assert said(fit, model) == []
    assert ["steps of an ordinary optimizer" in one for one in notes(model)] == [True]


@pytest.mark.slow
def test_no_note_of_a_first_copy_nor_of_a_variable_of_ones_own_that_is_set_beside_it():
    target, beside = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), tf.Variable([1.0, 2.0, 3.0])
    model = private(target)
    loss = Distilled(target)
    model.compile(model.optimizer, lambda x, p: loss.call(x, p) * tf.reduce_mean(beside))
    hook = keras.callbacks.Callback()

    def copy(*_):
        target.set_weights(model.get_weights())
        beside.assign(beside * 0.5)

    hook.on_train_begin = hook.on_epoch_end = copy
    fit(model, epochs=3, callbacks=[hook])
    assert notes(model) == []


@pytest.mark.slow
def test_what_an_optimizer_stepped_at_a_change_that_was_not_asked_of_is_noted_at_the_end():
    beside, sgd = keras.Variable(np.ones(3, "float32")), keras.optimizers.SGD(0.1)
    model = private(teacher_of(), "mse")
    model.compile(model.optimizer, lambda x, p: tf.reduce_sum(beside * x, -1, keepdims=True) * (p - 1) ** 2)

    def change(epoch):  # the third change is not asked of at once
        beside.assign(beside * 0.5) if epoch < 3 else sgd.apply([beside * 0.1], [beside])

    fit(model, epochs=4, callbacks=[Each(change)])
    assert ["Each changed weights of another model" in one for one in notes(model)] == [True]


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["evaluate", None])
def test_a_teacher_that_changes_in_the_validation_is_noted(method):
    teacher = teacher_of()

    def evaluate(self, *args, **kwargs):
        tune(teacher)
        return tfdp.PrivateSequential.evaluate(self, *args, **kwargs)

    kind = type("Mine", (tfdp.PrivateSequential,), {"evaluate": evaluate} if method else {})
    model = kind([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), Distilled(teacher))
    fit(model, epochs=2, validation_data=(X + 1, X + 1))
    assert ["The validation" in one for one in notes(model)] == [True] * (method is not None)


def small():
    """A model of two numbers and of one: neither is recognised by its values."""
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["beside a copied bias", "beside copies of now", "all are copies"])
def test_small_weights_that_equal_nothing_of_the_model_are_noted_beside_copies(how):
    target = teacher_of() if how == "beside copies of now" else small()
    model = tfdp.make_private(keras.models.clone_model(target))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), Distilled(target))

    def change(epoch):
        target.set_weights(model.get_weights())
        if how != "all are copies":
            small_one = target.weights[-1 if how == "beside copies of now" else 0]
            small_one.assign(np.full(small_one.shape, 0.37))

    x = X[:, : target.input_shape[-1]]
    model.fit(x, x, batch_size=4, epochs=3, verbose=0, callbacks=[Each(change)])
    assert ["Each changed weights of another model" in one for one in notes(model)] == [True] * (how[0] == "b")


def test_no_note_of_a_target_that_is_set_to_weights_of_earlier_steps_biases_among_them():
    target = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model = private(target)
    kept = [model.get_weights()]

    def set_back(epoch):
        target.set_weights(kept[epoch // 2])
        kept.append(model.get_weights())

    fit(model, epochs=5, callbacks=[Each(set_back)])
    assert notes(model) == []


@pytest.mark.slow
def test_what_is_said_of_a_teacher_between_two_trainings_is_true_in_its_own_statement_too():
    teacher = trained(teacher_of())
    model = private(teacher)
    fit(model)
    tune(teacher)
    fit(model)
    for one in (model, teacher):
        (said_of_it,) = (note for note in notes(one) if "another model" in note and "between two trainings," in note)
        assert said_of_it.startswith("Steps that are counted here read weights beside those of their own model")
