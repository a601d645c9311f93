"""Random layers of a private model draw from seeds that nobody knows, whatever seeds the user set, and show none."""

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.models import counting, opening
from tfdp_layers.noise.masks import secret_seeds

ROWS, FEATURES = 8, 6
# With the large feature kept, the others decide the sign of a record's error, and so of its gradient.
X = np.tile(np.array([1000.0, 3.0, 3.0, 3.0, 3.0, 1.0], "float32"), (ROWS, 1))
Y = np.full((ROWS, 1), 2012.0, "float32")


class Held:
    """An object that Keras does not look into."""

    def __init__(self):
        self.generator = keras.random.SeedGenerator(3)
        self.count = tf.Variable([7, 0], dtype=tf.int32, trainable=False)
        self.numbers = tf.random.Generator.from_seed(5)


class OwnDropout(keras.layers.Layer):
    """As Keras' own, but for where its random numbers come from."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.rate, self.seed_generator = draw, 0.5, keras.random.SeedGenerator(1)
        self.__dict__["held"] = Held()

    def call(self, x):
        kept = tf.cast(self.draw(self.held, tf.shape(x)) >= self.rate, x.dtype)
        return x * kept / (1.0 - self.rate)


def of_a_count(held, shape):
    seed = tf.identity(held.count)
    held.count.assign_add([0, 1])
    return tf.random.stateless_uniform(shape, seed)


KNOWN = {
    "TensorFlow's, seeded for all": (lambda held, shape: tf.random.uniform(shape), "RandomUniform .* XLA starts them"),
    "seeded for one": (lambda held, shape: tf.random.uniform(shape, seed=3), "RandomUniform"),
    "without a rule": (lambda held, shape: tf.random.gamma(shape, 1.0), "RandomGamma"),
    "seeds of such": (
        lambda held, shape: tf.random.stateless_uniform(shape, seeds_of_tensorflow()),
        "RandomUniformInt",
    ),
    "a generator of TensorFlow's": (lambda held, shape: held.numbers.uniform(shape), "RngReadAndSkip"),
    "a count of one's own": (of_a_count, "a variable holds for everyone to read"),
}


def seeds_of_tensorflow():
    return tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)


LAYERS = {
    "a hidden generator": lambda: OwnDropout(lambda held, shape: keras.random.uniform(shape, seed=held.generator)),
    "dropout": lambda: keras.layers.Dropout(0.5),
    "its own seed": lambda: keras.layers.Dropout(0.5, seed=7),
    "noise": lambda: keras.layers.GaussianNoise(1.0),
}
WAYS = {"graph": {}, "xla": {"jit_compile": True}, "eager": {"run_eagerly": True}, "twice": {"steps_per_execution": 2}}


def masked(layer="dropout", source="default", **options):
    """A model that sums what its random layer gives, and steps by the whole sum of gradients, without noise."""
    inputs = keras.Input((FEATURES,))
    outputs = keras.layers.Dense(1, use_bias=False)(LAYERS[layer]()(inputs))
    model = tfdp.make_private(keras.Model(inputs, outputs))
    clipped = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1.0, noise_source=source)
    model.compile(clipped, "mse", **options)
    return model


def seeds_of(model):
    (state,) = model.non_trainable_variables
    return state


def released(model, x=X, y=Y, steps=2, seed=1, callbacks=(), **fit):
    """The sum of what the steps released, which draw all records; from one seed and one weight."""
    weights = model.trainable_variables[0]
    weights.assign(np.ones((FEATURES, 1)))
    seeds_of(model).assign([seed, 0])
    fit = {"sampling": tfdp.sampling.Poisson(ROWS), "examples": ROWS, "steps_per_epoch": steps} | fit
    model.fit(x, y, verbose=0, callbacks=list(callbacks), accept_measured=True, **fit)
    return (1.0 - np.array(weights)).ravel() * ROWS


CASES = ["dropout/graph", "dropout/xla", "dropout/eager", "dropout/twice", "its own seed/graph", "noise/graph"]
CASES += [f"a hidden generator/{way}" for way in WAYS]


@pytest.mark.parametrize("case", slow_but(CASES[:1], CASES))
def test_equal_seeds_give_other_masks(case):
    """Records are equal, so that their order is nothing: the sums differ by the masks alone."""
    layer, way = case.split("/")
    model = masked(layer, **WAYS[way])
    sums = [tuple(released(model)) for _ in range(3)]
    assert len({*sums}) == 3


class Looks(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(np.array(seeds_of(self.model)).tolist())


def test_what_is_saved_tells_no_mask():
    """Between steps the model holds what a model of Keras holds: its own seed, and how many draws were made."""
    looks = Looks()
    released(masked(), steps=3, callbacks=[looks])
    assert looks.seen == [[1, 1], [1, 2], [1, 3]]


@pytest.mark.few(1)
@pytest.mark.parametrize("way", slow_but(["graph", "eager"], WAYS))
def test_a_thread_that_reads_or_saves_the_model_in_a_step_sees_no_secret_seed(way):
    model, seen, ended = masked(**WAYS[way]), [], threading.Event()

    def reads():
        while not ended.is_set():
            state = seeds_of(model)
            seen.extend([np.array(state).tolist(), np.array(state.value).tolist()])

    class Reads(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.thread = threading.Thread(target=reads)
            self.thread.start()

        def on_train_end(self, logs=None):
            ended.set()
            self.thread.join()

    released(model, steps=20, callbacks=[Reads()])
    assert {first for first, _ in seen} == {1}
    assert np.array(seeds_of(model)).tolist() == [1, 20]


@pytest.mark.slow
def test_no_two_steps_draw_by_one_seed():
    model, drawn = masked(**WAYS["twice"]), []
    released(model, steps=2)
    (state,) = model.train_function.hidden._states
    sums = model._privacy.sums

    def notes(*args):
        tf.py_function(lambda seed: drawn.append(seed.numpy().tolist()), [state.value], [])
        return sums(*args)

    model._privacy.sums, model.train_function = notes, None
    released(model, steps=6)
    assert len({tuple(one) for one in drawn}) == len(drawn) == 6
    with state.here():
        assert np.array(state).tolist() == [0, 0]


def test_a_step_that_fails_leaves_no_secret_seed():
    state = keras.random.SeedGenerator(3).state
    within = []

    def step():
        with secret_seeds([state]):
            within.extend(np.array(state))
            raise RuntimeError("broken")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            step()
        assert np.array(state).tolist() == [3, 0]
    assert len({3, *within}) == 5


def test_a_seeded_run_repeats_itself():
    """Which its statement says, so that it is no guarantee: tests compare such runs to the last bit."""
    model = masked(source=tfdp.noise.SeededNoise(0))
    assert np.array_equal(released(model, sampling_seed=1), released(model, sampling_seed=1))
    assert model.ledger.releases[0].seeded


@pytest.mark.slow
def test_a_record_without_a_gradient_would_move_sums_beyond_the_bound(monkeypatch):
    """What it is there for: by masks that are known, a record moves others to other rows, and so to other masks."""
    monkeypatch.setattr(opening, "hidden_seeds", lambda model, replicas: None)
    monkeypatch.setattr(counting, "secret_seeds", lambda variables, scope: contextlib.nullcontext())
    model = masked()
    (group,) = model.sensitivities()
    nothing = np.concatenate([X, np.zeros((1, FEATURES), "float32")]), np.concatenate([Y, np.zeros((1, 1), "float32")])
    moved = (released(model, X, Y, 1, seed) - released(model, *nothing, 1, seed) for seed in range(20))
    assert any(np.linalg.norm(one) > 1.2 * group.bound for one in moved)  # each with a chance of about a half


def known():
    return keras.Variable(np.array([7, 0]), dtype="int64", trainable=False, name="seed_generator_state")


@pytest.mark.parametrize("way", slow_but(["eager"], WAYS))
def test_seeds_that_a_callback_exchanges_end_the_fit(way):
    model = masked(**WAYS[way])
    (generator,) = [layer.seed_generator for layer in model._flatten_layers() if hasattr(layer, "seed_generator")]
    exchange = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: setattr(generator, "state", known())
    )
    with pytest.raises(RuntimeError, match="seeds"):
        model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[exchange])


@pytest.mark.parametrize("way", slow_but(["eager"], WAYS))
def test_seeds_that_were_exchanged_between_fits_are_not_drawn_from(way):
    model = masked(**WAYS[way])
    model.fit(X, Y, batch_size=4, verbose=0)
    (generator,) = [layer.seed_generator for layer in model._flatten_layers() if hasattr(layer, "seed_generator")]
    generator.state = known()
    model.fit(X, Y, batch_size=4, verbose=0)
    step = model.train_function
    assert [*step.seeds, *step.hidden.own] == [generator.state]
    assert np.array(generator.state)[0] == 7


@pytest.mark.parametrize("way", slow_but(["graph"], ["graph", "xla", "eager"]))
@pytest.mark.parametrize("source", slow_but(["TensorFlow's, seeded for all", "a count of one's own"], KNOWN))
def test_random_numbers_that_somebody_may_know_are_refused_before_anything_is_spent(source, way):
    draw, message = KNOWN[source]
    inputs = keras.Input((FEATURES,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(OwnDropout(draw)(inputs))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", **WAYS[way])
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert not model.ledger.releases


def test_the_seed_of_a_hidden_generator_is_not_left_to_be_read():
    model = masked("a hidden generator")
    (layer,) = [one for one in model.layers if isinstance(one, OwnDropout)]
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    assert np.array(layer.held.generator.state).tolist()[0] == 3
    assert model.train_function.seeds[-1] is layer.held.generator.state.value


def summary(x):
    tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
    return x


def staged(x):
    tf.raw_ops.Stage(values=[x], shared_name="rows")
    return x


@pytest.mark.parametrize("keep", slow_but([summary], [summary, staged]))
def test_layers_that_show_or_keep_numbers_of_records_are_refused(keep, tmp_path):
    inputs = keras.Input((FEATURES,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Lambda(keep)(inputs))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with tf.summary.create_file_writer(str(tmp_path)).as_default(), pytest.raises(ValueError, match=r"Summary|Stage"):
        model.fit(X, Y, batch_size=4, verbose=0, accept_measured=True)
