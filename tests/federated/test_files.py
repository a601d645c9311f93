"""What one party's training leaves in a file is read by no other one's: caches of pipelines, and files of callbacks."""

import functools
import gc
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.federated import Budget, KerasTraining, LargestValues, Party, SparseVector, Update, flat_weights

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 1)).astype("float32")
callbacks = keras.callbacks


def model_of(private=False):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    if private:
        model = tfdp.make_private(model)
        model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    else:
        model.compile("sgd", "mse")
    return model


def party(name, training):
    return Party(name, training, LargestValues(1.0, 1e3), flat_weights(training.model))


def turn(one):
    return one.turn(Update(np.arange(5), np.zeros(5, np.float32)))


class Keeps(callbacks.Callback):
    """Reads and writes a file whose name is no path until it is there."""

    def __init__(self, where):
        super().__init__()
        self.where = where


CALLBACKS = {
    "backup": lambda folder: callbacks.BackupAndRestore(folder),
    "checkpoint": lambda folder: callbacks.ModelCheckpoint(folder + "/w.weights.h5", save_weights_only=True),
    "in a list": lambda folder: [callbacks.Callback(), callbacks.CSVLogger(folder + ".csv")],
}


@pytest.mark.few(3)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("kind", CALLBACKS)
def test_a_file_of_two_parties_callbacks_is_refused_and_two_files_are_not(kind, private, tmp_path):
    def training(folder, x):
        held = CALLBACKS[kind](str(tmp_path / folder))
        held = held if isinstance(held, list) else [held]
        return KerasTraining(model_of(private), x, Y, batch_size=4, callbacks=held)

    party("a", training("one", X))
    party("b", training("two", -X))
    first = training("three", X)
    with pytest.raises(ValueError, match=r"reads or writes the file '.*three.*Give each party files of its own"):
        training("three", -X)
    assert turn(party("a", first)) is not None


def test_a_failed_turn_leaves_nothing_that_another_party_restores(tmp_path):
    """The second one's upload held the first one's records: of 0.0257 where it stated 0."""

    class Breaks(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch:
                raise OSError("disk full")

    model, backup = model_of(), [callbacks.BackupAndRestore(str(tmp_path / "backup"))]
    first = party("a", KerasTraining(model, X, Y, epochs=2, callbacks=[*backup, Breaks()]))
    with pytest.raises(OSError, match="disk full"):
        turn(first)
    second = KerasTraining(model, -X, Y, epochs=2, callbacks=[callbacks.BackupAndRestore(str(tmp_path / "backup"))])
    with pytest.raises(ValueError, match="as that of another party does"):
        party("b", second)
    with pytest.raises(ValueError, match="as that of another party does"):
        second(flat_weights(model))


def test_text_of_a_callback_is_a_path_as_soon_as_something_lies_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, third = (KerasTraining(model_of(), s * X, Y, callbacks=[Keeps("it")]) for s in (1.0, 2.0, 3.0))
    first(flat_weights(first.model))
    second(flat_weights(second.model))
    (tmp_path / "it").write_text("numbers")
    with pytest.raises(ValueError, match=r"reads or writes the file '.*it'"):
        third(flat_weights(third.model))


ORDINARY = {
    "stopping": lambda: callbacks.EarlyStopping("loss", patience=0, mode="min", restore_best_weights=True),
    "rates": lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate),
    "plateau": lambda: callbacks.ReduceLROnPlateau("loss"),
    "prints": lambda: Keeps("train/{}"),
    "function": lambda: callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
}


def test_callbacks_without_files_are_taken_also_one_for_both():
    held = [make() for make in ORDINARY.values()]
    for scale in (1.0, -1.0):
        training = KerasTraining(model_of(), X * scale, Y, epochs=2, callbacks=held)
        assert turn(party(str(scale), training)) is not None


KINDS = [(False, True), (True, True), (True, False)]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_cache_of_two_parties_is_refused_whatever_their_models(kinds, tmp_path):
    """Where one was private, or both, the second one trained on the first one's records: told right 20 times of 20."""

    def training(private, x, name):
        data = tf.data.Dataset.from_tensor_slices((x, Y)).cache(str(tmp_path / name))
        if private:
            data = tfdp.declare_sampling(data.repeat().batch(4), tfdp.sampling.Poisson(4), examples=8)
            return KerasTraining(model_of(True), data, None, batch_size=None, steps_per_epoch=1)
        return KerasTraining(model_of(), data.batch(4), None, batch_size=None)

    first = training(kinds[0], X, "one")
    training(kinds[1], -X, "two")
    with pytest.raises(ValueError, match=r"reads or writes the file '.*one', by .cache"):
        training(kinds[1], -X, "one")
    assert first.x is not None


def test_a_party_that_is_made_anew_uses_its_own_file(tmp_path):
    """As make_client_app does: the second message was refused as another party's."""

    def message(name):
        data = tf.data.Dataset.from_tensor_slices((X.copy(), Y.copy())).cache(str(tmp_path / "records")).batch(4)
        training = KerasTraining(model_of(), data, None, batch_size=None)
        ledger = tfdp.accounting.Ledger(tmp_path / f"{name}.json")
        selection = SparseVector(0.5, 1.0, 0.1, 0.01)
        return Party(name, training, selection, flat_weights(training.model), Budget(10.0, 1e-5), ledger)

    held = []
    for _ in range(3):
        held = [message("a")]  # the one before is still there
        turn(held[0])
        held[0].ledger.close()
    del held
    gc.collect()
    with pytest.raises(ValueError, match="as that of another party does"):
        message("b")


