"""What DP-SGD refuses, and that each message names the layer and the fix."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.private_models import classifier, optimizer, private, product
from tfdp_layers.per_record import per_record_formulas

kl = keras.layers


def sequential(*layers, shape=(4, 6)):
    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize("layer", [kl.Dense(1), kl.EinsumDense("ab,bc->ac", 1)], ids=["dense", "einsum"])
def test_a_sparse_tensor_inside_of_the_model_is_refused_in_plain_words_and_costs_nothing(layer):
    ids = np.random.default_rng(0).integers(0, 5, (16, 3))
    x = keras.Input((3,), dtype="int64")
    looked_up = kl.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot", sparse=True)(x)
    model = tfdp.make_private(keras.Model(x, layer(looked_up)))
    model.compile(optimizer(), "mse")
    with pytest.raises(ValueError, match=r"gets a sparse tensor.*Make it dense: sparse=False"):
        model.fit(ids, np.zeros((16, 1)), batch_size=4, verbose=0)
    assert model.ledger.steps == 0


class Twice(kl.Layer):
    """Calls its part in a way that a trace does not show, or on rows that are not records."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how, self.part = how, kl.Dense(6)

    def build(self, shape):
        self.part.build(shape)
        if self.how == "weights computed with again":
            self.w = self.add_weight(shape=(6, 6))

    def call(self, x):
        return {
            "loop": lambda: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, self.part(x)), [0, x])[1],
            "branch": lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: self.part(x), lambda: x),
            "map": lambda: tf.map_fn(self.part, x),
            "fold": lambda: tf.reshape(self.part(tf.reshape(x, (-1, 6))), (-1, 4, 6)),
            "outside": lambda: self.part(x) + tf.reduce_sum(self.part.kernel),
            "computed again": lambda: keras.remat(self.part)(x),
            "weights computed with again": lambda: self.part(x) + keras.remat(lambda h: h @ self.w)(x),
        }[self.how]()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("loop", "called inside a loop"),
        ("branch", "called inside a loop"),
        ("map", "computes 4 rows for 1009 records"),
        ("fold", "computes 4036 rows for 1009 records"),
        ("outside", "used outside its layer.*ReversibleEmbedding"),
        ("computed again", "inside of keras.remat.*noise alone. Call it directly.*physical_batch_size"),
        ("weights computed with again", "inside of keras.remat"),
    ],
)
def test_a_layer_called_in_a_way_that_hides_its_records(how, message):
    with pytest.raises(ValueError, match=message) as refusal:
        private(sequential(Twice(how))).sensitivities()
    assert ("dense" in str(refusal.value)) == (how != "weights computed with again")


def test_a_layer_that_bounds_itself_and_is_computed_again_is_refused():
    class Again(kl.Dense):
        def call(self, x):
            return keras.remat(clipped)(x)

    clipped = tfdp.layers.ClippedDense(6)
    x = keras.Input((6,))
    model = private(keras.Model(x, Again(1)(clipped(x))))
    with pytest.raises(ValueError, match=r"'clipped_dense.* inside of keras.remat"):
        model.sensitivities()


def test_what_is_computed_again_without_weights_is_taken():
    model = private(sequential(kl.Dense(6), kl.Lambda(keras.remat(keras.activations.gelu))))
    sums = model.bounded_gradient_sums(np.ones((2, 4, 6), "float32"), np.ones((2, 4, 6), "float32"))
    assert all(np.any(total) for total in sums)


