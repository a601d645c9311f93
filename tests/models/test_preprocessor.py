"""`make_private` says that a task's preprocessor is left out; it needs no KerasHub for that."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp


class Task(keras.Model):
    """As KerasHub's: a functional model with a preprocessor, which `predict` applies."""

    def __init__(self, preprocessor):
        image = keras.Input((4,))
        super().__init__(image, keras.layers.Dense(1)(image))
        self.preprocessor = preprocessor

    def predict(self, x, **options):
        x = x if self.preprocessor is None else self.preprocessor(x)
        return super().predict(x, **options)


def said(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    return made, [str(one.message) for one in caught]


@pytest.mark.parametrize("bounding", [None, "backprop_clipping"])
def test_a_preprocessor_that_is_left_out_is_told_of(bounding):
    task = Task(keras.layers.Rescaling(1.0 / 255))
    model, (message,) = said(lambda: tfdp.make_private(task, bounding))
    assert "has a preprocessor (Rescaling)" in message
    x = np.full((2, 4), 255.0, "float32")
    assert not np.allclose(model.predict(x, verbose=0), task.predict(x, verbose=0))
    beforehand = np.asarray(task.preprocessor(x))  # the fix that the message names
    np.testing.assert_allclose(model.predict(beforehand, verbose=0), task.predict(x, verbose=0), rtol=1e-6)


def test_a_model_without_one_is_left_in_peace():
    assert said(lambda: tfdp.make_private(Task(None)))[1] == []
    assert said(lambda: tfdp.make_private(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])))[1] == []
