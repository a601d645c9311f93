"""`fit` proves of the very sums that it runs that records do not meet, refuses where they do, and else measures."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS
from helpers.variants import slow_but
from tfdp_layers.accounting import Ledger, Statement

kl = keras.layers
X, Y = np.random.default_rng(0).normal(size=(12, 4)).astype("float32"), np.zeros((12, 2), "float32")
IMAGES = np.random.default_rng(1).uniform(0, 255, size=(12, 8, 8, 3)).astype("float32")


class Calls(kl.Layer):
    """A layer of one function, with what it needs."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function, self.seed_generator = function, keras.random.SeedGenerator(3)

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False, name="gate")

    def call(self, x):
        return self.function(self, x)


class SwitchedOff(Calls):
    """Has a rate, by which it would be switched off."""

    rate = 0.5
    stddev = 1.0


def model_of(*layers, shape=(4,)):
    body = [kl.Flatten()] if len(shape) > 1 else []
    model = tfdp.PrivateSequential(
        [keras.Input(shape), *layers, *body, tfdp.layers.ClippedDense(3, **CLIPS), tfdp.layers.ClippedDense(2, **CLIPS)]
    )
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    return model


def scaled_noise(layer, x):
    return x + keras.random.normal(tf.shape(x), seed=layer.seed_generator) * tf.math.reduce_std(x)


def swap_noise(layer, x):
    rows = tf.random.shuffle(x)
    return tf.where(keras.random.uniform(tf.shape(x), seed=layer.seed_generator) < 0.1, rows, x)


def masked_by_another(layer, x):
    keep = keras.random.uniform(tf.shape(x), seed=layer.seed_generator) < 0.5
    return tf.where(keep, x, tf.reverse(x, [0]))


MIXING = {
    "alpha": (Calls, lambda layer, x: x + layer.gate * tf.reduce_mean(x, 0)),
    "gated norm": (Calls, lambda layer, x: x * (1 + layer.gate * tf.norm(x))),
    "gated neighbour": (Calls, lambda layer, x: x + tf.nn.relu(layer.gate) * tf.roll(x, 1, 0)),
    "period of four": (Calls, lambda layer, x: tf.roll(x, 4, 0)),
    "period of 65": (Calls, lambda layer, x: tf.roll(x, 65, 0)),
    "blocks of eight": (Calls, lambda layer, x: x + tf.pad(x[8:], [[0, tf.minimum(8, tf.shape(x)[0])], [0, 0]])),
    "noise of the batch's deviation": (SwitchedOff, scaled_noise),
    "swap noise": (SwitchedOff, swap_noise),
    "masked by another": (SwitchedOff, masked_by_another),
    "only large batches": (Calls, lambda layer, x: tf.cond(tf.shape(x)[0] > 99, lambda: x - x[:1], lambda: x)),
    "only large numbers": (Calls, lambda layer, x: x + tf.nn.relu(tf.reduce_max(x) - 1e3)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", slow_but(list(MIXING)[::2], MIXING))
def test_a_fit_with_records_that_meet_is_refused_and_names_the_layer(name):
    kind, function = MIXING[name]
    model = model_of(kind(function, name="meets"))
    before = model.get_weights()
    drawn = name == "swap noise"  # by TensorFlow's own shuffle, which is refused before it is asked what it does
    words = "meets.*draws random numbers of TensorFlow's own" if drawn else r"(?s)not independent.*'meets'"
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.steps == 0
    assert all(map(np.array_equal, before, model.get_weights()))


def test_zeros_between_which_a_mean_over_the_batch_stands_do_not_hide_it():
    zeros = dict(CLIPS, kernel_initializer="zeros")
    middle = kl.Lambda(lambda x: x - tf.reduce_mean(x, 0), name="centres")
    model = tfdp.PrivateSequential(
        [keras.Input((4,)), tfdp.layers.ClippedDense(3, **zeros), middle, tfdp.layers.ClippedDense(2, **zeros)]
    )
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match="'centres'"):
        model.fit(X, Y, batch_size=4, verbose=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: kl.Pipeline([kl.Equalization()]),
        pytest.param(lambda: kl.RandAugment(value_range=(0, 255)), marks=pytest.mark.slow),
        pytest.param(lambda: kl.Pipeline([kl.RandomFlip(), kl.Pipeline([kl.Equalization()])]), marks=pytest.mark.slow),
    ],
    ids=["pipeline", "RandAugment", "nested"],
)
def test_one_histogram_over_the_batch_is_refused(make):
    with pytest.raises(ValueError, match=r"not independent|blends"):
        model_of(make(), shape=(8, 8, 3)).fit(IMAGES, Y, batch_size=4, verbose=0)


@pytest.mark.slow
def test_records_that_meet_where_a_layer_knows_that_they_are_many_are_seen_beside_what_is_not_known():
    def unknown(x):
        places = tf.where(tf.ones_like(x, tf.bool))
        return tf.ensure_shape(tf.scatter_nd(places, tf.gather_nd(x, places), tf.shape(x, tf.int64)), x.shape)

    layer = Calls(lambda _, x: unknown(x - x[:1] if (x.shape[0] or 0) > 20 else x))
    model = model_of(layer)
    with pytest.raises(ValueError, match="measured on batches of 67 records"):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.steps == 0


