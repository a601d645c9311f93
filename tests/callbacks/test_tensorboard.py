"""PrivacyTensorBoard writes what is promised, and nothing that is not covered unless asked."""

import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

import tfdp_layers as tfdp
from helpers.spending import DELTA, STEPS, after, fit, records, release_of, spent, tiny_model
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget, PrivacyTensorBoard

PUBLIC = {
    "privacy/epsilon",
    "privacy/epsilon_spent",
    "privacy/noise_multiplier",
    "privacy/bound/head",
    "privacy/noise_stddev/head",
    "privacy/statement",
    "privacy/rdp_curve",
    "privacy/epsilon_by_order",
    "_hparams_/session_start_info",
}


def events(folder: Path) -> dict[str, dict[int, Any]]:
    """Values by tag and step, of a folder's own event files and those below it."""
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    found[value.tag][event.step] = value.metadata.plugin_data.content
                else:
                    found[value.tag][event.step] = tensor_util.make_ndarray(value.tensor)
    return found


def spent_after(steps: int) -> float:
    return spent(after(Ledger(), release_of(1.3), steps))


def validation() -> tuple[np.ndarray, np.ndarray]:
    x, y = records()
    return x[:10] + 1, y[:10]


def test_it_writes_epsilon_noise_bounds_statement_and_curve_and_nothing_unprotected(tmp_path: Path) -> None:
    model = tiny_model()
    fit(model, PrivacyTensorBoard(tmp_path, delta=DELTA), epochs=3)
    found = events(tmp_path)
    assert set(found) == PUBLIC
    release = model.ledger.entries[0].release
    assert set(found["privacy/epsilon"]) == {0, STEPS, 2 * STEPS, 3 * STEPS}
    assert found["privacy/epsilon"][3 * STEPS] == pytest.approx(spent(model.ledger), rel=1e-3)
    said = found["privacy/epsilon_spent"][3 * STEPS].item().decode().split()
    assert float(said[2]) == pytest.approx(spent(model.ledger), rel=2e-3), "the number itself, unsmoothed"
    assert float(said[2]) >= found["privacy/epsilon"][3 * STEPS] * (1 - 1e-6), "rounded up"
    exact = [float(tfdp.accounting.EpsilonCurve(None, release, DELTA).at(n * STEPS)) for n in range(4)]
    written = [float(found["privacy/epsilon"][n * STEPS]) for n in range(4)]
    assert [max(one) for one in zip(written, exact, strict=True)] == written, "in single precision"
    assert found["privacy/noise_multiplier"][STEPS] == pytest.approx(release.noise_multiplier)
    assert found["privacy/bound/head"][STEPS] == pytest.approx(release.groups[0].bound)
    assert found["privacy/noise_stddev/head"][STEPS] == pytest.approx(release.groups[0].stddev)
    text = found["privacy/statement"][3 * STEPS].item().decode()
    assert [line[4:] for line in text.splitlines()] == str(model.privacy_statement(DELTA)).splitlines()
    assert all(line.startswith("    ") for line in text.splitlines())  # Markdown takes it as it stands.


def test_the_rdp_curve_is_the_sum_of_its_steps(tmp_path: Path) -> None:
    """At order 2, q^2 (exp(1 / z^2) - 1) is the exact exponent of one Poisson-subsampled step under its logarithm."""
    fit(tiny_model(1.3), PrivacyTensorBoard(tmp_path, delta=DELTA), epochs=1)
    found = events(tmp_path / f"rdp_after_{STEPS}_steps")
    curve, proven = found["privacy/rdp_curve"], found["privacy/epsilon_by_order"]
    one = np.log1p((1 / 8) ** 2 * np.expm1(1 / 1.3**2))
    assert curve[2] == pytest.approx(STEPS * one, rel=1e-3)
    assert [curve[order] for order in sorted(curve)] == sorted(curve.values())
    best = min(proven, key=lambda order: proven[order])
    assert min(curve) < best < max(curve)  # The best order is in sight.
    loosest = curve[best] - np.log(DELTA) / (best - 1)  # Mironov 2017, Proposition 3.
    assert spent_after(STEPS) < proven[best] <= loosest


