"""A callback that decides after another one read private numbers is reported where the two can share them."""

import functools
import logging
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.watched import PUBLIC, X, Y, model_of
from tfdp_layers.callbacks.steering import is_unknown
from tfdp_layers.models.reach import Reach, passes

kc = keras.callbacks
KEPT, RATE, NUMBERS, LOG = [], 0.1, np.zeros(3), logging.getLogger("test")


def reading(function):
    return kc.LambdaCallback(on_epoch_end=function)


def by_rate(function):
    return kc.LearningRateScheduler(function)


class Holder:
    last = None


class Keeps(kc.Callback):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def on_epoch_end(self, epoch, logs=None):
        self.kept.append(logs["loss"])


class Decides(kc.Callback):
    def __init__(self, other=None):
        super().__init__()
        self.other, self.best = other, []

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.5 if self.other else 0.1


def sets_global(epoch, logs):
    global LAST
    LAST = logs["loss"]


def by_variable():
    last = 1.0

    def read(epoch, logs):
        nonlocal last
        last = logs["loss"]

    return reading(read), by_rate(lambda epoch, rate: last * rate)


def by_attribute_of_a_function():
    def scheduled(epoch, rate):
        return scheduled.last * rate

    def read(epoch, logs):
        scheduled.last = logs["loss"]

    scheduled.last = 1.0
    return reading(read), by_rate(scheduled)


def by_file(path):
    path.write_text("1.0")
    name = str(path)

    def read(epoch, logs):
        with open(name, "w") as file:
            file.write(str(logs["loss"]))

    return reading(read), by_rate(lambda epoch, rate: float(open(name).read()))


def by_the_model(model):
    model.kept = []

    def read(epoch, logs):
        model.kept.append(logs["loss"])

    return reading(read), by_rate(lambda epoch, rate: model.kept[-1] if model.kept else rate)


def sets_the_model(model):
    model.last = 1.0

    def read(epoch, logs):
        model.last = logs["loss"]

    return reading(read), by_rate(lambda epoch, rate: model.last)


def by_a_list(inside=lambda kept: kept):
    kept = []
    return Keeps(kept), Decides(inside(kept))


SHARED = {
    "a global list": lambda model, path: (
        reading(lambda epoch, logs: KEPT.append(logs["loss"])),
        by_rate(lambda epoch, rate: KEPT[-1] if KEPT else rate),
    ),
    "a bound method": lambda model, path: (
        reading(lambda epoch, logs, keep=KEPT.append: keep(logs["loss"])),
        by_rate(functools.partial(lambda kept, epoch, rate: rate, KEPT)),
    ),
    "a global": lambda model, path: (reading(sets_global), by_rate(lambda epoch, rate: LAST)),
    "a variable of a function": lambda model, path: by_variable(),
    "an attribute of a function": lambda model, path: by_attribute_of_a_function(),
    "an attribute of a class": lambda model, path: (
        reading(lambda epoch, logs: setattr(Holder, "last", logs["loss"])),
        by_rate(lambda epoch, rate: Holder.last or rate),
    ),
    "an array": lambda model, path: (
        reading(lambda epoch, logs: NUMBERS.__setitem__(0, logs["loss"]) or NUMBERS.fill(logs["loss"])),
        by_rate(lambda epoch, rate: NUMBERS[0]),
    ),
    "a list that both hold": lambda model, path: by_a_list(),
    "a list deep inside": lambda model, path: by_a_list(lambda kept: {"of": ({"these": kept},)}),
    "the other one": lambda model, path: (one := Keeps([]), Decides(one)),
    "a file": lambda model, path: by_file(path / "loss.txt"),
    "a list of the model": lambda model, path: by_the_model(model),
    "an attribute of the model": lambda model, path: sets_the_model(model),
    "whatever code is evaluated": lambda model, path: (
        reading(lambda epoch, logs: eval("KEPT.append(1)")),
        Decides({}),
    ),
}
APART = {
    "prints": lambda model: (reading(lambda epoch, logs: print(logs["loss"], KEPT)), by_rate(lambda e, rate: KEPT)),
    "logs": lambda model: (
        reading(lambda epoch, logs: LOG.info("%s", logs["loss"])),
        by_rate(lambda epoch, rate: LOG.info("%s", rate) or rate),
    ),
    "keeps for itself": lambda model: (Keeps([]), by_rate(lambda epoch, rate: RATE * 0.9**epoch)),
    "two of their own": lambda model: (Keeps([]), Decides([])),
    "the model": lambda model: (
        reading(lambda epoch, logs: KEPT.append((logs["loss"], model.name))),
        kc.LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(model, "stop_training", len(model.layers) > 9)),
    ),
    "arrays that are only read": lambda model: (
        reading(lambda epoch, logs: print(logs["loss"], NUMBERS.mean())),
        by_rate(lambda epoch, rate: rate * NUMBERS.max()),
    ),
    "a library": lambda model: (
        reading(lambda epoch, logs: KEPT.append(np.log(logs["loss"]))),
        by_rate(lambda epoch, rate: float(np.cos(rate) * tf.cos(rate))),
    ),
}


@pytest.mark.parametrize("way", SHARED)
def test_two_that_share_what_may_change_may_pass_a_number_on(way, tmp_path):
    model = model_of()
    reader, other = SHARED[way](model, tmp_path)
    assert passes(Reach(reader, model), Reach(other, model))


