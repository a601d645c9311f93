"""Programs in which the place in the batch decides: casts to few bits, numbers of more axes than a rule took them for.

Each was "proved", and one record more moved the sum by up to 122 bounds.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof.mixing.ranks import hidden_places
from tfdp_layers.proof import untaken
from tfdp_layers.proof.outside import nodes_of, outside

kl = keras.layers
BRIGHT = np.full((40, 3), 300.0, "float32")
RARE = np.abs(np.random.default_rng(0).normal(size=(64, 3))).clip(0.5, 1).astype("float32")
RARE[-1] = (2000.0, 1.0, 1.0)
BEYOND = "becomes another integer by its place in the batch"


class Calls(kl.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.gate = tf.Variable(1.0, trainable=False)

    def call(self, x):
        return self.function(x)

    def compute_output_shape(self, shape):
        return shape


def model_of(*layers, shape=(3,), noise=1.0, **options):
    keras.utils.set_random_seed(0)
    network = [keras.Input(shape), *layers, kl.Flatten(), kl.Dense(1, use_bias=False, kernel_initializer="ones")]
    model = tfdp.make_private(keras.Sequential(network))
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", l2_norm_clip=1.0, noise_multiplier=noise)
    model.compile(optimizer, loss=lambda y, p: keras.ops.sum(p, axis=-1), **options)
    return model


def sums(model, x):
    found = model.bounded_gradient_sums(x, np.zeros((len(x), 1), "float32"))
    return np.concatenate([np.ravel(np.asarray(t, np.float64)) for t in found])


def moved(model, x, counts=None):
    """By how many bounds one record more moves the sum, at most."""
    (group,) = model.sensitivities()
    counts = counts or [len(x) - 1]
    return max(np.linalg.norm(sums(model, x[: n + 1]) - sums(model, x[:n])) for n in counts) / group.bound


def codes(x):
    return tf.cast(tf.cast(x, "uint8"), "float32") / 128.0 - 1.0


def turned_by(x, many):
    """The records, turned around as often as there are rare ones."""
    return tf.ensure_shape(tf.reshape(tf.clip_by_value(x, -1.0, 1.0) * (1.0 - 2.0 * many), tf.shape(x)), x.shape)


def crowd_at(x, places):
    found = tf.reduce_sum(tf.gather(tf.nn.relu(x - 1e3), places), axis=1, keepdims=True)
    return turned_by(x, tf.clip_by_value(found, 0.0, 1.0))


def clamped(x):
    rare = tf.boolean_mask(tf.zeros_like(x[:, 0], tf.int32), x[:, 0] > 1e3)
    flat = tf.reshape(rare, tf.unique(tf.shape(rare))[0])
    return turned_by(x, tf.cast(tf.size(tf.minimum(1, tf.maximum(1, flat))), x.dtype))


def along_another_axis(x):
    return crowd_at(x, hidden_places(x) + tf.constant([[0]]))


def chosen_by_a_table(x):
    return crowd_at(x, tf.where(tf.shape(x)[0] > tf.constant([[1]]), hidden_places(x), 0))


def axes_of_a_function(x):
    found = tf.function(lambda n: tf.raw_ops.BroadcastGradientArgs(s0=n, s1=tf.constant([1])), autograph=False)(
        tf.shape(x)[:1]
    )
    return turned_by(x, tf.cast(tf.size(found[1]), x.dtype) * tf.cast(x > 1e3, x.dtype))


ATTACKS = {
    "bytes": (codes, BRIGHT, range(1, 40)),
    "signed bytes": (lambda x: tf.cast(tf.cast(x * 1e3, tf.int8), x.dtype) / 10.0, BRIGHT, range(1, 40)),
    "words": (lambda x: tf.cast(tf.cast(x * 1e30, tf.uint32), x.dtype) / 1e6, BRIGHT, range(1, 40)),
    "no numbers": (
        lambda x: tf.cast(tf.cast(tf.clip_by_value(x, -99.0, 99.0), tf.int8), x.dtype),
        BRIGHT * np.nan,
        range(1, 40),
    ),
    "clamped": (clamped, RARE, None),
    "places along another axis": (along_another_axis, RARE, None),
    "places chosen by a table": (chosen_by_a_table, RARE, None),
    "axes that a function gives back": (axes_of_a_function, np.full((2, 3), 2000.0, "float32"), None),
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ATTACKS)
def test_what_moves_the_sum_beyond_its_bound_is_not_proved(name):
    function, x, counts = ATTACKS[name]
    model = model_of(Calls(function))
    if name in ("bytes", "signed bytes", "words", "no numbers") and moved(model, x, counts) < 1.5:
        pytest.skip("this machine's kernels cast alike everywhere")
    assert moved(model, x, counts) > 1.5
    assert found_of(model) in ("unknown", "cast", "measured")
    assert model.ledger.steps == 0


def found_of(model):
    """The status of the report, or by what a refusal found that places count."""
    try:
        return tfdp.check_independence(model).status
    except ValueError as error:
        found = {BEYOND: "cast", "A cast to an integer of few bits": "measured"}
        return next((name for words, name in found.items() if words in str(error)), str(error))


# Casts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "records", "top"), [((2, 2, 1), 8, 1.0), ((1, 1, 3), 11, 255.0)])
def test_posterized_images_beyond_their_range_are_refused_and_the_fix_of_the_error_works(shape, records, top):
    def posterized():
        return kl.RandomPosterization((4, 4), value_range=(0, top))

    x = np.full((records, *shape), 1.3 * top, "float32")
    plain = model_of(posterized(), shape=shape)
    with pytest.raises(ValueError, match=rf"{BEYOND}.*random_posterization.*ReLU\(max_value=1\.0\)"):
        plain.fit(x, np.zeros((records, 1)), batch_size=2, verbose=0)
    assert plain.ledger.steps == 0
    model = model_of(kl.ReLU(max_value=top), posterized(), shape=shape)
    assert tfdp.check_independence(model).proved
    one = tf.function(lambda a, b: model.bounded_gradient_sums(a, b), reduce_retracing=False)
    found = [np.asarray(one(x[:n], np.zeros((n, 1), "float32"))[0]) / n for n in range(1, records + 1)]
    np.testing.assert_allclose(found, np.broadcast_to(found[0], np.shape(found)), rtol=1e-5)


def quantized(first):
    inputs = keras.Input((3,))
    dense = kl.Dense(4, activation="relu")
    hidden = dense(inputs)
    dense.quantize("int8")
    dense.trainable = False
    hidden = dense(first(inputs))
    model = tfdp.make_private(keras.Model(inputs, kl.Dense(1)(hidden)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, l2_norm_clip=1.0), "mse")
    return model


@pytest.mark.slow
def test_frozen_layers_in_8_bits_are_measured_and_behind_numbers_alone_proved():
    """`clip` keeps what is no number, which a cast to int8 gives as -128 or 0."""
    report = tfdp.check_independence(quantized(lambda x: x))
    assert (report.status, report.type) == ("unknown", "Cast")
    assert "keras.ops.nan_to_num" in report.reason
    assert tfdp.check_independence(quantized(keras.ops.nan_to_num)).proved


def after_an_unknown_operation(function):
    return Calls(lambda x: function(x * tf.math.bessel_i0(tf.zeros_like(x))))


@pytest.mark.slow
def test_where_nothing_is_proved_numbers_beyond_the_type_are_measured(monkeypatch):
    model = model_of(after_an_unknown_operation(codes))
    if moved(model, BRIGHT, range(1, 40)) < 1.5:
        pytest.skip("this machine's kernels cast alike everywhere")
    with pytest.raises(ValueError, match="33 equal records that hold 300 do not add 33 times"):
        tfdp.check_independence(model)
    clipped = model_of(after_an_unknown_operation(lambda x: codes(tf.clip_by_value(x, 0.0, 255.0))))
    assert tfdp.check_independence(clipped).status == "unknown"
    monkeypatch.setattr("tfdp_layers.certificates.interactions.ODD", ())
    assert tfdp.check_independence(model).status == "unknown"  # by other numbers nothing shows


# What stands for a branch that was not taken --------------------------------------------------------------------------


def fake():
    return tf.raw_ops.FakeParam(dtype=tf.float32, shape=[3])


def conditions(layer):
    return layer.gate > 0.0, layer.gate > 1.0


def handed(read):
    """A layer that hands a FakeParam out of a branch, for another one to read."""

    class Held(Calls):
        def call(self, x):
            first, second = conditions(self)
            return read(x, tf.cond(first, fake, lambda: tf.zeros(3)), first, second)

    return Held(None)


def when(condition, yes, no):
    return tf.cond(condition, lambda: yes, lambda: no)


READERS = {
    "the same side": lambda x, held, a, b: tf.cond(a, lambda: x + held, lambda: x),
    "another condition": lambda x, held, a, b: tf.cond(b, lambda: x, lambda: x + held),
    "the condition the other way round": lambda x, held, a, b: tf.cond(tf.logical_not(a), lambda: x, lambda: x + held),
    "another kind of branch": lambda x, held, a, b: tf.switch_case(tf.cast(a, tf.int32), [lambda: x + held, lambda: x]),
    "a branch of the same side in it": lambda x, held, a, b: tf.cond(
        a, lambda: tf.cond(b, lambda: x + held, lambda: x), lambda: x
    ),
    "a condition in it": lambda x, held, a, b: tf.cond(a, lambda: tf.where(held > 0.0, x, -x), lambda: x),
    "a function": lambda x, held, a, b: tf.function(lambda h: tf.cond(a, lambda: x + h, lambda: x), autograph=False)(
        held
    ),
    "by another branch": lambda x, held, a, b: tf.cond(a, lambda: x + when(b, held, tf.zeros(3)), lambda: x),
    "out of a function": lambda x, held, a, b: (
        x + tf.function(lambda: tf.cond(a, fake, lambda: tf.zeros(3)), autograph=False)()
    ),
    "in a loop": lambda x, held, a, b: tf.while_loop(
        lambda i, h, y: i < 2, lambda i, h, y: (i + 1, h, y + h), (0, held, x)
    )[2],
}
FINE = {
    "the other side": lambda x, held, a, b: tf.cond(a, lambda: x, lambda: x + held),
    "the other side, in a function": lambda x, held, a, b: tf.function(
        lambda h, c: tf.cond(c, lambda: x, lambda: x + h), autograph=False
    )(held, a),
    "the other side, by another branch": lambda x, held, a, b: tf.cond(
        a, lambda: x, lambda: x + when(b, held, tf.zeros(3))
    ),
    "nothing": lambda x, held, a, b: x,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", READERS)
def test_memory_of_others_that_a_branch_may_read_is_refused(name):
    with pytest.raises(ValueError, match="FakeParam"):
        tfdp.check_independence(model_of(handed(READERS[name])))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FINE)
def test_memory_of_others_that_nothing_reads_is_let_in(name):
    assert tfdp.check_independence(model_of(handed(FINE[name]))).proved


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["the same side", "another condition"])
def test_without_a_look_at_who_decides_they_pass(name, monkeypatch):
    monkeypatch.setattr(untaken, "excluded", lambda side, sides: bool(sides))
    assert tfdp.check_independence(model_of(handed(READERS[name]))).proved


def nested(x, gate):
    def deeper():
        return tf.cond(gate > 1.0, lambda: tf.tanh(x), lambda: tf.exp(x) * x)

    return tf.cond(gate > 0.0, deeper, lambda: tf.sin(x))


def of_three(x, gate):
    return tf.switch_case(tf.cast(gate, tf.int32), [lambda: tf.tanh(x), lambda: tf.sin(x) * x, lambda: tf.exp(x)])


BRANCHES = {
    "within one another": nested,
    "one after the other": lambda x, gate: nested(nested(x, gate), gate),
    "in functions": lambda x, gate: tf.function(nested, autograph=False)(x, gate),
    "of three": of_three,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", BRANCHES)
def test_gradients_of_branches_under_xla_read_what_was_computed(name):
    def gradient(x, gate):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(BRANCHES[name](x, gate))
        return tape.gradient(total, x)

    compiled = tf.function(gradient, jit_compile=True, autograph=False)
    outer = tf.function(lambda x, gate: compiled(x, gate), autograph=False)
    graph = outer.get_concrete_function(tf.TensorSpec((None, 3)), tf.TensorSpec(())).graph
    assert any(node.op == "FakeParam" for node in nodes_of(graph))
    assert outside(graph.get_operations()) is None
