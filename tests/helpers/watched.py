"""A small private model and records that a watched `fit` takes."""

import keras
import numpy as np

import tfdp_layers as tfdp

X, Y = np.ones((8, 3), np.float32), np.zeros((8, 1), np.float32)
PUBLIC = (np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32))


def model_of(output="head", **options):
    inputs = keras.Input((3,))
    clips = {"input_clip": 1.0, "upstream_clip": 0.1}
    model = tfdp.PrivateModel(inputs, tfdp.layers.ClippedDense(1, name=output, **clips)(inputs))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", metrics=["mae"], **options)
    return model
