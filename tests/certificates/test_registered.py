"""Bounds registered outside of the library: tried on single records, refused where one exceeds them, and stated."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Statement
from tfdp_layers.accounting.remarks import told
from tfdp_layers.certificates import registered
from tfdp_layers.layers import ClippedConv2D, ClippedDense, ClippedEmbedding

CLIPS = {"input_clip": 1.0, "upstream_clip": 0.1}
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 6)).astype("float32"), RNG.normal(size=(40, 2)).astype("float32")


def of_own(name, base=ClippedDense, times=1.0, **members):
    """A class of the user's own, whose bound is said to be so many times that of the class that it extends."""
    kind = type(name, (base,), members | {"__module__": __name__})
    tfdp.sensitivity_of(kind)(lambda layer: times * base.sensitivity(layer))
    return kind


def gained(gain):
    """Equalized learning rate: the kernel is used times a constant."""
    return {"linear": lambda self, inputs: keras.ops.matmul(inputs, gain * self.kernel)}


Gain = of_own("Gain", times=4.0, **gained(4.0))
TooSmall = of_own("TooSmall", **gained(4.0))
Plain, Conv, Embedding = of_own("Plain"), of_own("Conv", ClippedConv2D), of_own("Embedding", ClippedEmbedding)


@tfdp.sensitivity_of(type("AsItIs", (ClippedDense,), {"__module__": __name__}))
def other_function(layer):
    return layer.sensitivity()


def model_of(*layers, shape=(6,), loss="mse", **options):
    keras.utils.set_random_seed(3)
    model = tfdp.PrivateSequential([keras.Input(shape), *layers])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), loss, **options)
    return model


def fit(model, x=X, y=Y):
    model.fit(x, y, batch_size=10, steps_per_epoch=1, verbose=0)
    return model


def test_a_bound_that_a_record_exceeds_is_refused_before_anything_is_charged():
    model = model_of(TooSmall(4, name="scaled", use_bias=False, **CLIPS), ClippedDense(2, **CLIPS))
    fix = r"one record moves .* at most 0\.1, and a made-up record, alone, moves it by 0\.399\d+, 4 times.*Correct"
    with pytest.raises(ValueError, match=r"registered bound of layer 'scaled' \(TooSmall\) does not hold.*" + fix):
        fit(model)
    assert model.ledger.steps == 0
    assert not model.ledger.noted
    with pytest.raises(ValueError, match="does not hold"):
        tfdp.check_independence(model)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("times", "members"),
    [
        (0.985, {}),
        (1.0, {"add_bias": lambda self, outputs: outputs + 10.0 * self.bias}),
        (1.0, {"linear": lambda self, x: keras.ops.matmul(x, keras.ops.exp(self.kernel))}),
        (
            1.0,
            {"linear": lambda self, x: keras.ops.matmul(x, self.kernel) * keras.ops.where(x[:, :1] < -0.9, 10.0, 1.0)},
        ),
        (1.0, {"linear": lambda self, x: keras.ops.matmul(x, self.kernel) / keras.ops.sum(x, axis=-1, keepdims=True)}),
    ],
    ids=["a little", "of the bias", "at other weights", "by records of one entry", "no number"],
)
def test_what_exceeds_a_bound_elsewhere_is_found(times, members):
    kind = of_own("Exceeding", times=times, **members)
    with pytest.raises(ValueError, match="does not hold"):
        tfdp.check_independence(model_of(kind(4, **CLIPS), ClippedDense(2, **CLIPS)))


def test_a_right_bound_trains_and_statements_say_on_whose_word_it_is():
    model = fit(model_of(Gain(4, name="own", activation="relu", **CLIPS), ClippedDense(2, **CLIPS)))
    (note,) = [one for one in model.privacy_statement(1e-5).notes if "on the word" in one]
    assert note.startswith("The bound of layer 'own' (Gain) is on the word of whoever registered it")
    assert f"on up to {registered.MOST} made-up records" in note
    assert "not proved" in note
    alone = Statement.from_ledger(Ledger.from_json(model.ledger.to_json()), 1e-5)
    assert set(told(["on_word"])) <= set(alone.notes)


def test_layers_of_the_library_are_neither_tried_nor_noted():
    model = fit(model_of(ClippedDense(2, **CLIPS)))
    assert registered.layers_on_word(model) == []
    assert not any("on the word of whoever" in one for one in model.privacy_statement(1e-5).notes)


@pytest.mark.slow
@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("build", "x", "y"),
    [
        (lambda: model_of(Plain(4), keras.layers.Dropout(0.5), Plain(2)), X, Y),
        (lambda: model_of(Plain(4, **CLIPS), Plain(2, **CLIPS), run_eagerly=True), X, Y),
        (
            lambda: model_of(Plain(2, **CLIPS), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
            X,
            np.zeros(40, np.int64),
        ),
        (
            lambda: model_of(Conv(3, 3, **CLIPS), keras.layers.Flatten(), Plain(2, **CLIPS), shape=(6, 6, 1)),
            RNG.uniform(size=(40, 6, 6, 1)).astype("float32"),
            Y,
        ),
        (
            lambda: model_of(Embedding(9, 4, upstream_clip=1.0), keras.layers.Flatten(), Plain(2, **CLIPS), shape=(5,)),
            RNG.integers(0, 9, (40, 5)),
            Y,
        ),
        (lambda: model_of(keras.layers.Lambda(keras.ops.log), Plain(2, **CLIPS)), np.abs(X) + 0.1, Y),
    ],
    ids=["dropout", "eager", "classes", "convolution", "tokens", "logarithm"],
)
def test_right_bounds_are_not_refused(build, x, y):
    model = build()
    assert registered.layers_on_word(model)
    tfdp.check_independence(model, x, y)


@pytest.mark.slow
def test_a_bound_may_rest_on_a_constraint_of_the_weights():
    squares = {"linear": lambda self, x: keras.ops.matmul(x, keras.ops.square(self.kernel))}
    kind, unit = of_own("Squares", times=2.0, **squares), keras.constraints.UnitNorm(axis=None)
    free = {"use_bias": False, **CLIPS}
    tfdp.check_independence(model_of(kind(2, kernel_constraint=unit, kernel_initializer="zeros", **free)))
    with pytest.raises(ValueError, match="does not hold"):
        tfdp.check_independence(model_of(kind(2, **free)))


@pytest.mark.slow
def test_a_try_leaves_the_model_as_it_was():
    model = model_of(Plain(4, **CLIPS), keras.layers.Dropout(0.5), Plain(2, **CLIPS))
    before = [np.array(v) for v in model.variables]
    tfdp.check_independence(model)
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_registered_layer_that_extends_none_of_the_library_says_how_it_could():
    class Own(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1], 2))

        def call(self, inputs):
            return keras.ops.matmul(inputs, self.w)

    model = model_of(Own(name="own"))
    with pytest.raises(ValueError, match=r"no bound.*ClippedOptimizer.*extend a layer that bounds itself"):
        model.sensitivities()
    tfdp.sensitivity_of(Own)(lambda layer: 1.0)
    with pytest.raises(ValueError, match=r"'own' \(Own\) has a registered bound, and cannot be used.*extend a layer"):
        model.sensitivities()


def test_a_subclass_of_a_bounded_layer_is_told_of_its_own_class():
    class Unknown(ClippedDense):
        pass

    with pytest.raises(
        ValueError, match=r"sensitivity_of\(Unknown\).*on your word.*the layer that it extends"
    ) as error:
        model_of(Unknown(2, **CLIPS)).sensitivities()
    assert "ClippedOptimizer" not in str(error.value)
