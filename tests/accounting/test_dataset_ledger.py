"""One ledger for a data set: what is trained on it is charged to it, whatever is copied, restored, forked or loaded."""

import copy
import os
import pickle
import subprocess
import sys

import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import (
    Budget,
    BudgetExhausted,
    GroupNoise,
    Ledger,
    LedgerError,
    MetricRelease,
    Statement,
    affordable_steps,
    epsilon,
)
from tfdp_layers.sampling import FixedSize, Partition, Poisson

STEP = release_of(Poisson(600), 1.0)
OTHER = release_of(Poisson(600), 2.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def spend(ledger, release, steps):
    token = ledger.begin(release)
    ledger.reserve(token, steps)
    ledger.settle(token, steps)


def test_name_and_budget_are_kept_in_the_file_before_anything_is_released(path):
    Ledger(path, dataset="mnist", budget=(2.0, 1e-5))
    again = Ledger(path)
    assert (again.dataset, again.budget) == ("mnist", Budget(2.0, 1e-5))
    assert Ledger(path, dataset="mnist", budget=(2.0, 1e-5)).uid == again.uid
    for options in ({"dataset": "cifar"}, {"budget": (3.0, 1e-5)}, {"dataset": "mnist", "budget": (2.0, 1e-6)}):
        with pytest.raises(ValueError, match="mnist"):
            Ledger(path, **options)
    again.set_budget(3.0, 1e-6)
    assert Ledger(path).budget == Budget(3.0, 1e-6)


def test_an_unnamed_file_can_be_named_and_keeps_its_counts(path):
    spend(Ledger(path), STEP, 5)
    named = Ledger(path, dataset="mnist")
    assert (named.steps, Ledger(path).dataset, Ledger(path).steps) == (5, "mnist", 5)


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201, 7])
def test_bad_names_and_budgets_are_refused(path, name):
    with pytest.raises(ValueError, match="dataset"):
        Ledger(path, dataset=name)
    for budget in ((0, 1e-5), (1.0, 1.0), (float("nan"), 0.1), (float("inf"), 0.1), (True, 0.1), ("1", 0.1), 3.0):
        with pytest.raises(ValueError, match="budget"):
            Ledger(dataset="mnist", budget=budget)
    with pytest.raises(ValueError, match="dataset="):
        Ledger(budget=(1.0, 1e-5))
    assert not path.exists()


@pytest.mark.parametrize(
    ("sampling", "multiplier", "together"),
    [(Poisson(6000), 2.0, 1), (Poisson(6000), 3.0, 7), (FixedSize(6000), 4.0, 1), (Partition(6000), 20.0, 7)],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_the_budget_holds_exactly_over_releases_and_reopenings(path, sampling, multiplier, together):
    """As many updates as fit and not one more; a reopened file goes on from there."""
    first, second = release_of(sampling, multiplier), release_of(sampling, 1.5 * multiplier)
    ledger = Ledger(path, dataset="mnist", budget=(1.0, 1e-5))
    spend(ledger, first, 3)
    ledger.close()
    ledger = Ledger(path)
    token = ledger.begin(second)
    while (fits := ledger.affordable(token, together)) == together:
        ledger.reserve(token, together)
    with pytest.raises(BudgetExhausted, match="'mnist' is epsilon=1 "):
        ledger.reserve(token, together)
    assert fits < together
    ledger.reserve(token, fits)
    made = ledger.steps - 3
    assert made == affordable_steps(
        1.0, 1e-5, sampling, 60_000, second.noise_multiplier, ledger=ledger_of(first, 3), maximum=10_000
    )
    assert epsilon(ledger, 1e-5) <= 1.0
    with pytest.raises(BudgetExhausted):
        ledger.require(token)
    assert Ledger(path).steps == made + 3


def test_what_was_spent_elsewhere_is_taken_over_even_beyond_the_budget():
    ledger = Ledger(dataset="mnist", budget=(0.5, 1e-5))
    ledger.merge(ledger_of(STEP, 2000))
    assert epsilon(ledger, 1e-5) > 0.5
    with pytest.raises(BudgetExhausted):
        ledger.require(ledger.begin(STEP))
    assert ledger.affordable(ledger.begin(STEP), 5) == 0


def test_copies_can_be_read_and_merged_but_not_charged(path):
    ledger = Ledger(path, dataset="mnist", budget=(5.0, 1e-5))
    spend(ledger, STEP, 3)
    loaded = Ledger()
    loaded.merge(Ledger.from_json(ledger.to_json()))  # as weights are loaded into a new model
    for made in (ledger.copy(), copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger)), loaded):
        assert (made.dataset, made.budget, made.steps) == ("mnist", ledger.budget, 3)
        with pytest.raises(LedgerError, match=r"copy of the ledger of the data set 'mnist'.*Assign"):
            made.reserve(made.begin(STEP), 1)
        ledger.merge(made)
    assert ledger.steps == Ledger(path).steps == 3


def test_costs_never_move_between_data_sets(path):
    mnist = Ledger(dataset="mnist")
    spend(mnist, STEP, 3)
    with pytest.raises(ValueError, match=r"'cifar' cannot take over what was spent on 'mnist'.*public=True"):
        Ledger(dataset="cifar").merge(mnist)
    with pytest.raises(ValueError, match=r"names no data set.*dataset='mnist'"):
        Ledger(path).merge(mnist)
    assert not path.exists()


