"""tensorflow-privacy's own optimizers and DPModel with a ledger, in their environment; elsewhere all this is skipped.

.ci/tensorflow_privacy makes that environment and runs this folder there.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import BudgetExhausted, EpsilonCurve, GroupNoise, Ledger, Release, epsilon
from tfdp_layers.sampling import Partition, Poisson

tfp = pytest.importorskip("tensorflow_privacy")
from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib as theirs  # noqa: E402

from helpers.tf_privacy_models import ENDS, KINDS, MEAN, X, Y, draws, flat, tk  # noqa: E402

DELTA = 1e-3


def moved(model, *args, **kwargs):
    """How far a fit moves the weights: at learning rate 1, the sum that it released over what it was divided by."""
    before = flat(model)
    model.fit(*args, verbose=0, **kwargs)
    return before - flat(model)


# The budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "poisson"), slow_but([ENDS["vectorized"], ENDS["model, epochs"]], ENDS.values(), several=True), ids=ENDS
)
def test_fit_ends_at_the_budget_and_one_step_more_would_exceed_it(kind, poisson):
    model = kind(rate=0.1)
    data = {"x": draws()} if poisson else {"x": X, "y": Y, "batch_size": 20}
    budget = tfdp.callbacks.PrivacyBudget(2.0, DELTA)
    with pytest.warns(UserWarning, match="ends training after"):
        history = model.fit(**data, epochs=10, verbose=0, callbacks=[budget])
    (entry,) = model.ledger.entries
    assert entry.steps == int(model.optimizer.iterations) < 100
    assert entry.release.sampling == (Poisson(20) if poisson else Partition(20))
    assert (entry.release.groups[0].bound, entry.release.noise_multiplier) == (0.5, 1.5)
    assert budget.exhausted
    spent = float(epsilon(model.ledger, DELTA))
    held = 0 if poisson else entry.steps
    assert spent <= 2.0 < float(EpsilonCurve(model.ledger, entry.release, DELTA, held).at(1))
    assert history.history["epsilon"][-1] == spent
    with pytest.raises(BudgetExhausted, match="Nothing is left"):
        model.fit(**data, verbose=0, callbacks=[budget])
    assert model.ledger.steps == int(model.optimizer.iterations)


def test_the_budget_of_a_data_set_holds_for_all_models_and_in_its_file(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", dataset="people", budget=(2.0, DELTA))
    seen = []
    watch = tk.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: seen.append(Ledger.read(ledger.path).steps))
    first = KINDS["vectorized"](ledger=ledger)
    first.fit(draws(), epochs=2, verbose=0, callbacks=[watch])
    assert seen == list(range(1, 21))
    second = KINDS["model"](ledger=ledger)
    second.fit(draws(), epochs=50, verbose=0)
    assert ledger.steps == 20 + int(second.optimizer.iterations)
    assert 1.95 < float(epsilon(ledger, DELTA)) <= 2.0
    with pytest.raises(BudgetExhausted, match="people"):
        second.fit(draws(), verbose=0)


def test_a_step_that_raises_counts():
    model = KINDS["vectorized"]()
    labels = np.where(np.arange(200) < 199, Y, 99)
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(X, labels, batch_size=200, verbose=0)
    assert model.ledger.steps == 1
    assert model.current_release is None


def test_a_callback_that_goes_on_past_the_budget_makes_no_step():
    model = KINDS["vectorized"]()

    def go_on(batch, logs):
        model.stop_training = False

    callbacks = [tfdp.callbacks.PrivacyBudget(2.0, DELTA), tk.callbacks.LambdaCallback(on_batch_end=go_on)]
    with pytest.warns(UserWarning, match="ends training"), pytest.raises(BudgetExhausted, match="a callback went on"):
        model.fit(draws(), epochs=50, verbose=0, callbacks=callbacks)
    assert float(epsilon(model.ledger, DELTA)) <= 2.0
    assert model.ledger.steps == int(model.optimizer.iterations)


# What is stated is what is released ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", slow_but([KINDS["optimizer"], KINDS["registry"]], KINDS.values()), ids=KINDS)
def test_the_noise_of_a_step_is_the_stated_one(kind):
    model, batches = kind(noise=1.5), draws(sample_weight=np.zeros(200))
    noise = moved(model, batches) * batches.rows
    stddev = model.ledger.entries[0].release.groups[0].stddev
    assert stddev == 0.75
    assert abs(noise.std() / (stddev * np.sqrt(10)) - 1) < 5 / np.sqrt(2 * len(noise))  # of 10 steps


@pytest.mark.parametrize("kind", slow_but([KINDS["vectorized"], KINDS["model"]], KINDS.values()), ids=KINDS)
def test_a_record_attains_the_stated_bound_and_an_empty_row_adds_nothing(kind):
    large = tfdp.tf_privacy.PoissonBatches(100 * X[:1], Y[:1], 1)
    assert np.linalg.norm(moved(kind(noise=1e-9), large)) * large.rows == pytest.approx(0.5, rel=1e-4)
    assert off_the_sum_over_records(kind(noise=1e-9), draws(seed=3)) < 1e-4


def test_the_check_sees_empty_rows_that_count(monkeypatch):
    filled = tfdp.tf_privacy.PoissonBatches._filled

    def counting(self, leaf, places):
        found = filled(self, leaf, places)
        return np.ones_like(found) if leaf.ndim == 1 and leaf.dtype == "float32" else found

    model, batches = KINDS["vectorized"](noise=1e-9), draws(seed=3)
    drawn = next(batches.dataset().as_numpy_iterator())
    monkeypatch.setattr(tfdp.tf_privacy.PoissonBatches, "_filled", counting)
    assert off_the_sum_over_records(model, draws(seed=3), drawn) > 1e-2


class OneRecord(tfdp.tf_privacy.PoissonBatches):
    def dataset(self):
        return tf.data.Dataset.from_tensors((X[:1], Y[:1], np.ones(1, "float32"))).repeat()


def replaced(thing, name):
    setattr(thing, name, getattr(thing, name))
    return thing


def on_optimizer(model):
    replaced(model.optimizer, "apply_gradients")
    return draws()


def on_query(model):
    replaced(model.optimizer._dp_sum_query, "get_noised_result")
    return draws()


EXCHANGES = {
    "draws": lambda model: OneRecord(X, Y, 20),
    "draws of an object": lambda model: replaced(draws(), "dataset"),
    "optimizer": on_optimizer,
    "query": on_query,
}


@pytest.mark.parametrize("exchange", list(EXCHANGES))
def test_what_draws_or_adds_noise_has_no_code_of_ones_own(exchange):
    """Each step on one and the same record was stated as a draw of 20 of 200."""
    model = KINDS["optimizer"]()
    batches = EXCHANGES[exchange](model)
    with pytest.raises(ValueError, match=r"class of your own|was put on the object"):
        model.fit(batches, verbose=0)
    assert model.ledger.steps == 0


def off_the_sum_over_records(model, batches, drawn=None):
    """How far the sum that one step releases is from that of each drawn record's clipped gradient alone."""
    x, y, weights = drawn or next(draws(seed=3).dataset().as_numpy_iterator())
    drawn = np.flatnonzero(weights)
    assert 0 < len(drawn) < batches.rows
    alone = sum(clipped(model, x[[i]], y[[i]]) for i in drawn)
    stop = tk.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: setattr(model, "stop_training", True))
    return np.abs(moved(model, batches, callbacks=[stop]) * batches.rows - alone).max()


