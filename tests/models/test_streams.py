"""Correlated noise in `fit`: what is really added, and that the ledger says what it costs wherever it is cut."""

import copy
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, stats

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, epsilon
from tfdp_layers.noise import Correlated, NoiseMemory, SeededNoise

RECORDS, BATCH, DECAY, NOISE = 10, 4, 0.8, 2.0
STREAM = Correlated(DECAY)
PASS = 3
WIDTH = 10_000


class Weights(keras.callbacks.Callback):
    """The first weight after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[np.ndarray] = []

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.after:
            self.after.append(np.asarray(self.model.trainable_variables[0].value))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.after.append(np.asarray(self.model.trainable_variables[0].value))

    @property
    def noise(self) -> np.ndarray:
        """(steps, weights), in units of the noise multiplier: records of weight zero add nothing else."""
        return -np.diff(np.stack([one.ravel() for one in self.after]), axis=0) * BATCH / NOISE


def model(noise: Any = STREAM, width: int = 1, multiplier: Any = NOISE, **options: Any) -> Any:
    made = tfdp.make_private(keras.Sequential([keras.Input((width,)), keras.layers.Dense(1, use_bias=False)]))
    compiled = {
        name: options.pop(name) for name in ("jit_compile", "run_eagerly", "steps_per_execution") if name in options
    }
    clipped = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), multiplier, 1.0, noise=noise, **options)
    made.compile(clipped, "mse", **compiled)
    return made


def data(width: int = 1) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((RECORDS, width), "float32"), np.zeros((RECORDS, 1), "float32")


def batches(width: int = 1, sampling: Any = None) -> tfdp.PrivateBatches:
    return tfdp.PrivateBatches(*data(width), sampling or tfdp.sampling.Cyclic(BATCH))


def expected(steps: int, decay: float = DECAY) -> np.ndarray:
    b = np.eye(steps) - decay * np.eye(steps, k=-1)
    return np.asarray(b @ b.T)


def check_covariance(noise: np.ndarray, wanted: np.ndarray) -> None:
    """Every entry of the covariance, over as many independent runs as there are weights, within six deviations."""
    found = noise @ noise.T / noise.shape[1]
    deviation = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / noise.shape[1])
    assert np.all(np.abs(found - wanted) < 6 * deviation), found


def recounted(*streams: tuple[int, float]) -> float:
    """Delta^2 of streams of (steps, decay), by the recursion over steps: nothing of the library's formula."""
    total = 0.0
    for steps, decay in streams:
        v = 0.0
        for t in range(steps):
            v = decay * v + (t % PASS == 0)
            total += v * v
    return total


def cost(ledger: Ledger) -> float:
    """Delta^2 of all that the ledger holds, from its epsilon alone."""
    target, delta = float(epsilon(ledger, 1e-3)), 1e-3

    def excess(mu: float) -> float:
        return float(
            stats.norm.cdf(mu / 2 - target / mu) - math.exp(target) * stats.norm.cdf(-mu / 2 - target / mu) - delta
        )

    return (optimize.brentq(excess, 1e-3, 20.0, xtol=1e-13) * NOISE) ** 2


