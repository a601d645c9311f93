"""Refusals of programs as people have them name the way out that fits, and that way trains."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl
from keras import ops

import tfdp_layers as tfdp
from tfdp_layers.certificates.mixing import mixing_reason
from tfdp_layers.models.model import refuse_no_model

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 4)).astype("float32"), np.ones(32, "float32")
IMAGES = RNG.uniform(0, 255, (16, 8, 8, 3)).astype("float32")


def private(*layers, loss="mse"):
    model = tfdp.make_private(keras.Sequential([*layers]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
    return model


def fit(model, x=X, y=Y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y, batch_size=8, verbose=0)


@keras.saving.register_keras_serializable()
class Recommender(kl.Layer):
    """By tensordot over the batch, as keras.io has it, or within each record."""

    def __init__(self, within, **options):
        super().__init__(**options)
        self.within, self.users, self.items = within, kl.Embedding(9, 3), kl.Embedding(9, 3)

    def call(self, inputs):
        user, item = self.users(inputs[:, 0]), self.items(inputs[:, 1])
        if self.within:
            return ops.sum(user * item, axis=-1, keepdims=True)
        return ops.tensordot(user, item, 2) + ops.sum(user, axis=-1, keepdims=True)


def test_labels_are_not_blamed_where_a_layer_mixes():
    ids = RNG.integers(0, 9, (32, 2))
    inputs = keras.Input((2,), dtype="int32")
    for model in (
        private(inputs, Recommender(False)),
        tfdp.make_private(keras.Model(inputs, ops.sigmoid(Recommender(False)(inputs)))),
    ):
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "binary_crossentropy")
        with pytest.raises(ValueError, match=r"layer 'recommender.*keras\.ops\.sum\(a \* b, axis=-1") as refusal:
            fit(model, ids)
        assert "axis less" not in str(refusal.value)
    fit(private(keras.Input((2,), dtype="int32"), Recommender(True)), ids)


def test_labels_are_blamed_where_the_loss_mixes():
    class Squares(keras.losses.Loss):
        def call(self, y, p):
            return ops.mean(ops.square(y - p), axis=-1)

    model = private(keras.Input((4,)), kl.Dense(1), loss=Squares())
    with pytest.raises(ValueError, match=r"one axis less.*Give y\[:, None\], or compare p\[:, 0\]"):
        fit(model)
    fit(model, y=Y[:, None])


@pytest.mark.parametrize("y", [Y, Y[:, None]], ids=["flat", "a column"])
def test_a_loss_that_averages_over_the_batch_is_told_so(y):
    def balanced(y, p):
        y = ops.cast(ops.reshape(y, (-1,)), "float32")
        return y / (ops.mean(y) + 0.1) * ops.square(y - p[:, 0])

    with pytest.raises(ValueError, match=r"averages something over the batch.*class_weight") as refusal:
        fit(private(keras.Input((4,)), kl.Dense(1), loss=balanced), y=y)
    assert "axis less" not in str(refusal.value)


class Folded(kl.Layer):
    """A recurrent layer over the nodes of each record, which it folds into the batch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rnn = kl.LSTM(3)

    def call(self, inputs):
        return ops.reshape(self.rnn(ops.reshape(inputs, (-1, 4, 1))), (-1, 3, 3))


@pytest.mark.slow
def test_series_within_a_record_are_told_of_time_distributed():
    x, y = RNG.normal(size=(32, 3, 4, 1)).astype("float32"), np.ones((32, 3, 3), "float32")
    with pytest.raises(ValueError, match=r"made up.*keras\.layers\.TimeDistributed\(layer\)"):
        fit(private(keras.Input((3, 4, 1)), Folded()), x, y)
    fit(private(keras.Input((3, 4, 1)), kl.TimeDistributed(kl.LSTM(3))), x, y)


def network(**called):
    """A base with a batch normalization, called as the guide of Keras does, and a head."""
    base = keras.Sequential([keras.Input((4,)), kl.Dense(3), kl.BatchNormalization()], name="base")
    inputs = keras.Input((4,))
    return keras.Model(inputs, kl.Dense(1)(base(inputs, **called)))


def moved():
    made = keras.Sequential([keras.Input((4,)), kl.Dense(3), kl.BatchNormalization(), kl.Dense(1)], name="pretrained")
    made.layers[1].moving_mean.assign([0.5, 0.0, 0.0])
    return made


def deep():
    x = keras.Input((4,))
    return keras.Model(x, kl.Dense(1)(keras.Model(x, moved()(x), name="middle")(x)))


class Block(kl.Layer):
    """A layer that is no model: what stands in it has no name to be found by."""

    def __init__(self):
        super().__init__()
        self.normalization = kl.BatchNormalization()

    def call(self, x, training=None):
        return self.normalization(x, training=training)


