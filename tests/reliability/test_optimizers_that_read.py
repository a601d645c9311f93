"""What an optimizer reads of another private model is paid for, as what a loss or a layer reads is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models import crossing

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 6)).astype("float32"), np.zeros((12, 2), "float32")


class Proximal(keras.optimizers.SGD):
    """Pulls kernels towards others, as FedProx does."""

    def __init__(self, towards):
        super().__init__(0.01)
        self.towards = towards

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        if len(variable.shape) == 2:
            variable.assign(variable - 0.9 * (variable - self.towards()))


def trained(inner, loss="mse", epochs=1, callbacks=(), **options):
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(inner, noise_multiplier=1.0), loss, **options)
    model.fit(X, Y, batch_size=4, verbose=0, epochs=epochs, callbacks=list(callbacks))
    return model


def raw(variable):
    return tf.raw_ops.ReadVariableOp(resource=variable.value.handle, dtype=tf.float32)


READS = {
    "the variable": lambda kernel: lambda: kernel,
    "its value": lambda kernel: lambda: kernel.value,
    "its handle": lambda kernel: lambda: raw(kernel),
    "a copy in a variable of TensorFlow": lambda kernel: (lambda copy: lambda: copy)(tf.Variable(kernel.numpy())),
    "a function": lambda kernel: tf.function(lambda: kernel.value + 0.0),
}


@pytest.fixture
def teacher():
    return trained("sgd")


@pytest.mark.few(3)
@pytest.mark.parametrize("read", READS)
def test_what_it_reads_joins_the_ledger(read, teacher):
    student = trained(Proximal(READS[read](teacher.trainable_variables[0])))
    np.testing.assert_allclose(student.get_weights()[0], teacher.get_weights()[0], atol=0.01)
    assert student.privacy_statement(1e-3).steps == 3 + 3


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 3}], ids=["a step", "several"])
def test_a_loss_that_reads_by_a_handle_is_no_different(options, teacher):
    def loss(y, outputs):
        return keras.losses.mean_squared_error(y, outputs + tf.reduce_sum(raw(teacher.trainable_variables[0])))

    assert trained("sgd", loss, **options).privacy_statement(1e-3).steps == 3 + 3


@pytest.mark.parametrize("read", [raw, lambda variable: variable], ids=["handle", "variable"])
def test_what_it_reads_is_looked_at_in_each_fit(read, teacher):
    student = trained(Proximal(lambda: read(teacher.trainable_variables[0])))
    teacher.fit(X, Y, batch_size=4, verbose=0)
    student.fit(X, Y, batch_size=4, verbose=0)
    assert student.privacy_statement(1e-3).steps == 3 + 3 + 3 + 3


def test_released_numbers_that_a_callback_puts_there_for_an_epoch_count(teacher):
    beside = tf.Variable(tf.zeros_like(teacher.trainable_variables[0]))

    class Putting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            beside.assign(teacher.get_weights()[0] if epoch == 1 else tf.zeros_like(beside))

    student = trained(Proximal(lambda: beside), epochs=3, callbacks=[Putting()])
    assert student.privacy_statement(1e-3).steps == 9 + 3


def test_a_callback_that_writes_losses_there_is_reported():
    beside = tf.Variable(tf.zeros((6, 2)))

    class Writing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            beside.assign(tf.fill((6, 2), float(logs["loss"])))

    with pytest.warns(UserWarning, match="read 'loss' and then changed what the steps read"):
        trained(Proximal(lambda: beside), epochs=3, callbacks=[Writing()])


def test_quantized_weights_count_as_well(teacher):
    teacher.quantize("int8")
    kernel = next(v for v in teacher.weights if v.dtype == "int8")
    student = trained(Proximal(lambda: 1e-3 * tf.reshape(tf.cast(kernel.value, tf.float32), (6, 2))))
    assert student.privacy_statement(1e-3).steps == 3 + 3


def test_what_it_reads_in_several_steps_at_once_and_trains_on_later_counts(teacher):
    student = trained(Proximal(lambda: teacher.trainable_variables[0]), steps_per_execution=3)
    before = student.privacy_statement(1e-3).steps
    teacher.fit(X, Y, batch_size=4, verbose=0)
    assert student.privacy_statement(1e-3).steps == before + 3  # one ledger from then on


def test_without_looking_it_would_not_be_seen(monkeypatch, teacher):
    monkeypatch.setattr(crossing, "pay_for_read", lambda *_: None)
    student = trained(Proximal(lambda: teacher.trainable_variables[0]))
    assert student.privacy_statement(1e-3).steps == 3


def test_an_optimizer_that_reads_its_own_model_brings_nothing(teacher):
    assert trained("adam").privacy_statement(1e-3).steps == 3
