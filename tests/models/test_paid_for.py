"""What would end a `fit` in a step or an epoch that is paid for is said before anything is released."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X, Y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 3


def assert_refused(says, metrics=(), **options):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), loss, metrics=list(metrics))
    before = model.get_weights()
    with pytest.raises(ValueError, match=says):
        model.fit(X, Y, batch_size=8, verbose=0, **options)
    assert model.ledger.steps == 0
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def of_arrays(y, p):
    """As scikit-learn's."""
    return np.asarray(y).sum()


def test_what_a_metric_asserts_of_its_records_is_not_asked_of_empty_ones():
    def positive(y, p):
        with tf.control_dependencies([tf.debugging.assert_positive(y)]):
            return keras.ops.mean(p, axis=-1)

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", metrics=[positive])
    model.fit(X, np.ones((40, 1)), sampling=tfdp.sampling.FixedSize(40), verbose=0)
    assert model.ledger.steps == 1


@pytest.mark.parametrize("metric", ["AUC", keras.metrics.Recall(), of_arrays], ids=["AUC", "recall", "NumPy"])
def test_metrics_that_cannot_be_computed(metric):
    assert_refused(r"cannot be computed of labels of shape \('records',\) and predictions of shape", [metric])


def test_the_trial_of_metrics_leaves_no_trace():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
    seen = model.fit(X, np.zeros(40), batch_size=40, verbose=0, sampling=tfdp.sampling.FixedSize(40)).history
    assert seen["accuracy"] == [float(np.mean(model.metrics[-1].result()["accuracy"]))]
    assert model.ledger.steps == 1


def test_checkpoints_that_hold_no_ledger(tmp_path):
    writer = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.h5"))
    assert_refused("ModelCheckpoint would write .*holds no privacy ledger", callbacks=[writer])
    assert not list(tmp_path.iterdir())


def test_validation_data_whose_weights_are_of_others():
    given = (X[:20] + 1, Y[:20], np.ones(19))
    assert_refused("In validation_data, x and y must hold the same records.*sample_weight 19", validation_data=given)
