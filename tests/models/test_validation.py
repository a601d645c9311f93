"""Records and validation data that the model cannot take are refused in our own words, before anything is spent."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.batches.records import check_finite
from tfdp_layers.models.inputs import check_inputs
from tfdp_layers.models.validation_rows import warn_of_private_rows

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
PIPELINE = tf.data.Dataset.from_tensor_slices((X + 1, Y))


def made(*layers, units=1, loss="binary_crossentropy", shape=(3,)):
    layers = [keras.Input(shape), *layers, keras.layers.Dense(units, activation="sigmoid")]
    model = tfdp.make_private(keras.Sequential(layers))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss, run_eagerly=True)
    return model


def assert_refused(says, x=X, y=Y, model=None, **options):
    model = model or made()
    with pytest.raises(ValueError, match=says):
        model.fit(x, y, batch_size=20, verbose=0, **options)
    assert model.ledger.steps == 0


@pytest.mark.parametrize(
    ("validation", "says"),
    [
        (X + 1, "In validation_data, There are no labels for the outputs"),
        ((X + 1,), "In validation_data, There are no labels for the outputs"),
        ((X[:, :2] + 1, Y), r"In validation_data, x has shape \(records, 2\), and the model takes \(records, 3\)"),
        ((X[0] + 1, Y[:3]), r"In validation_data, x has shape \(records,\)"),
        (((X + 1).astype(str), Y), "In validation_data, x holds strings, and the model takes float32"),
        ((X + 1, np.eye(2)[Y.astype(int)]), r"In validation_data, The labels of output .* have shape \(records, 2\)"),
        ((X + 1, 2 * Y - 1), "In validation_data, binary_crossentropy takes labels from 0 to 1"),
        ((X + 1, Y[:9]), "In validation_data, x and y must hold the same records.*x 40, y 9"),
        (((X + 1).tolist(), Y), r"In validation_data, x is a list of 40 lists.*numpy.asarray\(x\)"),
        (((X + 1).astype(object), Y), "In validation_data, x has dtype object"),
        (PIPELINE, r"In validation_data, the pipeline gives single records.*dataset.batch\(256\)"),
        (PIPELINE.batch(8).repeat(), "In validation_data, the pipeline is endless.*validation_steps"),
        (PIPELINE.map(lambda x, y: x).batch(8), "In validation_data, There are no labels"),
        (PIPELINE.map(lambda x, y: ({"a": x, "b": x}, y)).batch(8), r"x is a dict of \['a', 'b'\]"),
        (PIPELINE.map(lambda x, y: (x[:2], y)).batch(8), r"x has shape \(records, 2\)"),
        (PIPELINE.map(lambda x, y: (x, [y, y])).batch(8), r"labels of output .* have shape \(records, 2\)"),
    ],
)
def test_validation_data_that_the_first_evaluation_would_end_at(validation, says):
    assert_refused(says, validation_data=validation)


@pytest.mark.slow
@pytest.mark.parametrize(
    "validation",
    [
        (X + 1, Y),
        [X + 1, Y],
        (X + 1, Y[:, None]),
        (X + 1, Y, np.ones(40)),
        ([X + 1], [Y]),
        (tf.constant(X + 1), tf.constant(Y)),
        PIPELINE.batch(8),
        PIPELINE.batch(8, drop_remainder=True),
        PIPELINE.batch(1).map(lambda x, y: ((x,), y)),
    ],
)
def test_validation_data_that_are_fit(validation):
    model = made()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The structure of `inputs`")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        history = model.fit(X, Y, batch_size=20, validation_data=validation, verbose=0, accept_measured=True)
    assert np.isfinite(history.history["val_loss"][0])


@pytest.mark.slow
def test_an_endless_pipeline_with_its_steps_and_warnings_once():
    model = made(units=1, loss=keras.losses.BinaryCrossentropy())
    model.layers[-1].activation = keras.activations.linear
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=20, validation_data=PIPELINE.batch(8).repeat(), validation_steps=2, verbose=0)
    assert model.ledger.steps == 2
    assert len([one for one in caught if "from_logits=True" in str(one.message)]) <= 1


def steered(callback, metrics=("accuracy",)):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]))
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0)
    model.compile(optimizer, "binary_crossentropy", metrics=list(metrics))
    budget = tfdp.callbacks.PrivacyBudget(50.0, 1e-3)
    options = {"epochs": 2, "validation_data": (X + 1, Y), "callbacks": [budget, callback], "verbose": 0}
    try:
        model.fit(X, Y, batch_size=20, **options)
    finally:
        assert model.ledger.steps in (0, 4)
    return model.ledger.steps


@pytest.mark.slow
def test_a_callback_that_cannot_know_whether_more_is_better():
    """Keras says so after an epoch that was paid for."""
    kc = keras.callbacks
    for callback in (kc.EarlyStopping("val_acuracy"), kc.ReduceLROnPlateau("val_auc"), kc.EarlyStopping("epsilon")):
        with pytest.raises(ValueError, match=r"unknown: validation gives \['val_accuracy', 'val_loss'\].*mode='max'"):
            steered(callback)


@pytest.mark.slow
def test_callbacks_that_know_it(tmp_path):
    kc, named = keras.callbacks, [keras.metrics.AUC(name="area")]
    assert steered(kc.EarlyStopping("val_accuracy", patience=9)) == 4
    assert steered(kc.EarlyStopping("val_loss", patience=9)) == 4
    assert steered(kc.EarlyStopping("epsilon", mode="min", patience=9)) == 4
    assert steered(kc.EarlyStopping("val_area", patience=9), named) == 4
    assert steered(kc.ReduceLROnPlateau(), ()) == 4
    assert (
        steered(kc.ModelCheckpoint(tmp_path / "unused.keras", "val_acuracy", save_best_only=True, mode="max"), ()) == 4
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("held_out", [X[:20].copy(), X[::-1].copy(), np.concatenate([X[:30], X[:5] + 1])])
def test_copies_of_training_records_are_warned_of(held_out):
    model, y = made(), np.zeros(len(held_out))
    with pytest.warns(UserWarning, match="Most rows of validation_data each equal one row of the training data"):
        model.fit(X, Y, batch_size=20, epochs=0, validation_data=(held_out, y), verbose=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.reshape(-1, 3)[:], lambda x: x.astype("float64")])
def test_rows_that_were_split_off_the_training_array_are_warned_of(of):
    whole = of(X)
    with pytest.warns(UserWarning, match="validation_data and the training data are parts of one array"):
        made().fit(whole[:30], Y[:30], batch_size=10, epochs=0, validation_data=(whole[30:], Y[30:]), verbose=0)


@pytest.mark.slow
def test_other_records_are_no_copies():
    bits = np.random.default_rng(1).integers(0, 2, (400, 3)).astype("float32")  # 8 rows, each many times
    for x, public in (
        (X, X + 1),
        (X, np.concatenate([X[:15], X[:15] + 1])),
        (bits[:200], bits[200:]),
        (X, X[:7].copy()),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made().fit(
                x, np.zeros(len(x)), batch_size=20, epochs=0, validation_data=(public, public[:, 0] > 9), verbose=0
            )
        said = [str(one.message) for one in caught]
        assert not any(one.startswith("Most rows") or (x is X and "parts of one array" in one) for one in said)


SCALED = PIPELINE.map(lambda x, y: (x * 0.5, y))
SKIPPED = tfdp.records(PIPELINE.skip(10))
NAMED = tf.data.Dataset.from_tensor_slices(({"b": X[:, :1], "a": X[:, 1:]}, Y))
HELD_OUT = "validation_data and the training data are made of one tf.data pipeline"


@pytest.mark.parametrize(
    ("x", "y", "validation", "says"),
    [
        (SKIPPED, None, PIPELINE.take(10).batch(5), HELD_OUT),
        (tfdp.records(SCALED.skip(10)), None, SCALED.take(10).batch(5), HELD_OUT),
        (
            tfdp.PrivateBatches(SKIPPED, None, tfdp.sampling.Poisson(5)),
            None,
            PIPELINE.take(9),
            HELD_OUT,
        ),
        (X[10:] + 1, Y[10:], PIPELINE.take(10).batch(5), "are made of one array, in a tf.data pipeline"),
        (X + 1, Y, PIPELINE.batch(5), "Most rows of validation_data each equal one row"),
        (X + 1, Y[:, None], PIPELINE.map(lambda x, y: (x, 1 - y)).batch(5), "Most rows of validation_data each equal"),
        (X, Y, tf.data.Dataset.from_tensors((X, Y)), "Most rows of validation_data each equal one row"),
        (X, None, tf.data.Dataset.from_tensor_slices(X[:20]).batch(5), "Most rows of validation_data each equal one"),
    ],
)
def test_pipelines_of_private_rows_are_warned_of(x, y, validation, says):
    batches = x if isinstance(x, tfdp.PrivateBatches) else tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(5))
    with pytest.warns(UserWarning, match=says):
        warn_of_private_rows(batches, validation)


def test_fit_says_it():
    with pytest.warns(UserWarning, match=HELD_OUT):
        made().fit(tfdp.records(PIPELINE.skip(20)), batch_size=5, epochs=0, validation_data=PIPELINE.take(20).batch(5))


COUNTED = tf.data.Dataset.range(40)
PLACES = np.stack(np.meshgrid(np.arange(8), np.arange(5)), -1).reshape(-1, 2).astype("float32")
PUBLIC = {
    "other rows": (X, Y, PIPELINE.batch(5)),
    "another pipeline": (tfdp.records(PIPELINE), None, tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)),
    "one counter": (
        tfdp.records(tf.data.Dataset.zip(PIPELINE, COUNTED).map(lambda one, _: one)),
        None,
        tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices((X, Y)), COUNTED).map(lambda one, _: one).batch(5),
    ),
    "other arrays": (X, Y, NAMED.batch(5)),
    "ragged ones": (X, Y, tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [1.0, 2.0]])).batch(2)),
    "four parts": (X, Y, tf.data.Dataset.from_tensor_slices((X + 2, Y, Y, Y)).batch(2)),
    "texts": (X, Y, tf.data.Dataset.from_tensor_slices((["a"] * 9, [1] * 9)).batch(3)),
    "a generator": (X, Y, tf.data.Dataset.from_generator(lambda: iter(X), output_signature=tf.TensorSpec((3,)))),
    "public measurements on one grid": (PLACES, Y, (PLACES[::2].copy(), Y[::2] + 1)),
    "those in a pipeline": (PLACES, Y, tf.data.Dataset.from_tensor_slices((PLACES[::2], Y[::2] + 1)).batch(5)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_pipelines_of_other_rows_are_not(name):
    x, y, validation = PUBLIC[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_private_rows(tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(5)), validation)
    assert [str(one.message) for one in caught] == []


def test_private_measurements_on_one_grid_are_copies():
    batches = tfdp.PrivateBatches(PLACES, X[:, 0], tfdp.sampling.Poisson(5))
    with pytest.warns(UserWarning, match="Most rows of validation_data"):
        warn_of_private_rows(batches, (PLACES[::2].copy(), X[::2, :1].copy()))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (X[:, 0], r"x has shape \(records,\), and the model takes \(records, 3\) there"),
        (X[:, :2], r"x has shape \(records, 2\).*begin the model with keras.Input\(\(2,\)\)"),
        (np.zeros((40, 4, 3), "float32"), r"x has shape \(records, 4, 3\)"),
        ({"x": X, "patient": np.arange(40)}, r"x is a dict of \['x', 'patient'\].*unit_ids="),
        ({"x": X}, "name='x'.*Or give the array alone"),
        ((X, X), "x holds 2 arrays, and the model takes 1"),
    ],
)
def test_records_that_the_model_does_not_take(x, says):
    assert_refused(says, x)


def test_channels_that_an_image_has_and_the_input_has_not():
    """Keras lets any last axis in where the input's is 1, and the error came from inside of the next layer."""
    model = made(keras.layers.Flatten(), shape=(4, 4, 1))
    assert_refused(
        r"x has shape \(records, 4, 4, 3\), and the model takes \(records, 4, 4, 1\)", np.zeros((40, 4, 4, 3)), Y, model
    )


