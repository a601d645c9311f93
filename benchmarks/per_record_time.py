"""Step time of methods that bound each record's gradient of ordinary layers, over ordinary Keras training.

Run: python benchmarks/per_record_time.py [--models m1,m2,m3,m4,lstm,stacked,convlstm]
         [--methods flat,per_layer,automatic,adaptive,tanh,adadp] [--rounds 5] [--steps 12] [--json]

As `step_time.py`: through `fit`'s compiled step, noise included, SGD, in interleaved rounds; AdaDP takes its own step,
and is timed with its clamps in force. m4: a transformer block (vocabulary 10,000, 128 tokens, width 64, two heads, 674k
weights) at batch 64; the others as there, at batch 256. lstm: `LSTM(64)` on 32 steps of 32 numbers, stacked: the same
cell in `StackedRNNCells`, convlstm: `ConvLSTM2D(8, 3)` on 6 images of 16 x 16: not among those timed by default.
"""

import json
import statistics
from typing import Any

import keras
import numpy as np
from absl import app, flags
from step_time import interleaved, layers, random_records

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
METHODS = ("flat", "per_layer", "automatic", "adaptive", "tanh", "adadp")
FLAGS.set_default("models", ["m1", "m2", "m3", "m4"])
FLAGS.set_default("rounds", 5)
flags.DEFINE_list("methods", list(METHODS), "Methods to time.")


def network(name: str) -> keras.Model:
    """An ordinary benchmark network."""
    kl = keras.layers
    if name in ("lstm", "stacked"):
        cell = kl.LSTM(64) if name == "lstm" else kl.RNN(kl.StackedRNNCells([kl.LSTMCell(64)]))
        return keras.Sequential([keras.Input((32, 32)), cell, kl.Dense(10)])
    if name == "convlstm":
        return keras.Sequential([keras.Input((6, 16, 16, 1)), kl.ConvLSTM2D(8, 3), kl.Flatten(), kl.Dense(10)])
    if name != "m4":
        return keras.Sequential(layers(name, False, ""))
    tokens = keras.Input((128,), dtype="int32")
    hidden = kl.Embedding(10_000, 64)(tokens)
    normal = kl.LayerNormalization()(hidden)
    hidden = kl.Add()([hidden, kl.MultiHeadAttention(2, 32)(normal, normal)])
    wide = kl.Dense(128, activation="relu")(kl.LayerNormalization()(hidden))
    hidden = kl.Add()([hidden, kl.Dense(64)(wide)])
    return keras.Model(tokens, kl.Dense(2)(kl.GlobalAveragePooling1D()(hidden)))


def optimizer(method: str) -> Any:
    """The private optimizer of a method, at noise multiplier 1."""
    if method == "adadp":
        # Above a threshold of 0 from the first step on that releases anything.
        return tfdp.optimizers.AdaDPOptimizer(0.001, 1.0, variance_threshold=0.0, scale_estimator="query")
    sgd = keras.optimizers.SGD(0.01)
    if method == "tanh":
        return tfdp.optimizers.TanhFilteredOptimizer(sgd, 1.0)
    return tfdp.optimizers.ClippedOptimizer(sgd, 1.0, clipping=method)


def compare(name: str) -> list[dict[str, Any]]:
    """Interleaved timings of the methods on one network."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = network(name)
    plain.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    models = [plain]
    for method in FLAGS.methods:
        models.append(tfdp.make_private(network(name)))
        models[-1].compile(optimizer(method), loss)
    batch_size = 64 if name == "m4" else FLAGS.batch_size
    count = batch_size * (FLAGS.steps + 2)
    x, y = random_records(() if name == "m4" else plain.input_shape[1:], count, plain.output_shape[-1])
    if name == "m4":
        x = np.random.default_rng(1).integers(0, 10_000, (count, 128), "int32")
    rounds = interleaved(models, x, y, batch_size, FLAGS.steps)
    if "adadp" in FLAGS.methods:
        assert bool(models[1 + FLAGS.methods.index("adadp")].optimizer.switched()), "timed before the switch"
    results = []
    for which, method in enumerate(FLAGS.methods, start=1):
        ratios = [times[which] / times[0] for times in rounds]
        results.append({
            "model": name,
            "method": method,
            "weights": plain.count_params(),
            "keras_ms": round(statistics.median(times[0] for times in rounds), 2),
            "private_ms": round(statistics.median(times[which] for times in rounds), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        })  # fmt: skip
    return results


def main(_: list[str]) -> None:
    results = []
    for name in FLAGS.models:
        for found in compare(name):
            results.append(found)
            timings = "keras {keras_ms:.2f} ms  private {private_ms:.2f} ms  ratio {ratio:.2f} {ratio_range}"
            print(f"{name} {found['method']:10} {timings.format(**found)}", flush=True)
    if FLAGS.json:
        print(json.dumps(results))


if __name__ == "__main__":
    app.run(main)
