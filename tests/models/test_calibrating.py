"""`fit` finds the noise from the budget: all planned steps fit, little is left over, and the noise is really added."""

import re
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normality import assert_normal, is_normal
from helpers.spending import BATCH, DELTA, EXAMPLES, STEPS, records
from tfdp_layers.accounting import Budget, Ledger, epsilon
from tfdp_layers.callbacks import BudgetExhausted, PrivacyBudget
from tfdp_layers.models import calibrating
from tfdp_layers.models.calibrating import rounded_up
from tfdp_layers.models.training import PrivateTraining

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TIGHT = 0.985  # of the budget that is used up; five digits of the noise cost 1e-4, the search a little more
PLAIN = tfdp.sampling.Partition(BATCH)  # whose noise is found in milliseconds, by a formula


def tiny(optimizer: Any = None, **options: Any) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")]))
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("sgd"), LOSS, run_eagerly=True, **options)
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2, verbose: int = 0, **options: Any) -> Any:
    x, y = records()
    return model.fit(x, y, sampling=PLAIN, epochs=epochs, verbose=verbose, callbacks=list(callbacks), **options)


def uses_up(model: Any, budget: float, delta: float = DELTA) -> bool:
    return TIGHT * budget < epsilon(model.ledger, delta) <= budget


@pytest.mark.slow
def test_what_persons_have_left_is_planned_with_and_records_are_not_mixed_in():
    """Two fits for units, after a vocabulary of theirs: what it and the first one spent counts, and no more."""
    ids, model = np.arange(EXAMPLES) // 2, tiny()
    notes = ["late", "paid"] * (EXAMPLES // 2)
    tfdp.preprocessing.vocabulary(notes, model.ledger, noise_multiplier=50.0, failure=1e-6, unit_ids=ids)

    def fit(model: Any, budget: float, **options: Any) -> None:
        callbacks = [PrivacyBudget(budget, DELTA)]
        model.fit(*records(), batch_size=BATCH, epochs=1, verbose=0, callbacks=callbacks, **options)

    for budget in (2.0, 3.0):
        fit(model, budget, unit_ids=ids)
        assert 0.9 * budget < epsilon(model.ledger, DELTA) <= budget
    fixed = tiny(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=20.0))
    fixed.ledger = model.ledger
    fit(fixed, 3.5, unit_ids=ids)
    held = model.ledger.steps
    for other in (model, fixed):
        with pytest.raises(ValueError, match=r"protects one unit.* Give unit_ids=\.\.\. in every call"):
            fit(other, 9.0)
    assert model.ledger.steps == held


# The noise ------------------------------------------------------------------------------------------------------------


def still(**options: Any) -> Any:
    """A model of 1,600 weights whose gradients are all zero, so that steps of rate 1 are noise over the batch size."""
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(400, use_bias=False)]))
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0)), lambda y, p: p[:, 0] * 0.0, **options)
    return model


def noise_of_a_fit(model: Any, budget: float) -> np.ndarray:
    """What one further step added to the sum of gradients: numbers of deviation z."""
    before = model.get_weights()[0]
    x, _ = records()
    model.fit(
        *(x, np.zeros(EXAMPLES)),
        sampling=PLAIN,
        callbacks=[PrivacyBudget(budget, DELTA)],
        steps_per_epoch=1,
        verbose=0,
    )
    return (before - model.get_weights()[0]) * BATCH


@pytest.mark.slow
def test_each_fit_adds_the_noise_that_it_found_and_not_that_of_an_earlier_one() -> None:
    model = still(run_eagerly=False)
    first = noise_of_a_fit(model, 0.8)
    weak = model.optimizer.noise_multiplier
    second = noise_of_a_fit(model, 4.0)
    strong = model.optimizer.noise_multiplier
    assert weak > 1.6 * strong
    assert_normal(first, weak)
    assert_normal(second, strong)
    assert [e.release.noise_multiplier for e in model.ledger.entries] == [pytest.approx(weak), pytest.approx(strong)]


