"""The likeliest mistakes of a first private training, by their names in docs/errors.md."""

import tempfile
import unittest.mock
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving.object_registration import GLOBAL_CUSTOM_OBJECTS

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(64, 6)).astype("float32"), np.arange(64) % 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def plain(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def private(model: Any = None, optimizer: Any = None, loss: Any = LOSS, **options: Any) -> Any:
    model = tfdp.make_private(plain() if model is None else model)
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("adam", 1.0), loss=loss, **options)
    return model


def fit(model: Any = None, x: Any = X, y: Any = Y, **options: Any) -> Any:
    model = private() if model is None else model
    return model.fit(x, y, **({"batch_size": 16, "verbose": 0} | options))


def loop(twice: bool) -> None:
    """Steps twice on a draw, or skips one."""
    with private().private_run(X, Y, batch_size=16, verbose=0) as run:
        batch = next(run)
        if twice:
            run.step(batch)
            run.step(batch)
        next(run)


def pairs() -> None:
    with private().private_run(X, Y, batch_size=16, verbose=0) as run:
        for x, y in run:
            run.step((x, y))


def spent() -> None:
    """More was released before than the budget of this fit."""
    model = private(optimizer=tfdp.optimizers.ClippedOptimizer("adam"))
    tfdp.release_metric(np.ones(64), model.ledger, stddev=0.01)
    fit(model, callbacks=[tfdp.callbacks.PrivacyBudget(1.0, 1e-4)])


def trained() -> Any:
    model = keras.Sequential(plain().layers, name="earlier")
    model.compile("sgd", LOSS)
    model.fit(X, Y, verbose=0)
    return model


def centred() -> tf.data.Dataset:
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    return batches.map(lambda x, y: (x - tf.reduce_mean(x, 0), y)).unbatch()


def windows() -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(np.cumsum(X.ravel()), 24)[:64].copy()


def adapted() -> Any:
    layer = keras.layers.Normalization()
    layer.adapt(X)
    return private(plain(layer))


def scaled_by_itself() -> tf.data.Dataset:
    layer = keras.layers.Normalization()
    layer.adapt(X)
    return PIPELINE.map(lambda x, y: (layer(x[None])[0], y))


def loaded_alone() -> None:
    """Keras loads it in a process that has not imported the library."""
    with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(GLOBAL_CUSTOM_OBJECTS):
        private().save(f"{folder}/model.keras")
        GLOBAL_CUSTOM_OBJECTS.clear()
        keras.saving.load_model(f"{folder}/model.keras")


class Own(keras.losses.Loss):
    def call(self, y: Any, p: Any) -> Any:
        return keras.ops.mean(keras.ops.square(keras.ops.cast(y, p.dtype) - p), axis=-1)


