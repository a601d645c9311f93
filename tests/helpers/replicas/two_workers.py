"""Checks of two processes on loopback, forked before TensorFlow starts here. `checks.py` runs them."""

import contextlib
import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import mlp
from helpers.replicas.checking import (
    drawn_noise,
    example,
    is_correlated,
    is_standard_normal,
    still,
    stream_noise,
    weights,
    wide_model,
)
from helpers.replicas.copies import copies_of_the_chiefs
from helpers.replicas.processes import COUNTS, FOLDER, Die, Observed, workers
from tfdp_layers.accounting import BudgetExhausted, Ledger, released
from tfdp_layers.models.workers import ChiefStoppedError, Workers

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def one_session(number: int) -> dict[str, Any]:
    """What several trainings left on a worker; the first is the documented one."""
    documented: dict[str, Any] = {}
    os.chdir(FOLDER)
    exec(example("worker"), documented)
    strategy, model = documented["strategy"], documented["model"]
    found: dict[str, Any] = {"documented": [model.ledger.steps, weights(model).tolist()]}

    if number == 0:
        saved = tfdp.load_model("model.keras")
        found["saved"] = [saved.ledger.steps, weights(saved).tolist()]
    # Goes on in the same entry of the ledger until a smaller budget is spent.
    given = {"batch_size": 256, "epochs": 30, "callbacks": [tfdp.callbacks.PrivacyBudget(2.1, 1e-5)]}
    model.fit(documented["data"].x_train, documented["data"].y_train, verbose=0, **given)
    found["budget"] = [model.ledger.steps, int(model.optimizer.releases.numpy()), model.privacy_statement(1e-5).epsilon]

    def noiseless(scope: Any, **options: Any) -> list[float]:
        keras.utils.set_random_seed(1)
        released._released.clear()  # without noise both end with equal numbers, and would pay for each other
        with scope:
            model, x, y = mlp()
            optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(0.05), 0.0)
            still(model).compile(optimizer, LOSS, **options)
        draws = {"sampling": tfdp.sampling.Poisson(5), "sampling_seed": 1, "steps_per_epoch": 4}
        model.fit(x, y, epochs=2, verbose=0, owners=np.arange(12) // 2, records_per_owner=2, **draws)
        (release,) = model.ledger.releases
        found["owned"] = [release.unit, release.records_per_owner, model.ledger.steps]
        return weights(model).tolist()

    found["two"] = noiseless(strategy.scope(), steps_per_execution=2)
    if number == 0:
        found["one"] = noiseless(contextlib.nullcontext())
    with strategy.scope():
        model, x, y = wide_model(noise_source="secure")
    found["noise"] = drawn_noise(model, x, y).tolist()
    with strategy.scope():
        wide = wide_model(noise=tfdp.noise.Correlated(0.8))
    found["stream"] = stream_noise(*wide).tolist()
    found["refused"] = refused(number, model, x, y)
    with strategy.scope():
        model, x, y = wide_model()
    with pytest.raises(ValueError, match="differ from the chief") as raised:
        model.fit(x, y, batch_size=4, verbose=0, **({"owners": np.arange(16)} if number else {}))
    assert model.ledger.steps == 0
    found["not owned"] = str(raised.value)[:90]
    found["calibrated"] = calibrated(strategy, number)
    found["unequal callbacks"] = callbacks_of_their_own(strategy, number)
    found["shared"] = shared_and_compared(strategy, number)
    found["copies"] = copies_of_the_chiefs(strategy, number)
    found["exchanged"] = exchanged_files(strategy, number)
    found["together"] = several_steps_a_call(strategy, number)
    return found


class Exchanges(keras.callbacks.Callback):
    """Sets other weights in the middle of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.set_weights([3.0 + value for value in self.model.get_weights()])


def callbacks_of_their_own(strategy: Any, number: int) -> list[float]:
    """Weights after a training in which this worker alone changed weights, and made other rates than the chief."""
    with strategy.scope():
        model, x, y = mlp()
        model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), LOSS)
    callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (1 + epoch * number))]
    callbacks += [Exchanges()] * number
    said = pytest.warns(UserWarning, match="held other weights") if number else contextlib.nullcontext()
    with said:
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    return weights(model).tolist()


def shared_and_compared(strategy: Any, number: int) -> list[Any]:
    """Flags and round numbers that each worker made otherwise; and what no worker can share."""
    with strategy.scope():
        flags = keras.Variable([bool(number), True], dtype="bool")
        numbers = keras.Variable([1.0 + number, 0.5])
    few = keras.Variable([127 - number, -127], dtype="int8")  # made outside, as frozen quantized weights are
    variables = [flags, numbers, few]
    workers = Workers(strategy, chief=number == 0)
    workers.share(variables)
    read = tf.Variable([1.0, 2.0 + number])
    workers.hold(variables, [read])
    with pytest.raises(ValueError, match="hold different numbers in variables that the steps read"):
        workers.level()
    workers.hold(variables)
    assert workers.level()
    numbers.assign([0.25 + 0.25 * number, 0.5])
    assert not workers.level()
    return [variable.numpy().tolist() for variable in variables]


class Files:
    """400 records, each in a file; this worker's order of them may be another."""

    def __init__(self, exchanged: bool) -> None:
        self.order, self.rows = np.arange(400), np.random.default_rng(0).normal(size=(400, 5)).astype("float32")
        if exchanged:
            self.order[[198, 199]] = 199, 198

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.rows[self.order[index]], np.int32(0)


def exchanged_files(strategy: Any, number: int) -> list[Any]:
    """Steps with the same order, and with two neighbours exchanged on one worker; what the latter was told."""
    steps, said = [], ""
    for exchanged in (False, bool(number)):
        with strategy.scope():
            model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]))
            model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), LOSS)
        try:
            model.fit(tfdp.records(Files(exchanged)), batch_size=200, epochs=12, verbose=0)
        except ValueError as error:
            said = str(error)[:90]
        steps.append(model.ledger.steps)
    return [*steps, said]


