"""On GPUs more records are taken at a time, in batches of a few sizes; each record's gradient stays the same."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.layer_cases import stack
from helpers.oracle import error_of
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.noise.cores import on_gpus
from tfdp_layers.per_record import convolution_choice
from tfdp_layers.per_record.patches import _BYTES, _COMPILED, _ON_GPU, PatchBlocks

kl = keras.layers
LAYERS: dict[str, tuple[tuple[int, ...], Any]] = {
    "many positions": ((24, 20, 3), lambda: kl.Conv2D(4, 3)),
    "few positions": ((5, 4, 8), lambda: kl.Conv2D(16, 3, padding="same")),
    "strided": ((9, 8, 3), lambda: kl.Conv2D(4, 2, strides=2)),
    "dilated": ((9, 8, 3), lambda: kl.Conv2D(4, 2, dilation_rate=2)),
    "one axis": ((11, 3), lambda: kl.Conv1D(4, 3)),
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tf.config.get_visible_devices
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["one"] if kind == "GPU" else seen(kind))
    assert on_gpus()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_each_record_by_itself(name: str, gpu: None) -> None:
    shape, layer = LAYERS[name]
    model, x = stack(shape, layer())
    assert error_of(model, x, "graph") < 2e-5


@pytest.mark.parametrize(("size", "together"), [(28, _ON_GPU), (128, _BYTES // (4 * 126 * 126 * 27)), (900, _COMPILED)])
def test_so_many_records_at_a_time_as_their_patches_fit(size: int, together: int, gpu: None) -> None:
    kernel = keras.Variable(tf.zeros((3, 3, 3, 8)))
    x, u = (tf.zeros((0, side, side, depth)) for side, depth in ((size, 3), (size - 2, 8)))
    part = PatchBlocks(kernel, x, u, keras.ops.conv, 9, size=[3, 3], strides=[1, 1], padding="valid")
    assert part._on_gpu() == together
    part.few = 7
    assert part._on_gpu() == 7


def test_no_record_is_taken_by_itself_where_that_is_the_fastest_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its operations would be waited for."""
    kernel = keras.Variable(tf.zeros((3, 3, 64, 128)))
    x, u = tf.ones((1, 32, 32, 64)), tf.ones((1, 30, 30, 128))
    options = {"strides": (1, 1), "dilation_rate": (1, 1), "padding": "valid"}

    def chosen() -> str:
        return type(
            convolution_choice.kernel_contribution(kernel, x, u, convolution_choice.convolve, keras.ops.conv, options)
        ).__name__

    assert chosen() == "KernelGradients"
    monkeypatch.setattr(convolution_choice, "on_gpus", lambda: True)
    assert chosen() != "KernelGradients"


def test_batches_have_a_few_sizes(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN looks for the fastest kernels anew for each size: that took most of a step."""
    padded, dataset = [], PrivateBatches.dataset
    monkeypatch.setattr(
        PrivateBatches, "dataset", lambda self, pad=False, start=0: padded.append(pad) or dataset(self, pad, start)
    )
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), kl.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", jit_compile=False)
    model.fit(np.ones((16, 4)), np.ones((16, 1)), batch_size=4, verbose=0)
    assert padded == [True]
