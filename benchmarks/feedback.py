"""Direct feedback alignment against backpropagation clipping, at the same noise and the same epsilon.

Run: python benchmarks/feedback.py --out results [--dataset fashion_mnist] [--data_dir DIR] [--network dense]
         [--methods dfa,dfa_exact,backprop,backprop_tanh] [--sigmas 0.01,0.05] [--epochs 20] [--seeds 3]
     python benchmarks/feedback.py --step_time [--network dense]

The settings are those of Lee and Kifer 2020 (arXiv:2010.03701, section 5): Adam with rate 1e-3, fixed-size batches, a
replace-one sensitivity C shared equally by all layers, noise of standard deviation sigma on the mean gradient.
    dense: 784-128-256-10, batch 128, C = 2.   conv: two 5x5 convolutions of 64 channels, 384-384-10, batch 512, C = 3.
    dfa: the paper's, error clip 0.1, feedback norm 0.9, sigmoid; the certificate from sup|phi'|.
    dfa_exact: activation clips below the typical norms, and delta clipped itself, tanh, feedback norm 4.
    backprop, backprop_tanh: backpropagation clipping, sigmoid as in dfa (conv: ReLU as in the paper), or tanh.
Every epoch's test accuracy goes to OUT/feedback_NETWORK_DATASET.csv, with a plot beside it (if matplotlib is there).
"""

import csv
import math
import statistics
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers import datasets
from tfdp_layers.accounting import EpsilonCurve
from tfdp_layers.layers import ClippedConv2D, ClippedDense, FeedbackStack

FLAGS = flags.FLAGS
flags.DEFINE_string("dataset", "fashion_mnist", "fashion_mnist, mnist or cifar10.")
flags.DEFINE_string("data_dir", None, "Folder with the data set.")
flags.DEFINE_enum("network", "dense", ["dense", "conv"], "Which of the paper's networks.")
flags.DEFINE_list("methods", ["dfa", "dfa_exact", "backprop", "backprop_tanh"], "Methods to compare.")
flags.DEFINE_list("sigmas", ["0.01", "0.05"], "Noise on the mean gradient.")
flags.DEFINE_integer("epochs", 20, "Epochs of each run.")
flags.DEFINE_integer("seeds", 3, "Runs of each setting.")
flags.DEFINE_string("out", "results", "Folder for the curves.")
flags.DEFINE_boolean("step_time", False, "Time a step instead, noise aside, against plain Keras.")
flags.DEFINE_integer("rounds", 5, "Interleaved rounds of timing.")

BATCH = {"dense": 128, "conv": 512}
SENSITIVITY = {"dense": 2.0, "conv": 3.0}
LAYERS = {"dense": 3, "conv": 5}
HIDDEN = {"dense": [128, 256], "conv": [384, 384]}
# Typical norms of what enters each layer, from models trained without noise on public images.
NORMS = {"dense": (9.0, 8.0, 11.0), "conv": (40.0, 12.0, 12.0)}
# Somewhat below: the forward pass is not clipped, so a tighter clip costs a feedback stack less.
ACTIVATION_CLIPS = {"dense": (6.0, 4.0, 5.0), "conv": (20.0, 6.0, 6.0)}
CONV_NORMS = (9.0, 40.0)


def share(network: str) -> float:
    """What one record may contribute to a layer: half of the layer's share of the replace-one sensitivity."""
    return SENSITIVITY[network] / (2.0 * math.sqrt(LAYERS[network]))


def clips(network: str, norm: float) -> dict[str, float]:
    """Clips of a clipped layer whose input has about this norm, so that its bound is the share."""
    return {"input_clip": norm, "upstream_clip": share(network) / math.hypot(norm, 1.0)}


def convolutions(network: str, activation: str) -> list[Any]:
    """What lies below the dense layers."""
    stack: list[Any] = []
    if network == "conv":
        for norm in CONV_NORMS:
            stack.append(ClippedConv2D(64, 5, padding="same", activation=activation, **clips(network, norm)))
            stack.append(keras.layers.MaxPooling2D(2))
    return [*stack, keras.layers.Flatten()]


def dense_layers(method: str, network: str) -> list[Any]:
    """The network above its input, by one method; every layer's bound is the share."""
    if method == "dfa":
        stack = FeedbackStack.from_total_sensitivity(
            SENSITIVITY[network], HIDDEN[network], "sigmoid", 10, layers=LAYERS[network]
        )
        return [*convolutions(network, "tanh"), stack]
    if method == "dfa_exact":
        norms = ACTIVATION_CLIPS[network]
        deltas = [share(network) / math.hypot(norm, 1.0) for norm in norms]
        options = {"activation_clip": norms, "delta_clip": deltas[:-1], "error_clip": deltas[-1]}
        return [
            *convolutions(network, "tanh"),
            FeedbackStack(HIDDEN[network], "tanh", 10, feedback_norm=4.0, **options),
        ]
    activation = "tanh" if method == "backprop_tanh" else {"dense": "sigmoid", "conv": "relu"}[network]
    sizes = zip([*HIDDEN[network], 10], [activation] * 2 + [None], NORMS[network], strict=True)
    return [
        *convolutions(network, activation),
        *(ClippedDense(n, activation=phi, **clips(network, norm)) for n, phi, norm in sizes),
    ]