def test_a_fit_says_proved_in_its_ledger_and_its_statement():
    model = model_of(kl.Dropout(0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(X, Y, batch_size=4, epochs=1, verbose=0)
    (entry,) = model.ledger.entries
    assert entry.release.independence == "proved"
    again = Ledger.from_json(model.ledger.to_json())
    assert again.entries[0].release.independence == "proved"
    assert "contribution is proved" in " ".join(str(Statement.from_ledger(again, 1e-5)).split())
    assert tfdp.check_independence(model).proved


@pytest.mark.slow
def test_inputs_of_open_length_that_belong_together_are_given_one_length():
    """As of token_ids and padding_mask, in every KerasHub model."""
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("tokens", "mask")}
    hidden = kl.Embedding(10, 4)(inputs["tokens"]) * keras.ops.cast(inputs["mask"], "float32")[..., None]
    model = tfdp.make_private(keras.Model(inputs, kl.Dense(10)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss)
    assert tfdp.check_independence(model).proved


def bessel(layer, x):
    return tf.math.bessel_i0(tf.tanh(x))


@pytest.mark.slow
def test_an_unknown_operation_is_measured_with_a_warning_and_stated():
    model = model_of(Calls(bessel, name="bessel"))
    with pytest.warns(UserWarning, match=r"measured, not proved.*BesselI0.*'bessel'.*accept_measured"):
        model.fit(X, Y, batch_size=4, verbose=0)
    text = " ".join(model.ledger.entries[0].release.independence.split())
    assert text.startswith("measured, not proved")
    assert "BesselI0" in text
    assert "'bessel'" in text
    assert "measured, not proved" in " ".join(str(model.privacy_statement(1e-5)).split())
    report = tfdp.check_independence(model)
    assert (report.proved, report.layer, report.type) == (False, "bessel", "BesselI0")


@pytest.mark.slow
def test_what_was_measured_can_be_accepted():
    model = model_of(Calls(bessel, name="bessel"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(X, Y, batch_size=4, verbose=0, accept_measured=True)
    assert "BesselI0" in model.ledger.entries[0].release.independence


def hidden(function):
    """Mixing behind an operation without a rule: `function` of the rows, after it."""
    return lambda layer, x: function(layer, tf.math.bessel_i0(tf.tanh(x)))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    slow_but(
        ["gated neighbour", "masked by another"],
        ["period of four", "gated neighbour", "masked by another", "noise of the batch's deviation"],
    ),
)
def test_mixing_behind_an_unknown_operation_is_not_let_through(name):
    kind, function = MIXING[name]
    model = model_of(kind(hidden(function), name="meets"))
    with pytest.raises(ValueError, match="not independent"):
        model.fit(X, Y, batch_size=4, verbose=0, accept_measured=True)


def test_python_in_every_step_is_refused():
    def doubled(layer, x):
        return x * tf.ensure_shape(tf.numpy_function(lambda: np.float32(2), [], tf.float32), ())

    with pytest.raises(ValueError, match=r"numpy_function"):
        model_of(Calls(doubled)).fit(X, Y, batch_size=4, verbose=0, accept_measured=True)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"jit_compile": True}, marks=pytest.mark.slow)], ids=["graph", "xla"]
)
@pytest.mark.parametrize("pieces", [None, 5])
def test_what_is_proved_is_what_runs(options, pieces):
    """A layer whose Python differs from trace to trace is traced once: steps call the function that was proved."""
    traces = []

    def differs(layer, x):
        traces.append(tf.inside_function() and x.shape[0] is None)
        return x

    model = model_of(Calls(differs))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", **options)
    traces.clear()  # of Keras, while it builds the model
    model.fit(X, Y, batch_size=4, physical_batch_size=pieces, epochs=2, verbose=0)
    model.fit(X, Y, batch_size=4, physical_batch_size=pieces, epochs=2, verbose=0)
    assert sum(traces) == 1


def test_another_shape_of_records_is_proved_anew():
    inputs = keras.Input((None, 4))
    crossing = Calls(lambda layer, x: x if x.shape[1] == 3 else x - tf.reduce_mean(x, 0), name="meets")
    hidden_rows = kl.GlobalAveragePooling1D()(crossing(inputs))
    model = tfdp.PrivateModel(inputs, tfdp.layers.ClippedDense(2, **CLIPS)(hidden_rows))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    x = np.ones((12, 5, 4), "float32")
    model.fit(x[:, :3], Y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="'meets'"):
        model.fit(x, Y, batch_size=4, verbose=0)


def test_state_that_is_written_from_records_is_refused():
    def remembers(layer, x):
        layer.gate.assign(0.9 * layer.gate + 0.1 * tf.reduce_mean(x))
        return x

    with pytest.raises(ValueError, match="meets"):
        model_of(Calls(remembers, name="meets")).fit(X, Y, batch_size=4, verbose=0)


def test_eager_steps_are_measured_and_say_so():
    model = model_of()
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse", run_eagerly=True)
    with pytest.warns(UserWarning, match="run_eagerly=False"):
        model.fit(X, Y, batch_size=4, verbose=0)
    assert model.ledger.entries[0].release.independence.startswith("measured")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TanhFilteredOptimizer", "AdaDPOptimizer"])
def test_loops_of_the_optimizers_bound_are_stated_as_measured_and_hide_no_mixing(kind):
    def model_with(*layers):
        model = tfdp.make_private(keras.Sequential([keras.Input((784,)), *layers, kl.Dense(64), kl.Dense(10)]))
        made = getattr(tfdp.optimizers, kind)
        model.compile(made("sgd" if kind.startswith("Tanh") else 1.0, 1.0), "mse")
        return model

    x, y = np.ones((8, 784), "float32"), np.zeros((8, 10), "float32")
    model = model_with()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "This fit can learn next to nothing")
        model.fit(x, y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert model.ledger.entries[0].release.independence.startswith("measured, not proved: the optimizer's own bound")
    with pytest.raises(ValueError, match=r"not independent.*Mean over the records"):
        model_with(Calls(MIXING["alpha"][1], name="meets")).fit(x, y, batch_size=4, steps_per_epoch=1, verbose=0)
