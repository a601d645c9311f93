"""What attackers from outside got through, by public names alone, stays closed."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.proof import prove_rows

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 3)).astype("float32"), RNG.normal(size=(32, 3)).astype("float32")


def private(*layers, loss="mse", metrics=()):
    model = tfdp.PrivateSequential([keras.Input((3,)), *layers])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss, metrics=list(metrics))
    return model


def fit(model, y=Y):
    model.fit(X, y, batch_size=8, verbose=0)
    return model


# A number of the records, kept from step to step outside of the traced sums -------------------------------------------


def loss_that_reads(number):
    return lambda y_true, y_pred: keras.ops.mean((y_true - y_pred) ** 2, -1) * (1.0 + number())


class Keeps(keras.metrics.Metric):
    """Writes a number of the records into a variable that it does not own."""

    def __init__(self, variable):
        super().__init__(name="keeps")
        self._elsewhere = (lambda: variable,)

    def update_state(self, y_true, y_pred, sample_weight=None):
        variable = self._elsewhere[0]()
        variable.assign(tf.zeros_like(variable) + tf.reduce_mean(tf.cast(y_true, tf.float32)))

    def result(self):
        return tf.constant(0.0)


def test_a_loss_that_reads_a_metric_not_built_before_is_refused():
    metric = keras.metrics.MeanSquaredError()
    model = private(tfdp.layers.ClippedDense(3), loss=loss_that_reads(metric.result), metrics=[metric])
    with pytest.raises(ValueError, match="records may have written is read"):
        fit(model)
    assert model.ledger.updates == 0


@pytest.mark.parametrize("reader", ["loss", "layer"])
def test_a_variable_that_a_metric_writes_is_read_by_nothing(reader):
    variable = tf.Variable(1.0)
    scale = keras.layers.Lambda(lambda x: x * variable) if reader == "layer" else keras.layers.Identity()
    loss = loss_that_reads(lambda: variable) if reader == "loss" else "mse"
    model = private(scale, tfdp.layers.ClippedDense(3), loss=loss, metrics=[Keeps(variable)])
    with pytest.raises(ValueError, match="not its own"):
        fit(model)
    assert model.ledger.updates == 0


def test_a_variable_that_loss_and_metric_only_read_is_fine():
    variable = tf.Variable(1.0)
    loss = loss_that_reads(lambda: variable)
    metrics = [loss, "mae", keras.metrics.MeanSquaredError()]
    model = fit(private(tfdp.layers.ClippedDense(3), loss=loss, metrics=metrics))
    assert "is proved" in str(model.privacy_statement(1e-2))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, number):
        self._number = number

    def __call__(self, step):
        return 0.1 * (1.0 + self._number())


def steered(by, number):
    """A model of which what follows the noise depends on a number."""
    rates = {"schedule": Schedule(number), "function": lambda *_: 0.1 * (1.0 + number())}
    terms = {
        "regularizer": {"kernel_regularizer": lambda w: number() * keras.ops.sum(w**2)},
        "constraint": {"kernel_constraint": lambda w: w * (1.0 - 0.01 * number())},
    }
    layer = tfdp.layers.ClippedDense(3, **terms.get(by, {}))
    model = tfdp.PrivateSequential([keras.Input((3,)), layer])
    return model, tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(rates.get(by, 0.1)), 1.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["schedule", "function", "regularizer", "constraint"])
def test_what_follows_the_noise_reads_no_metric(by):
    metric = keras.metrics.MeanSquaredError()
    model, optimizer = steered(by, metric.result)
    model.compile(optimizer, "mse", metrics=[metric])
    with pytest.raises(ValueError, match="without noise"):
        fit(model)
    assert model.ledger.updates == 0
    public = tf.Variable(1.0)
    model, optimizer = steered(by, lambda: public)
    model.compile(optimizer, "mse", metrics=[metric])
    assert fit(model).ledger.updates == 4


class KeepsInItsResult(Keeps):
    """Writes where it is read out instead."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._seen = tf.reduce_mean(tf.cast(y_true, tf.float32))

    def result(self):
        self._elsewhere[0]().assign(0.5 * self._elsewhere[0]())
        return tf.constant(0.0)


