"""Losses and metrics of `evaluate` and validation at outputs of one number a record: those of a column of numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.watched import model_of

RNG = np.random.default_rng(0)
X, PUBLIC = (RNG.normal(size=(20, 3)).astype("float32") for _ in range(2))
Y, OTHER = RNG.integers(0, 2, 20).astype("float32"), RNG.normal(size=(20, 2)).astype("float32")
WEIGHTS = np.linspace(0, 2, 20).astype("float32")


def network(flat, several=False):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    column = keras.layers.Dense(1, "sigmoid", name="score")(inputs)
    output = keras.layers.Reshape((), name="flat")(column) if flat else column
    return keras.Model(inputs, {"wide": keras.layers.Dense(2)(inputs), "score": output} if several else output)


def compiled(model, loss="binary_crossentropy", **options):
    """The rate is 0, so that the numbers of every step and evaluation are those of one model."""
    options = {"metrics": ["accuracy", "mae"], "weighted_metrics": ["mse"]} | options
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.0), 1.0, l2_norm_clip=1), loss, **options)
    return model


def private(flat, **options):
    return compiled(tfdp.make_private(network(flat)), **options)


def evaluated(model, y=Y, weights=None):
    """20 records in batches of 8: the last one is smaller."""
    return model.evaluate(X, y, sample_weight=weights, batch_size=8, verbose=0, return_dict=True)


def by_hand(model, x=X, weights=WEIGHTS):
    p = model.predict(x, verbose=0)
    losses = -np.log(np.where(Y == 1, p, 1 - p))
    found = {"accuracy": np.mean((p > 0.5) == Y), "mae": np.mean(np.abs(p - Y)), "loss": np.mean(weights * losses)}
    return found | {"mse": np.average((p - Y) ** 2, weights=weights)}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=str)
def test_evaluate_gives_the_numbers_of_all_records_whatever_the_batches(options):
    model = private(True, **options)
    assert_same(evaluated(model, weights=WEIGHTS), by_hand(model))


@pytest.mark.parametrize("labels", [Y, Y[:, None]], ids=["(n,)", "(n, 1)"])
def test_without_weights_and_with_labels_of_either_shape(labels):
    model = private(True, run_eagerly=True)
    assert_same(evaluated(model, labels), by_hand(model, weights=np.ones(20)))


@pytest.mark.slow
def test_a_fit_after_evaluate_logs_what_it_would_without_and_validates_with_weights():
    model = private(True)
    evaluated(model)
    logs = model.fit(X, Y, sampling=tfdp.sampling.Partition(20), validation_data=(PUBLIC, Y, WEIGHTS), verbose=0)
    logs = {name: value[0] for name, value in logs.history.items()}
    assert_same({n: v for n, v in logs.items() if not n.startswith("val_")}, by_hand(model, weights=np.ones(20)))
    assert_same({n[4:]: v for n, v in logs.items() if n.startswith("val_")}, by_hand(model, PUBLIC))


@pytest.mark.slow
def test_of_a_loaded_model_and_under_a_strategy(tmp_path):
    model = private(True)
    expected = by_hand(model)
    model.save(tmp_path / "model.keras")
    assert_same(evaluated(keras.models.load_model(tmp_path / "model.keras"), weights=WEIGHTS), expected)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = private(True)
    assert_same(evaluated(model, weights=WEIGHTS), expected)


def test_one_flat_output_of_several_is_as_a_column():
    found = []
    for flat in (True, False):
        model = compiled(
            tfdp.make_private(network(flat, several=True)),
            {"score": "binary_crossentropy", "wide": "mse"},
            metrics={"score": ["accuracy", "mae"], "wide": ["mae"]},
            weighted_metrics={"score": ["mse"], "wide": ["mse"]},
            run_eagerly=True,
        )
        found.append(evaluated(model, {"score": Y, "wide": OTHER}, WEIGHTS))
    assert_same(*found)


@pytest.mark.parametrize(
    "loss",
    [keras.losses.MeanSquaredError(reduction="sum"), "huber", keras.losses.poisson],
    ids=["an object", "a name", "a function"],
)
def test_losses_are_those_of_a_column(loss):
    options = {"loss": loss, "metrics": [keras.metrics.AUC(name="auc")], "weighted_metrics": None, "run_eagerly": True}
    assert_same(*(evaluated(private(flat, **options), weights=WEIGHTS) for flat in (True, False)))


def test_losses_and_metrics_of_ones_own_get_the_output_as_it_is():
    def own(y, p):
        assert len(y.shape) == len(p.shape) == 1
        return keras.ops.square(y - p)

    model = private(True, loss=own, metrics=[own], weighted_metrics=None)
    errors = (model.predict(X, verbose=0) - Y) ** 2
    assert_same(evaluated(model, weights=WEIGHTS), {"loss": np.mean(WEIGHTS * errors), "own": np.mean(errors)})


def test_other_outputs_are_evaluated_as_keras_does():
    options = {"loss": "binary_crossentropy", "metrics": ["accuracy", "mae"], "weighted_metrics": ["mse"]}
    plain = network(False)
    plain.compile("sgd", **options)
    assert_same(evaluated(private(False, **options), weights=WEIGHTS), evaluated(plain, weights=WEIGHTS))


class RemembersItself(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred)

    def reset_state(self):
        self.last = float(self.total)
        super().reset_state()


def test_a_metric_whose_reset_uses_its_own_number_is_told_why_it_cannot():
    """It ended in "'SymbolicTensor' object has no attribute 'numpy'"."""
    model = model_of()
    model.compile(model.optimizer, "mse", metrics=[RemembersItself(name="mean")])
    with pytest.raises(ValueError, match=r"reset_state of a metric uses a number .* Let it only assign constants"):
        model.fit(np.ones((8, 3)), np.zeros((8, 1)), batch_size=4, epochs=1, verbose=0)


class MeanOfLabels(keras.metrics.Metric):
    """One that takes no notice of weights, as Keras lets it; of no rows at all its mean is no number."""

    def __init__(self, **options):
        super().__init__(**options)
        self.total, self.calls = (self.add_weight(name=name, initializer="zeros") for name in ("total", "calls"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.mean(keras.ops.cast(y_true, "float32")))
        self.calls.assign_add(1.0)

    def result(self):
        return self.total / self.calls


@pytest.mark.parametrize(("batch_size", "low"), [(16, 1.0), (1, 0.2)])
def test_a_metric_that_takes_no_weights_counts_no_padding(batch_size, low):
    """Rows are filled up beside a normalization: it was 0.69 of ones. Of a draw of nobody padding is all there is."""
    layers = [keras.Input((3,)), keras.layers.LayerNormalization(), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    own = MeanOfLabels(name="own")
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse", metrics=[own, "mae"])
    found = model.fit(np.ones((64, 3)), np.ones((64, 1)), batch_size=batch_size, verbose=0).history["own"]
    assert low <= found[0] <= 1.0
