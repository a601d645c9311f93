"""Step time of DP-SGD here and in other libraries, on the networks of `networks.py`, in interleaved rounds.

Run: python benchmarks/peers.py --peers PYTHON[,PYTHON] [--models m1,m2,m3,m4] [--batch_size 256] [--rounds 5]
         [--steps 8] [--cores 1]

Each Python is that of an environment with tensorflow-privacy 0.9 and this library (`TFDP_TF_PRIVACY=folder
.ci/tensorflow_privacy` makes it), Opacus 1.6, or JAX-Privacy 2.0: which of them it has is found out. Each library runs
in a process of its own, which builds all its ways; then each round asks every way in turn for a few steps with noise,
so that all see the same load of the machine. SGD, clip 1, noise multiplier 1, random records of one batch after the
other in memory. Steps of the Keras libraries are those of `fit`; of the others a loop of their documentation. m3 is not
there for JAX-Privacy, and m4, a transformer block that is timed with batches of 64, for Opacus alone.

Printed: milliseconds a step (median over rounds of the median step), examples a second, and the ratio to this library's
`ClippedOptimizer` (median over rounds of the round's ratio; smallest and largest).
"""

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

CLIP, NOISE, RATE = 1.0, 1.0, 0.01
SHAPES = {"m1": (28, 28, 1), "m2": (784,), "m3": (32, 32, 3)}
OURS = "tfdp-layers: ClippedOptimizer"
Steps = Callable[[], list[float]]
"""Makes some steps and returns the milliseconds of each."""


def records(name: str, batch_size: int, steps: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    count = batch_size * steps
    if name == "m4":
        return rng.integers(0, 10_000, (count, 128)), rng.integers(0, 2, count)
    return rng.normal(size=(count, *SHAPES[name])).astype("float32"), rng.integers(0, 10, count)


def fitted(model: Any, x: Any, y: Any, batch_size: int) -> Steps:
    """Steps of a compiled Keras model by `fit`, in Keras 2 as well."""
    import keras

    class Timed(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.steps: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.started = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps.append(1e3 * (time.perf_counter() - self.started))

    def run() -> list[float]:
        timed = Timed()
        model.fit(x, y, batch_size=batch_size, verbose=0, callbacks=[timed])
        return timed.steps

    return run


def looped(step: Callable[[Any, Any], None], x: Any, y: Any, batch_size: int) -> Steps:
    """Steps of a function that returns when its work is done."""

    def run() -> list[float]:
        times = []
        for start in range(0, len(x), batch_size):
            started = time.perf_counter()
            step(x[start : start + batch_size], y[start : start + batch_size])
            times.append(1e3 * (time.perf_counter() - started))
        return times

    return run


def of_keras_3(name: str, batch_size: int, steps: int) -> Iterator[tuple[str, Steps]]:
    import keras
    from networks import layers, network

    import tfdp_layers as tfdp

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = records(name, batch_size, steps)
    plain = network(name)
    plain.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    yield "Keras 3, not private", fitted(plain, x, y, batch_size)
    model = tfdp.make_private(network(name))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(RATE), NOISE, CLIP), loss)
    yield OURS, fitted(model, x, y, batch_size)
    if name == "m4":
        return
    model = tfdp.PrivateSequential(layers(name, "exact"))
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(RATE), NOISE), loss)
    yield "tfdp-layers: gradient_clip in the layers", fitted(model, x, y, batch_size)