class KeepsFromTheSecondTrace(Keeps):
    """Shows nothing to a look beforehand."""

    traces = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.traces += 1
        if self.traces >= 2:
            super().update_state(y_true, y_pred)


def with_a_metric(kind, **options):
    optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0)
    model = tfdp.PrivateSequential([keras.Input((3,)), tfdp.layers.ClippedDense(3)])
    model.compile(optimizer, "mse", metrics=[kind(optimizer.learning_rate)], **options)
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "eager"),
    [
        (Keeps, False),
        (Keeps, True),
        (KeepsInItsResult, False),
        (KeepsInItsResult, True),
        (KeepsFromTheSecondTrace, True),
    ],
)
def test_a_metric_writes_no_learning_rate(kind, eager):
    model = with_a_metric(kind, run_eagerly=eager)
    with pytest.raises(ValueError, match="without noise"):
        model.fit(X, Y, batch_size=8, verbose=0, accept_measured=True)
    assert model.ledger.updates <= 2  # a step that raises counts whole


def test_a_metric_that_writes_from_the_second_trace_has_none_that_is_not_examined():
    """Steps call the update that was traced for the look beforehand; another one is looked at anew."""
    model = with_a_metric(KeepsFromTheSecondTrace)
    fit(model)
    assert float(model.optimizer.learning_rate) == np.float32(0.1)
    made = model.ledger.updates
    model.steps_per_execution = 2
    with pytest.raises(ValueError, match="without noise"):
        fit(model)
    assert model.ledger.updates == made


class KeepsWhereItIsReset(Keeps):
    """Writes in the method that fit calls between epochs."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def reset_state(self):
        self._elsewhere[0]().assign(0.5 * self._elsewhere[0]())


@pytest.mark.few(3)
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "what", ["a frozen weight", "a weight for inference", "a rate's variable", "where it is reset"]
)
def test_a_metric_writes_what_is_its_own_alone(what, eager):
    frozen, unused, rate = keras.layers.Dense(3, trainable=False), OnlyForInference(), tf.Variable(0.1)
    model = tfdp.PrivateSequential([keras.Input((3,)), frozen, unused, tfdp.layers.ClippedDense(3)])
    variable = {"a frozen weight": lambda: frozen.bias, "a weight for inference": lambda: unused.counts}
    metric = (KeepsWhereItIsReset if what == "where it is reset" else Keeps)(None)
    metric._elsewhere = (variable.get(what, lambda: rate),)
    optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(lambda: rate), 1.0)
    model.compile(optimizer, "mse", metrics=[metric], run_eagerly=eager)
    with pytest.raises(ValueError, match="without noise"):
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0, accept_measured=True)
    assert model.ledger.updates <= 4  # those of one epoch


class OnlyForInference(keras.layers.Layer):
    """Holds a weight that is read where it is not trained, and saved."""

    def build(self, shape):
        self.counts = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        return x if training else x + self.counts


@pytest.mark.parametrize("name", ["epsilon", "lr"])
def test_a_training_metric_has_no_name_of_a_public_number(name):
    model = private(tfdp.layers.ClippedDense(3), metrics=[keras.metrics.MeanSquaredError(name=name)])
    with pytest.raises(ValueError, match="public numbers"):
        fit(model)


@pytest.mark.parametrize("name", ["{epoch}-{loss:.1f}", "{val_loss:.1f}-{loss:.1f}", "best-{loss:.1f}"])
def test_names_of_checkpoints_tell_no_training_metric(name, tmp_path):
    best = {"monitor": "val_loss", "save_best_only": name.startswith("best")}
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / f"{name}.keras", **best)
    public = {"callbacks": [checkpoint], "validation_data": (X[:2] + 9, Y[:2])}
    with pytest.raises(
        ValueError, match=r"writes 'loss' into the names of its files.*Leave it out of .*keras'; \{epoch"
    ):
        private(tfdp.layers.ClippedDense(3)).fit(X, Y, batch_size=8, verbose=0, **public)
    assert not list(tmp_path.iterdir())


# Weights that lose what they cost -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["functional", "layer", "served"])
def test_features_of_weights_that_a_private_training_released_are_refused(prefix):
    model = fit(private(tfdp.layers.ClippedDense(16), tfdp.layers.ClippedDense(3)))
    layers = {
        "functional": lambda: keras.Model(model.inputs, model.layers[0].output),
        "layer": lambda: model.layers[0],
        "served": model.to_keras,
    }
    with pytest.raises(ValueError, match="ledger"):
        tfdp.features(layers[prefix](), X)


class Frozen(keras.layers.Layer):
    """A dense layer whose weights are not trained, and may be set."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 16), trainable=False)

    def call(self, x):
        return x @ self.kernel