@pytest.mark.slow
def test_training_metrics_need_the_flag_and_validation_metrics_do_not(tmp_path: Path) -> None:
    for name, flag in (("without", False), ("with", True)):
        board = PrivacyTensorBoard(tmp_path / name, update_freq=3, log_unprotected=flag)
        fit(tiny_model(), board, validation_data=validation())
    public = PUBLIC | {"validation/loss", "validation/accuracy"}
    assert set(events(tmp_path / "without")) == public
    unprotected = {f"unprotected/{kind}{name}" for kind in ("", "batch_") for name in ("loss", "accuracy")}
    assert set(events(tmp_path / "with")) == public | unprotected


def two_outputs(name: str) -> Any:
    inputs = keras.Input((4,))
    outputs = {one: keras.layers.Dense(1, name=one)(inputs) for one in (name, "other")}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    optimizer = tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=1.0)
    model.compile(optimizer, loss=dict.fromkeys(outputs, "mse"), metrics={one: ["mae"] for one in outputs})
    return model


@pytest.mark.parametrize("validated", [False, True])
def test_a_training_metric_that_is_called_like_one_of_validation_data_is_left_out(
    tmp_path: Path, validated: bool
) -> None:
    x, y = records()
    public, labels = validation()
    given = {"validation_data": (public, {"val": labels, "other": labels})} if validated else {}
    board = PrivacyTensorBoard(tmp_path, delta=DELTA)
    with pytest.warns(UserWarning, match=r"does not write \[.*'val_mae'.*other names") as told:
        two_outputs("val").fit(
            x, {"val": y, "other": y}, batch_size=32, epochs=2, verbose=0, callbacks=[board], **given
        )
    assert sum("does not write" in str(one.message) for one in told) == 1, "once in a training"
    assert not [tag for tag in events(tmp_path) if "mae" in tag or "loss" in tag]


def test_so_it_is_in_a_loop_and_the_flag_shows_it_as_what_it_is(tmp_path: Path) -> None:
    x, y = records()
    for flag in (False, True):
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")]))
        optimizer = tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=1.0)
        model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.BinaryAccuracy(name="val_acc")])
        board = PrivacyTensorBoard(tmp_path / str(flag), delta=DELTA, log_unprotected=flag)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with model.private_run(x, y, batch_size=32, epochs=1, callbacks=[board]) as run:
                for batch in run:
                    run.step(batch)
        assert any("does not write ['val_acc']" in str(one.message) for one in told) != flag
        shown = [tag for tag in events(tmp_path / str(flag)) if "val" in tag]
        assert shown == (["unprotected/val_acc"] if flag else [])


def test_a_number_that_a_callback_adds_is_of_validation_data_only_where_there_are_some(tmp_path: Path) -> None:
    class Adds(keras.callbacks.Callback):
        adds_to_logs = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_mine"] = 1.0

    with pytest.warns(UserWarning, match="does not write \\['val_mine'\\].*validation_data"):
        fit(tiny_model(), Adds(), PrivacyTensorBoard(tmp_path / "none", delta=DELTA), epochs=1)
    assert "validation/mine" not in events(tmp_path / "none")


def test_metrics_of_ordinary_validation_data_are_written_without_a_word(tmp_path: Path) -> None:
    x, y = records()
    public, labels = validation()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "PrivacyTensorBoard")
        board = PrivacyTensorBoard(tmp_path / "value", delta=DELTA)
        two_outputs("value").fit(
            x,
            {"value": y, "other": y},
            batch_size=32,
            verbose=0,
            callbacks=[board],
            validation_data=(public, {"value": labels, "other": labels}),
        )
        fit(tiny_model(), PrivacyTensorBoard(tmp_path / "none", delta=DELTA), epochs=1)
    shown = {tag for tag in events(tmp_path / "value") if tag.startswith("validation/")}
    assert shown >= {"validation/value_mae", "validation/other_mae", "validation/loss"}


