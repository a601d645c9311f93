"""What each method claims, and what attacks refute: the table and the plot of docs/audit.md.

Run from the root of the checkout, with the package and its extra [docs] installed (about ten minutes on two cores):

    python benchmarks/audit.py --out results                          # everything
    python benchmarks/audit.py --out results --attack steps --methods dpsgd,tanh --epsilons 1,3

Rows go to OUT/audit.csv as they are found; a row that is there already is not made again. The plot lies beside it.
    steps: many runs of one step on the worst two neighbouring data sets, made for the method.
    training: 10 epochs on the digits, 500 canaries of which half take part, every step read from inside.
    recipe: the same of the layer that `tfdp train --recipe scattering` trains, on the first `--records` of
        Fashion-MNIST (`--data_dir`), by its rate, epochs and sampling rate. The claim is that of the steps alone.
Claims of the printed tanh filter and the printed AdaDP are those of their publications.
"""

import csv
import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from absl import app, flags

from tfdp_layers.accounting import Ledger, calibrate_noise_multiplier, epsilon
from tfdp_layers.audit import Audit, audit_steps, audit_training
from tfdp_layers.commands import audit as command
from tfdp_layers.sampling import Poisson
from tfdp_layers.zoo import datasets, networks, preparation, recipes, scattering
from tfdp_layers.zoo.worst_cases import METHODS, worst_case

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder for the table and the plot.")
flags.DEFINE_list("attack", ["steps", "training"], "Which attacks: steps, training, recipe.")
flags.DEFINE_list("methods", [], "Only these methods.")
flags.DEFINE_list("epsilons", ["1", "3", "8"], "Claims.")
flags.DEFINE_integer("runs", 2000, "Runs on each data set, for steps.")
flags.DEFINE_integer("canaries", 500, "Canaries, for training.")
flags.DEFINE_integer("epochs", 10, "Epochs, for training.")
flags.DEFINE_integer("records", 5000, "Records beside the canaries, for the recipe.")
flags.DEFINE_string("data_dir", None, "Where Fashion-MNIST lies, for the recipe.")
flags.DEFINE_boolean("plot", True, "Plot what is in the table.")

DELTA = 1e-5
COLUMNS = ("attack", "method", "claimed", "provable", "audited", "plain", "correct", "guesses", "seconds")


def steps(method: str, claim: float) -> tuple[Audit, float]:
    """The worst case of one step (AdaDP as printed: two), and what its ledger proves."""
    count = 2 if method == "adadp as printed" else 1
    noise = calibrate_noise_multiplier(claim, DELTA, Poisson(2), 2, count)
    case = worst_case(method, noise)
    found = audit_steps(
        case.model,
        case.present,
        case.absent,
        Poisson(2),
        examples=2,
        steps=case.steps,
        runs=FLAGS.runs,
        score=case.score,
        nominal=case.nominal,
        delta=DELTA,
    )
    # Of one run: the ledger of the model holds all of them.
    entry = case.model.ledger.entries[0].release
    ledger = type(case.model.ledger)()
    ledger.reserve(ledger.begin(entry), case.steps)
    return found, float(epsilon(ledger, DELTA))


def training(method: str, claim: float) -> tuple[Audit, float]:
    """A whole training with canaries, by the command's own function."""
    options: Any = SimpleNamespace(
        method=method,
        dataset="digits",
        data_dir=None,
        kind="gradient",
        epsilon=claim,
        delta=DELTA,
        confidence=0.95,
        canaries=FLAGS.canaries,
        records=1000,
        epochs=FLAGS.epochs,
    )
    found = command.audit_training_of(options)
    return found, found.claimed_epsilon


def recipe(method: str, claim: float) -> tuple[Audit, float]:
    """The layer of a named recipe, on features as they are after the releases that center and whiten them."""
    import keras

    from tfdp_layers import optimizers

    loaded = datasets.load("fashion_mnist", FLAGS.data_dir)
    settings = recipes.recipe_for(method, loaded.name, epsilon=claim)
    sampling = Poisson(round(FLAGS.records * settings.batch_size / len(loaded.y_train)))
    model = scattering.prefix(loaded.x_train.shape[1:], settings)
    few = dataclasses.replace(loaded, x_train=loaded.x_train[: FLAGS.records], y_train=loaded.y_train[: FLAGS.records])
    data = scattering.on_features(dataclasses.replace(few, x_test=few.x_test[:1], y_test=few.y_test[:1]), model)
    blocks = scattering.blocks(loaded.x_train.shape[1:], settings)
    prepared = preparation.preparation(settings, blocks)
    assert prepared is not None
    prepared.ledger = Ledger()
    preparation.adapt(prepared, data.x_train, sampling)
    x = preparation.apply(prepared, data.x_train).astype("float32")
    examples = len(x) + FLAGS.canaries
    steps = settings.epochs * sampling.steps_per_epoch(examples)
    noise = calibrate_noise_multiplier(claim, DELTA, sampling, examples, steps)
    trained = networks.build(method, dataclasses.replace(data, x_train=x), recipe=settings)
    descent = keras.optimizers.SGD(settings.learning_rate, momentum=settings.momentum)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trained.compile(optimizers.NoisyOptimizer(descent, noise), loss)
    found = audit_training(
        trained, x, data.y_train, FLAGS.canaries, sampling=sampling, delta=DELTA, epochs=settings.epochs
    )
    return found, found.claimed_epsilon


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Claimed against audited epsilon, both attacks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), sharey=True)
    for axis, attack in zip(axes, ("steps", "training"), strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            found = [row for row in rows if (row["attack"], row["method"]) == (attack, method)]
            points = sorted((float(row["claimed"]), max(float(row["audited"]), 0.05)) for row in found)
            if points:
                style = "x--" if "printed" in method else "o-"
                axis.plot(*zip(*points, strict=True), style, label=method)
        axis.plot([0.05, 60], [0.05, 60], "k:", linewidth=1)
        axis.set(xscale="log", yscale="log", xlim=(0.8, 10), ylim=(0.05, 60), xlabel="claimed epsilon", title=attack)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("audited epsilon (lower bound, 95%)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def read(path: Path) -> list[dict[str, str]]:
    """The rows made so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(arguments: list[str]) -> None:
    del arguments
    out = Path(FLAGS.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "audit.csv"
    known = {"steps": METHODS, "training": command.METHODS, "recipe": recipes.ON_FEATURES}
    for attack in FLAGS.attack:
        for method in FLAGS.methods or known[attack]:
            for claim in map(float, FLAGS.epsilons):
                done = {(row["attack"], row["method"], round(float(row["claimed"]))) for row in read(path)}
                if method not in known[attack] or (attack, method, round(claim)) in done:
                    continue
                started = time.perf_counter()
                found, provable = {"steps": steps, "training": training, "recipe": recipe}[attack](method, claim)
                plain = max(found.bounds.values(), default=float("nan"))
                numbers = [found.claimed_epsilon, provable, found.audited_epsilon_lower, plain]
                seconds = time.perf_counter() - started
                row = [attack, method, *[f"{n:.4g}" for n in numbers], found.correct, found.guesses, f"{seconds:.0f}"]
                with path.open("a", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file)
                    if not done:
                        writer.writerow(COLUMNS)
                    writer.writerow(row)
                print("| " + " | ".join(map(str, row)) + " |", flush=True)
    if FLAGS.plot:
        plot(read(path), out / "audit.png")


if __name__ == "__main__":
    app.run(main)
