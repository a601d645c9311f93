"""A callback unknown to us that reads private numbers and decides then is reported, once; others are left in peace."""

import json
import warnings

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from helpers.watched import PUBLIC, X, Y, model_of
from tfdp_layers.callbacks.steering import flatten_callbacks


class Hooked(keras.callbacks.Callback):
    """Reads the logs at the end of an epoch, and decides in another hook or the same."""

    def __init__(self, read, decide, at="on_epoch_end"):
        super().__init__()
        self._read, self._decide = read, decide
        if at == "on_epoch_end":
            self.on_epoch_end = self._both
        else:
            self.on_epoch_end = lambda epoch, logs=None: read(logs)
            setattr(self, at, lambda *args, **kwargs: decide(self.model))

    def _both(self, epoch, logs=None):
        self._read(logs)
        self._decide(self.model)


def stop(model):
    model.stop_training = True


def slow_down(model):
    model.optimizer.learning_rate = 0.5 * float(model.optimizer.learning_rate)


def limit(model):
    model.optimizer.limit_releases(min(100, model.optimizer.releases_left()) - 1)


def unravel(logs):
    def names(loss, mae, **others):
        return loss

    return names(**logs)


READS = {
    "by name": lambda logs: logs["loss"],
    "get": lambda logs: logs.get("mae"),
    "items": lambda logs: sorted(logs.items()),
    "values": lambda logs: max(logs.values()),
    "as a dict": lambda logs: dict(logs)["loss"],
    "as arguments": unravel,
    "copied": lambda logs: logs.copy(),
    "merged": lambda logs: {**logs},
    "as text": lambda logs: f"{logs}",
    "as JSON": lambda logs: json.dumps(logs),
    "set by default": lambda logs: logs.setdefault("loss", 0.0),
    "popped": lambda logs: logs.pop("mae"),
    "whichever is last": lambda logs: logs.popitem(),
    "by default": lambda logs: logs.setdefault("loss", 0.0),
    "compared": lambda logs: logs == {"loss": 0.0},
    "compared otherwise": lambda logs: logs != {"loss": 0.0},
    "by TensorFlow's trees": lambda logs: max(tf.nest.flatten(logs)),
    "as a tensor": lambda logs: tf.constant(tf.nest.flatten(logs)[0]),
    "by Keras' trees": lambda logs: keras.tree.map_structure(float, logs)["loss"] > 0,
    "by tf.nest": lambda logs: tf.nest.map_structure(float, logs)["loss"] > 0,
    "past its methods": lambda logs: dict.__getitem__(logs, "loss") > 0.5,
    "past them as text": lambda logs: f"{dict.__getitem__(logs, 'loss'):.2f}",
}
DECISIONS = {
    "stops": (stop, "stopped the training"),
    "changes the rate": (slow_down, "changed the learning rate"),
    "limits the releases": (limit, "limited the releases"),
    "takes the weights": (lambda model: model.get_weights(), "took the weights"),
    "takes a plain model": (lambda model: model.to_keras(), "took the weights"),
    "puts weights back": (lambda model: model.set_weights([w + 0 for w in keras.Model.get_weights(model)]), "set the"),
}


def fit(model, *callbacks, **options):
    return model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=list(callbacks), **options)


def warned(model, *callbacks, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, *callbacks, **options)
    return [str(w.message) for w in caught if "and then" in str(w.message)]


class Posing(keras.callbacks.Callback):
    """Hands a number on under the name of a public one."""

    def __init__(self, name, number):
        super().__init__()
        self.name, self.number = name, number

    def on_epoch_end(self, epoch, logs=None):
        logs[self.name] = self.number(logs)


