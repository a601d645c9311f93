"""What is called again for each record's gradient is the call of the loss: same masks, same mode, no draws."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

kl = keras.layers


class Pooled(kl.Layer):
    """A part of it reads the mask that Keras hands on with the inputs; of a minimum no rule says the gradient."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.pool, self.supports_masking = kl.GlobalAveragePooling1D(), True

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        pooled = self.pool(x)
        return tf.minimum(pooled * self.w, self.w + 5.0)

    def compute_mask(self, x, mask=None):
        return None


class Halved(kl.Layer):
    """Does something else in training, as its own argument or the context of the call says."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x, training=None):
        return tf.minimum(x * self.w, self.w + 5.0) * (0.5 if training else 1.0)


class Around(kl.Layer):
    def __init__(self, training, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.training = Halved(), training

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x, **({} if self.training is None else {"training": self.training}))


class Cell(kl.Layer):
    """A cell of one's own with a layer of dropout in it."""

    state_size = 1

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.drop = kl.Dense(1), kl.Dropout(0.5)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x, states, training=False):
        found = self.dense(self.drop(x, training=training))
        return found, [found]


class Dropped(kl.Layer):
    """A weight by a product, or by a minimum, and a part that drops."""

    def __init__(self, by_rule, **kwargs):
        super().__init__(**kwargs)
        self.by_rule, self.drop = by_rule, kl.Dropout(0.5)

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        x = self.drop(x)
        return x * self.w if self.by_rule else tf.minimum(x * self.w, self.w + 5.0)


def private(*layers, shape, **options):
    model = tfdp.make_private(keras.Sequential([keras.Input(shape), *layers]))
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0, l2_norm_clip=1e6, allow_generic=True)
    model.compile(optimizer, "mse", **options)
    return model


def sums_and_gradients(model, x, y):
    """The sums of a step, and TensorFlow's gradients of the summed losses."""
    step = model.bounded_gradient_sums
    sums = (step if model.run_eagerly else tf.function(step, autograph=False))(x, y)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.reduce_mean(tf.square(model(x, training=True) - y), -1))
    return sums, tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.few(3)
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize(
    "layers",
    [
        lambda: (kl.Masking(0.0), Pooled()),
        lambda: (Around(False), kl.Masking(0.0), Pooled()),
        lambda: (Around(True), kl.Flatten()),
        lambda: (Around(None), kl.Flatten()),
    ],
    ids=["masks", "told that it does not train", "told that it trains", "told nothing"],
)
def test_repeated_calls_are_those_of_the_loss(layers, eager):
    model = private(*layers(), kl.Dense(1), shape=(4, 2), run_eagerly=eager)
    x = np.random.default_rng(0).normal(size=(6, 4, 2)).astype("float32")
    x[0, 2:] = x[3, 1:] = 0.0
    for found, wanted in zip(*sums_and_gradients(model, x, np.zeros((6, 1), "float32")), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_units_carry_their_masks():
    model = private(kl.Masking(0.0), Pooled(), kl.Dense(1), shape=(4, 2))
    x = np.random.default_rng(1).normal(size=(6, 4, 2)).astype("float32")
    x[0, 2:] = x[3, 1:] = 0.0
    _, wanted = sums_and_gradients(model, x, np.zeros((6, 1), "float32"))
    units = x.reshape(3, 2, 4, 2), np.zeros((3, 2, 1), "float32")
    found = tf.function(lambda: model.bounded_gradient_sums(*units, rows_each=2), autograph=False)()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, np.asarray(other) / 2, rtol=1e-4, atol=1e-5)


NESTED = kl.StackedRNNCells([kl.StackedRNNCells([kl.SimpleRNNCell(1, dropout=0.5)])])


@pytest.mark.parametrize(
    ("layer", "eager", "says"),
    [
        (lambda: kl.RNN(Cell(), unroll=True), False, "'own' draws random numbers.*Put the random layer before"),
        (lambda: kl.RNN(Cell()), False, "'own' draws random numbers"),
        (lambda: kl.RNN(NESTED), False, "'own' has dropout inside its steps"),
        (lambda: Dropped(False), False, "'own' draws random numbers"),
        (lambda: Dropped(True), True, "'own' draws random numbers.*run_eagerly=False"),
    ],
    ids=["unrolled", "a loop", "nested cells", "without a rule", "eager"],
)
def test_calls_that_draw_are_not_repeated(layer, eager, says):
    made = layer()
    made.name = "own"
    model = private(made, kl.Flatten(), kl.Dense(1), shape=(3, 2), run_eagerly=eager)
    before = model.get_weights()
    with pytest.raises(ValueError, match=says):
        model.fit(np.ones((8, 3, 2), "float32"), np.zeros((8, 1), "float32"), batch_size=4, verbose=0)
    assert model.ledger.steps == 0
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    assert model.predict(np.ones((2, 3, 2), "float32"), verbose=0).shape == (2, 1)


def test_sums_of_ones_own_are_told_of_a_graph_where_the_model_is_compiled_already():
    model = private(Dropped(True), kl.Flatten(), kl.Dense(1), shape=(3, 2), run_eagerly=False)
    with pytest.raises(ValueError, match=r"bounded_gradient_sums of your own, within a tf\.function"):
        model.bounded_gradient_sums(np.ones((8, 3, 2), "float32"), np.zeros((8, 1), "float32"))


def test_a_rule_needs_no_repeated_call():
    model = private(Dropped(True), kl.Flatten(), kl.Dense(1), shape=(3, 2))
    model.fit(np.ones((8, 3, 2), "float32"), np.zeros((8, 1), "float32"), batch_size=4, verbose=0)
    assert "is proved" in str(model.privacy_statement(1e-3))
