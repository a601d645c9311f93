"""A small search by `random_search`, for tests that vary one thing of it."""

import keras
import numpy as np

import tfdp_layers as tfdp
from tfdp_layers.tuning import LogUniform, random_search

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 5)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)
PUBLIC = (X[:32].copy(), Y[:32].copy())
SPACE = {"rate": LogUniform(0.01, 1.0), "clip": [0.5, 2.0]}


def build(settings):
    model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(
        keras.optimizers.SGD(settings.get("rate", 0.1)), l2_norm_clip=settings.get("clip", 1.0)
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)])
    return model


def found(build=build, space=SPACE, **options):
    options = {
        "budget": (3.0, 1e-3),
        "objective": "val_accuracy",
        "validation_data": PUBLIC,
        "batch_size": 32,
        "epochs": 1,
        "verbose": 0,
        "trials": 2.0,
    } | options
    if not isinstance(options["objective"], str):
        del options["validation_data"]
    return random_search(build, space, X, Y, **options)


CODES, LABELS = np.full((32, 3), 47, "int32"), np.ones((32, 1), "float32")


def looking_up(size, noise="calibrate"):
    """A model that finds no row for the code of all records where there are 47: fit sees that in the first step."""
    layers = [keras.layers.Lambda(lambda x: keras.ops.maximum(x, 0)), keras.layers.Embedding(size, 2)]
    layers = [keras.Input((3,), dtype="int32"), *layers, keras.layers.Flatten(), keras.layers.Dense(1)]
    model = tfdp.make_private(keras.Sequential(layers))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise)
    model.compile(optimizer, "mse", metrics=[keras.metrics.BinaryAccuracy(name="accuracy")])
    return model
