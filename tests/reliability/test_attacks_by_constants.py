"""Released numbers that come into a training as constants, or as an optimizer's state, bring what they cost."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof import outside

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
Y = np.zeros((12, 4), "float32")
OTHERS = X[::-1] + 1


def made(*layers, loss="mse", **options):
    last = keras.layers.Dense(4, use_bias=False, **options)
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), *layers, last]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 1.0), loss)
    return model


def fit(model, x=OTHERS, steps=3):
    model.fit(x, Y, batch_size=4, steps_per_epoch=steps, verbose=0, accept_measured=True)
    return model


class Held(keras.regularizers.Regularizer):
    def __init__(self, numbers):
        self.numbers = numbers

    def __call__(self, weight):
        return keras.ops.sum((weight - self.numbers) ** 2)


class Towards(keras.constraints.Constraint):
    def __init__(self, numbers):
        self.numbers = numbers

    def __call__(self, weight):
        return weight - 0.1 * (weight - self.numbers)


def loss_with(numbers):
    return lambda y, p: keras.ops.sum((p - y) ** 2, -1) + keras.ops.sum(p, -1) * keras.ops.sum(keras.ops.abs(numbers))


WAYS = {
    "a lambda": lambda k: made(keras.layers.Lambda(lambda x: x @ k @ np.ones((4, 6), "float32"))),
    "a loss": lambda k: made(loss=loss_with(k)),
    "a tensor in a loss": lambda k: made(loss=loss_with(tf.constant(k))),
    "a regularizer": lambda k: made(kernel_regularizer=Held(k)),
    "a tensor in a regularizer": lambda k: made(kernel_regularizer=Held(tf.constant(k))),
    "a constraint": lambda k: made(kernel_constraint=Towards(k)),
}


def pulled_by_its_optimizer(numbers):
    class Pull(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(gradient, variable, learning_rate)
            self.assign_sub(variable, 0.5 * (variable - keras.ops.convert_to_tensor(numbers)))

    model = made()
    model.compile(tfdp.optimizers.ClippedOptimizer(Pull(0.1), 1.0), "mse")
    return model


WAYS["an optimizer's update"] = pulled_by_its_optimizer


@pytest.fixture
def trained():
    return fit(made(), X, 2)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:This fit can learn next to nothing")
@pytest.mark.parametrize("way", WAYS)
def test_a_constant_brings_what_it_cost(way, trained, monkeypatch):
    """A training that was pulled to another one's weights stated its own cost alone: 8.58 of 11.42."""
    kernel = trained.get_weights()[0]
    assert fit(WAYS[way](kernel)).ledger.updates == 5
    assert fit(WAYS[way](kernel + 1)).ledger.updates == 3, "other numbers cost nothing"
    if way == "a loss":
        for where in ("models", "steering"):
            monkeypatch.setattr(f"tfdp_layers.proof.{where}.numbers_held", lambda *_: [])
        assert fit(WAYS[way](kernel)).ledger.updates == 3, "the bug that this test is there for"


@pytest.mark.filterwarnings("ignore:This fit can learn next to nothing")
def test_the_state_of_an_optimizer_brings_what_it_cost(trained):
    (moments,) = trained.optimizer.inner_optimizer.momentums
    model = made()
    model.optimizer.build(model.trainable_variables)
    model.optimizer.inner_optimizer.momentums[0].assign(moments)
    assert model.ledger.updates == 2
    assert fit(model).ledger.updates == 5


def test_a_prefix_does_not_compute_with_released_arrays(trained):
    kernel = trained.get_weights()[0]
    prefix = [keras.layers.Lambda(lambda x: x @ kernel)]
    with pytest.raises(ValueError, match="an array of numbers that a private training released"):
        tfdp.features(prefix, X)


def test_one_record_less_changes_no_bit_of_the_features_of_others():
    """Kernels choose the order of additions by the number of rows, where that is the number of records."""
    x = np.random.default_rng(1).normal(size=(90, 784)).astype("float32")
    prefix = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64)])
    all_of_them = tfdp.features(prefix, x)
    for fewer in (89, 45, 31, 3):
        np.testing.assert_array_equal(tfdp.features(prefix, x[:fewer]), all_of_them[:fewer])


def test_numbers_in_called_functions_are_held_too():
    held = np.arange(3.0, dtype="float32")

    @tf.function
    def outer(x):
        return tf.cond(x > 0, lambda: tf.reduce_sum(x * held), lambda: x)

    graph = outer.get_concrete_function(tf.TensorSpec((), tf.float32)).graph
    assert any(np.array_equal(one, held) for one in outside.numbers_held(graph))
