"""Direct feedback alignment, backpropagation clipping and DP-SGD, at the same noise and the same epsilon.

Run: python benchmarks/feedback.py --out results [--network dense] [--dataset fashion_mnist] [--data_dir DIR]
         [--methods ...] [--sigmas 0.01,0.05] [--epochs 6] [--seeds 3] [--hidden 128,256] [--channels 64]
         [--threads 1] [--holdout]

The settings are those of Lee and Kifer 2020 (arXiv:2010.03701, section 5): Adam with rate 1e-3, fixed-size batches, a
replace-one sensitivity C of the summed gradient, noise of standard deviation sigma on the mean gradient.
    dense: 784-128-256-10 (CIFAR-10: 3072-256-256-256-10), batch 128, C = 2.
    conv: two 5x5 convolutions of `--channels` (the paper's: 64), 384-384-10, batch 512, C = 3.
Every method's bounds, all layers joined, are C / 2, so all have the same epsilon; but for DP-SGD's flat clip every
layer has the same share of it. `METHODS` says what they are. `--holdout` trains without the last 10,000 training
records and tests on them, for choosing settings. After every epoch test accuracy and epsilon go to
OUT/feedback_NETWORK_DATASET.csv, with a plot beside it (if matplotlib is there); runs that the file holds are skipped.
"""

import csv
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.accounting import EpsilonCurve
from tfdp_layers.accounting.wording import never_below
from tfdp_layers.layers import ClippedConv2D, ClippedDense, DirectFeedback, FeedbackDense, FeedbackOutput, FeedbackStack
from tfdp_layers.zoo import datasets


@dataclass(frozen=True)
class Method:
    """How a network is trained.

    Attributes:
        kind: of the dense layers. "printed": a feedback stack with the paper's clips and certificate. "feedback": one
            that clips delta itself. "direct": the same, with direct feedback into clipped convolutions as well.
            "backprop": backpropagation clipping. "dpsgd": a flat clip of all gradients.
        activation: of hidden layers; convolutions below a feedback stack have tanh, as in the paper.
        feedback: of the stack.
        normalised: whether each image is brought to mean 0 and variance 1 by itself.
        exact: whether convolutions below are clipped per record, each layer by itself (the paper's hybrid), instead of
            being `ClippedConv2D` layers.
    """

    kind: str
    activation: str
    feedback: str = "gaussian"
    normalised: bool = True
    exact: bool = True


METHODS = {
    "dfa_printed": Method("printed", "sigmoid", normalised=False),
    "dpsgd_printed": Method("dpsgd", "sigmoid", normalised=False),
    "dfa_sigmoid": Method("feedback", "sigmoid"),
    "dfa_tanh": Method("feedback", "tanh"),
    "dfa_aligned_sigmoid": Method("feedback", "sigmoid", "aligned"),
    "dfa_aligned_tanh": Method("feedback", "tanh", "aligned"),
    "dfa_aligned_clipped": Method("feedback", "tanh", "aligned", exact=False),
    "dfa_direct_tanh": Method("direct", "tanh", exact=False),
    "backprop_sigmoid": Method("backprop", "sigmoid"),
    "backprop_tanh": Method("backprop", "tanh"),
    "dpsgd_sigmoid": Method("dpsgd", "sigmoid"),
    "dpsgd_tanh": Method("dpsgd", "tanh"),
    "dpsgd_relu": Method("dpsgd", "relu", normalised=False),
}
DEFAULTS = {
    "dense": [name for name in METHODS if name not in ("dfa_aligned_clipped", "dfa_direct_tanh", "dpsgd_relu")],
    "conv": [
        *("dfa_printed", "dpsgd_relu", "dfa_tanh", "dfa_aligned_tanh", "dfa_aligned_clipped", "dfa_direct_tanh"),
        *("backprop_tanh", "dpsgd_tanh"),
    ],
}