def clipped(model, x, y, clip=0.5):
    """The clipped gradient of one record."""
    with tf.GradientTape() as tape:
        loss = MEAN(y, model(x))
    gradient = np.concatenate([np.ravel(g) for g in tape.gradient(loss, model.trainable_variables)])
    return gradient * min(1.0, clip / np.linalg.norm(gradient))


# What it says ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "epochs"), [(1.1, 3), (4.0, 40)])
def test_epsilons_are_those_of_its_own_statement(noise, epochs):
    text = theirs.compute_dp_sgd_privacy_statement(
        60_000, 600, epochs, noise, 1e-5, used_microbatching=False, accountant_type=theirs.AccountantType.PLD
    )
    in_epochs, drawn = map(float, re.findall(r"Epsilon .*:\s+([0-9.]+)", text))
    for sampling, stated in ((Poisson(600), drawn), (Partition(600), in_epochs)):
        ledger = Ledger()
        ledger.reserve(ledger.begin(Release((GroupNoise("all", 1.0, noise),), sampling, 60_000)), 100 * epochs)
        assert float(epsilon(ledger, 1e-5)) == pytest.approx(stated, rel=2e-3, abs=1e-3)


def test_tensorboard_and_the_statement_show_the_spend(tmp_path):
    tf.random.set_seed(None)
    model, log = KINDS["optimizer"](), tfdp.callbacks.PrivacyTensorBoard(tmp_path, delta=DELTA)
    model.fit(X, Y, batch_size=20, epochs=2, verbose=0, callbacks=[log])
    (file,) = tmp_path.glob("events*")
    shown = {
        value.tag: value.tensor
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    spent = float(epsilon(model.ledger, DELTA))
    assert tf.make_ndarray(shown["privacy/epsilon"]) == pytest.approx(spent)
    assert tf.make_ndarray(shown["privacy/noise_multiplier"]) == 1.5
    statement = " ".join(str(model.privacy_statement(DELTA)).split())
    assert "zero out one record" in statement
    assert "is not examined by this library" in statement
    assert "seed" not in statement.split("Assumed")[0]
    tf.random.set_seed(1)
    model.fit(X, Y, batch_size=20, verbose=0)
    assert model.ledger.entries[1].release.seeded


def test_a_saved_model_is_what_it_would_be_without_a_ledger(tmp_path):
    model = KINDS["optimizer"]()
    model.save(tmp_path / "model.keras")
    loaded = tk.models.load_model(tmp_path / "model.keras", compile=False)
    assert type(loaded) is tk.Sequential
    np.testing.assert_array_equal(flat(loaded), flat(model))
