"""Networks of Lipschitz layers at a true epsilon: the table of docs/lipschitz.md.

Run: python benchmarks/lipschitz.py [--data_dir DIR] [--cache_dir DIR] [--names mnist,cifar10-scattering] [--seeds 3]
         [--set rate=0.5,epochs=40] [--write_only]

Nothing about a record's gradient is computed: every record is scaled to one norm as it enters, its gradient at the
logits to another, and the layers between stretch nothing. Each run is kept in docs/lipschitz.json as it ends; a run
that is there already is not made again. Runs with `--set` are kept, too, and do not enter the table. The table between
the marks in docs/lipschitz.md is then made from the file.
"""

import re
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from absl import app, flags
from accuracy import Results, Run, Settings

import tfdp_layers as tfdp
from tfdp_layers.accounting.wording import never_below
from tfdp_layers.layers import DPCentering, GroupSort, LipschitzConv2D, LipschitzDense, Orthogonal
from tfdp_layers.zoo.datasets import Dataset
from tfdp_layers.zoo.scattering import on_features, prefix

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "Where the data sets lie.")
flags.DEFINE_string("cache_dir", None, "Where features are kept between runs.")
flags.DEFINE_list("names", None, "Of `EXPERIMENTS`; all of them if left out.")
flags.DEFINE_integer("seeds", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_list("set", [], "name=value of an experiment, in place of its own.")
flags.DEFINE_integer("holdout", 0, "So many training records at the end are tested on, in place of the test set.")
flags.DEFINE_bool("write_only", False, "Only write the page.")
DOCS = Path(__file__).parents[1] / "docs"
DELTA = 1e-5


@dataclass(frozen=True)
class Experiment:
    """A data set, a network, and how it is trained.

    Attributes:
        dataset: as in `tfdp_layers.datasets`.
        epsilon: the budget at delta 1e-5.
        scales: J of the wavelet scatterings that the network stands on; none for pixels.
        filters: of a convolution of 4 x 4 pixels with stride 4 in front; none if 0.
        units: of the hidden dense layers.
        center: what is subtracted from pixels; of features, the noise multiplier of their private mean.
        scale: what pixels are multiplied by, for logits that tell classes apart.
        radius: the norm that each record is scaled to, where its own is larger.
        clip: the norm that each gradient at the logits is scaled to, where its own is larger.
        rate, batch_size, epochs: of gradient descent with momentum 0.9, and of the mean of weights that is tested.
    """

    dataset: str
    epsilon: float
    scales: tuple[int, ...] = ()
    filters: int = 0
    units: tuple[int, ...] = (256, 128)
    center: float = 0.5
    scale: float = 10.0
    radius: float = 70.0
    clip: float = 0.01
    rate: float = 1.0
    batch_size: int = 4096
    epochs: int = 20


EXPERIMENTS = {
    "mnist": Experiment("mnist", 2.99, filters=16, units=(128,), center=0.1307),
    "mnist-scattering": Experiment("mnist", 2.99, (2,), units=(64,), center=30.0, radius=40.0),
    "cifar10": Experiment("cifar10", 9.98, filters=32, units=(64,), center=0.47, scale=5.0, radius=50.0),
    "cifar10-scattering": Experiment("cifar10", 9.98, (2,), units=(), center=30.0, radius=80.0),
}
GOALS = {"mnist": 96.0, "cifar10": 45.0}
PUBLISHED = {"mnist": 91.3, "cifar10": 27.4}
"""Of lip-dp's own notebooks, at these budgets (Bethune et al. 2024, arXiv:2305.16202)."""
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10 (JPEG copy)"}


def network(one: Experiment, shape: tuple[int, ...], classes: int, entrance: list[Any]) -> tfdp.PrivateSequential:
    """The model; its first and last layer have the two clips."""

    def dense(units: int, **options: Any) -> LipschitzDense:
        return LipschitzDense(units, kernel_constraint=Orthogonal(), **options)

    stack: list[Any] = []
    if one.filters:
        patches = LipschitzConv2D(one.filters, 4, strides=4, kernel_constraint=Orthogonal(), input_clip=one.radius)
        stack += [patches, GroupSort(), keras.layers.Flatten()]
    elif len(shape) > 1:
        stack.append(keras.layers.Flatten())
    clip = {} if one.filters else {"input_clip": one.radius}
    for units in one.units:
        stack += [dense(units, **clip), GroupSort()]
        clip = {}
    head = dense(classes, upstream_clip=one.clip, **clip)
    return tfdp.PrivateSequential([keras.Input(shape), *entrance, *stack, head])


def run(settings: Settings) -> Run:
    """One training: what it reached, and spent."""
    names = Experiment.__dataclass_fields__
    one = Experiment(**{name: settings[name] for name in names})
    keras.utils.set_random_seed(settings["seed"])
    data = tfdp.datasets.load(one.dataset, FLAGS.data_dir)
    sampling = tfdp.sampling.Poisson(one.batch_size)
    if one.scales:
        cache = Path(FLAGS.cache_dir) if FLAGS.cache_dir else Path(tempfile.gettempdir())
        data = on_features(data, prefix(data.x_train.shape[1:], one.scales), cache)
    if settings["holdout"]:
        data = held_out(data, settings["holdout"])
    if one.scales:
        entrance: list[Any] = [DPCentering(one.center, float(np.sqrt(data.x_train.shape[1])))]
        entrance[0].adapt(data.x_train, sampling)
    else:
        entrance = [keras.layers.Rescaling(one.scale, -one.center * one.scale)]
    model = network(one, tuple(data.x_train.shape[1:]), data.classes, entrance)
    descent = keras.optimizers.SGD(one.rate, momentum=0.9, use_ema=True, ema_momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(descent), loss, metrics=["accuracy"])
    budget = tfdp.callbacks.PrivacyBudget(one.epsilon, DELTA)
    model.fit(data.x_train, data.y_train, sampling=sampling, epochs=one.epochs, verbose=0, callbacks=[budget])
    accuracy = model.evaluate(data.x_test, data.y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
    spent = float(tfdp.accounting.epsilon(model.ledger, DELTA))
    return {"accuracies": [round(float(accuracy), 4)], "spent": round(spent, 4)}


def held_out(data: Dataset, count: int) -> Dataset:
    """The last records of the training set as the test set."""
    x, y = data.x_train, data.y_train
    return replace(data, x_train=x[:-count], y_train=y[:-count], x_test=x[-count:], y_test=y[-count:])


def table(runs: list[Run]) -> str:
    """The rows of docs/lipschitz.md: experiments as they stand in `EXPERIMENTS`, on the test sets."""
    heads = ("data", "network", "epsilon", "test accuracy", "goal", "lip-dp", "seeds", "minutes")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for one in EXPERIMENTS.values():
        wanted = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(one).items()}
        found = [r for r in runs if not r["holdout"] and all(r.get(name) == value for name, value in wanted.items())]
        if not found:
            continue
        final = [100 * r["accuracies"][-1] for r in found]
        spread = statistics.stdev(final) if len(final) > 1 else 0.0
        layers = [f"scattering, J = {', '.join(map(str, one.scales))}"] if one.scales else []
        layers += [f"convolution of 4 x 4, {one.filters} filters"] if one.filters else []
        layers += [f"dense {units}" for units in (*one.units, 10)]
        goal = GOALS[one.dataset]
        reached = f"{goal:g}" + ("" if statistics.mean(final) >= goal else ", not reached")
        minutes = statistics.mean(r["seconds"] for r in found) / 60
        spent, mean = max(r["spent"] for r in found), statistics.mean(final)
        accuracy = f"**{mean:.2f}%** ({spread:.2f})"
        spent = never_below(spent, ".3f")
        row = (NAMES[one.dataset], ", ".join(layers), spent, accuracy, reached, PUBLISHED[one.dataset])
        lines.append("| " + " | ".join(map(str, (*row, len(found), f"{minutes:.1f}"))) + " |")
    return "\n".join(lines) + "\n"


def main(_: list[str]) -> None:
    results = Results(DOCS / "lipschitz.json")
    for seed in range(1, FLAGS.seeds + 1):
        for name in [] if FLAGS.write_only else FLAGS.names or EXPERIMENTS:
            one = EXPERIMENTS[name]
            for change in FLAGS.set:
                key, value = change.split("=")
                kind = type(getattr(one, key))
                parsed = tuple(int(n) for n in value.split("+") if n) if kind is tuple else kind(value)
                one = replace(one, **{key: parsed})
            lists = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(one).items()}
            results.get(lists | {"holdout": FLAGS.holdout, "seed": seed}, run)
    page = DOCS / "lipschitz.md"
    pattern = "(<!-- accuracy -->\n).*?(<!-- end -->)"
    page.write_text(
        re.sub(pattern, lambda found: found[1] + table(results.runs) + found[2], page.read_text(), flags=re.S)
    )


if __name__ == "__main__":
    app.run(main)