def test_the_check_sees_a_compiled_step_that_keeps_the_earlier_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model = still()
    noise_of_a_fit(model, 0.8)
    weak, stale = model.optimizer.noise_multiplier, model.train_function
    plan = PrivateTraining._check_trace

    def keep(self: Any, *args: Any) -> Any:
        report = plan(self, *args)
        self.train_function = stale
        return report

    monkeypatch.setattr(PrivateTraining, "_check_trace", keep)
    noise = noise_of_a_fit(model, 4.0)
    assert not is_normal(noise, model.optimizer.noise_multiplier)
    assert_normal(noise, weak)


# The steps ------------------------------------------------------------------------------------------------------------


OTHERS = (tfdp.sampling.FixedSize(BATCH), tfdp.sampling.TruncatedPoisson(BATCH))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"batch_size": BATCH}, STEPS),
        ({"sampling": PLAIN, "physical_batch_size": 3}, STEPS),
        ({"sampling": PLAIN, "steps_per_epoch": 5}, 5),
        ({"sampling": PLAIN, "unit_ids": np.arange(EXAMPLES) // 2}, STEPS // 2),
        *(pytest.param({"sampling": one}, STEPS, marks=pytest.mark.slow) for one in OTHERS),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_all_planned_steps_are_made_and_use_the_budget_up(options: dict[str, Any], steps: int) -> None:
    model, (x, y), budget = tiny(), records(), PrivacyBudget(1.0, DELTA)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[budget], **options)
    assert model.ledger.steps == 2 * steps
    assert not budget.exhausted
    assert uses_up(model, 1.0)


@pytest.mark.slow
def test_calls_of_several_steps_make_the_last_one_whole_and_that_is_planned() -> None:
    model, budget = tiny(steps_per_execution=3), PrivacyBudget(2.0, DELTA)
    fit(model, budget, epochs=2)
    assert model.ledger.steps == 2 * 9
    assert uses_up(model, 2.0)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdp.optimizers.NoisyOptimizer("sgd"),
        lambda: tfdp.optimizers.ClippedOptimizer("sgd", clipping="adaptive"),
        lambda: tfdp.optimizers.ClippedOptimizer("sgd", clipping="per_layer"),
        lambda: tfdp.optimizers.TanhFilteredOptimizer("sgd"),
        lambda: tfdp.optimizers.AdaDPOptimizer(),
        lambda: tfdp.optimizers.AdaDPOptimizer(scale_estimator="query"),
    ],
    ids=["noisy", "adaptive clip", "per layer", "tanh", "adadp", "adadp by a query"],
)
def test_every_optimizer_keeps_to_the_budget_by_default(make: Any) -> None:
    optimizer = make()
    model = tiny(optimizer)
    if isinstance(optimizer, tfdp.optimizers.NoisyOptimizer):
        model = tfdp.PrivateSequential([keras.Input((4,)), tfdp.layers.ClippedDense(2)])
        model.compile(optimizer, LOSS, run_eagerly=True)
    fit(model, PrivacyBudget(2.0, DELTA))
    assert model.ledger.steps == 2 * STEPS
    assert uses_up(model, 2.0)


@pytest.mark.slow
def test_what_the_ledger_holds_is_part_of_the_budget_and_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny()
    fit(model, PrivacyBudget(1.5, DELTA), verbose=2)
    fit(model, PrivacyBudget(3.0, DELTA), verbose=2)
    said = [line for line in capsys.readouterr().out.splitlines() if "oise multiplier" in line]
    first, second = (f"{entry.release.noise_multiplier:.5g}" for entry in model.ledger.entries)
    assert said[0] == (
        f"Noise multiplier {first}: epsilon 1.5 at delta 0.001 after 16 steps (2 epochs), 8 of 64 records each by"
        " partition sampling."
    )
    assert said[1].startswith(f"Noise multiplier {second}: epsilon 3 at delta 0.001 after 16 steps (2 epochs), ")
    assert re.search(r", beside epsilon 1\.(5|49\d+) that the ledger holds\.$", said[1])
    assert uses_up(model, 3.0)
    fit(model, PrivacyBudget(4.0, DELTA), epochs=1)
    assert not capsys.readouterr().out  # verbose=0


