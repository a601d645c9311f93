"""How far one record more moves what is computed of the others, relative to the bound, by rounding alone.

Run: python benchmarks/rounding_of_others.py [--policies float32,mixed_bfloat16,mixed_float16]

The record is NaN: alone it adds exactly 0, so whatever the sum moves by comes from the others, whose products are added
up in another order where there is a row more. Printed is the largest of all groups, seeds, clippings and records.
"""

from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_list("policies", ["float32", "mixed_bfloat16", "mixed_float16"], "Types to compute in.")
flags.DEFINE_list("records", ["3", "5", "31", "63", "301", "999"], "Other records in a batch.")
flags.DEFINE_integer("seeds", 3, "Weights and records drawn.")
layers = keras.layers
NETWORKS = {
    "Dense": ((7,), lambda: [layers.Dense(13, activation="tanh"), layers.Dense(5, activation="tanh")]),
    "Conv2D": ((7, 7, 1), lambda: [layers.Conv2D(5, 3, activation="relu"), layers.Flatten()]),
    "LSTM of 4": ((6, 3), lambda: [layers.LSTM(4)]),
    "LSTM of 5": ((6, 3), lambda: [layers.LSTM(5)]),
    "LSTM of 32": ((6, 3), lambda: [layers.LSTM(32)]),
    "GRU of 4": ((6, 3), lambda: [layers.GRU(4)]),
    "GRU of 4, 150 steps": ((150, 3), lambda: [layers.GRU(4)]),
}


def private(name: str, clipping: str) -> Any:
    """A model of weights three times as large as Keras makes them, whose gradients are clipped."""
    shape, made = NETWORKS[name]
    model = tfdp.make_private(keras.Sequential([keras.Input(shape), *made(), layers.Dense(3)]))
    bound = {} if clipping == "automatic" else {"l2_norm_clip": 1.0}
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, clipping=clipping, **bound), "mse")
    for weight in model.trainable_variables:
        weight.assign(3.0 * weight)
    return model


def moved(model: Any, records: int, rng: np.random.Generator) -> float:
    """By how many bounds a NaN record behind these moves the sum over them."""
    x = rng.normal(size=(records + 1, *model.inputs[0].shape[1:])).astype("float32")
    y = 5 * rng.normal(size=(records + 1, 3)).astype("float32")
    x[-1] = np.nan
    sums = [model.bounded_gradient_sums(x[:some], y[:some]) for some in (records, records + 1)]
    parts = [np.subtract(*(np.asarray(one, np.float64) for one in pair)) for pair in zip(*sums, strict=True)]
    each = dict(zip(map(id, model.trainable_variables), parts, strict=False))
    groups = [[each[id(one)] for one in group.variables] for group in model.sensitivities()]
    bounds = [group.bound for group in model.sensitivities()]
    return max(np.sqrt(sum(np.sum(one**2) for one in some)) / bound for some, bound in zip(groups, bounds, strict=True))


def main(_: Any) -> None:
    for policy in FLAGS.policies:
        keras.config.set_dtype_policy(policy)
        for name in NETWORKS:
            found = []
            for seed in range(FLAGS.seeds):
                keras.utils.set_random_seed(seed)
                for clipping in ("flat", "per_layer", "automatic"):
                    model, rng = private(name, clipping), np.random.default_rng(seed)
                    found += [moved(model, int(records), rng) for records in FLAGS.records]
            print(f"{policy:15} {name:20} {max(found):.2g} bounds", flush=True)


if __name__ == "__main__":
    app.run(main)
