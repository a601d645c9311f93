"""What other threads ask of layers while a step records: it is answered as if no step ran, and no step sees it."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.per_record.recording import Recorder, recording

X = np.random.default_rng(0).normal(size=(8, 4, 3)).astype("float32")
LAYERS = {
    "dense": lambda: keras.layers.Dense(2),
    "convolution": lambda: keras.layers.Conv1D(2, 2),
    "recurrent": lambda: keras.layers.LSTM(2),
    "normalization": lambda: keras.layers.LayerNormalization(),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_call_in_another_thread_passes_a_recording_by(kind):
    """A server's `predict` of 3 rows, while `fit` traced, ended in an error about layers that mix records."""
    model = keras.Sequential([keras.Input((4, 3)), LAYERS[kind]()])
    wanted = model(X[:3]).numpy()
    with (
        tf.GradientTape(persistent=True) as tape,
        recording(model, Recorder(tape, rows=8, records=8)) as recorder,
        ThreadPoolExecutor(1) as pool,
    ):
        np.testing.assert_allclose(pool.submit(model, X[:3]).result().numpy(), wanted, atol=1e-6)
        assert recorder.uses == []
        assert recorder.layer == "?"
        with pytest.raises(ValueError, match="3 rows for 8 records"):
            model(X[:3])
        model(X)
    assert recorder.uses
