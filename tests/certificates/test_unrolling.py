"""Layers that go over records in Python are refused at once; what is fine without a number of records trains."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.certificates import unrolling, uses

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1]
ops = keras.ops


class Same(keras.layers.Layer):
    """A layer of which Keras need not find out what shape it gives."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def loop(x):
    return ops.stack([ops.sort(x[i]) for i in range(x.shape[0])])


def guarded(x):
    return ops.sort(x, axis=-1) if x.shape[0] is None else loop(x)


def of_the_first(x):
    return ops.stack([x[i] for i in range(x.shape[0] or 1)]) + 0.0 * x


def at_any_price(x):
    try:
        return loop(x)
    except:  # noqa: E722
        return x


def in_steps(x):
    for _ in range(unrolling._MANY + 10):
        x = ops.tanh(x)
    return x


def in_steps_of_rows(x):
    return in_steps(x) + ops.mean(x, axis=0)


def model_of(*layers, shape=(6,)):
    model = tfdp.make_private(keras.Sequential([keras.Input(shape), *layers]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def fitted(model, x=X, y=Y):
    model.fit(x, y, batch_size=6, verbose=0)
    return model


@pytest.fixture
def operations(monkeypatch):
    """How many operations the traces that count uses made, each."""
    made = []
    traced = uses.inspect_uses

    def noted(rows):
        graph = tf.compat.v1.get_default_graph()
        made.append(graph)
        return traced(rows)

    monkeypatch.setattr(uses, "inspect_uses", noted)
    return lambda: [len(graph.get_operations()) for graph in made]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (loop, r"goes over the records one by one.*'NoneType' object cannot be interpreted.*vectorized_map"),
        (of_the_first, r"Records are not independent.*in layer 'same.*goes over the records one by one"),
        (at_any_price, r"goes over the records one by one.*'NoneType'|Records are not independent"),
    ],
)
def test_layers_that_go_over_the_records_are_refused_before_a_trace_of_a_thousand(function, message, operations):
    if function is at_any_price:  # in a step it gives x, which is fine
        fitted(model_of(Same(function), keras.layers.Dense(1)))
        assert len(operations()) == 2
        return
    model = model_of(Same(function), keras.layers.Dense(1))
    with pytest.raises(ValueError, match=message):
        fitted(model)
    assert not model.ledger.releases
    assert len(operations()) == 1
    assert operations()[0] < 15 * unrolling._MANY  # of 14,000, and of 4,000


@pytest.mark.slow
def test_elastic_transforms_are_refused_at_once(operations):
    model = model_of(
        keras.layers.RandomElasticTransform(), keras.layers.Flatten(), keras.layers.Dense(1), shape=(8, 8, 3)
    )
    with pytest.raises(ValueError, match="Records are not independent"):
        fitted(model, np.zeros((24, 8, 8, 3), "float32"))
    assert max(operations()) < 10_000  # of 200,000


@pytest.mark.slow
@pytest.mark.parametrize("function", slow_but([in_steps], [in_steps, guarded]))
def test_loops_that_a_step_can_follow_are_traced_for_a_thousand_records_and_train(function, operations):
    model = fitted(model_of(Same(function), keras.layers.Dense(1)))
    assert model.ledger.steps == 4
    assert len(operations()) == 2
    assert operations()[1] > unrolling._MANY


class Halves(Same):
    """Calls a layer on two rows for each record."""

    def __init__(self):
        super().__init__(in_steps)
        self.dense = keras.layers.Dense(3)

    def build(self, shape):
        self.dense.build((None, 3))

    def call(self, x):
        return ops.reshape(self.dense(ops.reshape(super().call(x), (-1, 3))), (-1, 6))


def test_what_the_trace_of_a_thousand_finds_is_found_after_a_trace_that_was_left(operations):
    with pytest.raises(ValueError, match="computes 2018 rows for 1009 records"):
        fitted(model_of(Halves(), keras.layers.Dense(1)))
    assert len(operations()) == 2


def test_mixing_elsewhere_is_not_put_down_to_the_steps():
    with pytest.raises(ValueError, match="Records are not independent") as refused:
        fitted(model_of(Same(in_steps_of_rows), keras.layers.Dense(1)))
    assert "one by one" not in str(refused.value)


@pytest.mark.slow
def test_a_trace_that_is_stopped_leaves_the_layers_as_they_are():
    dense = keras.layers.Dense(6)
    model = model_of(dense, Same(loop), keras.layers.Dense(1))
    for _ in range(2):
        with pytest.raises(ValueError, match="one by one"):
            fitted(model)
    assert "call" not in vars(dense)
    assert model(X).shape == (24, 1)


def test_a_fixed_number_of_records_is_traced_as_it_is(operations):
    """Of a model whose inputs say how many: small numbers need no second look."""
    with unrolling.stopped_if_unrolled(False):
        pass
    inputs = keras.Input((6,), batch_size=3)
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(Same(in_steps)(inputs))))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    model.sensitivities()
    assert len(operations()) == 1


class PlacesOverRecords(keras.layers.Layer):
    """A table of places, laid along the batch by mistake."""

    def build(self, shape):
        self.table = self.add_weight(shape=(64, shape[-1]))

    def call(self, x):
        return x + self.table[: ops.shape(x)[0]]


COUNTING = {
    "places": PlacesOverRecords,
    "joined rows": lambda: keras.layers.Lambda(lambda x: ops.reshape(ops.reshape(x, (-1, 12)), (-1, 6))),
    "a constant": lambda: keras.layers.Lambda(lambda x: x * ops.ones((48, 6))[: ops.shape(x)[0]]),
}


@pytest.mark.parametrize("name", COUNTING)
def test_calls_that_take_a_number_of_records_are_named(name):
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), COUNTING[name](), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, allow_generic=True), "mse")
    with pytest.raises(ValueError, match=r"The call of layer '.*' depends on how many records there are") as told:
        model.fit(X, Y, batch_size=4, verbose=0)
    assert "TensorFlow said: Dimension" in str(told.value)
    assert told.value.__cause__ is not None
    assert model.ledger.steps == 0


def test_calls_that_fail_at_any_number_say_so_themselves():
    wrong = Same(lambda x: ops.matmul(x, ops.ones((5, 6))))
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), wrong, keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match=r"Dimensions must be equal, but are 6 and 5") as told:
        model.fit(X, Y, batch_size=4, verbose=0)
    assert "depends on how many" not in str(told.value)


class OverRecords(keras.layers.Layer):
    """Normalises over axis 0, by mistake."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, x):
        h = ops.matmul(x, self.kernel)
        return h / ops.sqrt(ops.sum(ops.square(h), axis=0, keepdims=True) + 1e-3)


def test_where_records_meet_in_a_layer_that_is_said_before_any_formula():
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), OverRecords(), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    with pytest.raises(ValueError, match=r"^Records may meet in layer 'over_records.*Keep every operation inside"):
        model.fit(X, Y, batch_size=4, verbose=0)
