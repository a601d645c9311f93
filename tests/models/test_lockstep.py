"""Workers open a run together or not at all, of the same release and records, and end it where the chief does.

The two workers are threads here; `test_replicas.py` has real processes.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.accounting_tools import ledger_of, release_of
from helpers.collectives import on_both
from tfdp_layers.accounting import BudgetExhausted, GroupNoise, Ledger, Release
from tfdp_layers.accounting.account import Account
from tfdp_layers.accounting.following import Books
from tfdp_layers.models.lockstep import Lockstep, agree, fit_together, unnamed
from tfdp_layers.models.workers import ChiefStoppedError
from tfdp_layers.sampling import FixedSize, Poisson

X, Y = np.arange(24, dtype="float32").reshape(12, 2), np.arange(12)
PLAN = {"x": X, "release": release_of(Poisson(4), 2.0, 12), "pieces": None, "together": 1, "seed": None}


def release(name="dense", bound=1.0, stddev=2.0, sampling=None, examples=12, **flags):
    return Release((GroupNoise(name, bound, stddev),), sampling or Poisson(4), examples, **flags)


# A release as text ----------------------------------------------------------------------------------------------------


def test_names_of_groups_make_no_other_release():
    """Keras numbers layers by how many a process made before."""
    assert unnamed(release("dense")) == unnamed(release("dense_7"))


@pytest.mark.parametrize(
    "other",
    [
        {"bound": 0.5},
        {"stddev": 1.0},
        {"sampling": Poisson(3)},
        {"sampling": FixedSize(4)},
        {"examples": 13},
        {"seeded": True},
        {"declared": True},
        {"generator": "secure"},
    ],
    ids=lambda o: str(next(iter(o))),
)
def test_all_else_of_a_release_makes_another_one(other):
    assert unnamed(release()) != unnamed(release(**other))


# Opening a run --------------------------------------------------------------------------------------------------------


def opening(ledgers, plans=(PLAN, PLAN), refuses=None):
    """What `agree` returned or raised on the chief and on the other; the batches of each; and who opened a ledger."""
    batches = [
        tfdp.PrivateBatches(plan["x"], Y, plan["release"].sampling, plan["pieces"], seed=plan["seed"]) for plan in plans
    ]
    opened = []

    def work(workers):
        number = int(not workers.chief)
        plan, ledger = plans[number], ledgers[number]

        def opens():
            opened.append(number)
            if refuses is not None:
                raise refuses
            return ledger.begin(plan["release"])

        return agree(
            batches[number], plan["release"], plan["together"], ledger, opens, workers, plan.get("program", ["a", {}])
        )

    return on_both(work), batches, opened


def test_the_chief_opens_its_ledger_and_the_others_go_on_with_a_copy(tmp_path):
    chief, other = Ledger(tmp_path / "ledger.json"), Ledger()
    chief.merge(ledger_of(PLAN["release"], 3))
    ((token, mine, nobody), (nothing, copy, counting)), _, opened = opening([chief, other])
    assert opened == [0]
    assert mine is chief
    chief.reserve(token, 1)  # its token is one
    assert nothing is nobody is None
    assert copy is not chief
    assert (copy.steps, copy.path, copy.is_copy) == (3, None, True)
    assert other.steps == 0
    counting.reserve(1)  # in the entry of the chief: together they count one release
    chief.merge(copy)
    assert chief.steps == copy.steps == 4


def draws(batches):
    stream = batches.stream()
    return [tuple(next(stream)[0][:, 0]) for _ in range(5)]


def test_both_draw_the_same_from_then_on_by_a_key_of_the_operating_system():
    before = [tfdp.PrivateBatches(X, Y, Poisson(4)) for _ in range(2)]
    assert draws(before[0]) != draws(before[1])
    (_, _), batches, _ = opening([Ledger(), Ledger()])
    first = draws(batches[0])
    assert first == draws(batches[1])
    (_, _), batches, _ = opening([Ledger(), Ledger()])
    assert draws(batches[0]) != first  # another run, another key


def test_both_make_digests_of_records_by_one_key():
    (_, _), (mine, other), _ = opening([Ledger(), Ledger()])
    held = [batches.store.held for batches in (mine, other)]
    assert held[0].key == held[1].key != tfdp.PrivateBatches(X, Y, Poisson(4)).store.held.key
    assert held[0].rows([X], 12).tolist() == held[1].rows([X], 12).tolist()


def test_a_seed_stays():
    seeded = PLAN | {"seed": 5}
    (_, _), batches, _ = opening([Ledger(), Ledger()], (seeded, seeded))
    assert draws(batches[0]) == draws(batches[1]) == draws(tfdp.PrivateBatches(X, Y, Poisson(4), seed=5))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("release", {"release": release_of(Poisson(4), 1.0, 12)}),
        ("records", {"x": X + (np.arange(24) == 23).reshape(12, 2)}),
        ("pieces", {"pieces": 2}),
        ("steps", {"together": 2}),
        ("program", {"program": ["a", {"learning_rate": 0.1}]}),
    ],
)
def test_a_worker_that_differs_is_refused_on_both_and_nothing_is_counted(name, other, tmp_path):
    chief, theirs = Ledger(tmp_path / "ledger.json"), Ledger()
    found, _, _ = opening([chief, theirs], (PLAN, PLAN | other))
    assert [type(one) for one in found] == [ValueError, ValueError]
    assert "this one in nothing" in str(found[0])
    assert f"this one in ['{name}']" in str(found[1])
    assert chief.entries == theirs.entries == ()
    assert not (tmp_path / "ledger.json").exists()


def costs_of_the_other():
    """What a worker had released before that the chief's ledger lacks is in the ledger that it goes on with."""
    spent = ledger_of(PLAN["release"], 3)
    found, _, _ = opening([Ledger(), spent])
    if any(isinstance(one, ValueError) for one in found):
        assert "this one in ['ledger']" in str(found[1])
        return True
    return found[1][1].steps >= 3