def test_features_of_released_values_in_weights_that_are_not_trained_are_refused():
    model = fit(private(tfdp.layers.ClippedDense(16, use_bias=False), tfdp.layers.ClippedDense(3)))
    prefix = Frozen()
    prefix(X)
    prefix.kernel.assign(model.layers[0].kernel)
    with pytest.raises(ValueError, match="ledger"):
        tfdp.features(prefix, X)


def test_features_of_constants_that_adapt_may_have_learned_are_refused_until_declared():
    layer = keras.layers.Normalization()
    layer.adapt(X)
    with pytest.raises(ValueError, match=r"tfdp\.public"):
        tfdp.features(layer, X)
    assert tfdp.features(tfdp.public(layer), X).shape == X.shape


@pytest.mark.parametrize("pairs", [lambda x: x[::-1], lambda x: tf.roll(x, 8, 0), lambda x: tf.cumsum(x, 0)])
def test_features_of_records_that_meet_far_apart_are_refused(pairs):
    with pytest.raises(ValueError, match="other records"):
        tfdp.features(keras.layers.Lambda(lambda x: x + pairs(x), name="meeting"), X)


def test_where_no_proof_is_found_features_are_measured():
    def rounded(x):  # by an operation that no rule is written for
        return tf.quantization.fake_quant_with_min_max_args(x)

    def meeting(x):  # its range is that of all records
        return tf.quantization.quantize_and_dequantize_v2(x, 0.0, 0.0, range_given=False)

    for one in (rounded, meeting):
        assert prove_rows(one, tf.TensorSpec((None, 3))).status == "unknown"
    np.testing.assert_allclose(tfdp.features(keras.layers.Lambda(rounded), X), rounded(X))
    with pytest.raises(ValueError, match="other records"):
        tfdp.features(keras.layers.Lambda(meeting), X)


def test_features_of_a_frozen_paid_layer_are_refused_and_of_a_fresh_one_are_not():
    model = fit(private(tfdp.layers.ClippedDense(16), tfdp.layers.ClippedDense(3)))
    model.layers[0].trainable = False
    with pytest.raises(ValueError, match="ledger"):
        tfdp.features(model.layers[0], X)
    assert tfdp.features(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), X).shape == (32, 2)


def test_a_served_model_of_three_weights_brings_what_they_cost():
    model = fit(private(tfdp.layers.ClippedDense(1)), Y[:, :1])
    assert tfdp.make_private(model.to_keras()).ledger.updates == model.ledger.updates > 0


def test_weights_that_came_without_their_cost_are_put_back(tmp_path):
    trained = fit(private(tfdp.layers.ClippedDense(3)))
    keras.Model(trained.inputs, trained.outputs).save_weights(tmp_path / "plain.weights.h5")
    other = private(tfdp.layers.ClippedDense(3))
    before = other.get_weights()
    for options in ({}, {"skip_mismatch": True}):
        with pytest.raises(ValueError, match="ledger"):
            other.load_weights(tmp_path / "plain.weights.h5", **options)
        for one, kept in zip(other.get_weights(), before, strict=True):
            np.testing.assert_array_equal(one, kept)
    assert other.privacy_statement(1e-2).epsilon == 0.0


@pytest.mark.parametrize("again", ["saved", "wrapped", "copied"])
def test_weights_without_their_cost_stay_so_in_what_is_made_of_them(tmp_path, again):
    ways = {
        "saved": lambda model: model.save(tmp_path / "other.keras"),
        "wrapped": lambda model: tfdp.PrivateModel(model.inputs, model.outputs).privacy_statement(1e-2),
        "copied": lambda model: copy.deepcopy(model).privacy_statement(1e-2),
    }
    other = private(tfdp.layers.ClippedDense(3))
    other._privacy.unpaid = True  # as Keras' own functions leave it, that load past the model's methods
    with pytest.raises(ValueError, match="the ledger saved with them was not"):
        ways[again](other)