LAST, ONE = keras.layers.Dense(3), keras.layers.Dense(1)
PIPELINE = tf.data.Dataset.from_tensor_slices((X, Y))
MISTAKES = {
    "columns scaled by a fitted StandardScaler": lambda: fit(x=(X - X.mean(0)) / X.std(0)),
    "a model that Keras trained before, or a teacher that a loss reads": lambda: private(trained()),
    "MixUp, or a batch's mean, in a pipeline": lambda: tfdp.records(centred()),
    "weights that begin at the records": lambda: fit(
        private(plain(keras.layers.Dense(64, kernel_initializer=keras.initializers.Constant(X.T)))),
        epochs=0,
    ),
    "an unknown standardize": lambda: tfdp.preprocessing.vocabulary(
        ["a b"] * 5, tfdp.accounting.Ledger(), noise_multiplier=1.0, failure=1e-6, standardize="upper"
    ),
    "ids beside a shuffled pipeline": lambda: tfdp.records(PIPELINE.shuffle(64), unit_ids=Y),
    "a pipeline of batches for records": lambda: tfdp.records(PIPELINE.batch(4, drop_remainder=True)),
    "a split behind a shuffle": lambda: tfdp.records(PIPELINE.shuffle(64).take(48)),
    "-1 for a missing id": lambda: fit(
        unit_ids=np.where(np.arange(64) < 9, -1, np.arange(64) // 2), batch_size=4, epochs=0
    ),
    "ids of rows": lambda: fit(unit_ids=np.arange(64), epochs=0),
    "a source of lists": lambda: tfdp.records([[x, y] for x, y in zip(X, Y, strict=True)]),
    "ids written in several ways": lambda: tfdp.preprocessing.held_out(["p7", "p7 ", "P7", "p8"], 0.5),
    "a split inside of a split": lambda: twice_split(),
    "a range read off the records": lambda: quantile_of(X, lower=X.min(0), upper=X.max(0)),
    "NaN in the numbers of quantiles": lambda: quantile_of(np.where(X > 0, X, np.nan)),
    "one text of all people, cut into blocks": lambda: tfdp.PrivateBatches(
        *np.lib.stride_tricks.sliding_window_view(np.arange(1025) * 7 % 31, 1024).reshape(2, 64, 16),
        tfdp.sampling.Poisson(8),
    ),
    "windows of one series that overlap": lambda: tfdp.PrivateBatches(windows(), Y, tfdp.sampling.Poisson(8)),
    "a new model on the same records, by a cell that is run again say": lambda: anew(),
    "the ledger as an argument of fit": lambda: fit(ledger=tfdp.accounting.Ledger()),
    "the ledger as an argument of make_private": lambda: tfdp.make_private(plain(), ledger="ledger.json"),  # type: ignore[arg-type]
    "the noise as an argument of fit": lambda: fit(noise_multiplier=1.0),
    "the clip by the name that Opacus has": lambda: tfdp.optimizers.ClippedOptimizer("adam", max_grad_norm=1.0),
    "whose records they are, given to compile": lambda: private(unit_ids=Y),
    "a path in the place of a ledger": lambda: tfdp.accounting.epsilon("ledger.json", 1e-5),
    "a model in the place of a path": lambda: private().load_weights(private()),
    "a model of a class of your own": lambda: tfdp.make_private(
        type("Net", (keras.Model,), {"call": lambda net, x: x})()
    ),
    "an argument that is missing": lambda: tfdp.optimizers.ClippedOptimizer(),  # type: ignore[call-arg]
    "the data set's name as the ledger's second argument": lambda: tfdp.accounting.Ledger("a.json", "people"),  # type: ignore[misc]
    "a model with a train_step of its own": lambda: tfdp.make_private(with_a_step_of_its_own()),
    "a statement that is to be saved": lambda: private().privacy_statement(1e-5).save("PRIVACY.txt"),
    "the class of an optimizer": lambda: tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam),
    "the rate given to the private optimizer": lambda: tfdp.optimizers.ClippedOptimizer("adam", learning_rate=0.01),
    "a run that was not entered": lambda: list(private().private_run(X, Y, batch_size=16)),
    "a draw taken for a pair": lambda: pairs(),
    "class weights for a pipeline": lambda: fit(x=tfdp.records(PIPELINE), y=None, class_weight={0: 1.0, 1: 5.0}),
    "AUC of private records": lambda: tfdp.release_metric(0.8, private().ledger, stddev=0.01),
    "validation on the private pipeline": lambda: fit(
        x=tfdp.records(PIPELINE), y=None, validation_data=PIPELINE.batch(9)
    ),
    "labels that are strings, in a pipeline": lambda: tfdp.records(PIPELINE.map(lambda x, y: (x, tf.as_string(y)))),
    "validation data that do not fit": lambda: fit(validation_data=(X[:, :4] + 1, Y)),
    "a copy of training rows for validation": lambda: fit(epochs=0, validation_data=(X[:20].copy(), Y[:20])),
    "rows split off the training array for validation": lambda: fit(
        x=X[:40], y=Y[:40], epochs=0, validation_data=(X[40:], Y[40:])
    ),
    "rows held out of the training pipeline for validation": lambda: fit(
        x=tfdp.records(PIPELINE.skip(40)), y=None, epochs=0, validation_data=PIPELINE.take(40).batch(8)
    ),
    "an endless pipeline for validation": lambda: fit(validation_data=PIPELINE.skip(0).batch(16).repeat()),
    "x of another width than the model takes": lambda: fit(x=X[:, :4]),
    "a dict with a column of ids": lambda: fit(x={"x": X, "patient": Y}),
    "ids as the third part of a record": lambda: tfdp.records(PIPELINE.map(lambda x, y: (x, y, y))),
    "a budget without delta": lambda: tfdp.callbacks.PrivacyBudget(3.0),
    "ledger.epsilon(delta)": lambda: private().ledger.epsilon(1e-5),
    "a rate in the place of the noise": lambda: fit(
        private(optimizer=tfdp.optimizers.ClippedOptimizer("adam", 0.01)), epochs=0
    ),
    "a function as a callback": lambda: fit(callbacks=[lambda epoch, logs: None]),
    "a private model loaded without this library": loaded_alone,
    "a model file that is not there": lambda: tfdp.load_model("nowhere.keras"),
    "a normalization that was adapted": lambda: fit(adapted()),
    "an adapted layer in `dataset.map`": lambda: fit(x=tfdp.records(scaled_by_itself()), y=None),
    "a sampler's class": lambda: fit(sampling=tfdp.sampling.Poisson),
    "ids that are missing": lambda: fit(unit_ids=np.where(Y == 1, np.nan, Y)),
    "ids in another order than the records": lambda: fit(x=Table(X, 1), unit_ids=Table(Y, 2)),
    "labels that are fractions": lambda: fit(y=Y / 2),
    "AUC of class numbers": lambda: fit(private(metrics=["AUC"])),
    "a model checkpointed as .h5": lambda: fit(callbacks=[keras.callbacks.ModelCheckpoint("model.h5")]),
    "class weights counted from the labels": lambda: fit(
        y=np.minimum(Y, 1), epochs=0, class_weight={0: 64 / 44, 1: 64 / 84}
    ),
    "ids as floats": lambda: fit(unit_ids=Y.astype(float)),
    "several records of a person, without ids": lambda: fit(records_per_unit=2),
    "owners of several records": lambda: fit(owners=np.stack([np.arange(64), Y], axis=1)),
    "ids in several columns": lambda: fit(unit_ids=np.stack([np.arange(64), Y], axis=1)),
    "several rows through a layer with its own bound": lambda: fit(
        private(plain(tfdp.layers.ClippedDense(3, gradient_clip=1.0))), views=2
    ),
    "a statement without delta": lambda: private().privacy_statement(),
    "dates in the data": lambda: fit(x=np.full((64, 6), "2025-01-01", "datetime64[D]")),
    "ids beyond an embedding's table": lambda: fit(
        private(keras.Sequential([keras.Input((6,)), keras.layers.Embedding(9, 2), keras.layers.Flatten(), LAST])),
        x=np.full((64, 6), 9),
    ),
    "the budget as an argument of fit": lambda: fit(epsilon=2.7),
    "a whole model given to PrivateModel": lambda: tfdp.PrivateModel(plain()),
    "a list of batches": lambda: fit(x=[(X[:32], Y[:32]), (X[32:], Y[32:])], y=None),
    "flat labels in a loss of your own": lambda: fit(private(keras.Sequential([keras.Input((6,)), ONE]), loss=Own())),
    "metrics as the third argument of compile": lambda: private().compile(
        tfdp.optimizers.ClippedOptimizer("adam"), LOSS, ["accuracy"]
    ),
    "a training metric in a checkpoint's name": lambda: fit(
        callbacks=[keras.callbacks.ModelCheckpoint("{epoch}-{loss:.2f}.keras")]
    ),
    "rows of several lengths in a list": lambda: fit(x=[[1, 2], [3]] * 32),
    "words as labels": lambda: fit(y=np.array(["yes", "no"] * 32)),
    "epsilon of a model": lambda: tfdp.accounting.epsilon(private(), 1e-5),
    "units in one call, records in another": lambda: units_and_records(),
    "an ordinary optimizer": lambda: tfdp.make_private(plain()).compile("adam", LOSS),
    "no budget and no noise given": lambda: fit(private(optimizer=tfdp.optimizers.ClippedOptimizer("adam"))),
    "BatchNormalization": lambda: fit(private(plain(keras.layers.BatchNormalization()))),
    "a tf.data pipeline": lambda: fit(x=tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), y=None),
    "validation_split": lambda: fit(validation_split=0.2),
    "the training data for validation": lambda: fit(validation_data=(X, Y)),
    "early stopping on the training loss": lambda: fit(callbacks=[keras.callbacks.EarlyStopping("loss")]),
    "a loss over the batch": lambda: fit(private(loss=lambda y, p: keras.ops.mean((p[:, 0] - keras.ops.mean(p)) ** 2))),
    "one-hot labels, sparse loss": lambda: fit(y=np.eye(3)[Y]),
    "NaN in the data": lambda: fit(x=np.where(X > 2, np.nan, X)),
    "strings in the data": lambda: fit(x=X.astype(str)),
    "a list of lists": lambda: fit(x=X.tolist()),
    "x and y of different length": lambda: fit(y=Y[:60]),
    "batch size above the records": lambda: fit(batch_size=100),
    "a budget that is too small": lambda: fit(callbacks=[tfdp.callbacks.PrivacyBudget(0.1, 1e-5)]),
    "a budget that is spent": lambda: spent(),
    "a fractional batch size": lambda: fit(batch_size=2.5),
    "a model that is not built": lambda: fit(tfdp.make_private(keras.Sequential([keras.layers.Dense(3)]))),
    "fit before compile": lambda: fit(tfdp.make_private(plain())),
    "physical_batch_size of 0": lambda: fit(physical_batch_size=0),
    "delta that is too large": lambda: tfdp.callbacks.PrivacyBudget(epsilon=1.0, delta=1.0),
    "epsilon 0": lambda: tfdp.callbacks.PrivacyBudget(epsilon=0.0, delta=1e-5),
    "train_on_batch": lambda: private().train_on_batch(X[:4], Y[:4]),
    "a draw stepped twice": lambda: loop(twice=True),
    "a draw that is skipped": lambda: loop(twice=False),
    "a custom layer that uses weights in an unknown way": lambda: fit(private(plain(Scaling()))),
    "an unknown sampler": lambda: fit(sampling="poisson"),
    "correlated noise on Poisson draws": lambda: fit(
        private(optimizer=tfdp.optimizers.ClippedOptimizer("adam", 1.0, noise=tfdp.noise.Correlated()))
    ),
    "a reshuffled pipeline as Cyclic": lambda: tfdp.declare_sampling(
        tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(16), tfdp.sampling.Cyclic(16), examples=64
    ),
    "an optimizer wrapped twice": lambda: tfdp.optimizers.ClippedOptimizer(
        tfdp.optimizers.ClippedOptimizer("adam", 1.0), 1.0
    ),
    "gradient accumulation by Keras": lambda: tfdp.optimizers.ClippedOptimizer(
        keras.optimizers.Adam(gradient_accumulation_steps=4), 1.0
    ),
    "sparsity_preserving without a large table": lambda: fit(
        private(optimizer=tfdp.optimizers.ClippedOptimizer("adam", 1.0, sparsity_preserving=True))
    ),
    "a negative noise multiplier": lambda: tfdp.optimizers.ClippedOptimizer("adam", -1.0),
    "add_loss over the batch": lambda: fit(private(plain(keras.layers.ActivityRegularization(0.1)))),
    "calibrate with arguments exchanged": lambda: tfdp.accounting.calibrate_noise_multiplier(
        1.0, 1e-5, 128, 60000, 1000
    ),
    "sample weights for positions": lambda: fit(sample_weight=np.ones((64, 2))),
    "KerasTuner over private models": lambda: fit(callbacks=[of_keras_tuner()]),
    "y forgotten": lambda: fit(y=None),
    "a label under another name": lambda: fit(two_outputs(), y={"ill": Y, "aged": Y}),
    "labels of 1 and 2, or of -1 and 1": lambda: fit(
        private(head(), loss="binary_crossentropy"), y=np.where(Y == 1, 1, -1)
    ),
    "a hinge loss of Keras": lambda: fit(private(head(), loss="hinge"), y=np.where(Y == 1, 1.0, -1.0)),
    "numbers as Python objects": lambda: fit(x=X.astype(object)),
    "all layers frozen": lambda: fit(private(frozen())),
    "a layer unfrozen after a fit": lambda: fit(unfrozen()),
    "class weights 'balanced'": lambda: fit(class_weight="balanced"),
    "class weights for text labels": lambda: fit(class_weight={"ill": 2.0}),
    "other units of the same records": lambda: other_units(),
    "a folder in the place of weights": lambda: private().load_weights("."),
    "a ledger of a class of your own": lambda: setattr(private(), "ledger", OwnLedger()),
    "a private model saved as .h5": lambda: private().save("model.h5"),
    "a folder that is there saved to": lambda: private().save(".", zipped=False),
    "weights saved to several files": lambda: private().save_weights("name.weights.json", max_shard_size=1),
}