MODES: list[dict[str, Any]] = [{}, {"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}]


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", slow_but([MODES[0], MODES[2]], MODES), ids=str)
def test_the_noise_of_fit_is_that_of_the_strategy(mode: dict[str, Any]) -> None:
    """10,000 runs of 6 steps at once: no record moves these weights, so each has the noise of a run of its own."""
    seen, made = Weights(), model(width=WIDTH, **mode)
    made.fit(batches(WIDTH), epochs=2, verbose=0, callbacks=[seen])
    noise, steps = seen.noise, 2 * PASS
    if mode.get("steps_per_execution"):  # two steps an observation
        every = np.kron(np.eye(len(noise)), [[1.0, 1.0]])
        check_covariance(noise, every @ expected(2 * len(noise)) @ every.T)
        return
    check_covariance(noise, expected(steps))
    for wrong in (0.0, 0.6, 1.0):
        with pytest.raises(AssertionError):
            check_covariance(noise, expected(steps, wrong))
    with pytest.raises(AssertionError):
        check_covariance(noise / 1.5, expected(steps))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stream_goes_on_over_several_fits_and_so_does_its_entry() -> None:
    made, drawn, seen = model(width=WIDTH), batches(WIDTH), Weights()
    for steps in (1, 4, 3):
        made.fit(drawn, steps_per_epoch=steps, verbose=0, callbacks=[seen])
    check_covariance(seen.noise, expected(8))
    assert [entry.steps for entry in made.ledger.entries] == [8]
    assert cost(made.ledger) == pytest.approx(recounted((8, DECAY)), rel=1e-6)


def test_the_order_goes_on_where_the_stream_does() -> None:
    x = np.arange(1.0, RECORDS + 1, dtype="float32")[:, None]
    drawn = tfdp.PrivateBatches(x, x, tfdp.sampling.Cyclic(BATCH))
    order = [tuple(batch[0][batch[2] > 0, 0]) for batch, _ in zip(drawn.stream(), range(2 * PASS), strict=False)]
    assert order[:PASS] == order[PASS:]
    assert sorted(sum(order[:PASS], ())) == list(x[:, 0])
    met: list[tuple[float, ...]] = []
    layer = keras.layers.Dense(1, use_bias=False)
    made = tfdp.make_private(keras.Sequential([keras.Input((1,)), layer]))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.0), NOISE, 1.0, noise=Correlated(DECAY))

    def loss(y_true: Any, y_pred: Any) -> Any:
        if tf.executing_eagerly() and len(y_true) <= BATCH:
            met.append(tuple(np.asarray(y_true)[:, 0]))
        return tf.square(y_true - y_pred)[:, 0]

    made.compile(optimizer, loss, run_eagerly=True)
    for steps in (2, 3):
        met.clear()
        made.fit(drawn, steps_per_epoch=steps, verbose=0, accept_measured=True)
        seen = [tuple(one for one in batch if one) for batch in met][-steps:]
        start = 0 if steps == 2 else 2
        assert seen == [order[(start + i) % PASS] for i in range(steps)]


CHANGES = ["arrays", "noise", "decay", "ledger", "model file", "partition", "interrupt"]


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("change", slow_but(["noise", "interrupt"], CHANGES))
def test_whatever_changes_a_new_stream_starts_and_costs_add_up(change: str, tmp_path: Path) -> None:
    made, seen = model(width=WIDTH), Weights()
    drawn = batches(WIDTH, tfdp.sampling.Partition(BATCH) if change == "partition" else None)
    made.fit(drawn, steps_per_epoch=4, verbose=0, callbacks=[seen])
    decays = (DECAY, DECAY)
    if change == "arrays":
        drawn = batches(WIDTH)
    if change == "noise":
        made.optimizer.noise_multiplier = NOISE * (1 + 1e-7)
    if change == "decay":
        made.optimizer.noise, decays = Correlated(0.5), (DECAY, 0.5)
    if change == "ledger":
        made.ledger = Ledger(tmp_path / "ledger.json")
    if change == "model file":
        made.save(tmp_path / "model.keras")
        made = tfdp.load_model(tmp_path / "model.keras")
        assert made.optimizer.noise == Correlated(DECAY)
    if change == "interrupt":
        real, calls = made.train_function._step, []

        def breaks(iterator: Any) -> Any:
            calls.append(1)
            logs = real(iterator)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return logs

        object.__setattr__(made.train_function, "_step", breaks)
        with pytest.raises(KeyboardInterrupt):
            made.fit(drawn, steps_per_epoch=4, verbose=0)
        object.__setattr__(made.train_function, "_step", real)
        assert [entry.steps for entry in made.ledger.entries] == [6]  # it went on, and the broken step counts
    start = len(seen.after)
    seen.after.append(np.asarray(made.trainable_variables[0].value))
    made.fit(drawn, steps_per_epoch=4, verbose=0, callbacks=[seen])
    fresh = np.diff(np.stack([one.ravel() for one in seen.after[start:]]), axis=0) * BATCH / NOISE
    check_covariance(fresh, expected(4, decays[1]))
    steps = [6, 4] if change == "interrupt" else [4, 4]
    assert [entry.steps for entry in made.ledger.entries] == steps
    if change != "partition":
        wanted = recounted(*zip(steps, decays, strict=True))
        assert cost(made.ledger) == pytest.approx(wanted, rel=1e-6)
        before = -np.diff(np.stack([one.ravel() for one in seen.after[:start]]), axis=0) * BATCH / NOISE
        between = float(np.mean(-fresh[0] * before[-1]))
        assert abs(between) < 6 * math.sqrt(1 + DECAY**2) / math.sqrt(WIDTH)