@pytest.mark.parametrize("way", APART)
def test_two_that_share_no_such_thing_are_left_in_peace(way):
    model = model_of()
    reader, other = APART[way](model)
    assert not passes(Reach(reader, model), Reach(other, model))


def test_what_a_callback_holds_of_watched_logs_is_not_read_by_looking():
    from tfdp_layers.models.watched_logs import WatchedLogs

    read = []
    one = Keeps([])
    one.logs = WatchedLogs({"loss": 1.0}, lambda name: True, read.append)
    Reach(one, model_of())
    assert read == []


def reports(model, *callbacks, epochs=3, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)
    return [str(w.message) for w in caught if "chosen by numbers of the private data" in str(w.message)]


@pytest.mark.slow
def test_a_schedule_of_what_another_callback_kept_is_reported_and_a_fixed_one_is_not():
    kept, model = [], model_of()
    reader = reading(lambda epoch, logs: kept.append(logs["loss"]))
    (found,) = reports(model, reader, by_rate(lambda epoch, rate: 0.01 * kept[-1] if kept else rate))
    assert "LambdaCallback read 'loss', and LearningRateScheduler then changed the learning rate." in found
    assert "LearningRateScheduler then" in " ".join(model.privacy_statement(1e-2).notes)
    assert reports(model_of(), reader, by_rate(lambda epoch, rate: 0.1 * 0.9**epoch)) == []
    assert reports(model_of(), reading(lambda epoch, logs: print(logs["loss"])), Decides(kept)) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("shared", [True, False])
def test_a_loop_and_a_callback_are_reported_where_they_share_a_list(shared):
    kept, model = [], model_of()
    decides = by_rate((lambda epoch, rate: 0.5 * kept[-1] if kept else rate) if shared else lambda e, rate: 0.5**e)
    with (
        warnings.catch_warnings(record=True) as caught,
        model.private_run(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[decides]) as run,
    ):
        warnings.simplefilter("always")
        for batch in run:
            kept.append(float(run.step(batch)["loss"]))
    found = [str(w.message) for w in caught if "chosen by numbers" in str(w.message)]
    assert len(found) == shared
    assert not shared or "The loop read 'loss', and LearningRateScheduler then" in found[0]


PUT_ON = {
    "get_monitor_value": lambda logs: float(logs["loss"] < 1e9),
    "monitor_op": lambda value, best: True,
    "_is_improvement": lambda value, best: False,
}


@pytest.mark.parametrize("name", PUT_ON)
def test_functions_that_are_put_on_a_callback_of_keras_make_it_unknown(name):
    early = kc.EarlyStopping("val_loss", patience=0)
    assert not is_unknown(early)
    setattr(early, name, PUT_ON[name])
    assert is_unknown(early)
    if name == "get_monitor_value":
        (found,) = reports(model_of(), early, validation_data=PUBLIC)
        assert "EarlyStopping read 'loss' and then stopped the training" in found


def test_functions_that_are_put_on_a_callback_of_keras_while_fit_runs_are_refused():
    early = kc.EarlyStopping("val_loss")
    adds = kc.LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(early, "get_monitor_value", lambda logs: 0.0))
    with pytest.raises(ValueError, match="'get_monitor_value' on it while fit ran"):
        reports(model_of(), adds, early, validation_data=PUBLIC)


def test_callbacks_of_keras_stay_known_when_they_ran(tmp_path):
    own = [
        kc.EarlyStopping("val_loss"),
        kc.ReduceLROnPlateau("val_loss"),
        kc.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True),
        kc.CSVLogger(tmp_path / "log.csv"),
        kc.TensorBoard(tmp_path / "board"),
        kc.History(),
        kc.ProgbarLogger(),
    ]
    assert reports(model_of(), *own, validation_data=PUBLIC) == []
    assert [one for one in own if is_unknown(one)] == []


def history_of(name, of=lambda self: self.model.history):
    return lambda self: of(self).history.get(name, [0.0])[-1]


ASKED = {
    "the history": (history_of("loss"), "'loss'"),
    "a history of one's own": (history_of("loss", lambda self: self.other), "'loss'"),
    "the metrics": (lambda self: self.model.metrics[0].result(), "'metrics of the training'"),
    "their results": (lambda self: self.model.get_metrics_result(), "'metrics of the training'"),
    "a call": (lambda self: self.model(X), "outputs of the training records"),
}
NOT_ASKED = {
    "the history of public numbers": history_of("val_loss"),
    "the names in the history": lambda self: (len(self.model.history.history), self.model.history.epoch),
    "metrics after a validation": lambda self: self.model.get_metrics_result(),
    "a call of public rows": lambda self: self.model(PUBLIC[0]),
    "an evaluation": lambda self: self.model.evaluate(*PUBLIC, verbose=0),
}


def asking(function, history):
    def hook(self, epoch, logs=None):
        function(self)
        self.model.stop_training = epoch == 1

    made = type("Asks", (kc.Callback,), {"on_epoch_end": hook})()
    made.other = history
    return made


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ASKED)
def test_what_a_callback_asks_keras_for_is_read_as_the_logs_are(way):
    function, read = ASKED[way]
    history = kc.History()
    (found,) = reports(model_of(), asking(function, history), history)
    assert "The callback Asks read" in found
    assert read in found
    assert type(history.history) is dict
    assert len(history.history["loss"]) == 2


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("way", NOT_ASKED)
def test_public_numbers_that_a_callback_asks_for_are_left_in_peace(way):
    history = kc.History()
    assert reports(model_of(), asking(NOT_ASKED[way], history), history, validation_data=PUBLIC) == []
