"""What attackers got through by loops of their own and by streams of correlated noise stays closed."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models import streams

IDS = np.arange(20, dtype="float32")[:, None]
Y = np.zeros((20, 1), "float32")
CORRELATED = tfdp.noise.Correlated(0.9)


def model_of(noise=None, multiplier=1.0, optimizer=None):
    inputs = keras.Input((1,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(50, use_bias=False)(inputs)))
    made = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), multiplier, 1.0, noise=noise)
    model.compile(optimizer or made, lambda y, found: keras.ops.mean(0.0 * found, axis=-1))
    return model


def visited(batch):
    return sorted(int(i) for i in np.ravel(batch.records()[0]))


class Fails(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise OSError("disk full")


@pytest.mark.parametrize("sampling", [tfdp.sampling.Cyclic(2), tfdp.sampling.Poisson(2)])
def test_a_draw_that_an_error_leaves_out_ends_the_run(sampling):
    model = model_of()
    with model.private_run(IDS, Y, sampling=sampling, epochs=10, verbose=0, callbacks=[Fails()]) as run:
        batch = next(run)
        with pytest.raises(OSError, match="full"):
            run.step(batch)
        for call in (lambda: next(run), lambda: run.step(batch)):
            with pytest.raises(RuntimeError, match="has ended"):
                call()
    assert model.ledger.steps == 0


def test_a_source_that_fails_for_a_record_ends_the_run():
    class Source:
        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 3:
                raise OSError("unreadable")
            return IDS[index], Y[index]

    model = model_of()
    batches = tfdp.PrivateBatches(tfdp.records(Source(), workers=0), sampling=tfdp.sampling.Cyclic(20))
    with model.private_run(batches, epochs=3, verbose=0) as run:
        with pytest.raises(Exception, match="unreadable"):
            next(run)
        with pytest.raises(RuntimeError, match="has ended"):
            next(run)


class Slow:
    """Rows that take their time to become an array."""

    def __init__(self, started, wait):
        self.started, self.wait = started, wait

    def __array__(self, dtype=None, copy=None):
        self.started.set()
        assert self.wait.wait(60)
        return np.zeros((2, 1), "float32")


def test_a_step_of_another_thread_is_made_in_its_own_run():
    model = model_of()
    started, wait, made = threading.Event(), threading.Event(), []
    with model.private_run(IDS, Y, batch_size=20, epochs=1, verbose=0) as run:
        batch = next(run)
        rows = (Slow(started, wait), np.zeros((2, 1), "float32"))
        thread = threading.Thread(target=lambda: made.append(run.step(batch, public=rows)))
        thread.start()
        assert started.wait(60)
        threading.Timer(0.5, wait.set).start()  # by then the block is left
    thread.join()
    assert model.ledger.entries[0].release.sampling.batch_size == 20
    assert len(made) == model.ledger.steps == 1


def own_rows(model):
    return model.train_function(iter([(IDS[:1], Y[:1], np.ones(1, "float32"))]))


@pytest.mark.slow
def test_the_compiled_step_takes_no_rows_that_no_sampler_drew():
    model = model_of()
    with model.private_run(IDS, Y, batch_size=2, epochs=1, steps_per_epoch=1, verbose=0) as run:
        for batch in run:
            with pytest.raises(RuntimeError, match="was called by something other"):
                own_rows(model)
            run.step(batch)
    assert model.ledger.steps == 1
    calls = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: own_rows(model))
    with pytest.raises(RuntimeError, match="was called by something other"):
        model.fit(IDS, Y, batch_size=2, verbose=0, callbacks=[calls])
    assert model.ledger.steps == 2
    errors = []

    def other_thread(*_, **__):
        def call():
            try:
                own_rows(model)
            except RuntimeError as error:
                errors.append(error)

        (thread := threading.Thread(target=call)).start()
        thread.join()

    watching = keras.callbacks.LambdaCallback(on_train_batch_begin=other_thread)
    model.fit(IDS, Y, batch_size=10, verbose=0, callbacks=[watching])
    assert len(errors) == 2
    assert model.ledger.steps == 4


@pytest.mark.parametrize("threaded", [True, False])
def test_nothing_takes_the_release_of_a_step_that_runs(threaded):
    """While a step waits for its draw, or shows what it released, there is one that the ledger counted."""
    model, errors = model_of(), []
    model.compile(model.optimizer, "mse", run_eagerly=True)
    rows = tf.constant(IDS[:1]), tf.ones((1, 50)), tf.ones(1)

    def own_step():
        sums = model.bounded_gradient_sums(*rows)
        for call in (
            lambda: model.train_step(rows),
            lambda: model.optimizer.release(sums, model.trainable_variables, model.sensitivities(), 1),
        ):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))

    def meanwhile(_):
        if not threaded:
            return own_step()
        (thread := threading.Thread(target=own_step)).start()
        return thread.join()

    model.optimizer.observe(meanwhile)
    model.fit(IDS, np.zeros((20, 50), "float32"), batch_size=10, epochs=1, verbose=0, accept_measured=True)
    assert [error.startswith("Something other than the training") for error in errors] == [True] * 4
    assert int(model.optimizer.releases) == model.ledger.steps == 2


def test_a_callback_that_is_appended_while_fit_runs_makes_no_step():
    model = model_of()
    listed = keras.callbacks.CallbackList([])
    late = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: own_rows(model))
    appends = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: listed.callbacks.append(late))
    listed.callbacks.append(appends)
    history = model.fit(IDS, Y, batch_size=2, epochs=1, verbose=0, callbacks=listed)
    assert late in listed.callbacks
    assert len(history.history["loss"]) == 1
    assert model.ledger.steps == 10


def test_functions_that_keras_calls_between_steps_make_none():
    model = model_of()

    def scheduled(epoch, rate):
        own_rows(model)
        return rate

    def validation():
        while True:
            own_rows(model)
            yield IDS[:4], Y[:4]

    for options in (
        {"callbacks": [keras.callbacks.LearningRateScheduler(scheduled)]},
        {"validation_data": validation(), "validation_steps": 1},
    ):
        spent = model.ledger.steps
        with pytest.raises(RuntimeError, match="was called by something other"):
            model.fit(IDS, Y, batch_size=20, verbose=0, **options)
        assert model.ledger.steps - spent == ("validation_data" in options)  # the loop's own step


def test_python_code_in_a_learning_rate_is_refused():
    model = model_of()

    class Steered(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.numpy_function(lambda: model.metrics[0].result().numpy(), [], tf.float32)

    model.optimizer.learning_rate = Steered()
    with pytest.raises(ValueError, match="runs Python code"):
        model.fit(IDS, Y, batch_size=20, verbose=0)
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_streams_of_two_models_on_the_same_batches_follow_their_own_order():
    batches = tfdp.PrivateBatches(IDS, Y, tfdp.sampling.Cyclic(2))
    first, second, seen = model_of(CORRELATED), model_of(), []
    options = {"steps_per_epoch": 1, "epochs": 1, "verbose": 0}
    for _ in range(4):
        with first.private_run(batches, **options) as a, second.private_run(batches, **options) as b:
            for one, other in zip(a, b, strict=True):
                seen.append(visited(one))
                a.step(one)
                b.step(other)
    (entry,) = first.ledger.entries
    assert entry.steps == 4
    assert len({tuple(one) for one in seen}) == 4, "one stream visits a record once in a pass"


@pytest.mark.slow
def test_a_stream_ends_where_the_order_changes():
    batches = tfdp.PrivateBatches(IDS, Y, tfdp.sampling.Cyclic(2))
    model = model_of(CORRELATED)
    model.fit(batches, steps_per_epoch=3, verbose=0)
    batches._rekey(7)
    model.fit(batches, steps_per_epoch=3, verbose=0)
    assert [entry.steps for entry in model.ledger.entries] == [3, 3]


@pytest.mark.slow
def test_a_new_stream_takes_nothing_back_of_the_noise_of_an_earlier_one():
    """Two models of other sizes that share one optimizer, in turns: the first noise of each fit is fresh."""
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 1.0, 1.0, noise=CORRELATED)
    inputs = keras.Input((1,))
    wide = keras.layers.Dense(2000, use_bias=False)
    hidden = wide(inputs)
    models = [keras.Model(inputs, hidden), keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(hidden))]
    models = [tfdp.make_private(model) for model in reversed(models)]  # the larger one builds the optimizer
    first, ratios = [], []
    for model in models:
        model.compile(optimizer, lambda y, found: keras.ops.mean(0.0 * found, axis=-1))
    for k in range(6):
        model = models[k % 2]
        before = wide.kernel.numpy()
        model.fit(IDS, Y, sampling=tfdp.sampling.Cyclic(20), epochs=1, steps_per_epoch=1, verbose=0)
        first.append((wide.kernel.numpy() - before).ravel())
        ratios.append(np.std(first[-1]) * 20)
    assert max(ratios) < 1.1
    assert max(abs(np.corrcoef(a, b)[0, 1]) for a, b in zip(first, first[2:], strict=False)) < 0.15  # 6 deviations
    assert [entry.steps for entry in models[0].ledger.entries] == [1] * 6


@pytest.mark.filterwarnings("ignore:The budget")
def test_a_budget_is_not_lifted_by_another_training_with_the_same_optimizer():
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 3.0, 1.0)
    first, second = model_of(optimizer=optimizer), model_of(optimizer=optimizer)
    budget = tfdp.callbacks.PrivacyBudget(1.0, 1e-3)
    options = {"batch_size": 10, "epochs": 90, "verbose": 0, "callbacks": [budget]}
    with first.private_run(IDS, Y, **options) as run:
        with pytest.raises(RuntimeError, match="an optimizer of its own"):
            second.fit(IDS, Y, batch_size=10, verbose=0)
        for batch in run:
            run.step(batch)
    assert budget.exhausted
    assert float(tfdp.accounting.epsilon(first.ledger, 1e-3)) <= 1.0
    assert second.ledger.steps == 0


@pytest.mark.parametrize("name", ["sampling", "examples", "physical_batch_size", "seeded"])
def test_what_a_fit_is_charged_for_stays_what_the_batches_were_made_with(name):
    batches = tfdp.PrivateBatches(IDS, Y, tfdp.sampling.Poisson(1))
    with pytest.raises(AttributeError, match="stays what it was made with"):
        setattr(batches, name, tfdp.sampling.Poisson(20) if name == "sampling" else 20)


@pytest.mark.parametrize("within", ["fit", "loop"])
def test_a_running_model_is_not_compiled_anew_with_a_loss_that_nobody_examined(within):
    model = model_of()

    def compile_anew(*_, **__):
        model.compile(model.optimizer, "mse")
        model.make_train_function()

    options = {"batch_size": 2, "verbose": 0}
    if within == "fit":
        calls = keras.callbacks.LambdaCallback(on_train_begin=compile_anew)
        with pytest.raises(RuntimeError, match="compile"):
            model.fit(IDS, Y, callbacks=[calls], **options)
    else:
        with model.private_run(IDS, Y, **options), pytest.raises(RuntimeError, match="compile"):
            compile_anew()
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_a_stream_ends_where_other_weights_are_trained():
    """The numbers that are kept for other weights are left from another step than the last one."""
    inputs, dense = keras.Input((1,)), keras.layers.Dense(50)
    model = tfdp.make_private(keras.Model(inputs, dense(inputs)))
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 1.0, 1.0, noise=CORRELATED)
    model.compile(optimizer, lambda y, found: keras.ops.mean(0.0 * found, axis=-1), run_eagerly=True)
    batches = tfdp.PrivateBatches(IDS, Y, tfdp.sampling.Cyclic(2))
    for trained in (True, True, False, True):
        dense.bias.trainable = trained
        model.fit(batches, steps_per_epoch=1, verbose=0)
    assert [entry.steps for entry in model.ledger.entries] == [2, 1, 1]


@pytest.mark.slow
def test_a_stream_that_does_not_look_at_its_weights_is_seen(monkeypatch):
    monkeypatch.setattr(streams, "noised", lambda _: [])
    with pytest.raises(AssertionError):
        test_a_stream_ends_where_other_weights_are_trained()


class OtherMemory(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.model.optimizer.memory = tfdp.noise.NoiseMemory()


@pytest.mark.slow
def test_the_noise_that_is_kept_is_not_exchanged_in_the_middle_of_a_stream():
    model = model_of(noise=CORRELATED)
    with pytest.raises(AttributeError, match="stays what the optimizer was made with"):
        model.fit(IDS, Y, sampling=tfdp.sampling.Cyclic(10), epochs=2, verbose=0, callbacks=[OtherMemory()])


@pytest.mark.slow
def test_a_run_feeds_no_model_without_weights_which_would_have_no_ledger():
    model, generator = model_of(), keras.Sequential([keras.layers.Dense(3)])
    with model.private_run(IDS, Y, batch_size=2, verbose=0) as run:
        with pytest.raises(ValueError, match="no weights yet"):
            run.feeds(generator)
        run.step(next(run))
        generator(IDS)
        run.feeds(generator)
    assert tfdp.make_private(generator).ledger.updates == 1
