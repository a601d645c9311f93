"""What a statement once left out: replaced ledgers, changes of what is no weight, copies, hooks that raise."""

import itertools
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.accounting.account import Account

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 4)).astype("float32"), RNG.normal(size=(24, 1)).astype("float32")
MEAN = X.mean(0)
kl = keras.layers
BOOKS = "it took from records"
RELEASE = Release((GroupNoise("all", 1.0, 3.0),), tfdp.sampling.Poisson(12), 24)


def network():
    frozen = kl.Dense(4, name="frozen", trainable=False)
    return keras.Sequential([keras.Input((4,)), frozen, kl.Dense(4, "tanh", name="hidden"), kl.Dense(1, name="head")])


def compiled(model, loss="mse", momentum=0.9, rate=0.1):
    sgd = keras.optimizers.SGD(rate, momentum=momentum)
    model.compile(tfdp.optimizers.ClippedOptimizer(sgd, noise_multiplier=3.0), loss)
    return model


def private():
    return compiled(tfdp.make_private(network()))


def fit(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y, **{"batch_size": 12, "verbose": 0} | options)
    return model


def poison(model):
    """What only records tell, in the bias of a frozen layer."""
    model.get_layer("frozen").bias.assign(MEAN)


def notes(model):
    return [one for one in model.privacy_statement(1e-2).notes if "other ledger" not in one]


def changed(model):
    return any(BOOKS in one for one in notes(model))


def file_of(model, path):
    model.save(path)
    return tfdp.load_model(path)


# Ledgers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "join", [tfdp.make_private, lambda m: tfdp.PrivateModel(m.inputs, m.get_layer("hidden").output)]
)
def test_a_ledger_that_was_handed_out_stays_the_one(join):
    model, given = private(), Ledger()
    model.ledger = given
    join(model)
    fit(model)
    tfdp.release_metric(np.ones(24), given, stddev=0.5, name="metric")
    assert model.ledger is given
    assert model.privacy_statement(1e-5).epsilon == pytest.approx(float(epsilon(given, 1e-5)))
    assert len(given.entries) == 2


def test_two_joined_ledgers_are_one_whoever_holds_them():
    a, b = private(), private()
    first, second = a.ledger, b.ledger
    fit(a), fit(b)
    whole = tfdp.PrivateModel(a.inputs, b.get_layer("head")(a.get_layer("hidden").output))
    both = whole.privacy_statement(1e-5).epsilon
    assert float(epsilon(first, 1e-5)) == float(epsilon(second, 1e-5)) == pytest.approx(both)
    assert first.steps == 4
    tfdp.release_metric(np.ones(24), second, stddev=0.5, name="metric")
    assert float(epsilon(first, 1e-5)) > both
    fit(a)
    assert first.steps == second.steps == a.ledger.steps == b.ledger.steps


def test_names_of_a_ledger_that_is_joined_again_go_along():
    ledgers = [Ledger() for _ in range(4)]
    accounts = [Account(one) for one in ledgers]
    for account, other in itertools.pairwise(accounts):
        other.join([account])
        account.join([other])
    token = ledgers[0].begin(RELEASE)
    ledgers[0].reserve(token, 3)
    assert [one.steps for one in ledgers] == [3] * 4
    ledgers[3].settle(token, 2)  # a name of the same: so are its tokens
    assert [one.steps for one in ledgers] == [2] * 4


def test_a_budget_in_force_stays_when_ledgers_are_joined():
    mine, others = Ledger(), Ledger()
    token = mine.begin(RELEASE)
    mine.keep_to(token, (1.0, 1e-5))
    others.reserve(others.begin(RELEASE), 1)
    Account(others).join([Account(mine)])
    with pytest.raises(tfdp.accounting.BudgetExhausted):
        others.reserve(others.begin(RELEASE), 10_000)


def test_no_charge_is_lost_while_ledgers_are_joined():
    for _ in range(20):
        mine, others = Ledger(), Ledger()
        others.reserve(others.begin(RELEASE), 1)
        token, made, ended = mine.begin(RELEASE), [0], threading.Event()

        def charge(mine=mine, token=token, made=made, ended=ended):
            while not ended.is_set():
                mine.reserve(token, 1)
                made[0] += 1

        thread = threading.Thread(target=charge)
        thread.start()
        while made[0] < 50:
            time.sleep(0)
        Account(others).join([Account(mine)])
        ended.set()
        thread.join()
        assert mine.steps == others.steps == made[0] + 1


# Hooks and loops ------------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_change_before_an_error_is_noted(error, tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            poison(self.model)
            raise error("now")

    model = private()
    with pytest.raises(error, match="now"):
        fit(model, epochs=3, callbacks=[Hook()])
    assert changed(model)
    assert changed(file_of(model, tmp_path / "m.keras"))
    assert changed(fit(model))