@pytest.mark.parametrize(
    ("name", "number", "reported"),
    [
        ("val_loss", lambda logs: logs["loss"], True),
        pytest.param("mine", lambda logs: logs["loss"], False, marks=pytest.mark.slow),
        pytest.param("val_loss", lambda logs: 0.0, False, marks=pytest.mark.slow),
    ],
)
def test_a_private_number_under_a_public_name_is_reported(name, number, reported):
    model = model_of()
    others = keras.callbacks.EarlyStopping(monitor="val_loss", mode="min", patience=9)
    found = warned(model, Posing(name, number), others, validation_data=PUBLIC)
    assert len(found) == reported
    assert ("and then wrote 'val_loss' into the logs" in str(model.privacy_statement(1e-2))) == reported


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "read", slow_but([READS[n] for n in ("by name", "items", "merged")], READS.values()), ids=READS
)
def test_every_way_to_read_is_noted(read):
    model = model_of()
    (found,) = warned(model, Hooked(read, stop))
    assert "Hooked read" in found
    assert "stopped the training" in found
    assert "and then stopped" in str(model.privacy_statement(1e-2))


@pytest.mark.few(1)
@pytest.mark.parametrize("at", slow_but(["on_epoch_end"], ["on_epoch_end", "on_epoch_begin", "on_train_batch_end"]))
@pytest.mark.parametrize(
    "decision",
    ["changes the rate", "limits the releases", "takes the weights", "takes a plain model", "puts weights back"],
)
def test_every_decision_is_reported_once_in_whichever_hook(decision, at):
    decide, words = DECISIONS[decision]
    model = model_of()
    (found,) = warned(model, Hooked(READS["by name"], decide, at))
    assert words in found
    assert "'loss'" in found
    assert any(words in note for note in model.privacy_statement(1e-2).notes)


ASKED = {
    "evaluate": lambda model, x, y: model.evaluate(x, y, verbose=0),
    "predict": lambda model, x, y: model.predict(x=x[:4], verbose=0),
    "test_on_batch": lambda model, x, y: model.test_on_batch(x, y),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["evaluate"], ASKED))
def test_numbers_of_training_records_that_the_model_gives_are_private_as_the_logs_are(name):
    def asking(data):
        def ask(model):
            ASKED[name](model, *data)
            stop(model)

        return Hooked(lambda logs: None, ask)

    (found,) = warned(model_of(), asking((X, Y)))
    assert f"read '{name}() of the training records' and then stopped the training" in found
    model = model_of()
    model.evaluate(X, Y, verbose=0)  # outside of fit everything is the caller's own
    assert not warned(model, asking(PUBLIC))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_file_written_after_a_look_is_reported(name, tmp_path):
    def save(model):
        (model.save if name.endswith("keras") else model.save_weights)(tmp_path / name)

    (found,) = warned(model_of(), Hooked(READS["get"], save))
    assert "saved the" in found


def test_an_exception_after_a_look_is_a_decision():
    def give_up(model):
        raise StopIteration

    with pytest.warns(UserWarning, match="ended fit by an exception"), pytest.raises(StopIteration):
        fit(model_of(), Hooked(READS["by name"], give_up))


def decay(model):
    model.optimizer.inner_optimizer.weight_decay = 0.5


@pytest.mark.parametrize("at", ["on_epoch_end", pytest.param("on_epoch_begin", marks=pytest.mark.slow)])
def test_a_change_after_a_look_that_the_next_step_refuses_is_a_decision(at):
    def later(model):
        if int(model.optimizer.releases.numpy()):
            decay(model)

    model = model_of()
    said = "Hooked read 'loss' and then ended fit by an exception"
    with pytest.warns(UserWarning, match=said), pytest.raises(RuntimeError, match="was changed while fit runs"):
        fit(model, Hooked(READS["by name"], later, at))
    assert "ended fit by an exception" in str(model.privacy_statement(1e-3))


def test_such_a_change_is_none_by_a_callback_that_looks_at_nothing_or_before_any_look():
    for callbacks in ([Hooked(lambda logs: None, decay)], [Hooked(READS["by name"], decay, "on_train_begin")]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError, match="was changed while fit runs"):
                fit(model_of(), *callbacks)
        assert not any("and then" in str(one.message) for one in caught)