class Table:
    """As pandas has one: an array, and an index that says which rows these are."""

    iloc = None

    def __init__(self, values: Any, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(64)
        self.values, self.shape, self.index = values[order], values.shape, Order(order.tolist())

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.values


class Order(list[int]):
    equals = list.__eq__


class OwnLedger(tfdp.accounting.Ledger):
    """A ledger that would tell somebody of each reservation."""


def head() -> Any:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])


def two_outputs() -> Any:
    inputs = keras.Input((6,))
    return private(keras.Model(inputs, [keras.layers.Dense(3, name=name)(inputs) for name in ("ill", "old")]))


def with_a_step_of_its_own() -> Any:
    kind = type("Own", (keras.Model,), {"train_step": lambda self, data: {}})
    inputs = keras.Input((6,))
    return kind(inputs, keras.layers.Dense(3)(inputs))


def frozen() -> Any:
    model = plain()
    model.trainable = False
    return model


def unfrozen() -> Any:
    model = private(plain(keras.layers.Dense(4, trainable=False)))
    model.optimizer.build(model.trainable_variables)  # as the first fit does
    model.layers[1].trainable = True
    return model


def quantile_of(values: np.ndarray, lower: Any = 0.0, upper: Any = 1.0) -> None:
    tfdp.preprocessing.quantiles(
        values, tfdp.accounting.Ledger(), [0.5], lower=lower, upper=upper, noise_multiplier=9.0
    )


