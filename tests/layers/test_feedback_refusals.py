"""Layers of feedback alignment: clips solved for a given sensitivity, and what is refused."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.certify import built
from helpers.feedback_cases import CLASSES, FEATURES, stack
from tfdp_layers.layers import FeedbackOutput, FeedbackStack


def test_the_total_sensitivity_of_the_paper_is_solved_for():
    layer = FeedbackStack.from_total_sensitivity(2.0, [128, 256], "sigmoid", 10)
    assert (layer.error_clip, layer.feedback_norm) == (0.1, 0.9)
    # 2 gamma beta tau_e sqrt(1 + tau_h^2) = C / sqrt(L), and all layers together C.
    assert layer.activation_clip == pytest.approx([25.64, 25.64, 5.687], abs=0.01)
    assert 2 * np.linalg.norm(layer.sensitivities()) == pytest.approx(2.0)
    hybrid = FeedbackStack.from_total_sensitivity(3.0, [384, 384], "sigmoid", 10, layers=5)
    assert 2 * np.array(hybrid.sensitivities()) == pytest.approx(3 / np.sqrt(5))
    without = FeedbackStack.from_total_sensitivity(2.0, [8], "tanh", 3, use_bias=False)
    assert 2 * np.linalg.norm(without.sensitivities()) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"hidden_0: a record's sensitivity of 0.02887 .* 0.09 "):
        FeedbackStack.from_total_sensitivity(0.1, [8, 8], "tanh", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": []}, "single layer use"),
        ({"units": [4, 0]}, "positive integer"),
        ({"activation": "exponential"}, "no upper bound"),
        ({"activation": lambda x: x}, "derivative_bound"),
        ({"error_clip": 0.0}, "error_clip"),
        ({"feedback_norm": np.nan}, "feedback_norm"),
        ({"activation_clip": [1.0, 1.0]}, "3 of them"),
        ({"activation_clip": -1.0}, "activation_clip"),
        ({"delta_clip": [1.0, 1.0, 1.0]}, "2 of them"),
        ({"feedback": "uniform"}, "aligned"),
        ({"alignment": "backwards"}, "sequential"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FeedbackStack(**({"units": [4, 4], "activation": "tanh", "output_units": 3, "activation_clip": 1.0} | options))


def test_uses_that_no_bound_covers_are_refused():
    with pytest.raises(ValueError, match="one vector a record"):
        built(FeedbackStack([4], "tanh", 3, activation_clip=1.0), (5, 2))
    with pytest.raises(ValueError, match="float32"):
        built(FeedbackStack([4], "tanh", 3, activation_clip=1.0, dtype="mixed_bfloat16"), (5,))(np.zeros((2, 5)))
    with pytest.raises(ValueError, match="at least one sink of width"):
        FeedbackOutput(3, activation_clip=1.0)(np.zeros((2, 4), np.float32))
    layer = FeedbackStack([6], "tanh", 5, activation_clip=1.0)
    inputs = keras.Input((5,))
    twice = tfdp.PrivateModel(inputs, layer(layer(inputs)))
    once = tfdp.PrivateModel(inputs, layer(inputs))
    assert [g.bound for g in twice.sensitivities()] == [2 * g.bound for g in once.sensitivities()]
    assert [g.name for g in once.sensitivities()] == [f"{layer.name}/hidden_0", f"{layer.name}/output"]


def test_frozen_weights_have_no_group():
    layer = stack()
    for variable in layer.affines[0]:
        variable.trainable = False
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), layer])
    assert [g.name.split("/")[1] for g in model.sensitivities()] == ["hidden_1", "output"]


def test_a_clip_changed_during_fit_stops_it():
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), stack()])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    x, y = np.zeros((8, FEATURES), np.float32), np.ones((8, CLASSES), np.float32)

    class Loosens(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.layers[0].activation_clip = (9.0, 9.0, 9.0)

    with pytest.raises(RuntimeError, match="changed while fit runs"):
        model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[Loosens()])
