"""Layers whose call goes another way where the number of records is unknown, as in the step, than in an inspection."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.own_layers import Own
from helpers.variants import slow_but
from tfdp_layers.per_record import Recorder
from tfdp_layers.uses import ROWS_SCOPE

kl = keras.layers
X, Y = np.full((1, 5, 6), 10.0, "float32"), np.full((1, 3), 1e4, "float32")


def is_step(x):
    return x.shape[0] is None


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


def model_of(outputs, shape=(5, 6), clipped=False, **options):
    x = keras.Input(shape)
    model = tfdp.make_private(keras.Model(x, outputs(x)))
    inner = keras.optimizers.SGD(1.0)
    kinds = tfdp.optimizers.ClippedOptimizer(inner, 0.0, 1.0), tfdp.optimizers.NoisyOptimizer(inner, 0.0)
    model.compile(kinds[clipped], "mse", **options)
    return model


def fit(model, x=X, y=Y):
    model.fit(x, y, sampling=tfdp.sampling.Poisson(1), examples=1, steps_per_epoch=1, verbose=0, accept_measured=True)


@pytest.mark.parametrize("case", slow_but(["own weights/graph", "clipped/graph"], CASES))
def test_rows_that_are_not_one_a_record_in_the_step_are_refused_before_anything_is_spent(case):
    layer, way = case.split("/")
    model = model_of(LAYERS[layer], clipped=layer not in ("own weights", "dense"), **WAYS[way])
    with pytest.raises(ValueError, match="other rows than one for each record in the step"):
        fit(model)
    assert not model.ledger.releases


def test_no_gradient_flows_to_a_weight_past_the_layer_that_bounds_it():
    def outputs(x):
        layer = tfdp.layers.ClippedDense(3, gradient_clip=1.0)
        return layer(x) + Beside(layer)(x)

    model = model_of(outputs, (6,), clipped=True)
    before = [np.array(v) for v in model.trainable_variables]
    fit(model, X[:, 0])
    moved = [np.array(v) - old for v, old in zip(model.trainable_variables, before, strict=True)]
    assert 0.99 < np.sqrt(sum(np.sum(np.square(m)) for m in moved)) <= 1.0


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
