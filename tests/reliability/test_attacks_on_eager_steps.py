"""What a metric writes in eager steps is read by no release and stays in no layer: a look beforehand, and a watch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = np.linspace(100.0, 200.0, 8, dtype="float32")[:, None]


class Held(keras.layers.Layer):
    """Holds variables that Keras does not list: itself, in a dict, in a module; and counts its calls in one."""

    def __init__(self):
        super().__init__()
        self.high, self.calls, self.inside = tf.Variable(1.0), tf.Variable(0.0), {"several": [tf.Variable(1.0)]}
        self.module = tf.Module()
        self.module.high = tf.Variable(1.0)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


class Largest(keras.metrics.Metric):
    """Writes the largest label into a variable that is not its own, in operations or by Python."""

    def __init__(self, variable, python):
        super().__init__(name="largest")
        self._elsewhere, self._python, self._seen = (lambda: variable,), python, []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._seen.append(y_true)
        largest = tf.reduce_max(y_true) if not self._python else float(np.max(y_true.numpy()))
        variable = self._elsewhere[0]()
        if variable is not None:
            variable.assign(tf.maximum(variable, largest))

    def result(self):
        return max(float(np.max(y)) for y in self._seen) if self._python else tf.reduce_max(self._seen[-1])

    def reset_state(self):
        self._seen.clear()


def private(layer, metric, loss="mse", optimizer="sgd", **options):
    inputs = keras.Input((3,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(layer(inputs))))
    wrapped = tfdp.optimizers.ClippedOptimizer(optimizer, noise_multiplier=1.0, l2_norm_clip=0.5)
    model.compile(wrapped, loss, metrics=[metric], run_eagerly=True, **options)
    return model


def fit(model):
    model.fit(X, Y, batch_size=4, verbose=0, accept_measured=True)


@pytest.mark.few(4)
@pytest.mark.parametrize(("python", "match"), [(False, "is not its own"), (True, "changed variable")])
@pytest.mark.parametrize("place", ["loss", "layer", "dict", "module", "counter"])
def test_what_a_release_reads_or_a_layer_holds_no_metric_writes(place, python, match):
    layer, read = Held(), tf.Variable(1.0)
    places = {"layer": layer.high, "dict": layer.inside["several"][0], "module": layer.module.high}
    variable = (places | {"loss": read, "counter": layer.calls})[place]
    model = private(layer, Largest(variable, python), lambda y, p: keras.ops.mean((y - p) ** 2, -1) / read)
    with pytest.raises(ValueError, match=match):
        fit(model)
    assert model.ledger.updates == (1 if python else 0)  # a step that raises counts whole


@pytest.mark.parametrize("python", [False, True])
def test_a_metric_that_writes_nothing_else_trains(python):
    layer, read = Held(), tf.Variable(1.0)
    model = private(layer, Largest(None, python), lambda y, p: keras.ops.mean((y - p) ** 2, -1) / read)
    fit(model)
    assert model.ledger.updates == 2
    assert float(layer.calls) >= 2.0


def test_texts_in_a_variable_are_compared_by_what_they_say():
    layer = Held()
    layer.words = tf.Variable(["a", "b"])
    model = private(layer, Largest(None, python=True))
    fit(model)
    assert model.ledger.updates == 2


class Everything(keras.metrics.Metric):
    """Keeps what it saw, by Python, and never forgets it."""

    def __init__(self):
        super().__init__(name="everything")
        self.seen, self.sums = [], {}

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.append(tf.reduce_sum(y_true))
        self.sums[len(self.seen)] = self.seen[-1]

    def result(self):
        return sum(float(one) for one in [*self.seen, *self.sums.values()])

    def reset_state(self):
        pass


def test_a_look_beforehand_leaves_no_tensors_of_its_own_behind():
    metric = Everything()
    fit(private(keras.layers.Identity(), metric))
    assert metric.seen
    assert not any(map(tf.is_symbolic_tensor, [*metric.seen, *metric.sums.values()]))