class AtMost(kl.Layer):
    """No rule says what a weight's gradient is in a minimum."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 6))
        self.most = self.add_weight(shape=(6,))

    def call(self, x):
        return tf.minimum(tf.matmul(x, self.w), self.most)


def test_a_layer_without_a_formula():
    layer = AtMost(name="mine")
    with pytest.raises(ValueError, match=r"'mine'.*per_record_formulas.*allow_generic=True.*trainable = False"):
        private(sequential(layer)).sensitivities()
    layer.trainable = False
    assert private(sequential(layer, kl.Dense(2))).sensitivities()


@pytest.mark.slow
def test_the_slow_way_warns_and_names_the_layer():
    model = private(sequential(AtMost(name="mine"), kl.Dense(3)), allow_generic=True)
    x, y = np.ones((6, 4, 6), np.float32), np.ones((6, 4, 3), np.float32)
    with pytest.warns(UserWarning, match=r"'mine'.*42 weights"):
        model.fit(x, y, batch_size=2, verbose=0)
    assert "is proved" in str(model.privacy_statement(1e-5))  # vectorized, its products were beyond the proof
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*per-record formula")
        private(classifier(), allow_generic=True).fit(np.ones((4, 6)), np.ones((4, 3)), batch_size=2, verbose=0)


def test_a_registered_formula_is_used():
    class Shifted(kl.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 2))
            self.shift = self.add_weight(shape=())

        def call(self, x):
            return tf.matmul(x, self.kernel) + self.shift

    @per_record_formulas(Shifted)
    def shifted(layer, record, inputs):
        return record.offset(layer.shift, record.product(layer.kernel, inputs))

    x, y = np.ones((5, 4, 6), np.float32), np.ones((5, 4, 2), np.float32)
    sums = private(sequential(Shifted())).bounded_gradient_sums(x, y)
    assert np.sqrt(sum(np.sum(np.square(g)) for g in sums)) == pytest.approx(5 * 0.5, rel=1e-3)
    with pytest.raises(ValueError, match="already"):
        per_record_formulas(Shifted)(shifted)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([kl.RNN([kl.LSTMCell(3), kl.LSTMCell(3, dropout=0.2)])], "dropout inside its steps"),
        ([kl.SimpleRNN(3, stateful=True)], "stateful=False"),
        ([kl.BatchNormalization(), kl.Dense(2)], "GroupNormalization"),
        ([kl.EinsumDense("abc,ad->abd", (4, 3))], "first label must be the batch"),
        ([kl.Dense(3, activity_regularizer="l2")], "activity regularizer"),
    ],
    ids=[
        "dropout in a cell",
        "stateful",
        "batch norm",
        "einsum over the batch",
        "activity",
    ],
)
def test_layers_that_no_formula_covers(layers, message):
    inputs = keras.Input(batch_shape=(4, 4, 6))
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    with pytest.raises(ValueError, match=message):
        private(keras.Model(inputs, outputs)).sensitivities()


def twins(first, second):
    model = sequential(first, second)
    second._tracker.unlock()
    second._kernel = first._kernel
    return model


def test_a_weight_in_two_layers():
    """Every use is recorded, so a tied kernel has one gradient a record; not where a layer bounds its own use of it."""
    (group,) = private(twins(kl.Dense(6), kl.Dense(6))).sensitivities()
    assert len(group.variables) == len({id(v) for v in group.variables}) == 4  # the kernel that was replaced, too
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    with pytest.raises(ValueError, match=r"covered by 2 bounds|uses weight .* of another layer"):
        private(twins(kl.Dense(6), tfdp.layers.ClippedDense(6, **clips))).sensitivities()
    with pytest.raises(ValueError, match=r"covered by 2 bounds|used outside its layer|uses weight .* of another layer"):
        private(twins(tfdp.layers.ClippedDense(6, **clips), kl.Dense(6))).sensitivities()


def test_a_loss_of_the_weights():
    model = tfdp.make_private(sequential(kl.Dense(3)))
    kernel = model.layers[-1]._kernel
    model.compile(optimizer(), lambda y, p: product(y, p) + tf.reduce_sum(tf.square(kernel)))
    with pytest.raises(ValueError, match="The loss uses weight"):
        tfdp.check_independence(model)


def test_ordinary_layers_need_this_optimizer():
    model = tfdp.make_private(classifier())
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), product)
    with pytest.raises(ValueError, match="ClippedOptimizer"):
        model.sensitivities()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "global"}, "'adaptive', 'automatic', 'flat', 'per_layer'"),
        ({"clip": 0.0}, "l2_norm_clip"),
        ({"clip": np.inf}, "l2_norm_clip"),
        ({"clipping": "adaptive", "target_quantile": 1.0}, "target_quantile"),
        ({"clipping": "adaptive", "threshold_rate": 0.0}, "threshold_rate"),
        ({"clipping": "per_layer", "clip": {"a": -1.0}}, "l2_norm_clip"),
    ],
)
def test_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        optimizer(**options)