class Recount(keras.callbacks.Callback):
    """Compares the ledger after every step with the recursion over the streams that there should be."""

    def __init__(self, streams: list[tuple[int, float]], interrupt_at: int | None = None) -> None:
        super().__init__()
        self.streams, self.interrupt_at = streams, interrupt_at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.streams[-1] = (self.streams[-1][0] + 1, DECAY)
        assert cost(self.model.ledger) == pytest.approx(recounted(*self.streams), rel=1e-6)
        if self.interrupt_at == self.streams[-1][0]:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_ledger_is_exact_at_every_step_of_an_interrupted_resumed_and_repeated_training(tmp_path: Path) -> None:
    drawn, streams = batches(), [(0, DECAY)]
    made = model()
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(KeyboardInterrupt):
        made.fit(drawn, epochs=4, verbose=0, callbacks=[backup, Recount(streams, interrupt_at=5)])
    # In the same process the noise is still there; the weights go back to the end of the first epoch, for nothing.
    made.fit(drawn, epochs=2, verbose=0, callbacks=[backup, Recount(streams)])
    assert streams == [(5 + PASS, DECAY)]
    made.save(tmp_path / "model.keras")
    resumed = tfdp.load_model(tmp_path / "model.keras")
    streams.append((0, DECAY))
    for epochs in (1, 2):  # a stream of its own, which goes on
        resumed.fit(drawn, epochs=epochs, verbose=0, callbacks=[Recount(streams)])
    streams.append((0, DECAY))
    resumed.fit(*data(), sampling=tfdp.sampling.Cyclic(BATCH), epochs=2, verbose=0, callbacks=[Recount(streams)])
    assert [steps for steps, _ in streams] == [entry.steps for entry in resumed.ledger.entries] == [8, 9, 6]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_budget_holds_at_every_step_of_a_stream_that_goes_on() -> None:
    """The cost of the further steps depends on those before: counted as a new stream they would exceed the budget."""
    budget, drawn = 3.0, batches()
    made = model(multiplier=4.0)
    found = []
    for _ in range(6):
        callback = tfdp.callbacks.PrivacyBudget(budget, 1e-3)
        try:
            history = made.fit(drawn, steps_per_epoch=3, verbose=0, callbacks=[callback])
        except tfdp.callbacks.BudgetExhausted:
            break
        spent = float(epsilon(made.ledger, 1e-3))
        assert spent <= budget
        assert history.history["epsilon"][-1] == pytest.approx(spent, rel=1e-9)
        found.append(made.ledger.steps)
    (entry,) = made.ledger.entries
    assert len(found) > 1
    more = Ledger()
    more.reserve(more.begin(entry.release), entry.steps + 1)
    assert float(epsilon(more, 1e-3)) > budget


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_calibrated_noise_keeps_to_the_budget_and_always_starts_anew() -> None:
    drawn, made = batches(), model(noise=Correlated(), multiplier="calibrate")
    for budget in (2.0, 4.0):
        made.fit(drawn, epochs=4, verbose=0, callbacks=[tfdp.callbacks.PrivacyBudget(budget, 1e-3)])
        assert budget * 0.99 < float(epsilon(made.ledger, 1e-3)) <= budget
    assert [entry.steps for entry in made.ledger.entries] == [12, 12]
    decays = {entry.release.noise.decay for entry in made.ledger.entries}
    assert decays == {tfdp.sampling.Cyclic(BATCH).settled(Correlated(), 12, RECORDS).decay}
    statement = " ".join(str(made.privacy_statement(1e-3)).split())
    for words in (
        "correlated: of noise z_0",
        "zero out one record",
        "the two do not compare",
        "comes back every 3 steps",
    ):
        assert words in statement


