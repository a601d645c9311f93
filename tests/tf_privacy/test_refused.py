"""What would make a stated number wrong is refused: tensorflow-privacy's models with a ledger, in their environment."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

pytest.importorskip("tensorflow_privacy")
from helpers.tf_privacy_models import (
    FAST,
    KINDS,
    MEAN,
    PER_RECORD,
    X,
    Y,
    draws,
    flat,
    kl,
    layers,
    of_optimizer,
    tfp,
    tk,
)

DELTA = 1e-3


class OwnStep(tk.Model):
    def train_step(self, data):
        return {}


class OtherNoise(tfp.DPSequential):
    def _reduce_per_example_grads(self, stacked):
        return tf.reduce_sum(stacked, 0)


class Adding(kl.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_mean(inputs))
        return inputs


def compiled(model, optimizer=None, loss=PER_RECORD, **options):
    tfdp.tf_privacy.with_ledger(model)
    model.compile(optimizer or tfp.DPKerasSGDOptimizer(0.5, 1.5, learning_rate=0.1), loss, **options)
    return model


def test_what_a_tool_put_in_the_place_of_keras_fit_has_no_part_in_it(monkeypatch):
    saved, fit = [], tk.Model.fit

    def logs_by_itself(self, *args, callbacks=None, **kwargs):
        best = tk.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: saved.append(logs["loss"]))
        return fit(self, *args, callbacks=[*(callbacks or []), best], **kwargs)

    model = around()
    monkeypatch.setattr(tk.Model, "fit", logs_by_itself)
    with pytest.warns(UserWarning, match="fit was replaced"):
        model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert model.ledger.steps
    assert not saved


def around(*more, batch_size=None):
    return compiled(tk.Sequential([tk.Input((6,), batch_size), *more, kl.Dense(3)]))


def own_step():
    inputs = tk.Input((6,))
    return compiled(OwnStep(inputs, kl.Dense(3)(inputs)))


def shared():
    inputs, layer = tk.Input((6,)), kl.Dense(6)
    model = tfp.DPModel(0.5, 1.5, inputs=inputs, outputs=kl.Dense(3)(layer(layer(inputs))), **FAST)
    return compiled(model, tk.optimizers.SGD(), MEAN)


def tree():
    model = tk.Sequential(layers())
    return compiled(model, tfp.DPFTRLTreeAggregationOptimizer(0.5, 1.5, model, learning_rate=0.1))


def microbatches(number):
    return of_optimizer(tfp.DPKerasSGDOptimizer, num_microbatches=number)


class OfOtherRows(tk.losses.Loss):
    def call(self, y_true, y_pred):
        return PER_RECORD(y_true, y_pred)[:1]


def stopping(monitor):
    return {"callbacks": [tk.callbacks.EarlyStopping(monitor)]}


def ordinary(optimizer=None, loss=PER_RECORD, **options):
    return compiled(tk.Sequential(layers()), optimizer, loss, **options)


def without_noise():
    return tfp.GenericDPSGDOptimizer(tfp.NoPrivacySumQuery(), learning_rate=0.1)


def stateful():
    return kl.Reshape((6, 1)), kl.LSTM(2, stateful=True)


def pipeline():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(20)


plain = KINDS["optimizer"]
DRAWN = {"x": draws, "y": None, "batch_size": None}
REFUSED = {
    "a plain optimizer": (lambda: ordinary("sgd"), {}, "it is not known that"),
    "no noise": (lambda: ordinary(without_noise()), {}, "only a GaussianSumQuery"),
    "trees": (tree, {}, "only a GaussianSumQuery"),
    "both": (lambda: compiled(tfp.DPSequential(0.5, 1.5, layers=layers())), {}, "ordinary Keras optimizer"),
    "a step of one's own": (own_step, {}, "train_step of its own"),
    "another noise": (lambda: compiled(OtherNoise(0.5, 1.5, layers=layers()), "sgd", MEAN), {}, "not DPModel's own"),
    "microbatches of two": (lambda: microbatches(10), {}, "num_microbatches=10"),
    "one microbatch": (lambda: microbatches(1), {}, "num_microbatches=1"),
    "a last batch": (lambda: microbatches(30), {"batch_size": 30}, "The last batch of an epoch has 20"),
    "microbatches of empty rows": (lambda: microbatches(20), DRAWN, "rows of a"),
    "one loss for the batch": (lambda: ordinary(loss=MEAN), {}, "one number for the whole batch"),
    "a loss of other rows": (lambda: ordinary(loss=OfOtherRows(reduction="none")), {}, "one entry, or row"),
    "batch normalization": (lambda: around(kl.BatchNormalization()), {}, "writes a state"),
    "a state between batches": (lambda: around(*stateful(), batch_size=20), {}, "writes a state"),
    "an activity regularizer": (lambda: around(kl.Dense(3, activity_regularizer="l2")), {}, "a loss of its inputs"),
    "a loss of a layer": (lambda: around(Adding()), {}, "a loss of its inputs"),
    "a regularizer of empty rows": (lambda: around(kl.Dense(3, kernel_regularizer="l2")), DRAWN, "regularizers"),
    "a shared layer in the registry": (shared, {}, "used more than once"),
    "several steps at once": (lambda: ordinary(steps_per_execution=2), {}, "steps_per_execution=1"),
    "XLA around the optimizer": (lambda: ordinary(jit_compile=True), {}, "jit_compile"),
    "a split": (plain, {"validation_split": 0.1}, "carves the validation data"),
    "the training data": (plain, {"validation_data": (X, Y)}, "private training data itself"),
    "stopping by the loss": (plain, stopping("loss"), "without noise"),
    "stopping without validation": (plain, stopping("val_loss"), "no validation_data"),
    "a restored epoch": (plain, {"callbacks": [tk.callbacks.BackupAndRestore("nowhere")]}, "in the middle of an epoch"),
    "a pipeline": (plain, DRAWN | {"x": pipeline}, "how its batches are drawn is unknown"),
    "no shuffling": (plain, {"shuffle": False}, "whole passes over shuffled arrays"),
    "parts of epochs": (plain, {"steps_per_epoch": 3}, "whole passes over shuffled arrays"),
    "labels beside draws": (plain, {"x": draws, "batch_size": None}, r"leave \['y'\] out"),
}


@pytest.mark.parametrize(("make", "arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_make_the_number_wrong_is_refused_before_anything_is_released(make, arguments, message):
    model = make()
    before = flat(model)
    arguments = {"x": X, "y": Y, "batch_size": 20, "verbose": 0} | arguments
    if callable(arguments["x"]):
        arguments["x"] = arguments["x"]()
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        model.fit(**arguments)
    np.testing.assert_array_equal(flat(model), before)
    assert model.current_release is None


def test_noise_that_changes_is_refused():
    model = of_optimizer(tfp.VectorizedDPKerasSGDOptimizer)

    def less(batch, logs):
        model.optimizer._noise_multiplier = 0.1

    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        model.fit(X, Y, batch_size=20, verbose=0, callbacks=[tk.callbacks.LambdaCallback(on_batch_end=less)])
    assert model.ledger.steps == int(model.optimizer.iterations) == 1
    with pytest.raises(ValueError, match="Make a new optimizer"):
        model.fit(X, Y, batch_size=20, verbose=0)


def test_steps_that_no_ledger_counts_are_refused():
    model = KINDS["optimizer"]()
    with pytest.raises(RuntimeError, match="inside of fit only"):
        model.train_on_batch(X[:20], Y[:20])
    assert int(model.optimizer.iterations) == 0
    with pytest.raises(ValueError, match="once"):
        tfdp.tf_privacy.with_ledger(model)
    other = tfp.DPSequential(0.5, 1.5, layers=layers())
    other.compile(tk.optimizers.SGD(), MEAN)
    with pytest.raises(ValueError, match="with_ledger"):
        other.fit(X, Y, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(1.0, DELTA)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.fit(X, Y, batch_size=200, verbose=0)
    with pytest.raises(ValueError, match="before it had a ledger"):
        tfdp.tf_privacy.with_ledger(other)
