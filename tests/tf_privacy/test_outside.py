"""What moves a model of tensorflow-privacy outside of a counted `fit` is refused, or its statement says so."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Statement

tfp = pytest.importorskip("tensorflow_privacy")
from helpers.tf_privacy_models import MEAN, PER_RECORD, X, Y, flat, kl, tk  # noqa: E402

DELTA = 1e-3
CHANGED, BEFORE = "not those of the end of a training", "Before the first counted fit"
FIT = {"x": X, "y": Y, "batch_size": 100, "verbose": 0}
PUBLIC = {"validation_data": (X[:50] + 1, Y[:50])}


@pytest.fixture(autouse=True)
def unseeded():
    """Of equal seeds two trainings end with equal weights, which are known then."""
    tf.random.set_seed(None)


def noisy(rate=0.1):
    return tfp.VectorizedDPKerasSGDOptimizer(l2_norm_clip=0.5, noise_multiplier=1.5, learning_rate=rate)


def counted(ledger=None):
    model = tfdp.tf_privacy.with_ledger(tk.Sequential([tk.Input((6,)), kl.Dense(3)]), ledger)
    model.compile(noisy(), PER_RECORD)
    return model


def minimize(model, optimizer=None, steps=2):
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = PER_RECORD(Y[:100], model(X[:100], training=True))
        (optimizer or model.optimizer).minimize(loss, model.trainable_variables, tape=tape)


def outer(model):
    around = tk.Sequential([tk.Input((6,)), kl.Rescaling(1.0), model])
    around.compile(noisy(), PER_RECORD)
    around.fit(**FIT)


def ordinary(model):
    with tf.GradientTape() as tape:
        loss = MEAN(Y, model(X))
    gradients = tape.gradient(loss, model.trainable_variables)
    rate = np.random.default_rng().uniform(0.1, 0.2)  # what it leaves is no other test's, which begins with this model
    tk.optimizers.SGD(rate).apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def notes(model):
    statement = model.privacy_statement(DELTA)
    return list(statement.void), [one for one in statement.notes if "it took from records" in one]


@pytest.mark.parametrize("begun", [False, True])
def test_steps_of_the_optimizer_that_nothing_counted_void_the_statement(begun, tmp_path):
    """Three epochs of a loop were stated as nothing at all."""
    model = counted(Ledger(tmp_path / "ledger.json"))
    if begun:
        model.fit(**FIT)
    minimize(model)
    (void,), _ = notes(model)
    assert "steps outside of a counted fit" in void
    steps = model.ledger.steps
    for _ in range(2):
        with pytest.raises(ValueError, match="by fit alone"):
            model.fit(**FIT)
    model.compile(noisy(), PER_RECORD)  # another optimizer, the same weights
    assert len(notes(model)[0]) == 1
    assert model.ledger.steps == steps
    (said,) = (
        one for one in Statement.from_ledger(Ledger.read(tmp_path / "ledger.json"), DELTA).notes if "else" in one
    )
    assert "it took from records" in said


def test_steps_in_a_callback_do_so_too():
    model = counted()
    model.fit(**FIT, callbacks=[tk.callbacks.LambdaCallback(on_epoch_begin=lambda *_: minimize(model, steps=1))])
    assert (model.ledger.steps, int(model.optimizer.iterations)) == (2, 3)
    assert len(notes(model)[0]) == 1


@pytest.mark.parametrize("change", [outer, ordinary, lambda model: minimize(model, noisy())])
@pytest.mark.parametrize("begun", [False, True])
def test_weights_that_something_else_trained_bring_a_note(change, begun):
    model = counted()
    if begun:
        model.fit(**FIT)
    change(model)
    for _ in range(2):
        void, (note,) = notes(model)
        assert not void
        assert (CHANGED if begun else BEFORE) in note
        model.fit(**FIT)


def solve(model):
    model.layers[0].set_weights([np.ones((6, 3)), np.zeros(3)])


HOOKS = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]


@pytest.mark.parametrize(
    ("hook", "change"), [*((hook, ordinary) for hook in [*HOOKS, "on_train_end"]), ("on_epoch_end", solve)]
)
def test_weights_that_a_callback_trains_in_a_counted_fit_bring_a_note(hook, change):
    model, left = counted(), [1]

    def once(*_):
        if left:
            change(model)
            left.pop()

    callback = tk.callbacks.LambdaCallback() if hook == "on_train_end" else tk.callbacks.Callback()
    setattr(callback, hook, once)
    model.fit(**FIT, callbacks=[callback])
    for _ in range(2):
        void, (note,) = notes(model)
        assert not void
        assert "While fit ran" in note
        model.fit(**FIT)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_test_begin", "on_test_end"])
def test_so_does_the_last_change_before_an_epoch_ends(hook):
    """What is there when an epoch ends was taken for what its steps left."""
    model, seen = counted(), []

    def last(*_):
        seen.append(hook)
        if len(seen) == (2 if hook == "on_train_batch_end" else 1):  # of two batches
            ordinary(model)

    callback = tk.callbacks.Callback()
    setattr(callback, hook, last)
    model.fit(**FIT, **PUBLIC, callbacks=[callback])
    (note,) = notes(model)[1]
    assert "While fit ran" in note
    assert "if those were public, nothing is lost" in note


@pytest.mark.parametrize("xla", [None, False, True])
def test_train_step_is_for_the_counted_step_alone(xla):
    model = counted()
    if xla is not None:
        dense = [tk.Input((6,)), kl.Dense(3)]
        model = tfp.DPSequential(l2_norm_clip=0.5, noise_multiplier=1.5, layers=dense, use_xla=xla)
        tfdp.tf_privacy.with_ledger(model).compile("sgd", MEAN)
    before, data = flat(model), (tf.constant(X[:20]), tf.constant(Y[:20]))
    with pytest.raises(RuntimeError, match="Call fit"):
        model.train_step(data)
    step = tk.callbacks.LambdaCallback(on_train_batch_begin=lambda *_: model.train_step(data))
    with pytest.raises(RuntimeError, match="Call fit"):
        model.fit(**FIT, callbacks=[step])
    np.testing.assert_array_equal(flat(model), before)
    model.fit(**FIT)
    assert model.ledger.steps == int(model.optimizer.iterations) == 2


# No false alarms ------------------------------------------------------------------------------------------------------


def pretrained(model, folder):
    model.layers[0].set_weights([np.ones((6, 3)), np.ones(3)])
    model.fit(**FIT)


def looked_at(model, folder):
    model.evaluate(X, Y, verbose=0)
    looked_at_inputs(model)
    model.set_weights([np.ones((6, 3)), np.ones(3)])
    model.fit(**FIT)


def restored(model, folder):
    model.fit(**FIT)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(folder / "state"))
    model.fit(**FIT, epochs=2)
    checkpoint.restore(path)
    assert int(model.optimizer.iterations) == 2
    notes(model)
    model.fit(**FIT)


def restored_from_the_middle(model, folder):
    checkpoint, paths = tf.train.Checkpoint(model=model), []
    save = tk.callbacks.LambdaCallback(on_epoch_end=lambda *_: paths.append(checkpoint.save(str(folder / "state"))))
    model.fit(**FIT, epochs=2, callbacks=[save])
    checkpoint.restore(paths[0])


def resumed(model, folder):
    """In another process: the ledger is in its file, and the rest comes from a checkpoint."""
    model.fit(**FIT)
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "state"))
    new = counted(model.ledger)
    tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(path)
    assert int(new.optimizer.iterations) == 2
    assert notes(new) == ([], [])
    new.fit(**FIT)
    assert notes(new) == ([], [])


def loaded(model, folder):
    for name in ("weights", "weights.h5"):  # the first one holds the optimizer's steps, too
        model.fit(**FIT, epochs=2)
        model.save_weights(folder / name)
        model.fit(**FIT)
        model.load_weights(folder / name)
        assert notes(model) == ([], [])


def best(model, folder):
    public = (X[:50] + 1, Y[:50])
    stop = tk.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    save = tk.callbacks.ModelCheckpoint(str(folder / "{epoch}.h5"), "val_loss", save_weights_only=True)
    kept = []
    keep = tk.callbacks.LambdaCallback(on_train_batch_end=lambda *_: kept.append(model.get_weights()))
    model.fit(**FIT, epochs=3, validation_data=public, callbacks=[stop, save, keep])
    assert notes(model) == ([], [])
    model.set_weights(kept[0])
    assert notes(model) == ([], [])
    model.load_weights(folder / "1.h5")
    model.fit(**FIT)


def interrupted(model, folder):
    def stop(batch, logs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(**FIT, callbacks=[tk.callbacks.LambdaCallback(on_train_batch_end=stop)])
    assert notes(model) == ([], [])
    model.fit(**FIT)


def looked_on(model, folder):
    """Callbacks of one's own, of which each leaves what was released, public, or what it took for a while."""
    first, kept = model.get_weights(), []

    def looks(batch, logs):
        looked_at_inputs(model)
        kept.append(model.layers[0].get_weights())

    def averaged(epoch, logs):
        now = model.layers[0].get_weights()
        model.layers[0].set_weights([np.mean(one, axis=0) for one in zip(*kept, strict=True)])
        model.evaluate(X + 1, Y, verbose=0)
        model.layers[0].set_weights(now)

    back = tk.callbacks.LambdaCallback(on_train_end=lambda logs: model.layers[0].set_weights(kept[0]))
    own = tk.callbacks.LambdaCallback(on_train_batch_end=looks, on_epoch_end=averaged)
    begin = tk.callbacks.LambdaCallback(on_train_begin=lambda logs: model.set_weights(first))
    for _ in range(2):
        model.fit(**FIT, epochs=2, callbacks=[begin, own, back, tk.callbacks.EarlyStopping("val_loss")], **PUBLIC)