FLAGS = flags.FLAGS
flags.DEFINE_string("dataset", "fashion_mnist", "fashion_mnist, mnist or cifar10.")
flags.DEFINE_string("data_dir", None, "Folder with the data set.")
flags.DEFINE_enum("network", "dense", ["dense", "conv"], "Which of the paper's networks.")
flags.DEFINE_list("methods", None, "Of METHODS; those that suit the network if left out.")
flags.DEFINE_list("sigmas", ["0.01", "0.05"], "Noise on the mean gradient.")
flags.DEFINE_integer("epochs", 6, "Epochs of each run.")
flags.DEFINE_integer("seeds", 3, "Runs of each setting.")
flags.DEFINE_list("hidden", None, "Widths of the hidden dense layers.")
flags.DEFINE_integer("channels", 64, "Of each convolution.")
flags.DEFINE_integer("threads", 0, "Threads of TensorFlow; 0: its own choice.")
flags.DEFINE_boolean("holdout", False, "Test on held-out training records.")
flags.DEFINE_string("out", "results", "Folder for the curves.")

BATCH = {"dense": 128, "conv": 512}
SENSITIVITY = {"dense": 2.0, "conv": 3.0}
# Input clips of a feedback stack over the width's square root, for what comes in and for hidden activations: below the
# typical norm. The forward pass is not clipped, so this costs nothing but the record's norm in its weight gradient.
BELOW_NORM = (0.7, 0.35)
# At the norm or above, where the forward pass is clipped.
AT_NORM = (1.0, 0.7)


def hidden_units() -> list[int]:
    """Widths of the hidden dense layers, as in the paper if none are given."""
    if FLAGS.hidden:
        return [int(n) for n in FLAGS.hidden]
    if FLAGS.network == "conv":
        return [384, 384]
    return [256, 256, 256] if FLAGS.dataset == "cifar10" else [128, 256]


def layers_in_all() -> int:
    """Trainable layers of the network."""
    return len(hidden_units()) + 1 + (2 if FLAGS.network == "conv" else 0)


def share() -> float:
    """What one record may contribute to a layer: half of the layer's share of the replace-one sensitivity."""
    return SENSITIVITY[FLAGS.network] / (2.0 * math.sqrt(layers_in_all()))


def clips(norm: float) -> dict[str, float]:
    """Clips of a clipped layer whose input is to have at most this norm, so that its bound is the share."""
    return {"input_clip": norm, "upstream_clip": share() / math.hypot(norm, 1.0)}


def convolutions(method: Method, shape: tuple[int, ...]) -> list[Any]:
    """What lies below the dense layers."""
    if FLAGS.network == "dense":
        return [keras.layers.Flatten()]
    activation = method.activation if method.kind in ("backprop", "dpsgd") else "tanh"
    options = {"padding": "same", "activation": activation}
    pixels = math.prod(shape[:2])
    norms = (AT_NORM[0] * math.sqrt(math.prod(shape)), AT_NORM[1] * math.sqrt(pixels / 4 * FLAGS.channels))
    stack: list[Any] = []
    for norm in norms:
        if method.kind == "dpsgd" or (method.exact and method.kind != "backprop"):
            stack.append(keras.layers.Conv2D(FLAGS.channels, 5, **options))
        else:
            stack.append(ClippedConv2D(FLAGS.channels, 5, **options, **clips(norm)))
        stack.append(keras.layers.MaxPooling2D(2))
    return [*stack, keras.layers.Flatten()]


