"""A private model of tabular records: is a tumour benign? (569 records that scikit-learn ships, 30 features.)

python examples/tabular.py --epsilon 3

Features are scaled by public knowledge of their ranges, not by statistics of the private records: those would have to
be paid for. With so few records delta must be small (below 1/569) and the model simple.
"""

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_breast_cancer

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_float("epsilon", 3.0, "Privacy budget.", lower_bound=0.0)
flags.DEFINE_float("delta", 1e-4, "Privacy budget.")
flags.DEFINE_integer("epochs", 40, "Passes over the records.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of the initial weights and the split; never of noise or sampling.")

BATCH = 128
# What instruments can report of a cell: radius, texture, perimeter, area, smoothness, compactness, concavity, concave
# points, symmetry, fractal dimension; the mean of the image, its standard error, its worst.
LARGEST = np.array([30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1])
SCALES = np.concatenate([LARGEST, LARGEST / 10, 1.5 * LARGEST])


def main(_: list[str]) -> None:
    keras.utils.set_random_seed(FLAGS.seed)
    features, labels = load_breast_cancer(return_X_y=True)
    # Public data. Split private records by ids, tfdp.preprocessing.held_out: a seeded shuffle moves with each record.
    order = np.random.default_rng(FLAGS.seed).permutation(len(labels))
    features, labels = (features[order] / SCALES).astype("float32"), labels[order]
    cut = len(labels) * 4 // 5
    x, y, test = features[:cut], labels[:cut], (features[cut:], labels[cut:])

    model = tfdp.make_private(keras.Sequential([keras.Input((30,)), keras.layers.Dense(1)]))
    sampling = tfdp.sampling.Poisson(BATCH)
    # Nothing to tune for privacy: every record's gradient is normalised, and fit finds the noise.
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
    budget = tfdp.callbacks.PrivacyBudget(epsilon=FLAGS.epsilon, delta=FLAGS.delta)
    model.fit(x, y[:, None], sampling=sampling, epochs=FLAGS.epochs, callbacks=[budget], verbose=0)
    epsilon = tfdp.accounting.epsilon(model.ledger, FLAGS.delta)
    accuracy = model.evaluate(test[0], test[1][:, None], verbose=0)[1]
    print(f"epsilon {epsilon:.3f} at delta {FLAGS.delta:g}; test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    app.run(main)