def test_the_last_noise_reaches_no_file_and_no_copy(tmp_path: Path) -> None:
    made = model(width=50)
    made.fit(batches(50), verbose=0)
    (last,) = map(np.asarray, made.optimizer.memory._last.values())
    assert np.abs(last).min() > 0
    made.save(tmp_path / "model.keras")
    made.save_weights(tmp_path / "model.weights.h5")
    tf.train.Checkpoint(model=made, optimizer=made.optimizer).write(str(tmp_path / "checkpoint"))
    held = [np.asarray(v) for v in (*made.variables, *made.optimizer.variables)]
    assert not any(np.isin(last, one.astype("float32")).any() for one in held)
    needle = last[:3].tobytes()
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or needle not in file.read_bytes()
    assert not copy.deepcopy(made.optimizer.memory)._last
    assert made.optimizer.get_config()["noise"] == {"decay": DECAY}


def test_a_moving_threshold_scales_the_whole_release() -> None:
    """With adaptive clipping the step is S_t (z_t - decay z_(t-1)), not S_t z_t - decay S_(t-1) z_(t-1)."""
    seen, drawn = Weights(), batches(WIDTH)
    made = tfdp.make_private(keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1, use_bias=False)]))
    optimizer = tfdp.optimizers.ClippedOptimizer(
        keras.optimizers.SGD(1.0), 0.01, 1.0, "adaptive", threshold_rate=3.0, noise=Correlated(DECAY)
    )
    made.compile(optimizer, "mse")
    thresholds: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: thresholds.append(float(optimizer.current_threshold()))
    )
    made.fit(drawn, epochs=2, verbose=0, callbacks=[seen, note])
    (weights,) = [g.stddev for g in made.ledger.entries[0].release.groups if "layers" in g.name]
    steps = -np.diff(np.stack([one.ravel() for one in seen.after]), axis=0) * BATCH / weights
    assert max(thresholds) > 2 * min(thresholds)
    check_covariance(steps / np.array(thresholds)[:, None], expected(2 * PASS))
    with pytest.raises(AssertionError):
        check_covariance(steps, expected(2 * PASS))


def test_what_is_no_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tfdp\.noise\.Correlated\(\), for epochs"):
        tfdp.optimizers.NoisyOptimizer("sgd", 1.0, noise="correlated")  # type: ignore[arg-type]
    for sampling in (tfdp.sampling.Poisson(4), tfdp.sampling.FixedSize(4)):
        with pytest.raises(ValueError, match=r"tfdp\.sampling\.Cyclic or Partition"):
            model().fit(*data(), sampling=sampling, verbose=0)


def test_left_out_draws_end_a_stream() -> None:
    """The order would be ahead of the noise."""
    made, drawn = model(), batches()
    tighter = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: made.optimizer.limit_releases(0) if batch == 1 else None
    )
    made.fit(drawn, steps_per_epoch=3, verbose=0, callbacks=[tighter])
    assert made.ledger.steps == 1
    made.fit(drawn, steps_per_epoch=2, verbose=0)
    assert [entry.steps for entry in made.ledger.entries] == [1, 2]


def test_memory_keeps_one_buffer_and_starts_streams_of_its_own() -> None:
    memory, source = NoiseMemory(), SeededNoise(1)
    first = [np.asarray(memory.correlated(source.normal([5]), Correlated(0.5))) for _ in range(2)]
    again = SeededNoise(1)
    z = [np.asarray(again.normal([5])) for _ in range(3)]
    np.testing.assert_array_equal(first[0], z[0])
    np.testing.assert_allclose(first[1], z[1] - 0.5 * z[0], rtol=1e-6)
    for decay in (0.9999, 0.3):  # in float32 it is another number, which is then the one that is accounted
        memory.restart()
        memory.correlated(tf.constant([1.0]), Correlated(decay))
        left = float(memory.correlated(tf.constant([1.0]), Correlated(decay))[0])
        assert left == 1.0 - Correlated(decay).number == pytest.approx(1 - decay, rel=1e-3)
    memory.restart()
    np.testing.assert_array_equal(memory.correlated(tf.constant(z[2]), Correlated(0.5)), z[2])