TRAINING = """
import numpy as np, keras, tfdp_layers as tfdp

def new_model(dataset):
    layers = [keras.Input((5,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1, "sigmoid")]
    model = tfdp.make_private(keras.Sequential(layers))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), noise_multiplier=2.0)
    model.compile(optimizer, "binary_crossentropy")
    model.ledger = tfdp.accounting.Ledger(dataset=dataset, budget=(9.0, 1e-5))
    return model

def train(model):
    x = np.random.default_rng(0).normal(size=(300, 5)).astype("float32")
    model.fit(x, np.float32(x[:, :1] > 0), batch_size=100, verbose=0)
    return model.ledger
"""


@pytest.mark.slow
def test_the_way_between_two_data_sets_that_the_error_names_is_one(path):
    """It once named copies of the weights, which take their cost along: the same error came again."""
    here = {}
    exec(TRAINING, here)
    model = here["new_model"]("mnist")
    mnist, cifar = here["train"](model), Ledger(dataset="cifar", budget=(9.0, 1e-5))
    with pytest.raises(ValueError, match="cannot take over") as refused:
        model.ledger = cifar
    text = str(refused.value)
    writing, reading = "model.to_keras().save_weights(path)", "load_weights(path, public=True)"
    for part in (writing, "in a process of its own", reading, "new private model", "that of 'cifar'", "in both"):
        assert part in text
    file = path.with_name("mnist.weights.h5")
    exec(writing, {"model": model, "path": file})
    program = [
        f"import pathlib; path = pathlib.Path({str(file)!r})",
        "model = new_model('cifar')",
        f"model.{reading}",
        f"assert np.allclose(model.get_weights()[0], {model.get_weights()[0].tolist()!r})",
        "train(model)",
        "ledger = model.ledger",
        "print(ledger.dataset, ledger.updates, tfdp.accounting.epsilon(ledger, 1e-5) == "
        "model.privacy_statement(1e-5).epsilon)",
    ]
    command = [sys.executable, "-c", "\n".join([TRAINING, *program])]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.decode().split()[-3:] == ["cifar", "3", "True"]
    assert (mnist.updates, cifar.updates) == (3, 0), "each ledger states its own cost"


def test_older_weights_give_nothing_back():
    ledger = Ledger(dataset="mnist")
    spend(ledger, STEP, 100)
    saved = ledger.copy()
    spend(ledger, STEP, 900)
    ledger.merge(saved)
    assert ledger.steps == 1000


def test_a_metric_counts_in_epsilon_but_not_as_an_update():
    metric = MetricRelease((GroupNoise("accuracy", 0.5, 300.0),), Poisson(60_000), 60_000, generator="secure")
    ledger = Ledger(dataset="mnist", budget=(3.0, 1e-5))
    spend(ledger, STEP, 10)
    before = epsilon(ledger, 1e-5)
    spend(ledger, metric, 2)
    assert (ledger.steps, ledger.updates) == (12, 10)
    assert before < epsilon(ledger, 1e-5) < before + 0.05
    assert Ledger.from_json(ledger.to_json()).entries == ledger.entries
    statement = Statement.from_ledger(ledger, 1e-5)
    text = " ".join(str(statement).split())
    for words in (
        "Data set: 'mnist'",
        "its budget is epsilon = 3 at delta = 1e-05",
        "2 times the metric 'accuracy', a mean over 60000 records with noise of stddev 0.005, noise multiplier 600",
        "Generator: noise from Philox",
        "Generator: noise from a cryptographic generator",
        "metrics released with noise",
    ):
        assert words in text
    assert statement.steps == 10


_FORKED = """
import os, sys
from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, Release
from tfdp_layers.sampling import Poisson
kept, memory = Ledger({path!r}), Ledger()
tokens = [ledger.begin(Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)) for ledger in (kept, memory)]
for ledger, token in zip((kept, memory), tokens):
    ledger.reserve(token, 10)
reader, writer = os.pipe()
if os.fork() == 0:
    own = memory.copy()
    token = own.begin(kept.entries[0].release)
    own.reserve(token, 5)
    own.settle(token, 5)
    refused = 0
    for ledger, token in zip((kept, memory), tokens):
        try:
            ledger.reserve(token, 5)
        except LedgerError:
            refused += 1
    os.write(writer, own.to_json().encode() if refused == 2 else b"charged")
    os._exit(0)
os.wait()
os.close(writer)
memory.reserve(tokens[1], 7)
memory.merge(Ledger.from_json(os.read(reader, 1 << 20).decode()))
assert memory.steps == 22, memory
kept.close()
if os.fork() == 0:
    kept.reserve(tokens[0], 5)
    os._exit(0)
os.wait()
kept.settle(tokens[0], 10)
assert kept.steps == Ledger({path!r}).steps == 15, kept
print("sound")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_counts_apart_and_loses_nothing(path):
    program = _FORKED.format(path=str(path))
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stdout == "sound\n", done.stderr