def of_tf_privacy(name: str, batch_size: int, steps: int) -> Iterator[tuple[str, Steps]]:
    import keras
    import tensorflow_privacy as tfp

    import tfdp_layers as tfdp

    kl = keras.layers

    def layers() -> list[Any]:
        if name == "m2":
            return [keras.Input((784,)), kl.Dense(1000, activation="relu"), kl.Dense(10)]
        if name == "m3":
            stack: list[Any] = [keras.Input((32, 32, 3))]
            for filters in (32, 64, 128):
                stack += [kl.Conv2D(filters, 3, padding="same", activation="relu") for _ in range(2)]
                stack.append(kl.MaxPooling2D(2))
            return [*stack, kl.Flatten(), kl.Dense(128, activation="relu"), kl.Dense(10)]
        return [
            *(keras.Input((28, 28, 1)), kl.Conv2D(16, 8, strides=2, padding="same", activation="relu")),
            *(kl.MaxPooling2D(2, 1), kl.Conv2D(32, 4, strides=2, activation="relu"), kl.MaxPooling2D(2, 1)),
            *(kl.Flatten(), kl.Dense(32, activation="relu"), kl.Dense(10)),
        ]

    if name == "m4":
        return
    x, y = records(name, batch_size, steps)
    vector = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"l2_norm_clip": CLIP, "noise_multiplier": NOISE}
    for xla in (False, True):
        model = tfp.DPSequential(**settings, use_xla=xla, layers=layers())
        model.compile(keras.optimizers.SGD(RATE), mean)
        yield f"tensorflow-privacy: DPSequential, use_xla={xla}", fitted(model, x, y, batch_size)
    for kind in ("VectorizedDPKerasSGDOptimizer", "DPKerasSGDOptimizer"):
        model = keras.Sequential(layers())
        model.compile(getattr(tfp, kind)(**settings, learning_rate=RATE), vector)
        yield f"tensorflow-privacy: {kind}", fitted(model, x, y, batch_size)
    model = tfdp.tf_privacy.with_ledger(keras.Sequential(layers()))
    model.compile(tfp.VectorizedDPKerasSGDOptimizer(**settings, learning_rate=RATE), vector)
    yield "the vectorized one, with_ledger", fitted(model, x, y, batch_size)


def of_opacus(name: str, batch_size: int, steps: int) -> Iterator[tuple[str, Steps]]:
    import torch
    from opacus import PrivacyEngine
    from torch import nn

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    x, y = records(name, batch_size, steps)
    images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy() if x.ndim == 4 else x)
    labels = torch.from_numpy(y)

    def network() -> nn.Module:
        if name == "m2":
            return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
        if name == "m4":
            return transformer()
        if name == "m3":
            stack: list[nn.Module] = []
            for before, after in ((3, 32), (32, 64), (64, 128)):
                stack += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1)]
                stack += [nn.ReLU(), nn.MaxPool2d(2)]
            return nn.Sequential(*stack, nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10))
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1)),
            *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
        )

    def stepping(model: Any, optimizer: Any, loss: Any) -> Callable[[Any, Any], None]:
        def step(one: Any, label: Any) -> None:
            optimizer.zero_grad()
            loss(model(one), label).backward()
            optimizer.step()

        return step

    plain = network()
    step = stepping(plain, torch.optim.SGD(plain.parameters(), RATE), nn.CrossEntropyLoss())
    yield "PyTorch, not private", looped(step, images, labels, batch_size)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=batch_size)
    for mode in ("hooks", "ghost"):
        model = network()
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), RATE),
            data_loader=loader,
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        yield f"Opacus: {mode}", looped(stepping(made[0], made[1], loss), images, labels, batch_size)


def transformer() -> Any:
    """m4 for Opacus, whose attention is its own."""
    from opacus.layers import DPMultiheadAttention
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.first, self.second = nn.Embedding(10_000, 64), nn.LayerNorm(64), nn.LayerNorm(64)
            self.attention = DPMultiheadAttention(64, 2, batch_first=True)
            self.wide, self.narrow, self.last = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 2)

        def forward(self, ids: Any) -> Any:
            hidden = self.tokens(ids)
            normal = self.first(hidden)
            hidden = hidden + self.attention(normal, normal, normal, need_weights=False)[0]
            hidden = hidden + self.narrow(nn.functional.relu(self.wide(self.second(hidden))))
            return self.last(hidden.mean(1))

    return Block()