@pytest.mark.few(1)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_change_in_a_loop_before_an_error_is_noted(error):
    model = private()

    def loop():
        with model.private_run(X, Y, batch_size=12, verbose=0) as run:
            run.step(next(iter(run)))
            poison(model)
            raise error("now")

    with pytest.raises(error, match="now"):
        loop()
    assert changed(model)


def test_the_number_of_steps_of_a_loop_is_what_was_planned():
    model = private()
    with model.private_run(X, Y, batch_size=12, verbose=0) as run, pytest.raises(AttributeError, match="planned"):
        run.planned = 30


def test_a_statement_and_a_file_inside_a_hook_or_a_loop_say_what_it_changed(tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            poison(self.model)
            self.model.save(tmp_path / "hook.keras")

    fit(private(), callbacks=[Hook()])
    assert changed(tfdp.load_model(tmp_path / "hook.keras"))
    model = private()
    with model.private_run(X, Y, batch_size=12, verbose=0) as run:
        for batch in run:
            run.step(batch)
        poison(model)
        assert changed(model)
        assert changed(file_of(model, tmp_path / "loop.keras"))


def test_hooks_that_change_nothing_are_not_noted(tmp_path):
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save(tmp_path / "m.keras")
            self.model.privacy_statement(1e-2)
            self.model.evaluate(X[:2] + 1, Y[:2], verbose=0)

    model = fit(private(), epochs=2, callbacks=[Hook()])
    assert notes(model) == []
    assert not changed(tfdp.load_model(tmp_path / "m.keras"))


# What is no weight ----------------------------------------------------------------------------------------------------


def momenta(model):
    return [one for one in model.optimizer.variables if "momentum" in one.path]


def test_an_optimizers_state_that_something_else_wrote_is_noted(tmp_path):
    model = fit(private())
    assert not changed(fit(file_of(model, tmp_path / "m.keras")))
    momenta(model)[0].assign(np.outer(MEAN, np.ones(4)))
    assert changed(model)
    assert changed(file_of(model, tmp_path / "m.keras"))


def test_an_optimizers_state_that_a_hook_wrote_is_noted():
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            momenta(self.model)[0].assign(np.outer(MEAN, np.ones(4)))

    assert changed(fit(private(), epochs=2, callbacks=[Hook()]))


class Centred(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.center = tf.Variable(0.0)

    def call(self, y, p):
        return tf.reduce_mean(tf.square(y - p - self.center), -1)


class Held(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.rate = tf.Variable(0.1)

    def __call__(self, step):
        return self.rate


@pytest.mark.few(2)
@pytest.mark.parametrize("what", ["loss", "schedule"])
@pytest.mark.parametrize("reads", [True, False])
def test_what_steps_read_is_a_decision(what, reads):
    loss, schedule = Centred(), Held()

    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            number = logs["loss"] if reads else 0.1 * epoch + 0.01
            (loss.center if what == "loss" else schedule.rate).assign(number)

    model = compiled(tfdp.make_private(network()), loss, rate=schedule)
    fit(model, epochs=2, callbacks=[Hook()])
    assert any("then changed what the steps read" in one for one in notes(model)) == reads
    assert not changed(model)


@pytest.mark.few(2)
@pytest.mark.parametrize("moment", ["before fit", "after fit", "after load"])
def test_what_an_adapted_layer_holds_is_compared(moment, tmp_path):
    layer = tfdp.layers.PrivateNormalization(3.0, -3.0, 3.0)
    layer.adapt(X)
    model = compiled(tfdp.PrivateSequential([keras.Input((4,)), layer, kl.Dense(1)]))
    assert notes(model) == []
    if moment != "before fit":
        fit(model)
    if moment == "after load":
        model = file_of(model, tmp_path / "m.keras")
        layer = model.layers[0]
    assert not changed(model)
    layer.set_weights([MEAN, X.var(0), *layer.get_weights()[2:]])
    assert changed(model)
    assert changed(fit(model))


def test_an_adapted_layer_that_adapts_again_is_no_change():
    layer = tfdp.layers.PrivateNormalization(3.0, -3.0, 3.0)
    layer.adapt(X)
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), layer, kl.Dense(1)])))
    layer.adapt(X)
    assert notes(model) == []


# Copies ---------------------------------------------------------------------------------------------------------------


def cloned(model):
    made = keras.models.clone_model(model)
    made.set_weights(model.get_weights())
    return made


