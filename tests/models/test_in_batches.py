"""What `fit` got beside batches is refused with a way that works."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
Y, IDS = X[:, :1], np.arange(80) // 2
TABLE = tf.data.Dataset.from_tensor_slices((X, Y))


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


def declared():
    return tfdp.declare_sampling(TABLE.shuffle(80).batch(20), tfdp.sampling.Partition(20), examples=80)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [{"unit_ids": IDS}, {"views": 2}, {"unit_ids": IDS, "records_per_unit": 2}])
def test_what_declared_batches_cannot_take_goes_with_single_records(given):
    with pytest.raises(ValueError, match=r"fit\(tfdp.records\(dataset, unit_ids=ids\), batch_size=n\), with views="):
        model_of().fit(declared(), **given)
    model_of().fit(
        tfdp.records(TABLE, unit_ids=given.get("unit_ids")),
        batch_size=20,
        verbose=0,
        **{name: value for name, value in given.items() if name != "unit_ids"},
    )


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"y": Y}, r"into the batches: \(x, y, sample_weight\)"),
        ({"batch_size": 20}, "sampling, examples=n"),
        ({"examples": 80}, "sampling, examples=n"),
    ],
)
def test_what_a_declaration_or_its_batches_hold_goes_there(given, where):
    with pytest.raises(ValueError, match=where):
        model_of().fit(declared(), **given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [{"unit_ids": IDS}, {"views": 2}, {"examples": 100}, {"batch_size": 20}])
def test_what_private_batches_take_goes_to_them(given):
    batches = tfdp.PrivateBatches(X, Y, tfdp.sampling.Poisson(20))
    with pytest.raises(ValueError, match="Give them to PrivateBatches instead"):
        model_of().fit(batches, **given)
    size = given.pop("batch_size", 20)
    model_of().fit(tfdp.PrivateBatches(X, Y, tfdp.sampling.Poisson(size), **given), verbose=0)


EMPTY = np.zeros((80, 0), "float32")
PIPELINE = tf.data.Dataset.from_tensor_slices((EMPTY, Y))


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdp.PrivateBatches(EMPTY, Y, tfdp.sampling.Poisson(20)),
        lambda: tfdp.records([*zip(EMPTY, Y, strict=True)]),
        lambda: tfdp.records(PIPELINE),
        lambda: tfdp.declare_sampling(PIPELINE.batch(20), tfdp.sampling.Partition(20), examples=80),
    ],
    ids=["arrays", "list", "pipeline", "declared"],
)
def test_a_table_without_columns_is_refused(make):
    with pytest.raises(ValueError, match="with no entry in it"):
        make()


def test_class_shares_in_a_bias_are_seen_in_a_list_of_records():
    labels = (np.random.default_rng(3).random((403, 1)) < 0.17).astype("float32")
    x = np.random.default_rng(3).normal(size=(403, 3)).astype("float32")
    bias = keras.initializers.Constant(float(np.log(labels.sum() / (403 - labels.sum()))))
    model = tfdp.make_private(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid", bias_initializer=bias)])
    )
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "binary_crossentropy")
    with pytest.warns(UserWarning, match="log odds of the classes"):
        model.fit(tfdp.records([*zip(x, labels, strict=True)]), batch_size=40, verbose=0)