def of_jax_privacy(name: str, batch_size: int, steps: int) -> Iterator[tuple[str, Steps]]:
    import jax
    import jax.numpy as jnp
    import jax_privacy
    import optax
    from jax_privacy import noise_addition

    if name in ("m3", "m4"):
        return
    x, y = records(name, batch_size, steps)
    keys = iter(jax.random.split(jax.random.key(0), 8))
    dense = {"m1": [(512, 32), (32, 10)], "m2": [(784, 1000), (1000, 10)]}[name]
    weights = {f"d{i}": (0.05 * jax.random.normal(next(keys), s), jnp.zeros(s[1])) for i, s in enumerate(dense)}
    kernels = [(8, 8, 1, 16), (4, 4, 16, 32)] if name == "m1" else []
    weights |= {f"c{i}": (0.05 * jax.random.normal(next(keys), s), jnp.zeros(s[3])) for i, s in enumerate(kernels)}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        h = x
        for i, padding in zip(range(len(kernels)), ("SAME", "VALID"), strict=False):
            w, b = weights[f"c{i}"]
            h = jax.lax.conv_general_dilated(h, w, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
            h = jax.lax.reduce_window(jax.nn.relu(h), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
        h = h.reshape(h.shape[0], -1)
        h = jax.nn.relu(h @ weights["d0"][0] + weights["d0"][1])
        logits = h @ weights["d1"][0] + weights["d1"][1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def steps_of(gradient: Callable[..., Any], privatizer: Any) -> Callable[[Any, Any], None]:
        state = {"weights": weights, "noise": privatizer.init(weights) if privatizer else None}

        @jax.jit
        def one(weights: Any, noise: Any, x: Any, y: Any) -> Any:
            found = gradient(weights, x, y)
            if privatizer is not None:
                found, noise = privatizer.update(found, noise)
            return jax.tree.map(lambda w, g: w - RATE / batch_size * g, weights, found), noise

        def step(x: Any, y: Any) -> None:
            made = one(state["weights"], state["noise"], x, y)
            state["weights"], state["noise"] = jax.block_until_ready(made)

        return step

    yield "JAX, not private", looped(steps_of(jax.grad(loss), None), x, y, batch_size)
    for micro in (None, 1, 16):
        clipped = jax_privacy.clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), microbatch_size=micro)
        noise = noise_addition.gaussian_privatizer(stddev=NOISE * CLIP, prng_key=jax.random.key(1))
        yield f"JAX-Privacy: microbatch_size={micro}", looped(steps_of(clipped, noise), x, y, batch_size)


def work(name: str, batch_size: int, steps: int) -> None:
    """Prints the names of its ways, then for each line of input the median step of that way, as JSON."""
    kinds = {"opacus": of_opacus, "jax_privacy": of_jax_privacy, "tensorflow_privacy": of_tf_privacy}
    of = next((kind for package, kind in kinds.items() if find_spec(package)), of_keras_3)
    ways = {}
    warnings.simplefilter("ignore", UserWarning)  # that so short trainings learn nothing, on the same records
    for way, run in of(name, batch_size, steps + 2):
        try:
            run()
            ways[way] = run
        except Exception as error:  # of another library: said, and left out
            print(f"{way} on {name} failed: {str(error).splitlines()[0][:200]}", file=sys.stderr, flush=True)
    print(json.dumps(list(ways)), flush=True)
    for line in sys.stdin:
        print(json.dumps(statistics.median(ways[json.loads(line)]()[2:])), flush=True)


def ask(worker: Any, way: str | None = None) -> Any:
    """The next answer of a worker: the median step of a way, or the names of all."""
    if way is not None:
        worker.stdin.write(json.dumps(way) + "\n")
        worker.stdin.flush()
    return next(json.loads(line) for line in worker.stdout if line.startswith(("[", *"0123456789")))


def compare(name: str, flags: Any) -> None:
    """One network in all environments."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: flags.cores]))
    line = ["work", name, str(flags.batch_size), str(flags.steps)]
    workers = [
        subprocess.Popen(
            ["taskset", "-c", cores, python, __file__, *line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for python in (sys.executable, *flags.peers)
    ]
    ways = [(worker, way) for worker in workers for way in ask(worker)]
    rounds = [{way: ask(worker, way) for worker, way in ways} for _ in range(flags.rounds)]
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    head = f"{name}, batch {flags.batch_size}, {flags.cores} core(s)"
    print(f"\n| {head} | ms a step | examples/s | over `ClippedOptimizer` |")
    print("|---|---|---|---|")
    for _, way in ways:
        ratios = sorted(one[way] / one[OURS] for one in rounds)
        median = statistics.median(one[way] for one in rounds)
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        print(f"| {way} | {median:.1f} | {1e3 * flags.batch_size / median:,.0f} | {ratio} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        from absl import app, flags

        flags.DEFINE_list("peers", [], "Pythons of environments with other libraries.")
        flags.DEFINE_list("models", ["m1", "m2"], "Of m1, m2, m3 and m4.")
        flags.DEFINE_integer("batch_size", 256, "Records a step; expected ones, where they are drawn.", lower_bound=1)
        flags.DEFINE_integer("rounds", 5, "Interleaved rounds.", lower_bound=1)
        flags.DEFINE_integer("steps", 8, "Timed steps a round.", lower_bound=1)
        flags.DEFINE_integer("cores", 1, "Processor cores.", lower_bound=1)
        app.run(lambda _: [compare(name, flags.FLAGS) for name in flags.FLAGS.models] and None)
