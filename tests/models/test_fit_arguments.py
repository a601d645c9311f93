"""What `fit` takes: records that a sampler draws, and callbacks that decide by nothing private."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.accounting.following import follow
from tfdp_layers.callbacks.steering import flatten_callbacks, logs_first, refuse_steering
from tfdp_layers.models import fit_arguments
from tfdp_layers.models.fit_arguments import (
    as_batches,
    refuse_unsound_fit,
    shares_records,
    warn_of_lost_count,
)
from tfdp_layers.sampling import FixedSize, Partition, Poisson

kc = keras.callbacks
X, Y = np.arange(24, dtype="float32").reshape(12, 2), np.arange(12) % 3
COLUMNS = np.asfortranarray(X)
NOTHING = dict.fromkeys(("sampling", "examples", "physical_batch_size", "unit_ids", "seed"))


def batches(options=None, **arguments):
    return as_batches({"x": X, "y": Y} | arguments, NOTHING | (options or {}))


# Records --------------------------------------------------------------------------------------------------------------


def test_arrays_are_drawn_by_poisson_sampling_unless_a_sampler_is_named():
    assert batches(batch_size=4).sampling == Poisson(4)
    assert batches({"examples": 5000}).sampling == Poisson(32)  # Keras' own default
    assert batches({"sampling": FixedSize(3)}).sampling == FixedSize(3)
    assert batches({"sampling": FixedSize(3)}, batch_size=3).sampling == FixedSize(3)


def test_every_option_reaches_the_batches():
    weights, ids = np.linspace(0, 1, 12), np.arange(12) // 2
    everyone = {"sampling": FixedSize(12), "seed": 1}
    made = batches(everyone | {"physical_batch_size": 2}, sample_weight=weights)
    assert (made.examples, made.physical_batch_size, made.seeded, made.unit) == (12, 2, True, "record")
    x, _, drawn = batches(everyone, sample_weight=weights)[0]
    np.testing.assert_allclose(drawn, weights[x[:, 0].astype(int) // 2], rtol=1e-6)
    assert batches({"examples": 100}, batch_size=4).examples == 100
    units = batches({"unit_ids": ids}, batch_size=4)
    assert (units.examples, units.unit) == (6, "unit")
    _, y, drawn = batches(everyone, class_weight={0: 1.0, 1: 2.0, 2: 3.0})[0]
    np.testing.assert_allclose(drawn, 1.0 + y)


def test_batches_of_ones_own_are_taken_as_they_are_and_alone():
    own = tfdp.PrivateBatches(X, Y, Partition(4))
    assert as_batches({"x": own}, NOTHING) is own
    for options, arguments in (
        ({"sampling": Poisson(4)}, {}),
        ({"examples": 100}, {}),
        ({"physical_batch_size": 2}, {}),
        ({"unit_ids": Y}, {}),
        ({"seed": 0}, {}),
        ({}, {"y": Y}),
        ({}, {"batch_size": 4}),
        ({}, {"sample_weight": np.ones(12)}),
        ({}, {"class_weight": {0: 1.0}}),
    ):
        (name,) = [*options, *arguments]
        with pytest.raises(ValueError, match=rf"holds its labels.*\['{name}'\]"):
            as_batches({"x": own} | arguments, NOTHING | options)


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[:4], Y[:4]


@pytest.mark.parametrize(
    "data",
    [None, tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), Sequence(), iter([(X, Y)]), (p for p in [(X, Y)])],
    ids=["none", "dataset", "sequence", "iterator", "generator"],
)
def test_data_whose_draws_are_unknown_are_refused_with_the_mend(data):
    with pytest.raises(ValueError, match=r"how its batches were drawn is unknown.*tfdp.declare_sampling"):
        batches(x=data, y=None)


def test_a_fit_that_is_asked_not_to_shuffle_says_that_it_draws_all_the_same():
    with pytest.warns(UserWarning, match="shuffle=False has no effect.*Cyclic"):
        batches(shuffle=False, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches(shuffle=True, batch_size=4)


@pytest.mark.parametrize("sampling", ["poisson", 4, {"kind": "poisson"}], ids=str)
def test_only_a_sampler_is_one(sampling):
    with pytest.raises(ValueError, match="must be a sampler"):
        batches({"sampling": sampling})


def test_a_batch_size_beside_another_sampler_is_refused():
    with pytest.raises(ValueError, match="batch_size=3 contradicts"):
        batches({"sampling": Poisson(4)}, batch_size=3)


# Numbers without noise ------------------------------------------------------------------------------------------------

PIPELINE = tf.data.Dataset.from_tensor_slices((X, Y))
READ, TRAINED = tfdp.records(PIPELINE), PIPELINE.skip(4)
SHARED = {
    "the pipeline of the records, in batches": (READ, PIPELINE.batch(4).prefetch(1)),
    "the pipeline itself": (READ, PIPELINE),
    "some of the pipeline": (tfdp.PrivateBatches(READ, sampling=Poisson(4)), PIPELINE.take(4).batch(2)),
    "the pipeline beside another": (READ, tf.data.Dataset.range(3).zip(PIPELINE).map(lambda i, one: one).batch(2)),
    "the arrays": (X, (X, Y)),
    "a view": (X, (X[2:5], Y[2:5])),
    "a list": (X, [X, Y]),
    "a view turned round": (X, (X[::-1], Y)),
    "one row of a table whose columns are contiguous": (COLUMNS[:7], (COLUMNS[6:], Y[6:])),
    "the records as private batches": (tfdp.PrivateBatches(X, Y, Poisson(4)), (X[:3], Y[:3])),
    "a tree": ({"a": X, "b": Y}, ({"a": np.ones(3), "b": Y[1:]}, Y)),
    "one of two inputs": ([X, Y], ([np.ones(2), Y], Y)),
}
OWN = tfdp.PrivateBatches(X, Y, Poisson(4))
APART = {
    "none": (X, None),
    "a copy": (X, (X.copy(), Y)),  # nobody can tell: what it is worth is the user's to say
    "labels alone": (X, (X.copy(), Y)),
    "other rows of a table": (X[:6], (X[6:], Y[6:])),
    "other rows of a table whose columns are contiguous": (COLUMNS[:6], (COLUMNS[6:], Y[6:])),  # as pandas has them
    "other batches": (OWN, tfdp.PrivateBatches(X.copy(), Y, Poisson(4))),
    "a dataset": (X, tf.data.Dataset.from_tensors((X.copy(), Y))),
    "nothing": (X, ()),
    "another part of the pipeline": (tfdp.records(TRAINED), PIPELINE.take(4).batch(2)),
    "a pipeline, of arrays": (X, PIPELINE.batch(4)),
}


@pytest.mark.parametrize("name", SHARED)
def test_validation_data_that_are_private_records_are_seen(name):
    assert shares_records(*SHARED[name])
    x, validation = SHARED[name]
    with pytest.raises(ValueError, match="validation_data is the private training data itself"):
        refuse_unsound_fit({"x": x, "validation_data": validation})


def test_the_batches_that_are_trained_on_are_no_validation_data():
    assert shares_records(OWN, OWN)


@pytest.mark.parametrize("name", APART)
def test_other_validation_data_are_let_in(name):
    x, validation = APART[name]
    assert not shares_records(x, validation)
    refuse_unsound_fit({"x": x, "validation_data": validation})


def test_a_split_of_the_private_data_is_refused():
    refuse_unsound_fit({"x": X, "validation_split": 0.0})
    with pytest.raises(ValueError, match="carves the validation data out of the private data"):
        refuse_unsound_fit({"x": X, "validation_split": 0.1})


STEERING = [
    kc.EarlyStopping(monitor="loss"),
    kc.EarlyStopping(monitor="accuracy"),
    kc.ReduceLROnPlateau(monitor="loss"),
    kc.ModelCheckpoint("x.keras", monitor="loss", save_best_only=True),
    kc.TerminateOnNaN(),
    type("Mine", (kc.EarlyStopping,), {})(monitor="sum_val_loss"),
]
HARMLESS = [
    kc.EarlyStopping(monitor="val_loss"),
    kc.EarlyStopping(monitor="epsilon", mode="min"),
    kc.ReduceLROnPlateau(monitor="val_accuracy"),
    kc.ModelCheckpoint("x.keras", monitor="val_loss", save_best_only=True),
    kc.ModelCheckpoint("x.keras", monitor="loss"),  # keeps every one
    kc.LearningRateScheduler(lambda epoch: 0.1),
    kc.History(),
]


@pytest.mark.parametrize("callback", STEERING, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'monitor', '')}")
def test_a_callback_that_decides_by_private_numbers_is_refused_however_it_is_given(callback):
    name = type(callback).__name__
    listed = kc.CallbackList([callback])
    for given in (callback, [kc.History(), callback], listed, ([callback],), [listed]):
        with pytest.raises(ValueError, match=name):
            refuse_unsound_fit({"x": X, "callbacks": given})


@pytest.mark.parametrize("callback", HARMLESS, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'monitor', '')}")
def test_a_callback_that_looks_at_public_numbers_is_let_in(callback):
    assert refuse_steering(callback) is None
    assert refuse_unsound_fit({"x": X, "callbacks": [callback], "validation_data": (X[:2] + 1, Y[:2])}) is None


# Callbacks in order ---------------------------------------------------------------------------------------------------


class Adds(kc.Callback):
    adds_to_logs = True


def test_callbacks_that_add_to_the_logs_come_first_and_order_is_kept_otherwise():
    one, two, first, second = kc.History(), kc.Callback(), Adds(), Adds()
    assert logs_first([one, first, two, second]) == [first, second, one, two]
    assert logs_first(None) == []
    assert logs_first(first) == [first]
    assert list(flatten_callbacks([one, [two]])) == [one, two]


def test_keras_own_list_of_callbacks_is_put_in_order_and_what_is_appended_later_does_not_run():
    one, first = kc.Callback(), Adds()
    given = kc.CallbackList([one, [first]])
    ordered = logs_first([given, kc.CallbackList([kc.History()])])
    assert ordered[:2] == [first, one]
    given.callbacks.append(kc.Callback())
    assert len(ordered) == 3


def test_a_list_of_callbacks_of_ones_own_kind_would_run_code_that_nobody_watches():
    class Own(kc.CallbackList):
        def on_train_batch_begin(self, batch, logs=None): ...

    with pytest.raises(ValueError, match="Own, a CallbackList with code of its own"):
        logs_first([Own([])])


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [kc.ModelCheckpoint, kc.BackupAndRestore], ids=lambda c: c.__name__)
def test_checkpoints_beside_a_ledger_in_memory_are_warned_of(make, tmp_path):
    callbacks = [make(str(tmp_path / "w.weights.h5"))]
    with pytest.warns(UserWarning, match=r"in memory.*Ledger\('ledger.json'\)"):
        warn_of_lost_count(callbacks, Ledger())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_lost_count(callbacks, Ledger(tmp_path / "ledger.json"))
        warn_of_lost_count([kc.CSVLogger("log.csv")], Ledger())
        warn_of_lost_count(callbacks, follow(Ledger()))  # of a worker: the chief's has the file, or the chief warns


def test_weights_that_go_without_a_ledger_are_warned_of_whichever_callback_writes_them(tmp_path, monkeypatch):
    class Orbax(kc.Callback):
        """Keras' own needs a package."""

    monkeypatch.setattr(fit_arguments, "_WITHOUT_LEDGER", (Orbax,))
    for callback, said in [
        (Orbax(), "writes weights without a ledger"),
        (kc.TensorBoard("logs", embeddings_freq=1), ""),
    ]:
        with pytest.warns(UserWarning, match=rf"{said}.*in memory.*Ledger\('ledger.json'\)"):
            warn_of_lost_count([callback], Ledger())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_lost_count([Orbax()], Ledger(tmp_path / "ledger.json"))
        warn_of_lost_count([kc.TensorBoard("logs"), kc.EarlyStopping("val_loss")], Ledger())


def test_kerass_own_orbax_checkpoint_is_one_of_these():
    known = tuple(filter(None, [getattr(kc, "OrbaxCheckpoint", None)]))
    assert known == fit_arguments._WITHOUT_LEDGER


def test_tensorboard_that_is_not_installed_is_named_before_a_step_is_paid_for(monkeypatch):
    callbacks = [kc.TensorBoard("logs")]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        refuse_unsound_fit({"x": X, "callbacks": callbacks})
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    refuse_unsound_fit({"x": X, "callbacks": callbacks})
