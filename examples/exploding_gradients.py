"""An LSTM whose gradients explode, with and without a `GradientFilter` inside its cell. No privacy here.

Run: python examples/exploding_gradients.py [--steps 100] [--gain 3] [--epochs 5] [--learning_rate 0.1] [--seeds 3] [--json]

The adding problem: of two sequences, one holds numbers in [0, 1] and the other marks two of them; the answer is their
sum. The recurrent kernels start at `gain` times an orthogonal matrix, so that on the way back through `steps` time steps
the gradient grows. Both networks start from the same weights and see the same batches, by plain SGD.
"""

import json
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 100, "Length of a sequence.")
flags.DEFINE_float("gain", 3.0, "Of the initial recurrent kernel.")
flags.DEFINE_float("active_range", 1e-3, "Of the filter, in units of the batch's mean loss per unit of a state.")
flags.DEFINE_integer("epochs", 5, "Epochs of 10,000 sequences.")
flags.DEFINE_float("learning_rate", 0.1, "Of plain SGD.")
flags.DEFINE_integer("seeds", 3, "Runs of each network.")
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")


@keras.saving.register_keras_serializable(package="examples")
class FilteredLSTMCell(keras.layers.LSTMCell):
    """An LSTM cell whose states' gradients are filtered at every step on their way back."""

    def __init__(self, units: int, active_range: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.filter = tfdp.layers.GradientFilter(tfdp.rules.Tanh(output_scale=active_range, active_range=active_range))

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs, self.filter(states), training)


def adding_problem(count: int, steps: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sequences (count, steps, 2) and the sums (count, 1) of their two marked numbers."""
    numbers = rng.uniform(size=(count, steps)).astype("float32")
    marks = np.zeros_like(numbers)
    first, second = rng.integers(0, steps // 2, count), rng.integers(steps // 2, steps, count)
    rows = np.arange(count)
    marks[rows, first] = marks[rows, second] = 1.0
    return np.stack([numbers, marks], -1), (numbers[rows, first] + numbers[rows, second])[:, None]


def network(filtered: bool, seed: int) -> keras.Model:
    """The same start for the same seed."""
    keras.utils.set_random_seed(seed)
    start = keras.initializers.Orthogonal(FLAGS.gain)
    cell: Any = keras.layers.LSTMCell(32, recurrent_initializer=start)
    if filtered:
        cell = FilteredLSTMCell(32, FLAGS.active_range, recurrent_initializer=start)
    model = keras.Sequential([keras.Input((FLAGS.steps, 2)), keras.layers.RNN(cell), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(FLAGS.learning_rate), "mse", jit_compile=False)
    return model


def gradient_norm(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """L2 norm of the gradient of a batch's mean loss, all weights together."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    return float(tf.linalg.global_norm(tape.gradient(loss, [v.value for v in model.trainable_variables])))


class LargestGradient(keras.callbacks.Callback):
    """The largest gradient norm of a fixed batch during training, looked at ten times an epoch."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.batch, self.largest = (x[:256], y[:256]), 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch % 16 == 0:
            norm = gradient_norm(self.model, *self.batch)
            self.largest = math.inf if math.isnan(norm) else max(self.largest, norm)


def run(filtered: bool, seed: int) -> dict[str, Any]:
    """Trains one network; its start and largest gradient norms, and its test error."""
    rng = np.random.default_rng(seed)
    x, y = adding_problem(10_000, FLAGS.steps, rng)
    x_test, y_test = adding_problem(2_000, FLAGS.steps, rng)
    model = network(filtered, seed)
    gradients = LargestGradient(x, y)
    model.fit(x, y, batch_size=64, epochs=FLAGS.epochs, verbose=0, callbacks=[gradients])
    error = float(model.evaluate(x_test, y_test, batch_size=500, verbose=0))
    result = {"filtered": filtered, "seed": seed, "largest_gradient": gradients.largest, "test_error": error}
    print("filtered" if filtered else "plain   ", seed, f"largest gradient {gradients.largest:.3g}, error {error:.4g}")
    return result


def main(_: list[str]) -> None:
    results = [run(filtered, seed) for seed in range(FLAGS.seeds) for filtered in (False, True)]
    if FLAGS.json:
        print(json.dumps([{k: v if v == v and abs(v) < math.inf else str(v) for k, v in r.items()} for r in results]))


if __name__ == "__main__":
    app.run(main)