def specs(*shapes):
    return tuple(tf.TensorSpec((None, *shape)) for shape in shapes)


def test_what_keras_brings_to_the_rank_of_an_input_is_let_in():
    images = made(keras.layers.Flatten(), shape=(4, 4, 1))
    check_inputs(images, specs((4, 4))[0])
    check_inputs(made(shape=(3,)), specs((3, 1))[0])
    check_inputs(made(keras.layers.GlobalAveragePooling1D(), shape=(None, 3)), specs((7, 3))[0])
    check_inputs(made(), tf.TensorSpec(None))
    check_inputs(made(), specs((3,)))
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b", optional=True)
    for inputs in ([a, b], {"a": a, "b": b}):
        two = keras.Model(inputs, keras.layers.Dense(1)(a))
        check_inputs(two, dict(zip("ab", specs((3,), (2,)), strict=True)))
        check_inputs(two, {"a": specs((3,))[0]})
        with pytest.raises(ValueError, match=r"nothing is given for \['a'\]"):
            check_inputs(two, {"b": specs((2,))[0]})
        with pytest.raises(ValueError, match=r"x\['b'\] has shape \(records, 5\)"):
            check_inputs(two, dict(zip("ab", specs((3,), (5,)), strict=True)))


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (X.astype(str), r"the model takes float32 there.*become numbers again by x\.astype\('float32'\)"),
        (
            np.where(np.arange(3) == 0, 1e300, X.astype("float64")),
            r"x holds values beyond 3\.4e38, .*numpy\.clip\(x, -1e6, 1e6\) say",
        ),
        (
            np.where(np.arange(3) == 0, np.nan, X),
            r"Put a constant .* numpy\.nan_to_num\(x\.astype\('float32'\), posinf=0\.0, neginf=0\.0\) say",
        ),
        (np.where(np.arange(3) == 0, np.inf, X), "x holds NaN or infinite values: "),
    ],
)
def test_numbers_as_strings_and_those_that_float32_cannot_hold_are_told(x, says):
    with pytest.raises(ValueError, match=says):
        made().fit(x, Y, batch_size=20, epochs=1, verbose=0)


def test_advice_for_values_that_float32_cannot_hold_works():
    beyond = np.where(np.arange(3) == 0, 1e300, X.astype("float64"))
    with pytest.raises(ValueError, match=r"y holds values beyond 3\.4e38 \(infinite in float32\), which are no labels"):
        check_finite("y", beyond[:, 0])
    holes = np.where(beyond > 1e6, np.inf, X).astype("float32")
    with pytest.raises(ValueError, match=r"numpy\.nan_to_num\(x\.astype\('float32'\), posinf=0\.0, neginf=0\.0\)"):
        check_finite("x", holes)
    for x in (np.clip(beyond, -1e6, 1e6), np.nan_to_num(holes, posinf=0.0, neginf=0.0)):
        check_finite("x", x)
        assert np.abs(x).max() <= 1e6  # the largest of float32, which nan_to_num puts for inf, would still tell nothing
    check_finite("x", np.array([[3.4028235e38], [3.40282346639e38]]))  # the largest of float32, as programs print it