def curve(method: str, sigma: float, seed: int, data: Any) -> list[dict[str, Any]]:
    """One run: test accuracy and epsilon after every epoch."""
    keras.utils.set_random_seed(seed)
    network, examples = FLAGS.network, len(data.y_train)
    batch = BATCH[network]
    model = tfdp.PrivateSequential([keras.Input(data.x_train.shape[1:]), *dense_layers(method, network)])
    # One record moves the sum by at most C / 2, all layers joined.
    noise_multiplier = sigma * batch / (SENSITIVITY[network] / 2.0)
    optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(1e-3), noise_multiplier)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=39)
    total = math.sqrt(sum(group.bound**2 for group in model.sensitivities()))
    assert total <= SENSITIVITY[network] / 2.0 * (1 + 1e-6), "the methods would not be compared at one noise"
    per_epoch = examples // batch // 39 * 39
    history = model.fit(
        data.x_train,
        data.y_train,
        sampling=tfdp.sampling.FixedSize(batch),
        epochs=FLAGS.epochs,
        steps_per_epoch=per_epoch,
        validation_data=(data.x_test, data.y_test),
        validation_batch_size=1000,
        verbose=0,
    )
    release = model.ledger.entries[0].release
    costs = EpsilonCurve(None, release, 1e-5)
    rows = []
    for epoch, accuracy in enumerate(history.history["val_accuracy"], start=1):
        row = {"method": method, "sigma": sigma, "seed": seed, "epoch": epoch}
        rows.append(row | {"epsilon": round(float(costs.at(epoch * per_epoch)), 4), "accuracy": round(accuracy, 4)})
    return rows


def compare() -> None:
    """Runs every method, sigma and seed; writes the curves as they come, and plots them."""
    data = datasets.load(FLAGS.dataset, FLAGS.data_dir)
    out = Path(FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"feedback_{FLAGS.network}_{FLAGS.dataset}.csv"
    rows: list[dict[str, Any]] = []
    for sigma in map(float, FLAGS.sigmas):
        for method in FLAGS.methods:
            last = []
            for seed in range(FLAGS.seeds):
                started = time.perf_counter()
                rows += curve(method, sigma, seed, data)
                last.append(rows[-1]["accuracy"])
                with path.open("w", newline="") as file:
                    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
                seconds = time.perf_counter() - started
                print(f"{method:14} sigma {sigma:g} seed {seed}: {last[-1]:.4f} in {seconds:.0f} s", flush=True)
            print(
                f"{method:14} sigma {sigma:g}: {statistics.mean(last):.4f}, epsilon {rows[-1]['epsilon']}", flush=True
            )
    plot(rows, path.with_suffix(".png"))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean accuracy over seeds against epochs, a panel for each sigma."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: matplotlib is not installed.")
        return
    sigmas = sorted({row["sigma"] for row in rows})
    figure = Figure(figsize=(5 * len(sigmas), 3.5), layout="constrained")
    for axes, sigma in zip(figure.subplots(1, len(sigmas), squeeze=False)[0], sigmas, strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            here = [row for row in rows if row["method"] == method and row["sigma"] == sigma]
            epochs = sorted({row["epoch"] for row in here})
            runs = [[row["accuracy"] for row in here if row["epoch"] == epoch] for epoch in epochs]
            axes.plot(epochs, [statistics.mean(run) for run in runs], label=method)
            axes.fill_between(epochs, [min(run) for run in runs], [max(run) for run in runs], alpha=0.2)
        end = max(row["epsilon"] for row in rows if row["sigma"] == sigma)
        axes.set(title=f"sigma {sigma:g}, epsilon {end:.2f} at the end", xlabel="epoch", ylabel="test accuracy")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=100)


def step_time() -> None:
    """Milliseconds of a step in plain Keras, noise aside: backpropagation, and the same net with a feedback stack.

    Processor time, which other programs on the machine disturb less than the clock on the wall.
    """
    network, shape = FLAGS.network, (28, 28, 1)
    rng = np.random.default_rng(0)
    batches = {"dense": 60, "conv": 2}[network]
    x = rng.normal(size=(batches * BATCH[network], *shape)).astype("float32")
    y = rng.integers(0, 10, len(x))
    models = []
    for feedback in (False, True):
        kl = keras.layers
        below = [] if network == "dense" else [
            *(kl.Conv2D(64, 5, padding="same", activation="tanh"), kl.MaxPooling2D(2)),
            *(kl.Conv2D(64, 5, padding="same", activation="tanh"), kl.MaxPooling2D(2)),
        ]  # fmt: skip
        top = [kl.Dense(n, "sigmoid") for n in HIDDEN[network]] + [kl.Dense(10)]
        if feedback:
            top = [FeedbackStack.from_total_sensitivity(SENSITIVITY[network], HIDDEN[network], "sigmoid", 10)]
        model = keras.Sequential([keras.Input(shape), *below, kl.Flatten(), *top])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False, steps_per_execution=batches)
        model.fit(x, y, batch_size=BATCH[network], epochs=1, verbose=0)
        models.append(model)

    def once(model: Any) -> float:
        started = time.process_time()
        model.fit(x, y, batch_size=BATCH[network], epochs=1, verbose=0, shuffle=False)
        return (time.process_time() - started) / batches

    pairs = [tuple(once(model) for model in models) for _ in range(FLAGS.rounds)]
    plain, feedback = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{network}: keras {plain:.2f} ms, feedback {feedback:.2f} ms, ratio {ratio:.3f}")


def main(_: list[str]) -> None:
    if FLAGS.step_time:
        step_time()
    else:
        compare()


if __name__ == "__main__":
    app.run(main)