def dense_layers(method: Method, features: int) -> list[Any]:
    """The dense layers over that many features; every layer's bound is the share, but for DP-SGD."""
    units = hidden_units()
    if method.kind == "printed":
        total = SENSITIVITY[FLAGS.network]
        return [FeedbackStack.from_total_sensitivity(total, units, method.activation, 10, layers=layers_in_all())]
    sizes = [*units, 10]
    first, rest = BELOW_NORM if method.kind in ("feedback", "direct") else AT_NORM
    if FLAGS.network == "conv":
        first = rest
    norms = [first * math.sqrt(features), *(rest * math.sqrt(n) for n in units)]
    activations = [method.activation] * len(units) + [None]
    if method.kind == "backprop":
        layers = zip(sizes, activations, norms, strict=True)
        return [ClippedDense(n, activation=phi, **clips(norm)) for n, phi, norm in layers]
    if method.kind == "dpsgd":
        return [keras.layers.Dense(n, activation=phi) for n, phi in zip(sizes, activations, strict=True)]
    deltas = [share() / math.hypot(norm, 1.0) for norm in norms]
    options = {"activation_clip": norms, "delta_clip": deltas[:-1], "error_clip": deltas[-1], "feedback_norm": 1.0}
    return [FeedbackStack(units, method.activation, 10, feedback=method.feedback, **options)]


def with_direct_feedback(shape: tuple[int, ...], below: list[Any], stack: FeedbackStack) -> Any:
    """The convolutional network with feedback into every layer; its dense layers are those of the stack."""
    inputs = h = keras.Input(shape)
    sinks = []
    options = {"error_clip": stack.error_clip, "feedback_norm": stack.feedback_norm}
    for layer in below:
        h = layer(h)
        if isinstance(layer, keras.layers.MaxPooling2D):
            h, sink = DirectFeedback(10, **options)(h)
            sinks.append(sink)
    for units, norm, delta in zip(stack.units, stack.activation_clip, stack.delta_clip, strict=False):
        hidden = FeedbackDense(units, stack.activation, 10, activation_clip=norm, delta_clip=delta, **options)
        h, sink = hidden(h)
        sinks.append(sink)
    output = FeedbackOutput(10, activation_clip=stack.activation_clip[-1], error_clip=stack.error_clip)
    return tfdp.PrivateModel(inputs, output([h, *sinks]))