def several_steps_a_call(strategy: Any, number: int) -> list[Any]:
    """Steps of draws of any size, 4 a call, of a few rows and of more than one exchange takes; and what was told of two
    records that are exchanged on one worker. A collective in a loop, whose shape changed, ended all of these.
    """
    found: list[Any] = []
    for exchanged, drawn, epochs in ((False, 30, 2), (False, 1300, 2), (bool(number), 200, 12)):
        files = Files(exchanged)
        if drawn > 400:
            files.order, files.rows = np.arange(3000), np.random.default_rng(0).normal(size=(3000, 5)).astype("float32")
        with strategy.scope():
            model = tfdp.make_private(keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]))
            optimizer = tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0)
            model.compile(optimizer, LOSS, steps_per_execution=4)
        given = {"sampling": tfdp.sampling.Poisson(drawn), "steps_per_epoch": 4, "epochs": epochs, "verbose": 0}
        try:
            model.fit(tfdp.records(files), **given)
            found.append([model.ledger.steps, weights(model).tolist()])
        except ValueError as error:
            found.append(str(error)[:90])
    return found


def calibrated(strategy: Any, number: int) -> list[float]:
    """The noise multiplier that the chief found, whose ledger alone knows of an earlier release; steps; epsilon."""
    with strategy.scope():
        model, x, y = wide_model()
        model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0)), model.loss)
    given = {"sampling": tfdp.sampling.FixedSize(4), "steps_per_epoch": 2, "verbose": 0}
    model.fit(x, y, callbacks=[tfdp.callbacks.PrivacyBudget(1.0, 1e-5)], **given)
    with pytest.raises((BudgetExhausted, ChiefStoppedError)[number]):
        model.fit(x, y, callbacks=[tfdp.callbacks.PrivacyBudget(1.0, 1e-5)], **given)
    with pytest.raises((ValueError, ChiefStoppedError)[number]):
        model.fit(x, y, **given)
    model.fit(x, y, callbacks=[tfdp.callbacks.PrivacyBudget(2.0, 1e-5)], **given)
    return [model.optimizer.noise_multiplier, model.ledger.steps, model.privacy_statement(1e-5).epsilon]


