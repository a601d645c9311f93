"""Step time of plain Keras training by direct feedback alignment over that by backpropagation, noise aside.

Run: python benchmarks/feedback_time.py [--networks dense,conv,direct] [--rounds 15] [--clock wall] [--threads 1]

The networks of benchmarks/feedback.py, with a feedback stack in the place of Dense layers, in interleaved rounds;
"direct": the convolutional one, whose convolutions, clipped, get direct feedback as well. "step": all of `fit`'s
compiled step. "gradients": the forward and the backward pass alone, as the bounds' cost drowns in the rest of a small
network's step.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from tfdp_layers.layers import ClippedConv2D, DirectFeedback, FeedbackDense, FeedbackOutput, FeedbackStack

FLAGS = flags.FLAGS
flags.DEFINE_list("networks", ["dense", "conv", "direct"], "Networks to time.")
flags.DEFINE_integer("channels", 64, "Of each convolution.")
flags.DEFINE_integer("rounds", 15, "Interleaved rounds.")
flags.DEFINE_integer("threads", 0, "Threads of TensorFlow; 0: its own choice.")
flags.DEFINE_enum("clock", "wall", ["wall", "cpu"], "Time passed, or processor time (beside other work).")

BATCH, BATCHES = {"dense": 128, "conv": 512, "direct": 512}, {"dense": 400, "conv": 2, "direct": 2}
HIDDEN = {"dense": [128, 256], "conv": [384, 384], "direct": [384, 384]}
SENSITIVITY = {"dense": 2.0, "conv": 3.0}
CONVOLUTION = {"kernel_size": 5, "padding": "same", "activation": "tanh"}


def direct_network() -> Any:
    """The convolutional network with feedback into every layer. Its clips are nobody's choice: they cost the same."""
    inputs = h = keras.Input((28, 28, 1))
    sinks = []
    for _ in range(2):
        h = ClippedConv2D(FLAGS.channels, **CONVOLUTION, input_clip=20.0, upstream_clip=0.01)(h)
        h, sink = DirectFeedback(10)(keras.layers.MaxPooling2D(2)(h))
        sinks.append(sink)
    h = keras.layers.Flatten()(h)
    for units in HIDDEN["direct"]:
        h, sink = FeedbackDense(units, "sigmoid", 10, activation_clip=5.0)(h)
        sinks.append(sink)
    return keras.Model(inputs, FeedbackOutput(10, activation_clip=5.0)([h, *sinks]))


def network(name: str, feedback: bool) -> Any:
    """A compiled model for 28x28 images."""
    kl = keras.layers
    below: list[Any] = []
    if name != "dense":
        for _ in range(2):
            below += [kl.Conv2D(FLAGS.channels, **CONVOLUTION), kl.MaxPooling2D(2)]
    units = HIDDEN[name]
    if name == "direct" and feedback:
        model = direct_network()
    elif feedback:
        stack = FeedbackStack.from_total_sensitivity(SENSITIVITY[name], units, "sigmoid", 10)
        model = keras.Sequential([keras.Input((28, 28, 1)), *below, kl.Flatten(), stack])
    else:
        top = [*(kl.Dense(n, "sigmoid") for n in units), kl.Dense(10)]
        model = keras.Sequential([keras.Input((28, 28, 1)), *below, kl.Flatten(), *top])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False, steps_per_execution=min(BATCHES[name], 50))
    return model


def whole_steps(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], None]:
    options = tf.data.Options()
    options.autotune.enabled = False  # `fit` would wait at its end for the tuner's next tick
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=True).with_options(options)

    def run() -> None:
        model.fit(batches, epochs=1, verbose=0, shuffle=False)

    return run


def gradients(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], None]:
    records, labels = tf.constant(x), tf.constant(y)

    @tf.function(jit_compile=False)
    def run() -> tf.Tensor:
        # One entry of each gradient is used, or TensorFlow would leave it out.
        total = tf.zeros(())
        for start in tf.range(0, len(x), batch):
            with tf.GradientTape() as tape:
                loss = model.loss(labels[start : start + batch], model(records[start : start + batch], training=True))
            found = tape.gradient(loss, [v.value for v in model.trainable_variables])
            total += tf.add_n([tf.reshape(g, [-1])[0] for g in found])
        return total

    return run


def milliseconds(run: Callable[[], None], batches: int) -> float:
    clock = time.process_time if FLAGS.clock == "cpu" else time.perf_counter
    started = clock()
    run()
    return 1e3 * (clock() - started) / batches


def main(_: list[str]) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    rng = np.random.default_rng(0)
    for name in FLAGS.networks:
        x = rng.normal(size=(BATCH[name] * BATCHES[name], 28, 28, 1)).astype("float32")
        y = rng.integers(0, 10, len(x))
        models = [network(name, feedback) for feedback in (False, True)]
        for part, make in (("step", whole_steps), ("gradients", gradients)):
            runs = [make(model, x, y, BATCH[name]) for model in models]
            for run in runs:  # traced, warm
                run()
            pairs = [tuple(milliseconds(run, BATCHES[name]) for run in runs) for _ in range(FLAGS.rounds)]
            ratios = [feedback / plain for plain, feedback in pairs]
            plain, feedback = (statistics.median(times) for times in zip(*pairs, strict=True))
            print(
                f"{name}, {part}: keras {plain:.2f} ms, feedback {feedback:.2f} ms, ratio"
                f" {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