COPIES = {
    "clipping": lambda model: tfdp.make_private(model, bounding="backprop_clipping"),
    "replaced": lambda model: tfdp.make_private(tfdp.replace_batch_normalization(model)),
    "back and forth": lambda model: tfdp.make_private(model.to_keras()),
    "cloned": cloned,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_copies_made_here_are_compared_too(copy):
    layers = [kl.Dense(4, name="frozen", trainable=False), kl.BatchNormalization(trainable=False), kl.Dense(1)]
    model = fit(compiled(tfdp.make_private(keras.Sequential([keras.Input((4,)), *layers]))))
    made = copy(model)
    assert not changed(made)
    poison(made)
    assert changed(made)
    poison(model)
    assert changed(copy(model)) is (copy is not cloned)  # of set_weights it is known that notes stay behind


def test_a_change_stays_one_when_another_model_trains_on_its_copy():
    a, b = fit(private()), private()
    poison(a)
    b.set_weights(a.get_weights())
    fit(b)
    assert changed(a)


def test_notes_go_with_layers_into_ordinary_files(tmp_path):
    frozen = tfdp.layers.ClippedDense(4, name="frozen")
    model = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), frozen, tfdp.layers.ClippedDense(1)])))
    poison(model)
    keras.Sequential([keras.Input((4,)), *model.layers]).save(tmp_path / "m.keras")
    assert changed(tfdp.make_private(keras.models.load_model(tmp_path / "m.keras")))


def test_constants_that_no_training_accepted_are_noted(tmp_path):
    trained, scale = fit(private()), kl.Normalization()
    scale.adapt(X)
    inputs = keras.Input((4,))
    whole = tfdp.PrivateModel(inputs, trained(scale(inputs)))
    assert any("'normalization" in one for one in notes(whole))
    assert any("'normalization" in one for one in notes(file_of(whole, tmp_path / "m.keras")))
    tfdp.public(scale)
    assert notes(whole) == []
    accepted = fit(compiled(tfdp.PrivateSequential([keras.Input((4,)), scale, kl.Dense(1)])))
    assert notes(accepted) == notes(file_of(accepted, tmp_path / "n.keras")) == []


def test_weights_that_are_loaded_answer_for_no_vocabulary(tmp_path):
    def built(words):
        lookup = kl.StringLookup(max_tokens=8)
        lookup.set_vocabulary(words)
        inputs = keras.Input((1,), dtype="string")
        return compiled(
            tfdp.PrivateModel(inputs, kl.Dense(1)(kl.Flatten()(kl.Embedding(8, 2)(lookup(inputs)))))
        ), lookup

    words, labels = np.array([["a"], ["b"]] * 12, object), Y
    model, lookup = built(["a", "b", "c"])
    tfdp.public(lookup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(words, labels, batch_size=12, verbose=0)
    assert notes(model) == []
    model.save_weights(tmp_path / "m.weights.h5")
    other, lookup = built(["Ann", "Bob", "Cleo"])
    other.load_weights(tmp_path / "m.weights.h5")
    assert any("Constants of the layers" in one for one in notes(other))
    loaded = file_of(other, tmp_path / "m.keras")
    assert any("Constants of the layers" in one for one in notes(loaded))
    tfdp.public(loaded)
    assert notes(loaded) == []


def test_weights_of_others_that_a_training_leaves_as_they_were_stay_noted():
    model = fit(private())
    poison(model)
    other = compiled(tfdp.make_private(keras.Sequential([keras.Input((4,)), model.get_layer("frozen"), kl.Dense(1)])))
    fit(other)
    assert changed(model)
    assert changed(other)


def test_momentum_that_starts_anew_is_no_change():
    model = fit(private())
    for one in momenta(model):
        one.assign(np.zeros(one.shape))
    assert notes(model) == []
    assert notes(fit(model)) == []


def test_copies_in_the_middle_of_a_second_training_are_no_change():
    class Hook(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            copies.append(tfdp.make_private(self.model.to_keras()))

    copies, model = [], fit(private())
    fit(model, epochs=2, callbacks=[Hook()])
    assert [changed(one) for one in (*copies, model)] == [False] * 3


def test_a_ledger_says_that_a_training_was_broken_off(tmp_path):
    def broken(index):
        if index >= 20:
            raise RuntimeError("cannot be read")
        return X[index], Y[index]

    class Source:
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return broken(index)

    ledger = Ledger(tmp_path / "ledger.json", dataset="people")
    first, second = private(), private()
    first.ledger = second.ledger = ledger
    with pytest.raises(Exception, match="cannot be read"):
        first.fit(Source(), batch_size=4, epochs=9, verbose=0)
    fit(second)
    ledger.close()
    again = Ledger(tmp_path / "ledger.json")
    for found in (notes(second), tfdp.accounting.Statement.from_ledger(again, 1e-2).notes, notes(first)):
        assert len([one for one in found if "ended by an error out of a step" in one]) == 1
    other = Ledger(dataset="people")
    other.merge(again)
    assert other.broken_off is other.copy().broken_off is True
    assert not Ledger().broken_off