def refused(number: int, model: Any, x: Any, y: Any) -> list[str]:
    """Why a `fit` that would be unsound does not start, on this worker; the ledger stays as it is."""
    steps, said = model.ledger.steps, []
    turned = x * (1 + number)
    given = {"x": x, "y": y, "sampling": tfdp.sampling.FixedSize(4)}
    cases: list[tuple[Any, dict[str, Any]]] = [
        (ValueError, given | {"x": turned}),
        (ValueError, given | {"physical_batch_size": 1 + number}),
        (ValueError, given | {"validation_data": (x.copy(), y)}),
        (ValueError, {"x": tfdp.declare_sampling(pairs(x, y), tfdp.sampling.Partition(4), examples=16)}),
        (
            (BudgetExhausted, ChiefStoppedError)[number],
            given | {"callbacks": [tfdp.callbacks.PrivacyBudget(1e-3, 1e-5)]},
        ),
        # Partition has another neighbouring relation than the chief's ledger.
        ((ValueError, ChiefStoppedError)[number], given | {"sampling": tfdp.sampling.Partition(4)}),
    ]
    for error, arguments in cases:
        with pytest.raises(error) as raised:
            model.fit(verbose=0, **arguments)
        said.append(str(raised.value)[:90])
    # One of them alone gives what cannot be, or has a callback that is refused; none waits for it.
    for alone, wrong in ((0, {"callbacks": ["none"]}), (1, {"batch_sizes": 4}), (0, {"unit_ids": x[:3]})):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            model.fit(verbose=0, **given, **(wrong if number == alone else {}))
        said.append(type(raised.value).__name__)
    with model.distribute_strategy.scope():
        model.compile(model.optimizer, lambda y, found: (1.0 + number) * keras.ops.mean(found, axis=-1))
    with pytest.raises(ValueError, match="differ from the chief") as raised:
        model.fit(verbose=0, **given)
    said.append(str(raised.value)[:90])
    assert model.ledger.steps == steps
    return said