def test_a_budget_of_the_data_set_holds_as_well() -> None:
    model = tiny()
    model.ledger = Ledger(dataset="people", budget=(1.0, DELTA))
    fit(model, PrivacyBudget(2.0, DELTA))
    assert model.ledger.steps == 2 * STEPS
    assert uses_up(model, 1.0)


@pytest.mark.few(1)
@pytest.mark.parametrize(("mine", "whose"), [(8.0, "the data set"), (0.5, "the callback")])
def test_the_line_names_the_budget_that_decided(mine: float, whose: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny()
    model.ledger = Ledger(dataset="people", budget=(1.0, DELTA))
    fit(model, PrivacyBudget(mine, DELTA), verbose=2)
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Noise multiplier"))
    least = min(mine, 1.0)
    assert f": epsilon {least:g} at delta {DELTA:g}" in said
    other = f", the budget of the data set 'people' (PrivacyBudget(epsilon=8, delta={DELTA:g}) needs less noise), after"
    assert (other in said) == (whose == "the data set")
    assert uses_up(model, least)


@pytest.mark.slow
def test_a_run_that_crashed_goes_on_with_about_its_noise_for_the_steps_that_are_left(tmp_path: Any) -> None:
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    def started(*callbacks: Any) -> Any:
        model = tiny()
        model.ledger = Ledger(tmp_path / "ledger.json")
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        try:
            fit(model, PrivacyBudget(2.0, DELTA), backup, *callbacks, epochs=4)
        finally:
            model.ledger.close()
        return model

    with pytest.raises(KeyboardInterrupt):
        started(Crash())
    assert Ledger.read(tmp_path / "ledger.json").steps == 2 * STEPS
    model = started()
    first, second = (entry.release.noise_multiplier for entry in model.ledger.entries)
    assert model.ledger.steps == 4 * STEPS
    assert second == pytest.approx(first, rel=5e-3)
    assert uses_up(model, 2.0)


@pytest.mark.slow
def test_a_checkpoint_counts_also_where_the_ledger_was_in_memory(tmp_path: Any) -> None:
    """What it cost joins the ledger before the noise is found, and its epochs are not planned again."""

    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="in memory"):
        fit(tiny(), PrivacyBudget(2.0, DELTA), backup, Crash(), epochs=4)
    model = tiny()
    with pytest.warns(UserWarning, match="in memory"):
        fit(model, PrivacyBudget(2.0, DELTA), backup, epochs=4)
    assert model.ledger.steps == 4 * STEPS
    assert uses_up(model, 2.0)
    fit(model, PrivacyBudget(4.0, DELTA), epochs=2)  # the epoch at which the last fit went on is not that of this one
    assert model.ledger.steps == 6 * STEPS


def test_epochs_before_the_initial_one_are_not_planned() -> None:
    model = tiny()
    fit(model, PrivacyBudget(2.0, DELTA), epochs=4, initial_epoch=3)
    assert model.ledger.steps == STEPS
    assert uses_up(model, 2.0)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_model_stays_calibrated_by_its_budget_and_its_ledger_has_the_number(tmp_path: Any) -> None:
    model = tiny()
    fit(model, PrivacyBudget(1.0, DELTA))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config()["noise_multiplier"] == loaded.optimizer.noise_multiplier == "calibrate"
    number = model.optimizer.noise_multiplier
    assert loaded.ledger.entries[0].release.noise_multiplier == pytest.approx(number)
    assert f"noise multiplier {number:.5g}" in " ".join(str(loaded.privacy_statement(DELTA)).split())
    fit(loaded, PrivacyBudget(2.0, DELTA))
    assert loaded.ledger.steps == 4 * STEPS
    assert uses_up(loaded, 2.0)