def build(method: Method, shape: tuple[int, ...]) -> Any:
    """The network for records of this shape, not compiled."""
    normalise = keras.layers.LayerNormalization(axis=[1, 2, 3], center=False, scale=False)
    below = [*([normalise] if method.normalised else []), *convolutions(method, shape)]
    pooled = math.prod(n // 4 for n in shape[:2]) * FLAGS.channels
    features = math.prod(shape) if FLAGS.network == "dense" else pooled
    if method.kind == "direct":
        return with_direct_feedback(shape, below, dense_layers(method, features)[0])
    return tfdp.PrivateSequential([keras.Input(shape), *below, *dense_layers(method, features)])


def optimizer(method: Method, model: Any, noise_multiplier: float) -> Any:
    """Noise, and a clip for the layers that don't bound themselves."""
    adam = keras.optimizers.Adam(1e-3)
    if method.kind == "dpsgd":
        return tfdp.optimizers.ClippedOptimizer(adam, noise_multiplier, SENSITIVITY[FLAGS.network] / 2.0)
    others = [layer for layer in model.layers if type(layer) is keras.layers.Conv2D]
    if not others:
        return tfdp.optimizers.NoisyOptimizer(adam, noise_multiplier)
    together = share() * math.sqrt(len(others))
    return tfdp.optimizers.ClippedOptimizer(adam, noise_multiplier, together, clipping="per_layer")


def curve(name: str, sigma: float, seed: int, data: datasets.Dataset) -> list[dict[str, Any]]:
    """One run: test accuracy and epsilon after every epoch."""
    keras.utils.set_random_seed(seed)
    x, y, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    if FLAGS.holdout:
        x, y, x_test, y_test = x[:-10_000], y[:-10_000], x[-10_000:], y[-10_000:]
    batch, method = BATCH[FLAGS.network], METHODS[name]
    model = build(method, x.shape[1:])
    # One record moves the sum by at most C / 2, all layers joined.
    half = SENSITIVITY[FLAGS.network] / 2.0
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    noisy = optimizer(method, model, sigma * batch / half)
    model.compile(noisy, loss, metrics=["accuracy"], steps_per_execution=13)
    total = math.sqrt(sum(group.bound**2 for group in model.sensitivities()))
    assert math.isclose(total, half, rel_tol=1e-6), "the methods would not be compared at one noise"
    per_epoch = len(x) // batch // 13 * 13
    history = model.fit(
        *(x, y),
        sampling=tfdp.sampling.FixedSize(batch),
        epochs=FLAGS.epochs,
        steps_per_epoch=per_epoch,
        validation_data=(x_test, y_test),
        validation_batch_size=1000,
        verbose=0,
    )
    costs = EpsilonCurve(None, model.ledger.entries[0].release, 1e-5)
    rows = []
    for epoch, accuracy in enumerate(history.history["val_accuracy"], start=1):
        row = {"method": name, "sigma": sigma, "seed": seed, "epoch": epoch}
        rows.append(row | {"epsilon": round(float(costs.at(epoch * per_epoch)), 4), "accuracy": round(accuracy, 4)})
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier file; none if there is no file."""
    if not path.exists():
        return []
    kinds = {"method": str, "sigma": float, "seed": int, "epoch": int, "epsilon": float, "accuracy": float}
    with path.open(newline="") as file:
        return [{key: kinds[key](value) for key, value in row.items()} for row in csv.DictReader(file)]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean accuracy over seeds against epochs, a panel for each sigma; sigmoid and printed settings are dashed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No plot: matplotlib is not installed.")
        return
    sigmas = sorted({row["sigma"] for row in rows})
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    colours = {
        "dfa": "tab:blue",
        "dfa_aligned": "tab:green",
        "dfa_direct": "tab:purple",
        "backprop": "tab:orange",
        "dpsgd": "tab:red",
    }
    styles = {"printed": ":", "relu": ":", "sigmoid": "--", "clipped": "-."}
    figure = Figure(figsize=(4.5 * len(sigmas) + 2, 4), layout="constrained")
    axes = figure.subplots(1, len(sigmas), squeeze=False)[0]
    for panel, sigma in zip(axes, sigmas, strict=True):
        for name in names:
            here = [row for row in rows if row["method"] == name and row["sigma"] == sigma]
            epochs = sorted({row["epoch"] for row in here})
            runs = [[row["accuracy"] for row in here if row["epoch"] == epoch] for epoch in epochs]
            family, variant = name.rsplit("_", 1)
            style = {"color": colours[family], "linestyle": styles.get(variant, "-")}
            panel.plot(epochs, [statistics.mean(run) for run in runs], label=name, **style)
            panel.fill_between(
                epochs, *([f(run) for run in runs] for f in (min, max)), alpha=0.15, color=style["color"]
            )
        end = max(row["epsilon"] for row in rows if row["sigma"] == sigma)
        title = f"sigma {sigma:g}, epsilon {never_below(end, '.2f')} at the end"
        panel.set(title=title, xlabel="epoch", ylabel="test accuracy")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=100)


def main(_: list[str]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    data = datasets.load(FLAGS.dataset, FLAGS.data_dir)
    out = Path(FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"feedback_{FLAGS.network}_{FLAGS.dataset}.csv"
    rows = read(path)
    # Seeds outermost: what is there when a run is cut short compares all methods.
    for seed in range(FLAGS.seeds):
        for sigma in map(float, FLAGS.sigmas):
            for name in FLAGS.methods or DEFAULTS[FLAGS.network]:
                if any((row["method"], row["sigma"], row["seed"]) == (name, sigma, seed) for row in rows):
                    continue
                started = time.perf_counter()
                rows += curve(name, sigma, seed, data)
                write(path, rows)
                last, seconds = rows[-1], time.perf_counter() - started
                print(f"{name:20} sigma {sigma:g} seed {seed}: {last['accuracy']:.4f} in {seconds:.0f} s", flush=True)
                keras.backend.clear_session()
    plot(rows, path.with_suffix(".png"))


if __name__ == "__main__":
    app.run(main)