def pairs(x: Any, y: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


FOUND: list[Any] = []


def two_workers_train() -> None:
    FOUND.extend(workers(one_session))


def the_documented_example_trains() -> None:
    assert FOUND[0]["saved"] == FOUND[0]["documented"] == FOUND[1]["documented"]
    assert FOUND[0]["saved"][0] == 18


def two_workers_equal_one_device() -> None:
    np.testing.assert_allclose(FOUND[0]["two"], FOUND[0]["one"], rtol=1e-5, atol=1e-6)


def owners_are_charged_on_all_workers() -> None:
    assert FOUND[0]["owned"] == FOUND[1]["owned"] == ["owner", 2, 8]
    assert "this one in nothing" in FOUND[0]["not owned"]
    assert "'release'" in FOUND[1]["not owned"]


def weights_are_the_same_on_all_workers() -> None:
    # Also where they started from different ones ("documented"), and with a source of noise that no key repeats.
    for name in ("two", "noise", "stream"):
        np.testing.assert_array_equal(FOUND[0][name], FOUND[1][name])


def what_one_workers_callbacks_change_is_taken_back() -> None:
    """A rate drawn at random by each worker made other weights on each: a record's part depended on its slice."""
    np.testing.assert_array_equal(*[one["unequal callbacks"] for one in FOUND])
    assert np.abs(FOUND[0]["unequal callbacks"]).max() < 3.0
    assert FOUND[0]["shared"] == FOUND[1]["shared"] == [[False, True], [0.25, 0.5], [127, -127]]


def every_worker_counts_what_it_holds_and_charges_nothing_of_its_own() -> None:
    chief, other = (one["copies"] for one in FOUND)
    assert chief == other
    assert [steps for steps, _ in chief["stated"]] == [9 + 3, 9 + 6 + 1, 9 + 6 + 1]  # one is the chief's metric
    assert chief["loaded"] == chief["stated"][1]
    assert chief["after"] == [16, 16]
    assert chief["merged"] == [16]
    assert chief["last"][:2] == [16 + 1 + 3 + 3] * 2


def the_noise_of_a_step_is_the_stated_one() -> None:
    assert is_standard_normal(np.array(FOUND[0]["noise"]))
    assert is_correlated(np.array(FOUND[0]["stream"]), 0.8)


def the_chief_finds_the_noise_for_all() -> None:
    assert FOUND[0]["calibrated"] == FOUND[1]["calibrated"]
    _, steps, epsilon = FOUND[0]["calibrated"]
    assert steps == 4
    assert 1.98 < epsilon <= 2.0


def the_budget_ends_all_workers_together() -> None:
    assert FOUND[0]["budget"] == FOUND[1]["budget"]
    steps, releases, epsilon = FOUND[0]["budget"]
    assert Ledger(FOLDER / "ledger.json").steps == steps
    assert 18 < steps == releases < 30
    assert 2.0 < epsilon <= 2.1


def what_differs_between_workers_is_refused() -> None:
    chief, other = FOUND[0]["refused"], FOUND[1]["refused"]
    assert "this one in nothing" in chief[0] + chief[1]
    assert "['records']" in other[0]
    assert "['pieces']" in other[1]
    assert chief[2:4] == other[2:4]
    assert "Keras 3 cannot evaluate" in other[2]
    assert "DeclaredBatches" in other[3]
    assert "The chief stopped" in other[4]
    assert "This ledger counts under REPLACE_ONE" in chief[5]
    told, others = (["ChiefStoppedError" in one for one in side[6:9]] for side in (other, chief))
    assert told == [True, False, True]
    assert others == [False] * 3
    assert chief[7] == "WorkerStoppedError"
    assert "this one in ['program']" in other[9]


def a_record_that_stands_elsewhere_on_one_worker_ends_both() -> None:
    for found in FOUND:
        steps, fewer, said = found["exchanged"]
        assert steps == 24
        assert fewer < 24
        assert said.startswith("The workers do not hold the same records in the same order")


def workers_compare_draws_of_any_size_in_steps_that_are_made_together() -> None:
    chief, other = (one["together"] for one in FOUND)
    assert chief[:2] == other[:2]
    assert [steps for steps, _ in chief[:2]] == [8, 8]
    assert all(
        one[2].startswith("The workers do not hold the same records in the same order") for one in (chief, other)
    )


def after_a_kill_the_ledger_counts_what_was_released() -> None:
    """A worker is killed; training goes on from the chief's checkpoint, and the chief is killed."""
    totals = [0]
    for victim in (1, 0):
        found = workers(lambda number, victim=victim: resumed(number, victim))
        assert [one is None for one in found] == [victim == 0, victim == 1]
        ledger = Ledger(FOLDER / "killed.json")
        released = max(count.value for count in COUNTS)
        assert released <= ledger.steps <= released + 1, (victim, ledger.steps, released)
        # The last exchange may break off for whoever lives on, after the victim had it: such a step counts, too. The
        # second training goes on from the first one's backup.
        assert released - 1 <= found[1 - victim][0] <= released
        totals.append(released)
    assert totals[1] == 3
    assert 5 <= totals[2] <= 6


def resumed(number: int, victim: int) -> Any:
    """Trains from where the backup stands; the victim kills itself."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, x, y = mlp()
        model.compile(Observed("sgd", 1.0), LOSS)
    model.optimizer.count = COUNTS[number]
    callbacks: list[Any] = [Die(3)] if number == victim else []
    if number == 0:
        model.ledger = Ledger(FOLDER / "killed.json", dataset="killed")
        callbacks.insert(0, keras.callbacks.BackupAndRestore(FOLDER / "killed", save_freq=1))
    with pytest.raises(tf.errors.UnavailableError):
        model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
    released = int(model.optimizer.releases.numpy())
    assert released <= model.ledger.steps <= released + 1  # the chief's copy, too, where the chief is gone
    assert model.privacy_statement(1e-5).epsilon > 0.0
    return [released]


CHECKS = (
    after_a_kill_the_ledger_counts_what_was_released,
    two_workers_train,
    the_documented_example_trains,
    two_workers_equal_one_device,
    owners_are_charged_on_all_workers,
    weights_are_the_same_on_all_workers,
    what_one_workers_callbacks_change_is_taken_back,
    every_worker_counts_what_it_holds_and_charges_nothing_of_its_own,
    the_noise_of_a_step_is_the_stated_one,
    the_chief_finds_the_noise_for_all,
    the_budget_ends_all_workers_together,
    what_differs_between_workers_is_refused,
    a_record_that_stands_elsewhere_on_one_worker_ends_both,
    workers_compare_draws_of_any_size_in_steps_that_are_made_together,
)