class Holds(callbacks.Callback):
    """Hands on to another callback, or reads and writes where it is told."""

    def __init__(self, **held):
        super().__init__()
        self.__dict__.update(held)


class Store:
    def __init__(self, path):
        self.path = path


class OfClass(callbacks.Callback):
    log_file = "of_class.txt"


HELD = {
    "callback": lambda path: Holds(inner=callbacks.BackupAndRestore(path)),
    "in a dict": lambda path: Holds(inner={"one": [callbacks.CSVLogger(path)]}),
    "object": lambda path: Holds(inner=Holds(store=Store(path))),
    "bytes": lambda path: Holds(path=path.encode()),
    "method": lambda path: Holds(then=Holds(out_dir=path).on_epoch_end),
    "camel case": lambda path: Holds(saveDir=path),
    "class": lambda _: OfClass(),
    "braces": lambda path: callbacks.ModelCheckpoint(path + "w{epoch}.weights.h5", save_weights_only=True),
}


@pytest.mark.parametrize("kind", HELD)
def test_what_callbacks_hold_deeper_is_one_partys_too(kind, tmp_path):
    """A record moved the other party's upload through a callback that another one held: by 0.0257 where it stated 0."""
    first = KerasTraining(model_of(), X, Y, callbacks=[HELD[kind](str(tmp_path / "x"))])
    other = KerasTraining(model_of(), X, Y * 2, callbacks=[HELD["camel case"](str(tmp_path / "other"))])
    with pytest.raises(ValueError, match="as that of another party does"):
        KerasTraining(model_of(), -X, Y, callbacks=[HELD[kind](str(tmp_path / "x"))])
    if kind == "braces":
        with pytest.raises(ValueError, match=r"xw2.weights.h5', by .cache"):
            KerasTraining(model_of(), -X, Y, callbacks=[Holds(path=tmp_path / "xw2.weights.h5")])
        KerasTraining(model_of(), -X, Y, callbacks=[Holds(path=tmp_path / "xv2.weights.h5")])
    assert first.x is other.x


@pytest.mark.parametrize("how", ["partial", "open", "plain"])
def test_a_file_counts_once_it_is_there(how, tmp_path):
    path = str(tmp_path / "it")
    if how == "open":
        (tmp_path / "it").write_text("")
    make = {"partial": lambda: functools.partial(open, path), "open": lambda: open(path, "a"), "plain": lambda: path}  # noqa: SIM115
    with pytest.raises(ValueError, match=r"reads or writes the file '.*it'"):  # noqa: PT012
        trainings = [KerasTraining(model_of(), s * X, Y, callbacks=[Holds(read=make[how]())]) for s in (1.0, 2.0)]
        trainings[0](flat_weights(trainings[0].model))
        (tmp_path / "it").write_text("numbers")
        trainings[1](flat_weights(trainings[1].model))


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_path_that_is_set_later_is_seen_before_the_upload_leaves(when, tmp_path):
    class Sets(callbacks.Callback):
        def on_train_begin(self, logs=None):
            if when == "within":
                self.path = str(tmp_path / "it")

    held = [Sets(), Sets()]
    first, second = (KerasTraining(model_of(), s * X, Y, callbacks=[c]) for s, c in zip((1.0, 2.0), held, strict=True))
    if when == "before":
        held[0].path = held[1].path = str(tmp_path / "it")
    first(flat_weights(first.model))
    with pytest.raises(ValueError, match=r"reads or writes the file '.*it'"):
        second(flat_weights(second.model))


@pytest.mark.parametrize("named", ["client", "file"])
def test_parties_of_one_name_are_several_while_both_live(named, tmp_path):
    """Two of the name "client" restored each other's weights: a record moved the second one's upload by 0.0257."""

    def made(scale):
        backup = callbacks.BackupAndRestore(str(tmp_path / "backup"))
        training = KerasTraining(model_of(), scale * X, Y, batch_size=4, callbacks=[backup])
        ledger = tfdp.accounting.Ledger(tmp_path / "one.json") if named == "file" else None
        return Party(named, training, LargestValues(1.0, 1e3), flat_weights(training.model), ledger=ledger)

    first = made(1.0)
    turn(first)
    second = made(2.0)
    if named == "file":
        turn(second)
        return
    with pytest.raises(ValueError, match="as that of another party does"):
        turn(second)
    del first
    for _ in range(3):  # one that is made anew
        second = made(2.0)
        turn(second)


WORDS = {
    "stage": lambda _: Holds(stage="train"),
    "monitor": lambda _: callbacks.EarlyStopping("loss"),
    "frequency": lambda one: callbacks.TensorBoard("logs_" + one, update_freq="epoch"),
    "format": lambda _: Holds(file_format="csv", path_sep=os.sep, log_file_mode="a", profile="train"),
    "nowhere": lambda _: callbacks.CSVLogger(os.devnull),
    "remote": lambda _: callbacks.RemoteMonitor(),
    "bar": lambda one: Holds(bar_format="{l_bar}{bar}", log_file=one + ".csv"),
    "braces": lambda one: callbacks.ModelCheckpoint(one + "{epoch}.weights.h5", save_weights_only=True),
}


@pytest.mark.parametrize("kind", WORDS)
def test_ordinary_words_are_no_paths_where_folders_have_their_names(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "loss", "epoch", "auto", "csv", "publish"):
        (tmp_path / name).mkdir()
    held = [KerasTraining(model_of(), s * X, Y, callbacks=[WORDS[kind](n)]) for n, s in (("a", 1.0), ("b", 2.0))]
    for one in (party("a", held[0]), party("b", held[1])):
        one._train._own._files.used(one._train._own._held())
    assert all(one._own._files._took for one in held)