def looked_at_inputs(model):
    with tf.GradientTape() as tape:
        tape.watch(inputs := tf.constant(X))
        loss = model(inputs)
    tape.gradient(loss, inputs)


def averaging(model, folder):
    """An optimizer that ends with the moving averages of the weights."""
    dense = [tk.Input((6,)), kl.Dense(3)]
    averaged = tfp.DPSequential(l2_norm_clip=0.5, noise_multiplier=1.5, layers=dense)
    tfdp.tf_privacy.with_ledger(averaged).compile(tk.optimizers.Adam(0.1, use_ema=True), MEAN)
    for _ in range(2):
        averaged.fit(**FIT, callbacks=[tk.callbacks.LambdaCallback(on_epoch_end=lambda *_: None)])
        assert notes(averaged) == ([], [])


def begun_anew(model, folder):
    first = model.get_weights()
    for _ in range(2):  # as in a cross-validation
        model.set_weights(first)
        model.compile(noisy(), PER_RECORD)
        model.fit(**FIT)


def shared_optimizer(model, folder):
    other = tfdp.tf_privacy.with_ledger(tk.Sequential([tk.Input((6,)), kl.Dense(3)]), model.ledger)
    other.compile(model.optimizer, PER_RECORD)
    for one in (model, other, model):
        one.fit(**FIT)
    assert notes(other) == ([], [])