def test_what_was_released_elsewhere_is_not_forgotten():
    assert costs_of_the_other()


def test_an_other_workers_cost_that_is_forgotten_is_seen(monkeypatch):
    """The planted bug: nobody asks whether the chief's ledger holds it."""
    monkeypatch.setattr(Ledger, "counts", lambda *_: True)
    assert not costs_of_the_other()


def test_where_the_chiefs_ledger_refuses_the_others_end():
    theirs = Ledger()
    found, _, opened = opening([Ledger(), theirs], refuses=BudgetExhausted("nothing left"))
    assert [type(one) for one in found] == [BudgetExhausted, ChiefStoppedError]
    assert opened == [0]
    assert theirs.entries == ()


def test_pipelines_that_each_worker_would_draw_anew_are_refused_before_anything_is_said():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    declared = tfdp.declare_sampling(dataset, tfdp.sampling.Partition(4), examples=12)
    found = on_both(lambda workers: agree(declared, PLAN["release"], 1, Ledger(), pytest.fail, workers))
    assert ["DeclaredBatches would be drawn by every worker anew" in str(one) for one in found] == [True, True]


# Keras' fit -----------------------------------------------------------------------------------------------------------


class ChiefOnly(keras.callbacks.Callback):
    chief_only = True


def keras_fit(seen, stop_at=None, fails=None):
    """Stands in for Keras' `fit`: three epochs of two steps; keeps the callbacks' classes, and the steps made."""

    def fit(callbacks, number):
        seen[number] = [type(c).__name__ for c in callbacks]
        variables = [tf.Variable([float(number)] * 3)]
        optimizer = SimpleNamespace(variables=[tf.Variable(float(number))])
        model = SimpleNamespace(variables=variables, optimizer=optimizer, stop_training=False)
        lockstep, steps = callbacks[-1], 0
        assert isinstance(lockstep, Lockstep)
        lockstep.set_model(model)
        lockstep.set_params({"epochs": 3})
        if fails == "before" and number == 0:
            raise BudgetExhausted("nothing left")
        lockstep.on_train_begin()
        for epoch in range(3):
            for _ in range(2):
                steps += 1
                if number == 0 and steps == stop_at:
                    model.stop_training = True
                lockstep.on_train_batch_end(0)
                if model.stop_training:
                    break
            lockstep.on_epoch_end(epoch)
            if model.stop_training:
                break
        return steps, [float(variable.numpy().ravel()[0]) for variable in (*variables, *optimizer.variables)]

    return fit


def fitted(**options):
    seen, ledgers = {}, [ledger_of(PLAN["release"], 6), Ledger()]
    fit = keras_fit(seen, **options)

    def work(workers):
        number = int(not workers.chief)
        callbacks = [keras.callbacks.ModelCheckpoint("x.keras"), ChiefOnly(), keras.callbacks.History()]
        return fit_together(
            lambda callbacks: fit(callbacks, number), {"callbacks": callbacks}, workers, Books(Account(ledgers[number]))
        )

    return on_both(work), seen, ledgers


def test_weights_steps_and_the_ledger_are_the_chiefs():
    ((mine, ledger), (theirs, copy)), seen, ledgers = fitted()
    assert mine == theirs == (6, [0.0, 0.0])
    assert ledger is ledgers[0]
    assert (copy.steps, copy is ledger, copy.is_copy) == (6, False, True)
    assert seen[0] == ["ModelCheckpoint", "ChiefOnly", "History", "Lockstep"]
    assert seen[1] == ["History", "Lockstep"]  # what writes files, or reads the ledger, is the chief's


@pytest.mark.parametrize("step", [1, 2, 3])
def test_all_stop_where_the_chief_stops(step):
    ((mine, _), (theirs, _)), _, _ = fitted(stop_at=step)
    assert mine[0] == theirs[0] == step


def test_where_the_chiefs_callbacks_refuse_to_start_the_others_end():
    found, _, _ = fitted(fails="before")
    assert [type(one) for one in found] == [BudgetExhausted, ChiefStoppedError]
