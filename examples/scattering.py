"""Private image classification by fixed wavelet features and one linear layer.

python examples/scattering.py --dataset fashion_mnist --epsilon 2.7
python examples/scattering.py --dataset mnist --data_dir FOLDER --epsilon 2.93 --scales 2,3 --gradient_clip 0.1
    --learning_rate 5.7 --batch_size 4096 --epochs 20

What it reaches is in docs/accuracy.md: `tfdp train --recipe scattering` does the same.

Features are computed once (`tfdp.features`), normalised within each image, and never trained, so they cost no privacy.
Their mean over the records is released with noise and subtracted (`tfdp.layers.DPCentering`): what all images have in
common would fill the norm that the head clips. The head clips each record's gradient by its own norm.
The weights tested are the exponential mean of those released (`use_ema` of any Keras optimizer), at no cost.
"""

import json
import time

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_string("dataset", "fashion_mnist", "mnist, fashion_mnist, cifar10 or digits.")
flags.DEFINE_string("data_dir", None, "Where the data set lies.")
flags.DEFINE_float("epsilon", 2.7, "Privacy budget.", lower_bound=0.0)
flags.DEFINE_float("delta", 1e-5, "Privacy budget.")
flags.DEFINE_list("scales", ["1", "2", "3"], "J of the scatterings, whose features stand side by side.")
flags.DEFINE_string("gradient_clip", "2.5", "Bound on each record's gradient, or automatic.")
flags.DEFINE_float("learning_rate", 0.32, "Of gradient descent with momentum 0.9.")
flags.DEFINE_integer("batch_size", 8192, "Expected records a step.", lower_bound=1)
flags.DEFINE_integer("epochs", 30, "Passes over the records.", lower_bound=1)
flags.DEFINE_list("seeds", ["1"], "Of the initial weights; never of noise or sampling.")


def prefix(shape: tuple[int, ...], scales: list[int]) -> keras.Model:
    """(batch, height, width, channels) -> (batch, features): every scale's coefficients, normalised in each image."""
    images = keras.Input(shape)
    parts = []
    for scale in scales:
        missing = [-size % 2**scale for size in shape[:2]]
        padded = keras.layers.ZeroPadding2D([(n // 2, n - n // 2) for n in missing])(images)
        found = tfdp.layers.Scattering2D(scale)(padded)
        groups = shape[-1] * next(n for n in (27, 31, 9, 1) if found.shape[-1] // shape[-1] % n == 0)
        norm = keras.layers.GroupNormalization(groups, center=False, scale=False, epsilon=1e-5)
        parts.append(keras.layers.Flatten()(norm(found)))
    return keras.Model(images, keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0])


def train(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> tfdp.PrivateSequential:
    """The trained model of features. Its weights are the mean of those that were released."""
    keras.utils.set_random_seed(seed)
    clip = FLAGS.gradient_clip if FLAGS.gradient_clip == "automatic" else float(FLAGS.gradient_clip)
    sampling = tfdp.sampling.Poisson(FLAGS.batch_size)
    centering = tfdp.layers.DPCentering(noise_multiplier=30.0, l2_norm_clip=x.shape[1] ** 0.5)
    centering.adapt(x, sampling, len(x))  # a published data set: its number is public
    head = tfdp.layers.ClippedDense(classes, gradient_clip=clip, kernel_initializer="zeros")
    model = tfdp.PrivateSequential([keras.Input(x.shape[1:]), centering, head])
    descent = keras.optimizers.SGD(FLAGS.learning_rate, momentum=0.9, use_ema=True, ema_momentum=0.9)
    model.compile(
        tfdp.optimizers.NoisyOptimizer(descent),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    budget = tfdp.callbacks.PrivacyBudget(FLAGS.epsilon, FLAGS.delta)
    model.fit(x, y, sampling=sampling, epochs=FLAGS.epochs, verbose=0, callbacks=[budget])
    return model


def main(_: list[str]) -> None:
    data = tfdp.datasets.load(FLAGS.dataset, FLAGS.data_dir)
    started = time.perf_counter()
    features_of = prefix(data.x_train.shape[1:], [int(scale) for scale in FLAGS.scales])
    x, x_test = (tfdp.features(features_of, part) for part in (data.x_train, data.x_test))
    print(f"{x.shape[1]} features in {time.perf_counter() - started:.0f} s", flush=True)
    results = []
    for seed in map(int, FLAGS.seeds):
        started = time.perf_counter()
        model = train(x, data.y_train, data.classes, seed)
        seconds = time.perf_counter() - started
        accuracy = model.evaluate(x_test, data.y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"]
        results.append(accuracy)
        spent = float(tfdp.accounting.epsilon(model.ledger, FLAGS.delta))
        print(json.dumps({"seed": seed, "accuracy": accuracy, "epsilon": spent, "seconds": seconds}))
    print(f"accuracy {np.mean(results):.4f} +- {np.std(results, ddof=len(results) > 1):.4f}")


if __name__ == "__main__":
    app.run(main)