def test_functions_given_to_keras_are_watched_too_and_put_back():
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs["loss"] > 1e9 or stop(model))
    before, model = callback.on_epoch_end, model_of()
    (found,) = warned(model, callback)
    assert "LambdaCallback" in found
    assert callback.on_epoch_end is before


@pytest.mark.slow
def test_the_name_of_an_output_makes_nothing_public():
    model = model_of("val")
    (found,) = warned(model, Hooked(lambda logs: logs["val_loss"], stop), validation_data=PUBLIC)
    assert "val_loss" in found
    (found,) = warned(model_of(), Hooked(lambda logs: logs.get("loss"), stop), validation_data=PUBLIC)
    assert "'loss'" in found


PEACE = {
    "looks at nothing and stops": Hooked(lambda logs: None, stop),
    "looks at names and stops": Hooked(lambda logs: (list(logs), "loss" in logs, len(logs)), stop),
    "looks and does nothing": Hooked(READS["items"], lambda model: None),
    "looks at public numbers and stops": Hooked(lambda logs: logs["val_loss"], stop),
    "looks at epsilon and stops": Hooked(lambda logs: logs["epsilon"], stop),
    "evaluates and stops": type(
        "Evaluated",
        (keras.callbacks.Callback,),
        {
            "on_test_end": lambda self, logs=None: setattr(self, "seen", logs["loss"]),
            "on_epoch_end": lambda self, epoch, logs=None: stop(self.model),
        },
    )(),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("callback", PEACE.values(), ids=PEACE)
def test_what_decides_by_nothing_private_is_left_in_peace(callback):
    model = model_of()
    assert warned(model, tfdp.callbacks.PrivacyBudget(1e6, 1e-2), callback, validation_data=PUBLIC) == []
    assert not any("and then" in note for note in model.privacy_statement(1e-2).notes)


def test_keras_own_callbacks_work_and_nothing_is_said(tmp_path):
    kc = keras.callbacks
    own = [
        kc.CSVLogger(tmp_path / "log.csv"),
        kc.TensorBoard(tmp_path / "board"),
        kc.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
        kc.ModelCheckpoint(tmp_path / "model.keras"),
        kc.EarlyStopping(monitor="val_loss", patience=0, restore_best_weights=True),
        kc.History(),
    ]
    model = model_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(X, Y, batch_size=4, epochs=2, callbacks=own, validation_data=PUBLIC)
    assert not [w for w in caught if "and then" in str(w.message)]
    assert {"loss", "mae", "val_loss"} <= set(history.history)
    assert (tmp_path / "log.csv").read_text().startswith("epoch,loss,mae")


def test_what_a_callback_writes_into_the_logs_reaches_those_after_it():
    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["mine"] = 7.0
            del logs["mae"]

    history = fit(model_of(), Writes(), Writes.__mro__[1]())
    assert history.history["mine"] == [7.0] * 3
    assert "mae" not in history.history


def test_a_class_in_place_of_a_callback_is_refused():
    with pytest.raises(ValueError, match=r"callbacks is PrivacyBudget, a class.* Call it: PrivacyBudget\(\.\.\.\)"):
        list(flatten_callbacks([tfdp.callbacks.PrivacyBudget]))


@pytest.mark.slow
@pytest.mark.parametrize("deciding", slow_but(["stopping"], ["stopping", "checkpoint"]))
def test_what_a_known_callback_decides_by_stays_what_fit_accepted(deciding, tmp_path):
    def private(_, logs):
        callback.monitor = "loss"

    kept = str(tmp_path / "best.keras")
    made = {
        "stopping": lambda: keras.callbacks.EarlyStopping("val_loss"),
        "checkpoint": lambda: keras.callbacks.ModelCheckpoint(kept, "val_loss", save_best_only=True),
    }
    callback = made[deciding]()
    for changes in ([], [keras.callbacks.LambdaCallback(on_epoch_begin=private)]):
        fit = {"epochs": 1, "batch_size": 4, "validation_data": PUBLIC, "callbacks": [*changes, callback], "verbose": 0}
        if not changes:
            model_of().fit(X, Y, **fit)
            continue
        with pytest.raises(ValueError, match="decided by 'val_loss' when fit began, and now by 'loss'"):
            model_of().fit(X, Y, **fit)
    assert not {name for name in vars(callback) if name.startswith("on_")}


def test_hooks_that_are_put_on_a_callback_of_keras_are_watched():
    model, early = model_of(), keras.callbacks.EarlyStopping(monitor="val_loss")
    early.on_epoch_end = lambda epoch, logs=None: READS["get"](logs) and stop(model)
    with pytest.warns(UserWarning, match="EarlyStopping read 'mae' and then stopped the training"):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[early], validation_data=PUBLIC)


