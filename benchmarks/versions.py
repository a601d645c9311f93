"""Ordinary uses, each trained for a few steps: does this environment's Python, TensorFlow and Keras carry them?

Run: python benchmarks/versions.py [USE ...]

Random records, 128 of them, a budget of epsilon 3 at delta 1e-3. Prints the versions, and for each use "ok" or the
error; needs the extras `tensorboard` and pandas for the uses that name them. Exits with 1 where one failed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp

kl, optimizers = keras.layers, tfdp.optimizers
DELTA, COUNT = 1e-3, 128
RNG = np.random.default_rng(0)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = RNG.normal(size=(COUNT, 6)).astype("float32"), RNG.integers(0, 3, COUNT)
IMAGES = RNG.normal(size=(COUNT, 12, 12, 2)).astype("float32")
SERIES = RNG.normal(size=(COUNT, 7, 6)).astype("float32")
TOKENS = RNG.integers(1, 20, (COUNT, 7))


class Scale(kl.Layer):
    """A layer of one's own, without a formula."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


def net(*layers: Any, x: Any = X) -> keras.Model:
    return keras.Sequential([keras.Input(x.shape[1:]), *layers, kl.Dense(3)])


def mlp() -> keras.Model:
    return net(kl.Dense(8, activation="relu"))


def trained(model: Any, x: Any = X, optimizer: Any = None, compiled: Any = None, epochs: int = 2, **fit: Any) -> Any:
    """The private model after `fit`, which has to keep to the budget."""
    private = model if hasattr(model, "ledger") else tfdp.make_private(model)
    chosen = optimizer or optimizers.ClippedOptimizer("adam")
    private.compile(chosen, LOSS, metrics=["accuracy"], **(compiled or {}))
    callbacks = [tfdp.callbacks.PrivacyBudget(3.0, DELTA), *fit.pop("callbacks", [])]
    y = fit.pop("y", Y)
    private.fit(x, y, batch_size=32, epochs=epochs, verbose=0, callbacks=callbacks, **fit)
    assert 0.0 < private.privacy_statement(DELTA).epsilon <= 3.0
    return private


def convolutions() -> Any:
    first = [kl.Conv2D(4, 3, activation="relu"), kl.MaxPooling2D(), kl.GroupNormalization(2)]
    return trained(net(*first, kl.SeparableConv2D(4, 3), kl.GlobalAveragePooling2D(), x=IMAGES), IMAGES)


def attention() -> Any:
    inputs = keras.Input(SERIES.shape[1:])
    hidden = kl.LayerNormalization()(kl.MultiHeadAttention(2, 3)(inputs, inputs) + inputs)
    return trained(keras.Model(inputs, kl.Dense(3)(kl.GlobalAveragePooling1D()(hidden))), SERIES)


def bounded(*layers: Any, x: Any = X) -> Any:
    model = tfdp.PrivateSequential([keras.Input(x.shape[1:]), *layers])
    return trained(model, x, optimizers.NoisyOptimizer("adam"))


def clips() -> Any:
    layers, two = tfdp.layers, {"input_clip": 3.0, "upstream_clip": 1.0}
    return bounded(layers.ClippedConv2D(4, 3, **two), kl.Flatten(), layers.ClippedDense(3, **two), x=IMAGES)


def exact() -> Any:
    dense = tfdp.layers.ClippedDense
    return bounded(dense(8, activation="relu", gradient_clip=1.0), dense(3, gradient_clip=1.0))


def lipschitz() -> Any:
    dense = tfdp.layers.LipschitzDense
    return bounded(dense(8, input_clip=1.0), kl.ReLU(), dense(3, upstream_clip=1.0))


def saved_and_loaded() -> None:
    path, model = f"{tempfile.mkdtemp()}/model.keras", trained(mlp())
    model.save(path)
    loaded = tfdp.load_model(path)
    assert loaded.ledger.steps == model.ledger.steps
    loaded.fit(X, Y, batch_size=32, epochs=1, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(6.0, DELTA)])
    model.to_keras().save(path)
    keras.models.load_model(path)


