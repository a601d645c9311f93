"""Step times of models in interleaved rounds, so that all of them see the same load of the machine."""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras

__all__ = ["StepTimes", "interleaved", "median_step"]

_WARMING = 2
"""Steps of a `fit` that are not timed."""


class StepTimes(keras.callbacks.Callback):
    """Seconds of each step of one `fit`.

    Args:
        clock: a function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock

    def on_train_begin(self, logs: Any = None) -> None:
        self.times: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.start = self.clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(self.clock() - self.start)


def median_step(
    model: Any, x: Any, y: Any, batch_size: int, steps: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Milliseconds of the median step of one short `fit`, without its first two."""
    times = StepTimes(clock)
    model.fit(x, y, batch_size=batch_size, steps_per_epoch=steps + _WARMING, verbose=0, callbacks=[times])
    return 1e3 * statistics.median(times.times[_WARMING:])


def interleaved(
    models: Sequence[Any],
    x: Any,
    y: Any,
    batch_size: int,
    steps: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Milliseconds of the median step of each model, a list a round; one round more, to trace them, comes first.

    Args:
        x, y: at least (steps + 2) x batch_size records.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that so short trainings learn nothing, on the same records
        every = [[median_step(model, x, y, batch_size, steps, clock) for model in models] for _ in range(rounds + 1)]
    return every[1:]
