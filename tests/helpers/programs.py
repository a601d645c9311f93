"""Random programs of public calls, and what they truly cost: every executed draw of noise, followed to the weights.

A program makes private models, twins on shared layers, new heads, copies by weights, layers, trees, files and clones;
freezes, compiles anew, assigns ledgers of files, releases metrics, trains records or units, several steps a call,
breaks off, resumes. Beside it `World` keeps for every variable the releases that reached it: a release
reaches what a model trains, and brings along all that reached anything that the model holds. What a model states must
be at least the epsilon of the releases that reached its variables, composed by dp-accounting alone.
"""

import contextlib
import random
import threading
import types
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS
from helpers.spending import _epsilon
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models import opening
from tfdp_layers.noise import NoiseSource
from tfdp_layers.proof import Report, steering

DELTA, EXAMPLES, SHAPE = 1e-3, 12, 6
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(EXAMPLES, SHAPE)).astype("float32"), RNG.integers(0, 3, EXAMPLES)
UNITS = np.arange(EXAMPLES) // 2
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
REFUSALS = (ValueError, RuntimeError)


class Counted(NoiseSource):
    """Noise that counts how often it was drawn, in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = tf.Variable(0)

    def normal(self, shape: Any) -> tf.Tensor:
        self.drawn.assign_add(1)
        return super().normal(shape)


class BreaksOff(keras.callbacks.Callback):
    """Ends `fit` by an error after some steps."""

    def __init__(self, after: int, error: type[BaseException], epoch: int = 0) -> None:
        super().__init__()
        self.after, self.error, self.epoch, self.here = after, error, epoch, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.here = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 >= self.after and self.here >= self.epoch:
            raise self.error("broken off")


@contextlib.contextmanager
def unproved() -> Any:
    """Inside, `fit` takes on trust that records do not mix: the search is for the spend, and a proof takes a second."""
    given = {
        "traced_sums": types.SimpleNamespace(graph=None),
        "examined": Report(()),
        "variables_read": (),
        "constants_read": [],
        "seeds_beside": [],
        "kept_by_pieces": [],
    }
    kept = {name: getattr(opening, name) for name in given}, steering.keys_written
    for name, value in given.items():
        setattr(opening, name, lambda *_, value=value: value)
    steering.keys_written = lambda _: set()
    try:
        yield
    finally:
        for name, function in kept[0].items():
            setattr(opening, name, function)
        steering.keys_written = kept[1]


class World:
    """The models of one program, and the releases that reached each variable."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.models: list[Any] = []
        self.plain: list[Any] = []
        self.reached: dict[int, frozenset[int]] = {}
        self.kept: list[Any] = []  # variables, so that no other one gets their id
        self.events: list[tuple[float, float]] = []
        self.unit_ids = UNITS if self.random.random() < 0.25 else None
        self.done: list[str] = []

    def run(self, length: int) -> None:
        """Runs the program; after each call all statements are compared with the truth."""
        keras.utils.clear_session(free_memory=False)  # a collection of all garbage takes as long as half a program
        released_numbers._released.clear()
        self.new()
        for _ in range(length):
            call = self.random.choice(CALLS)
            self.done.append(call)
            with contextlib.suppress(*REFUSALS):
                getattr(self, call)()
            self.check()

    def check(self) -> None:
        """Every model states at least what reached its weights, or refuses to state."""
        for number, model in enumerate(self.models):
            truth = self.true_epsilon(model)
            try:
                stated = model.privacy_statement(DELTA).epsilon if truth else 0.0
            except REFUSALS:
                continue
            assert stated >= truth * (1 - 1e-6), f"model {number} states {stated}, true {truth}, after {self.done}"

    def true_epsilon(self, model: Any) -> float:
        counts = Counter(self.events[event] for event in self.of(model.variables))
        return _epsilon(tuple(sorted(counts.items())), DELTA) if counts else 0.0

    def of(self, variables: Any) -> frozenset[int]:
        return frozenset().union(*(self.reached.get(id(v), frozenset()) for v in variables))

    # What a program is made of ----------------------------------------------------------------------------------------

    def any(self) -> Any:
        return self.random.choice(self.models)

    def ready(self, model: Any, like: Any = None) -> Any:
        """Compiles; the model joins. Variables of its own take over what reached those of `like`, in their order."""
        if like is not None:
            for mine, theirs in zip(model.weights, like.weights, strict=True):
                if mine is not theirs:
                    self.reached[id(mine)] = self.reached.get(id(theirs), frozenset())
        source, noise = Counted(), self.random.choice([0.6, 1.0, 2.0])
        optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), noise, noise_source=source)
        model.compile(optimizer, LOSS, run_eagerly=True, steps_per_execution=self.random.choice([1, 1, 1, 2]))
        self.kept.append(list(model.variables))
        if not any(model is other for other in self.models):
            self.models.append(model)
        return model

    def new(self) -> None:
        layers = [tfdp.layers.ClippedDense(4, **CLIPS), tfdp.layers.ClippedDense(3, **CLIPS)]
        if self.random.random() < 0.5:
            self.plain.append(keras.Sequential([keras.Input((SHAPE,)), *layers]))
            self.ready(tfdp.make_private(self.plain[-1]))
        else:
            self.ready(tfdp.PrivateSequential([keras.Input((SHAPE,)), *layers]))

    def twin(self) -> None:
        self.ready(tfdp.make_private(self.random.choice(self.models + self.plain)))

    def head(self) -> None:
        body, inputs = self.any(), keras.Input((SHAPE,))
        nested = self.random.random() < 0.5
        first = next(layer for layer in body.layers if layer.weights)
        hidden = body(inputs) if nested else first(inputs)
        self.ready(tfdp.PrivateModel(inputs, tfdp.layers.ClippedDense(3, **CLIPS)(hidden)))

    def freeze(self) -> None:
        layer = self.random.choice(self.any().layers)
        layer.trainable = not layer.trainable

    def recompile(self) -> None:
        self.ready(self.any())

    def copy_values(self) -> None:
        one, other = self.any(), self.any()
        one.set_weights(other.get_weights())
        for mine, theirs in zip(one.weights, other.weights, strict=True):
            self.reached[id(mine)] = self.reached.get(id(theirs), frozenset())

    def copy_layer(self) -> None:
        one, other = (self.random.choice([x for x in self.any().layers if x.weights]) for _ in range(2))
        one.set_weights(other.get_weights())
        self.took(one, other)

    def copy_tree(self) -> None:
        one, other = self.any(), self.any()
        tree = other.get_state_tree(value_format="numpy_array")
        one.set_state_tree({"trainable_variables": tree["trainable_variables"]})
        # By name: Keras leaves out what it does not find.
        held = {weight.path: weight for weight in other.trainable_variables}
        for mine in one.trainable_variables:
            theirs = held.get(mine.path, mine)
            self.reached[id(mine)] = self.reached.get(id(theirs), frozenset())

    def took(self, one: Any, other: Any) -> None:
        """Weights that hold the numbers of others now."""
        for mine, theirs in zip(one.weights, other.weights, strict=True):
            self.reached[id(mine)] = self.reached.get(id(theirs), frozenset())

    def ledger_of_a_file(self) -> None:
        self.any().ledger = tfdp.accounting.Ledger(self.folder / f"{self.random.randrange(2)}.json")

    def metric(self) -> None:
        hits = np.arange(EXAMPLES) % 3 > 0
        tfdp.release_metric(hits, self.any().ledger, stddev=0.5, unit_ids=self.unit_ids)

    def resume(self) -> None:
        """Breaks off with a backup, which the same model, or another, goes on from."""
        backup = keras.callbacks.BackupAndRestore(self.folder / f"backup {len(self.done)}", double_checkpoint=False)
        model = self.any()
        held, first = self.of(model.variables), len(self.events)
        self.train(model, 1, 4, epochs=3, callbacks=[backup, BreaksOff(1, OSError, epoch=1)])
        held |= set(range(first, min(len(self.events), first + int(model.steps_per_execution))))  # of one epoch
        other = self.random.choice([model, model, self.any()])
        before = [np.array(one) for one in other.variables]
        self.train(other, 1, 4, epochs=3, callbacks=[backup])
        for mine, old in zip(other.variables, before, strict=True):
            if not np.array_equal(np.array(mine), old):
                self.reached[id(mine)] = self.of([mine]) | held

    def clone(self) -> None:
        model = self.any()
        cloned = keras.models.clone_model(model)
        cloned.set_weights(model.get_weights())
        self.ready(cloned if isinstance(cloned, type(model)) else tfdp.make_private(cloned), like=model)

    def save_and_load(self) -> None:
        model, path = self.any(), self.folder / f"{len(self.done)}.keras"
        model.save(path)
        keras_own = self.random.random() < 0.3
        loaded = keras.models.load_model(path, compile=False) if keras_own else tfdp.load_model(path, compile=False)
        self.ready(loaded, like=model)

    def weights_file(self) -> None:
        one, other, path = self.any(), self.any(), self.folder / f"{len(self.done)}.weights.h5"
        one.save_weights(path)
        before = [np.array(v) for v in other.weights]
        try:
            other.load_weights(path)
        finally:
            for mine, theirs, old in zip(other.weights, one.weights, before, strict=False):
                if not np.array_equal(np.array(mine), old):
                    self.reached[id(mine)] = self.of([mine, theirs])

    def to_keras(self) -> None:
        model = self.any()
        plain = model.to_keras()
        for mine, theirs in zip(plain.weights, model.weights, strict=True):
            if mine is not theirs:
                self.reached[id(mine)] = self.reached.get(id(theirs), frozenset())
        self.kept.append(plain)
        self.ready(tfdp.make_private(plain))

    def fit(self, **options: Any) -> None:
        model, steps, size = self.any(), self.random.randint(1, 3), self.random.choice([3, 4, 6])
        chance = self.random.random()
        if chance < 0.2:
            options["callbacks"] = [
                BreaksOff(self.random.randint(1, 2), self.random.choice([KeyboardInterrupt, OSError]))
            ]
        elif chance < 0.4:
            options["callbacks"] = [tfdp.callbacks.PrivacyBudget(self.random.uniform(0.5, 5), DELTA)]
        elif chance < 0.5:
            options["physical_batch_size"] = 2
        self.train(model, steps, size, **options)

    def fit_twice_at_once(self) -> None:
        one, other = self.any(), self.any()
        if one is other or set(map(id, one.variables)) & set(map(id, other.variables)):
            threads = [threading.Thread(target=self.train, args=(model, 2, 4)) for model in (one, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def train(self, model: Any, steps: int, size: int, **options: Any) -> None:
        source, noise = model.optimizer.noise_source, model.optimizer.noise_multiplier
        before = int(source.drawn)
        try:
            model.fit(X, Y, batch_size=size, steps_per_epoch=steps, verbose=0, unit_ids=self.unit_ids, **options)
        except (*REFUSALS, KeyboardInterrupt, OSError):
            pass
        finally:
            for _ in range(int(source.drawn) - before):
                self.events.append((float(noise), size / (EXAMPLES if self.unit_ids is None else len(set(UNITS)))))
                reached = self.of(model.variables) | {len(self.events) - 1}
                for variable in model.trainable_variables:
                    self.reached[id(variable)] = reached


CALLS = [
    *["fit"] * 6,
    "new",
    "twin",
    "twin",
    "head",
    "head",
    "freeze",
    "freeze",
    "recompile",
    "copy_values",
    "clone",
    "save_and_load",
    "weights_file",
    "to_keras",
    "fit_twice_at_once",
    "copy_layer",
    "copy_tree",
    "ledger_of_a_file",
    "metric",
    "resume",
]


def run_program(seed: int, folder: Path, length: int = 8) -> World:
    """One random program. Raises AssertionError where a model states less than it truly cost."""
    world = World(seed, folder)
    with unproved():
        world.run(length)
    return world


def run_programs(seeds: Iterable[int], folder: Path, length: int = 4) -> int:
    """How many releases the programs of these seeds made. Raises AssertionError, see `run_program`."""
    return sum(len(run_program(seed, folder, length).events) for seed in seeds)