def move_a_layer(model):
    model.layers[-1].set_weights([w + 1.0 for w in model.layers[-1].get_weights()])


def test_one_that_read_a_private_number_before_is_reported_for_it():
    model = model_of()
    hooked = Hooked(READS["get"], move_a_layer)
    with pytest.warns(UserWarning, match="read 'mae' and then changed the weights"):
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0, callbacks=[hooked])


def reports(*callbacks):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model_of().fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=list(callbacks))
    return [str(one.message) for one in caught if "chosen by numbers" in str(one.message)]


class Smooths(keras.callbacks.Callback):
    """Keeps a number of its own beside Keras' curves."""

    def __init__(self, name, way, of=lambda logs: 0.5, stops=False):
        super().__init__()
        self._name, self._way, self._of, self._stops = name, way, of, stops

    def on_epoch_end(self, epoch, logs=None):
        history = self.model.history.history
        if self._way == "setdefault":
            history.setdefault(self._name, []).append(float(self._of(logs)))
        elif self._way == "update":
            history.update({self._name: [float(self._of(logs))]})
        else:
            history[self._name] = [float(self._of(logs))]
        self.model.stop_training = self._stops and history[self._name][-1] < 1e9 and epoch == 1


class StopsBy(keras.callbacks.Callback):
    def __init__(self, name):
        super().__init__()
        self._name = name

    def on_epoch_begin(self, epoch, logs=None):
        self.model.stop_training = epoch > 0 and self.model.history.history[self._name][-1] < 1e9


@pytest.mark.parametrize("way", ["setdefault", "update", "item"])
def test_what_one_callback_writes_into_the_history_is_read_by_another_as_all_else(way):
    """It was stored without being watched: one record told 20 times of 20."""
    found = reports(Smooths("smooth", way, lambda logs: logs["loss"]), StopsBy("smooth"))
    assert any("read 'smooth' and then stopped" in one for one in found)


@pytest.mark.parametrize("way", ["setdefault", "item"])
def test_what_a_callback_wrote_itself_it_may_read(way):
    assert reports(Smooths("f1", way, stops=True)) == []


def charges(model):
    tfdp.release_metric([1.0] * 8, model.ledger, stddev=0.5, name="share", examples=8)


def merges(model):
    other = tfdp.accounting.Ledger()
    tfdp.release_metric([1.0] * 8, other, stddev=0.5, name="share", examples=8)
    model.ledger.merge(other)


@pytest.mark.parametrize("decide", [charges, merges])
def test_to_charge_the_ledger_is_a_decision(decide):
    """A budget then ended the training sooner: one record told 20 times of 20."""
    (found,) = reports(Hooked(lambda logs: logs["loss"], decide))
    assert "charged the ledger" in found
    assert reports(Hooked(lambda logs: None, decide)) == []
    assert reports(Hooked(lambda logs: logs["loss"], lambda model: str(model.ledger.steps))) == []