def twice_split() -> None:
    """Whoever was not held out is not held out."""
    people = np.arange(500)
    tfdp.preprocessing.held_out(people[~tfdp.preprocessing.held_out(people)])


def units_and_records() -> None:
    """Quantiles of records, charged to a ledger that protects units."""
    ledger = tfdp.accounting.Ledger()
    settings: dict[str, Any] = {"lower": 0.0, "upper": 1.0, "noise_multiplier": 9.0}
    tfdp.preprocessing.quantiles(X, ledger, [0.5], unit_ids=Y, **settings)
    tfdp.preprocessing.quantiles(X, ledger, [0.5], **settings)


def anew() -> None:
    """A new model, with a ledger of its own, on records that another was trained on."""
    fit(x=X + 1.0)
    fit(x=X + 1.0)


def other_units() -> None:
    ledger = tfdp.accounting.Ledger()
    settings: dict[str, Any] = {"lower": 0.0, "upper": 1.0, "noise_multiplier": 9.0}
    tfdp.preprocessing.quantiles(X, ledger, [0.5], unit_ids=Y, **settings)
    tfdp.preprocessing.quantiles(X, ledger, [0.5], unit_ids=np.arange(64) % 5, **settings)


def of_keras_tuner() -> Any:
    """A callback that KerasTuner gives the model of each trial."""
    kind = type("TunerCallback", (keras.callbacks.Callback,), {"__module__": "keras_tuner.src.engine.tuner_utils"})
    return kind()


@keras.saving.register_keras_serializable()
class Scaling(keras.layers.Layer):
    """A layer of the user's own, with a weight."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return keras.ops.minimum(x, self.w)