def with_callbacks() -> Any:
    folder = tempfile.mkdtemp()
    kept = [keras.callbacks.ModelCheckpoint(f"{folder}/m.keras"), keras.callbacks.EarlyStopping(monitor="val_loss")]
    logged = tfdp.callbacks.PrivacyTensorBoard(folder, delta=DELTA)
    return trained(mlp(), validation_data=(X[:40] + 1.0, Y[:40]), callbacks=[*kept, logged])


def half() -> Any:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        return trained(mlp())
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


def pipeline() -> Any:
    return trained(mlp(), tfdp.records(tf.data.Dataset.from_tensor_slices((X, Y))), y=None)


def loop() -> None:
    model = tfdp.make_private(mlp())
    model.compile(optimizers.ClippedOptimizer("adam"), LOSS)
    budget = tfdp.callbacks.PrivacyBudget(3.0, DELTA)
    with model.private_run(X, Y, batch_size=32, epochs=1, callbacks=[budget], verbose=0) as run:
        for batch in run:
            run.step(batch)


def pandas_tables() -> Any:
    import pandas as pd

    return trained(mlp(), pd.DataFrame(X, columns=list("abcdef")), y=pd.Series(Y))


def lora() -> Any:
    model = mlp()
    model.layers[0].enable_lora(2)
    return trained(model)


def proof() -> None:
    model = tfdp.make_private(mlp())
    model.compile(optimizers.ClippedOptimizer("adam"), LOSS)
    assert tfdp.check_independence(model).proved


USES: dict[str, Callable[[], Any]] = {
    "dense": lambda: trained(net(kl.Dense(8, activation="relu"), kl.Dropout(0.2), kl.LayerNormalization())),
    "convolutions": convolutions,
    "lstm": lambda: trained(net(kl.Embedding(20, 4, mask_zero=True), kl.Bidirectional(kl.LSTM(4)), x=TOKENS), TOKENS),
    "gru": lambda: trained(net(kl.GRU(4), x=SERIES), SERIES),
    "attention": attention,
    "two clips": clips,
    "exact": exact,
    "lipschitz": lipschitz,
    "tanh": lambda: trained(mlp(), optimizer=optimizers.TanhFilteredOptimizer("sgd")),
    "adadp": lambda: trained(mlp(), optimizer=optimizers.AdaDPOptimizer(0.01)),
    "adaptive": lambda: trained(mlp(), optimizer=optimizers.ClippedOptimizer("sgd", clipping="adaptive")),
    "pieces": lambda: trained(mlp(), physical_batch_size=8),
    "units": lambda: trained(mlp(), unit_ids=np.arange(COUNT) // 2),
    "xla": lambda: trained(mlp(), compiled={"jit_compile": True}),
    "eager": lambda: trained(mlp(), compiled={"run_eagerly": True}, epochs=1),
    "several steps a call": lambda: trained(mlp(), compiled={"steps_per_execution": 2}),
    "saved and loaded": saved_and_loaded,
    "callbacks": with_callbacks,
    "a layer of one's own": lambda: trained(net(Scale())),
    "pipeline": pipeline,
    "loop": loop,
    "16 bits": half,
    "ordinary epochs": lambda: trained(
        mlp(),
        sampling=tfdp.sampling.Cyclic(32),
        optimizer=optimizers.ClippedOptimizer("sgd", noise=tfdp.noise.Correlated()),
    ),
    "pandas": pandas_tables,
    "lora": lora,
    "proof": proof,
    "batch normalization replaced": lambda: trained(
        tfdp.replace_batch_normalization(net(kl.Conv2D(4, 3), kl.BatchNormalization(), kl.Flatten(), x=IMAGES)), IMAGES
    ),
}


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    print(f"Python {sys.version.split()[0]}, TensorFlow {tf.__version__}, Keras {keras.__version__}")
    failed = 0
    for name in names or list(USES):
        try:
            USES[name]()
            print(f"ok      {name}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{failed} of {len(names or USES)} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