FROZEN = {
    "called with training=False": (lambda: network(training=False), r"model\.get_layer\('base'\)\.layers"),
    "moved averages": (moved, r"model\.layers"),
    "two models deep": (deep, r"model.get_layer('middle').get_layer('pretrained').layers"),
}


@pytest.mark.parametrize("name", FROZEN)
def test_batch_normalizations_of_a_trained_base_are_frozen_first(name):
    make, layers = FROZEN[name]
    model = tfdp.make_private(make())
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match=r"freeze these alone.*before compile") as refusal:
        fit(model, y=Y[:, None])
    code = str(refusal.value).split("\n\n")[1]
    assert layers.replace("\\", "") in code
    exec("\n".join(line[4:] for line in code.splitlines()), {"model": model, "keras": keras})
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    fit(model, y=Y[:, None])


def test_no_advice_freezes_nothing():
    model = keras.Sequential([keras.Input((4,)), Block(), kl.Dense(1)])
    model.layers[0].normalization.moving_mean.assign([0.5, 0.0, 0.0, 0.0])
    reason = mixing_reason(model.layers[0].normalization, model)
    assert "freeze these" not in reason
    assert "replace_batch_normalization(model)" in reason


@pytest.mark.parametrize("called", [{}, {"training": None}], ids=str)
def test_those_of_a_new_network_are_replaced_first(called):
    model = network(**called)
    layer = model.get_layer("base").layers[1]
    for given in (None, model):
        assert "freeze these" not in mixing_reason(layer, given)
        assert "replace_batch_normalization(model)" in mixing_reason(layer, given)


@pytest.mark.parametrize(
    ("shape", "by", "group"), [((4,), "group", False), ((4,), "layer", False), ((5, 4), "layer", True)]
)
def test_one_number_of_a_record_is_told_of_no_group_where_it_has_no_positions(shape, by, group):
    model = keras.Sequential([keras.Input(shape), kl.Dense(1), kl.BatchNormalization()])
    with pytest.raises(ValueError, match=r"Take the layer out, or set its trainable = False") as refusal:
        tfdp.replace_batch_normalization(model, by=by)
    assert ("by='group'" in str(refusal.value)) == group
    model.layers[1].trainable = False
    tfdp.replace_batch_normalization(model, by=by)


class Distilled(keras.Model):
    def train_step(self, data):
        return {}


class Called(keras.Model):
    def call(self, x):
        return x

    def train_step(self, data):
        return {}


@pytest.mark.parametrize("kind", [Distilled, Called])
def test_models_with_steps_of_their_own_are_told_where_such_programs_are(kind):
    inputs = keras.Input((4,))
    model = Distilled(inputs, kl.Dense(1)(inputs)) if kind is Distilled else Called()
    with pytest.raises(ValueError, match=r"variational autoencoders, distillation.*Programs as people have them"):
        refuse_no_model(model)


def test_who_validates_on_the_training_data_is_told_to_leave_it_out():
    model = private(keras.Input((4,)), kl.Dense(1))
    with pytest.raises(ValueError, match=r"Leave it out, or give public data.*tfdp\.release_metric"):
        model.fit(X, Y[:, None], validation_data=(X, Y[:, None]), batch_size=8, verbose=0)
    model.fit(X, Y[:, None], validation_data=(X + 1, Y[:, None]), batch_size=8, verbose=0)


def nested():
    return keras.Sequential([kl.RandAugment()], name="augment")


class Own(kl.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = kl.RandAugment(name="inner")

    def call(self, x, training=None):
        return self.inner(x, training=training)


AUGMENT = {
    "RandAugment": kl.RandAugment,
    "AugMix": kl.AugMix,
    "RandAugment in a model": nested,
    "RandAugment in a layer": Own,
}


def augmented(*layers):
    return private(keras.Input((8, 8, 3)), *layers, kl.Rescaling(1 / 255), kl.GlobalAveragePooling2D(), kl.Dense(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENT)
def test_layers_that_choose_among_others_are_named_with_the_single_ones(name):
    with pytest.raises(ValueError, match=rf"is {name.split()[0]}, which chooses.*one by one: RandomShear"):
        tfdp.check_independence(augmented(AUGMENT[name]()))


def test_the_single_ones_are_proved():
    single = [
        kl.RandomShear(0.1, 0.1),
        kl.RandomTranslation(0.1, 0.1),
        kl.RandomRotation(0.1),
        kl.RandomBrightness(0.1),
    ]
    single += [
        kl.RandomContrast(0.1),
        kl.RandomColorDegeneration(0.2),
        kl.RandomSharpness(0.2),
        kl.Solarization(0.2, 0.2),
    ]
    model = augmented(*single, kl.ReLU(max_value=255), kl.RandomPosterization(4))
    assert tfdp.check_independence(model, tf.constant(IMAGES)).proved
