"""A tiny private model, a stand-in that loops as Keras does without TensorFlow's step, and an accountant of its own."""

import functools
import json
import math
from collections import Counter
from typing import Any

import keras
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release
from tfdp_layers.accounting import released as released_numbers

EXAMPLES, BATCH, STEPS = 64, 8, 8
DELTA = 1e-3
SLACK = 1 + 1e-6  # Two accountants round differently.


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(size=(EXAMPLES, 4)).astype("float32"), rng.integers(0, 2, EXAMPLES)


def tiny_model(noise_multiplier: float = 1.3, seeded: bool = False, **compile_options: Any) -> Any:
    model = tfdp.PrivateSequential(
        [keras.Input((4,)), tfdp.layers.ClippedDense(2, input_clip=1.0, upstream_clip=0.1, name="head")]
    )
    source = tfdp.noise.SeededNoise(3) if seeded else "default"
    optimizer = tfdp.optimizers.NoisyOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), noise_multiplier, noise_source=source
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], **compile_options)
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2, verbose: int = 0, **options: Any) -> Any:
    x, y = records()
    return model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=verbose, callbacks=list(callbacks), **options)


def forget(model: Any) -> None:
    """A clean record for a model that tests share, so that its compiled step is traced once.

    The count of releases goes with it: fit refuses weights that count more of them than the ledger has paid.
    """
    released_numbers._released.clear()
    model._privacy.account.replace(Ledger())
    if model.optimizer.built:
        model.optimizer.releases.assign(0)


class Count:
    """A variable that a step counts in."""

    def __init__(self) -> None:
        self.value = 0

    def numpy(self) -> int:
        return self.value


class StandOptimizer:
    """Counts releases, and refuses those past the limit."""

    def __init__(self) -> None:
        self.releases, self._left = Count(), 2**62

    def limit_releases(self, more: int) -> None:
        self._left = min(self._left, more)

    def _lift_limit(self) -> None:
        self._left = 2**62

    def releases_left(self) -> int:
        return self._left

    def step(self) -> int:
        made = int(self._left > 0)
        self._left -= made
        self.releases.value += made
        return made


class Stand:
    """What a callback sees of a private model, around a step that honours the optimizer's limit and does nothing else.

    The loop is Keras': calls of `steps_per_execution` steps, the last of an epoch as long as the others.
    """

    def __init__(self) -> None:
        self.name, self.ledger, self.stop_training = "stand", Ledger(), False
        self.optimizer = StandOptimizer()
        self.current_release: Release | None = None
        self.steps_per_execution = 1
        self.made_in_fit, self.outspent_in_fit = 0, False
        self.token = ""

    def keep_fit_to(self, budget: Any, *, nominal: bool = False) -> None:
        self.ledger.keep_to(self.token, budget, nominal=nominal)

    def fit(self, release: Release, epochs: int, steps: int, callbacks: list[Any]) -> None:
        listed = keras.callbacks.CallbackList(callbacks, model=self, verbose=0, epochs=epochs, steps=steps)
        self.stop_training, self.current_release, self.made_in_fit = False, release, 0
        token = self.token = self.ledger.begin(release)
        self.optimizer._lift_limit()
        try:
            self._loop(token, listed, epochs, steps)
        finally:
            self.ledger.end(token)
            self.current_release = None

    def _loop(self, token: str, listed: Any, epochs: int, steps: int) -> None:
        listed.on_train_begin()
        for epoch in range(epochs):
            listed.on_epoch_begin(epoch)
            for step in range(0, steps, self.steps_per_execution):
                listed.on_train_batch_begin(step)
                wanted = min(self.steps_per_execution, self.optimizer.releases_left())
                self.ledger.reserve(token, wanted)
                made = sum(self.optimizer.step() for _ in range(self.steps_per_execution))
                self.ledger.settle(token, made)
                self.made_in_fit += made
                listed.on_train_batch_end(step + self.steps_per_execution - 1, {"loss": 0.0})
                if self.stop_training:
                    break
            listed.on_epoch_end(epoch, {"loss": 0.0})
            if self.stop_training:
                break
        listed.on_train_end({})


def release_of(noise_multiplier: float, sampling: Any = None) -> Release:
    """Two groups that are joined to the given noise multiplier."""
    groups = [
        GroupNoise(name, bound, noise_multiplier * math.sqrt(2) * bound) for name, bound in (("a", 1.0), ("b", 3.0))
    ]
    return Release(tuple(groups), sampling or tfdp.sampling.Poisson(BATCH), EXAMPLES)


def after(ledger: Ledger, release: Release, more: int) -> Ledger:
    """A copy of the ledger with further steps of a release."""
    probe = ledger.copy()
    probe.reserve(probe.begin(release), more)
    return probe


def spent(ledger: Ledger, delta: float = DELTA) -> float:
    """Epsilon of a Poisson ledger, from its JSON by dp-accounting alone."""
    counts: Counter[tuple[float, float]] = Counter()
    kept = json.loads(ledger.to_json())
    for _, number, steps in kept["entries"]:
        release = kept["releases"][number]
        assert release["sampling"]["kind"] == "poisson"
        multiplier = sum((group["bound"] / group["stddev"]) ** 2 for group in release["groups"]) ** -0.5
        event = (round(multiplier, 9), release["sampling"]["batch_size"] / release["examples"])
        counts[event] += steps
    return _epsilon(tuple(sorted(counts.items())), delta)


def keeps_to(ledger: Ledger, budget: float) -> bool:
    return spent(ledger) <= budget * SLACK


@functools.cache
def _epsilon(counts: tuple[Any, ...], delta: float) -> float:
    parts = [_one_step(*event).self_compose(count) for event, count in counts if count]
    return float(functools.reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(delta)) if parts else 0.0


@functools.cache
def _one_step(multiplier: float, probability: float) -> Any:
    # The finer the interval, the tighter the bound: finer than the library's own at these settings.
    return privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=2.0**-11
    )