@pytest.mark.parametrize("with_budget", slow_but([True], [False, True]))
def test_between_epochs_it_writes_a_bound_every_so_many_batches(tmp_path: Path, with_budget: bool) -> None:
    model = tiny_model(steps_per_execution=2)
    budgets = [PrivacyBudget(9.0, DELTA)] if with_budget else []
    fit(model, PrivacyTensorBoard(tmp_path, delta=DELTA, update_freq=4), *budgets)
    written = events(tmp_path)["privacy/epsilon"]
    assert set(written) == {0, 4, 8, 12, 16}
    assert [written[step] for step in sorted(written)] == sorted(written.values())


@pytest.mark.slow
def test_delta_is_that_of_the_budget_unless_given(tmp_path: Path) -> None:
    for name, delta, expected in (("budget", None, DELTA), ("given", 1e-4, 1e-4)):
        model = tiny_model()
        fit(model, PrivacyTensorBoard(tmp_path / name, delta=delta), PrivacyBudget(1.2, DELTA))
        last = events(tmp_path / name)["privacy/epsilon"][model.ledger.steps]
        assert last == pytest.approx(spent(model.ledger, expected), rel=1e-3)
    model = tiny_model()
    fit(model, PrivacyTensorBoard(tmp_path / "alone"), epochs=1)
    assert events(tmp_path / "alone")["privacy/epsilon"][STEPS] == pytest.approx(spent(model.ledger, 1e-5), rel=1e-3)


def test_hyper_parameters_name_sampling_noise_and_optimizer(tmp_path: Path) -> None:
    model = tiny_model()
    adam = tfdp.optimizers.NoisyOptimizer(keras.optimizers.Adam(0.1), 1.3)
    model.compile(optimizer=adam, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fit(model, PrivacyTensorBoard(tmp_path, delta=DELTA), epochs=1)
    content = events(tmp_path)["_hparams_/session_start_info"][0]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["sampling"].string_value == "poisson"
    assert values["batch_size"].number_value == 8
    assert values["noise_multiplier"].number_value == pytest.approx(1.3)
    assert values["learning_rate"].number_value == pytest.approx(0.1)
    assert values["optimizer"].string_value == "NoisyOptimizer(Adam)"
    assert "epsilon" not in values  # Adam has one of its own.


def test_it_spends_nothing_and_a_second_fit_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    model, board = tiny_model(), PrivacyTensorBoard(tmp_path, delta=DELTA)
    fit(model, board, epochs=1)
    fit(model, board, epochs=1)
    assert model.ledger.steps == 2 * STEPS
    written = events(tmp_path)["privacy/epsilon"]
    assert set(written) == {0, STEPS, 2 * STEPS}
    assert written[2 * STEPS] == pytest.approx(spent(model.ledger), rel=1e-3)


def test_a_run_without_noise_is_shown_as_infinite(tmp_path: Path) -> None:
    fit(tiny_model(noise_multiplier=0.0), PrivacyTensorBoard(tmp_path), epochs=1)
    assert events(tmp_path)["privacy/epsilon"][STEPS] == np.inf


def test_nothing_is_left_of_the_budget_so_no_log_is_written(tmp_path: Path) -> None:
    with pytest.raises(BudgetExhausted):
        fit(tiny_model(), PrivacyTensorBoard(tmp_path), PrivacyBudget(1e-3, DELTA))
    assert not events(tmp_path)


def test_a_log_dir_that_cannot_be_written_is_refused_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"log_dir=.*can't be written"):
        PrivacyTensorBoard(tmp_path / "file" / "logs")


def test_a_log_dir_that_vanished_is_refused_before_a_step(tmp_path: Path) -> None:
    model, board = tiny_model(), PrivacyTensorBoard(tmp_path / "logs")
    (tmp_path / "logs").rmdir()
    (tmp_path / "logs").write_text("")
    with pytest.raises(ValueError, match="can't be written"):
        fit(model, board)
    assert model.ledger.steps == 0


@pytest.mark.parametrize(
    "options",
    [{"delta": 0.0}, {"delta": 2.0}, {"update_freq": 0}, {"update_freq": "batch"}, {"update_freq": True}],
    ids=str,
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PrivacyTensorBoard(tmp_path, **options)


def test_a_model_that_is_not_private_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="make_private"):
        fit(model, PrivacyTensorBoard(tmp_path))


def test_without_tensorboard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.plugins.hparams", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[tensorboard\]'"):
        PrivacyTensorBoard(tmp_path)