@pytest.mark.parametrize("given", [0.0, 1.5, "calibrate"])
def test_the_configuration_keeps_what_was_given(given: Any) -> None:
    optimizer = tfdp.optimizers.ClippedOptimizer("adam", given)
    again = tfdp.optimizers.ClippedOptimizer.from_config(optimizer.get_config())
    assert again.noise_multiplier == optimizer.noise_multiplier == given


def test_a_clip_is_automatic_where_no_threshold_is_given() -> None:
    kinds = tfdp.optimizers.ClippedOptimizer
    assert kinds("sgd").clipping == "automatic"
    assert kinds("sgd", 1.0).clipping == "automatic"
    assert (kinds("sgd", 1.0, 0.5).clipping, kinds("sgd", 1.0, 0.5).l2_norm_clip) == ("flat", 0.5)
    assert (kinds("sgd", clipping="flat").clipping, kinds("sgd", clipping="flat").l2_norm_clip) == ("flat", 1.0)
    assert kinds.from_config(kinds("sgd", 1.0, clipping="flat").get_config()).clipping == "flat"


# Refusals, before anything is spent -----------------------------------------------------------------------------------


def assert_refused(model: Any, error: type[Exception], match: str, *callbacks: Any) -> None:
    before, steps = model.get_weights(), model.ledger.steps
    with pytest.raises(error, match=match):
        fit(model, *callbacks)
    assert model.ledger.steps == steps
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_no_budget_and_two_are_refused() -> None:
    model = tiny()
    assert_refused(model, ValueError, r"fit got no budget.*callbacks=\[tfdp.callbacks.PrivacyBudget")
    assert_refused(model, ValueError, "two PrivacyBudget", PrivacyBudget(1.0, DELTA), PrivacyBudget(2.0, DELTA))


@pytest.mark.slow
def test_a_spent_budget_is_not_stretched_over_more_steps() -> None:
    model = tiny()
    fit(model, PrivacyBudget(1.0, DELTA))
    assert_refused(model, BudgetExhausted, "all epochs to one fit", PrivacyBudget(1.0, DELTA))  # 0.01% is left
    assert_refused(model, BudgetExhausted, "Nothing is left", PrivacyBudget(0.5, DELTA))


def test_the_number_is_not_known_before_fit_and_the_error_says_who_finds_it() -> None:
    model = tiny()
    assert model.optimizer.noise_multiplier == "calibrate"
    with pytest.raises(ValueError, match="once fit has found it"):
        model.optimizer.stddevs(model.sensitivities())


@pytest.mark.parametrize("given", ["automatic", None, float("nan"), True])
def test_other_words_are_no_noise_multipliers(given: Any) -> None:
    with pytest.raises(ValueError, match="or 'calibrate'"):
        tfdp.optimizers.NoisyOptimizer("sgd", given)


@pytest.mark.parametrize("kind", ["TanhFilteredOptimizer", "AdaDPOptimizer"])
def test_algorithms_as_printed_need_their_number(kind: str) -> None:
    with pytest.raises(ValueError, match="nothing to keep to"):
        getattr(tfdp.optimizers, kind)("sgd" if "Tanh" in kind else 0.1, as_published=True)


@pytest.mark.parametrize("value", [1.23451, 0.9999999, 12345.6, 1.0, 3.3e-4, 99999.5])
def test_rounding_goes_up_by_less_than_a_ten_thousandth(value: float) -> None:
    assert value < rounded_up(value) <= value * (1 + 1.1e-4)
    assert float(f"{rounded_up(value):.5g}") == rounded_up(value)


@pytest.mark.parametrize("whose", [None, "{cases}"])
def test_a_used_up_budget_names_its_file_whatever_that_is_called(whose: str | None, tmp_path: Any) -> None:
    budget = Budget(1.0, DELTA)
    kept: dict[str, Any] = {} if whose is None else {"dataset": whose, "budget": (1.0, DELTA)}
    ledger = Ledger(tmp_path / "{0}.json", **kept)
    said = calibrating._nothing_left(budget, 1.0, ledger)
    assert "{0}.json" in said
    assert ("'{cases}'" in said) == (whose is not None)
