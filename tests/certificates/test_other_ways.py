"""Layers whose call goes another way where the number of records is unknown, as in the step, than in an inspection."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.other_ways import BOUNDED, X, fit, is_step, model_of, moved_by
from helpers.own_layers import Own
from helpers.variants import slow_but
from tfdp_layers.per_record import Recorder
from tfdp_layers.uses.counted import ROWS_SCOPE

kl = keras.layers


def own(f):
    return lambda: Own(f, w=(6, 3))


def over_positions(s, x):
    """One row for each position in the step, one for each record else: the same numbers."""
    rows = tf.reshape(x, (-1, 6)) if is_step(x) else tf.reduce_sum(x, 1)
    return tf.reduce_sum(tf.reshape(rows @ s.w, (-1, 5, 3)), 1) if is_step(x) else rows @ s.w


class Rows(kl.Layer):
    def call(self, x):
        return tf.reshape(x, (-1, 6)) if is_step(x) else tf.reduce_sum(x, 1)

    def compute_output_shape(self, shape):
        return (shape[0], 6)


class Back(kl.Layer):
    def call(self, x):
        return tf.reduce_sum(tf.reshape(x, (-1, 5, 3)), 1) if is_step(x) else x


class Beside(kl.Layer):
    """Another layer's kernel, used past that layer in the step alone."""

    def __init__(self, other):
        super().__init__()
        self.__dict__["box"] = [other]

    def call(self, x):
        return 100.0 * x @ self.box[0].kernel.value if is_step(x) else x[:, :3]


class InLoop(kl.Layer):
    def __init__(self, other):
        super().__init__()
        self.__dict__["box"] = [other]

    def call(self, x):
        if not is_step(x):
            return self.box[0](x)
        return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h + self.box[0](x)), [0, x * 0.0])[1]


def rows_of(layer):
    def outputs(x):
        return Back()(layer()(Rows()(x)))

    return outputs


LAYERS = {
    "own weights": lambda x: own(over_positions)()(x),
    "dense": rows_of(lambda: kl.Dense(3)),
    "clipped": rows_of(lambda: tfdp.layers.ClippedDense(3, gradient_clip=1.0)),
    "two clips": rows_of(lambda: tfdp.layers.ClippedDense(3, input_clip=1.0, upstream_clip=1.0)),
    "lipschitz": rows_of(lambda: tfdp.layers.LipschitzDense(3, input_clip=1.0, upstream_clip=1.0)),
}
WAYS = {"graph": {}, "xla": {"jit_compile": True}, "eager": {"run_eagerly": True}}
CASES = [f"{layer}/{way}" for layer in LAYERS for way in WAYS]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", slow_but(["own weights/graph", "clipped/graph"], CASES))
def test_rows_that_are_not_one_a_record_in_the_step_are_refused_before_anything_is_spent(case):
    layer, way = case.split("/")
    model = model_of(LAYERS[layer], clipped=layer not in ("own weights", "dense"), **WAYS[way])
    with pytest.raises(ValueError, match="other rows than one for each record in the step"):
        fit(model)
    assert not model.ledger.releases


def beside(make):
    layer = make()
    return lambda x: layer(x) + Beside(layer)(x)


def in_its_activation(make):
    box = []

    def activation(z):
        return z + 1e3 * tf.reduce_sum(box[0].kernel.value) if is_step(z) else z

    box.append(make(activation=activation))
    return box[0]


PAST = [f"{kind}/{where.__name__}" for kind in BOUNDED for where in (beside, in_its_activation)]


@pytest.mark.few(1)
@pytest.mark.parametrize("case", slow_but(["gradient/beside", "two clips/in_its_activation"], PAST))
def test_no_gradient_flows_to_a_weight_past_the_layer_that_bounds_it(case):
    kind, where = case.split("/")
    model = model_of({"beside": beside}.get(where, in_its_activation)(BOUNDED[kind]), (6,), clipped=True)
    assert 0.9 < moved_by(model, X[:, 0]) <= 1.0


def stacked(x):
    """An activation within the bounded part, which keeps a weight as it gets it there."""
    kept = []

    def activation(z):
        kept[:] = [layer.affines[0][0].value] if layer.built else []
        return tf.tanh(z)

    layer = tfdp.layers.FeedbackStack([4], activation, 3, activation_clip=1.0, delta_clip=0.7, use_bias=False)
    return layer(x), lambda p: kept[0]


def found_in_the_graph(x):
    """What an operation behind an output takes, found by going back from it."""

    def kernel(p):
        left = [p.op]
        for op in left:
            if op.type == "MatMul":
                return op.inputs[1]
            left += [tensor.op for tensor in op.inputs]

    return BOUNDED["two clips"]()(x), kernel


def in_the_loss(case):
    x = keras.Input((6,))
    outputs, weight = case(x)

    def loss(y, p):
        each = tf.reduce_mean(tf.square(y - p), -1)
        return each + 1e6 * tf.reduce_sum(weight(p)) if is_step(p) else each

    model = tfdp.make_private(keras.Model(x, outputs))
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1.0), 0.0), loss)
    return model


def test_an_activation_within_the_bounded_part_gets_no_copy_of_a_weight():
    assert moved_by(in_the_loss(stacked), X[:, 0]) < 1.0


def test_what_a_layer_computes_with_inside_is_refused_outside():
    model = in_the_loss(found_in_the_graph)
    with pytest.raises(ValueError, match="computed of its weights inside"):
        fit(model, X[:, 0])
    assert not model.ledger.releases


def test_a_layer_that_the_step_alone_calls_in_a_loop_is_refused():
    def outputs(x):
        layer = tfdp.layers.ClippedDense(6, gradient_clip=1.0)
        layer.build((None, 6))
        return InLoop(layer)(layer(x))

    with pytest.raises(ValueError, match="inside a loop, a branch"):
        fit(model_of(outputs, (6,), clipped=True), X[:, 0], np.full((1, 6), 1e4, "float32"))


def test_without_the_check_a_record_in_five_rows_moves_five_times_the_bound(monkeypatch):
    """What it is there for."""
    monkeypatch.setattr(Recorder, "rows_of", lambda self, use, upstream: upstream)
    model = model_of(LAYERS["own weights"])
    before = np.array(model.trainable_variables[0])
    fit(model)
    assert np.linalg.norm(np.array(model.trainable_variables[0]) - before) > 4.9


def test_a_step_holds_the_rows_of_every_use():
    """Two products and a bias of an own layer, or one output of a layer that bounds itself: one check each."""
    for outputs, clipped, count in ((LAYERS["dense"], False, 2), (LAYERS["clipped"], True, 1)):
        model = model_of(lambda x, outputs=outputs: outputs(x), clipped=clipped)
        step = tf.function(lambda x, y, model=model: model._sums_and_losses(x, y, None)[0], autograph=False)
        ops = step.get_concrete_function(tf.TensorSpec((None, 5, 6)), tf.TensorSpec((None, 3))).graph.get_operations()
        assert sum(ROWS_SCOPE in op.name and op.type == "BroadcastTo" for op in ops) == count


class Centred(kl.Layer):
    """Mixes records where their number is known, as in a batch that is computed."""

    def call(self, x):
        return x if is_step(x) else x - tf.reduce_mean(x, axis=0)


@pytest.mark.parametrize("jit_compile", slow_but([False], [False, True]))
def test_features_are_computed_by_what_was_proved_of_them(jit_compile):
    x = np.random.default_rng(0).normal(size=(10, 6)).astype("float32")
    np.testing.assert_array_equal(tfdp.features(Centred(), x, batch_size=4, jit_compile=jit_compile), x)
