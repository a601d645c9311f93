"""An LSTM whose gradients explode, with and without a `GradientFilter` inside its cell. No privacy here.

Run: python examples/exploding_gradients.py [--hold 12] [--gain 5] [--active_range 0.01] [--seeds 3] [--json]

scikit-learn's digits, read row by row, each row held for 12 steps: 96 steps of 8 pixels. The recurrent kernel starts at
five times an orthogonal matrix, so that the gradient grows on its way back through the steps. Both networks start
from the same weights and learn by plain SGD with rate 1.
"""

import json
import statistics
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp
from tfdp_layers.zoo import datasets

FLAGS = flags.FLAGS
flags.DEFINE_integer("hold", 12, "Steps for which each of the 8 rows is shown.")
flags.DEFINE_float("gain", 5.0, "Of the initial recurrent kernel.")
flags.DEFINE_float("active_range", 0.01, "Of the filter: a batch's mean loss per unit of a state.")
flags.DEFINE_float("learning_rate", 1.0, "Of plain SGD.")
flags.DEFINE_integer("epochs", 20, "Passes over 1,437 images.")
flags.DEFINE_integer("seeds", 3, "Runs of each network.")
flags.DEFINE_boolean("json", False, "Print one JSON object as the last line.")


@keras.saving.register_keras_serializable(package="examples")
class FilteredLSTMCell(keras.layers.LSTMCell):
    """An LSTM cell whose states' gradients are filtered at every step on their way back."""

    def __init__(self, units: int, active_range: float = 0.01, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.filter = tfdp.layers.GradientFilter(tfdp.rules.Tanh(output_scale=active_range, active_range=active_range))

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs, self.filter(states), training)


def network(filtered: bool, seed: int) -> keras.Model:
    """The same start for the same seed."""
    keras.utils.set_random_seed(seed)
    start = keras.initializers.Orthogonal(FLAGS.gain)
    if filtered:
        cell: Any = FilteredLSTMCell(32, FLAGS.active_range, recurrent_initializer=start)
    else:
        cell = keras.layers.LSTMCell(32, recurrent_initializer=start)
    model = keras.Sequential([keras.Input((8 * FLAGS.hold, 8)), keras.layers.RNN(cell), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(FLAGS.learning_rate), loss, metrics=["accuracy"], jit_compile=False)
    return model


class LargestGradient(keras.callbacks.Callback):
    """The L2 norm of the gradient of one fixed batch, all weights together, before every epoch: the largest of them."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.x, self.y, self.largest = tf.constant(x), tf.constant(y), 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self.norm = tf.function(self.gradient_norm)

    def gradient_norm(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.model.compute_loss(y=self.y, y_pred=self.model(self.x, training=True))
        return tf.linalg.global_norm(tape.gradient(loss, [v.value for v in self.model.trainable_variables]))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.largest = max(self.largest, float(self.norm()))


def run(filtered: bool, seed: int) -> dict[str, Any]:
    """Trains one network: the largest gradient norm seen, and the test accuracy."""
    data = datasets.load("digits")
    x, x_test = (np.repeat(images[..., 0], FLAGS.hold, axis=1) for images in (data.x_train, data.x_test))
    model = network(filtered, seed)
    gradients = LargestGradient(x[:256], data.y_train[:256])
    model.fit(x, data.y_train, batch_size=64, epochs=FLAGS.epochs, verbose=0, callbacks=[gradients])
    accuracy = model.evaluate(x_test, data.y_test, verbose=0, return_dict=True)["accuracy"]
    return {"filtered": filtered, "seed": seed, "largest_gradient": gradients.largest, "test_accuracy": accuracy}


def main(_: list[str]) -> None:
    results = [run(filtered, seed) for seed in range(FLAGS.seeds) for filtered in (False, True)]
    for filtered in (False, True):
        own = [result for result in results if result["filtered"] is filtered]
        accuracies = [result["test_accuracy"] for result in own]
        print(
            f"{'filtered' if filtered else 'plain   '}  test accuracy {statistics.mean(accuracies):.3f}"
            f" ({min(accuracies):.3f} to {max(accuracies):.3f}), largest gradient norm"
            f" {max(result['largest_gradient'] for result in own):.3g}"
        )
    if FLAGS.json:
        print(json.dumps(results))


if __name__ == "__main__":
    app.run(main)