ORDINARY = [pretrained, looked_at, restored, restored_from_the_middle, resumed, loaded, best]
ORDINARY += [interrupted, looked_on, averaging, begun_anew, shared_optimizer]


@pytest.mark.parametrize("program", ORDINARY)
def test_ordinary_programs_bring_neither(program, tmp_path):
    model = counted()
    program(model, tmp_path)
    assert notes(model) == ([], [])


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("copied", [True, False])
def test_copies_of_training_rows_as_validation_data_are_warned_of(copied, drawn):
    model = counted()
    data = {"x": tfdp.tf_privacy.PoissonBatches(X, Y, 100), "verbose": 0} if drawn else FIT
    public = (X[:50].copy(), Y[:50].copy()) if copied else (X[:50] + 1, Y[:50])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**data, validation_data=public, callbacks=[tk.callbacks.EarlyStopping("val_loss")])
    assert any("Most rows of validation_data" in str(one.message) for one in caught) is copied


def test_an_interrupt_while_fit_ends_leaves_a_model_whose_next_fit_counts(monkeypatch):
    model = counted()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(model._tfdp_outside), "keep", lambda outside, model, made=None: made and interrupted())
        with pytest.raises(KeyboardInterrupt):
            model.fit(**FIT)
    made = model.ledger.steps
    model.fit(**FIT)
    assert model.ledger.steps == 2 * made > 0
