"""A denoising autoencoder with two losses, trained privately in a loop of one's own.

python examples/autoencoder.py --dataset digits --epsilon 4

The code of an image must give the image back, and its class: two outputs, two losses, one bounded gradient for each
record. The loop raises the learning rate slowly, and ends where public images show that nothing is gained any more:
such decisions cost nothing, since the weights that they look at are released.

2026-11-22, digits, epsilon 4 at delta 1e-5, seeds 1 and 2: the code explains 29% and 28% of the variance of unseen
images, and tells the digit for 84% and 87% of them.
"""

import json

import keras
import numpy as np
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
flags.DEFINE_string("dataset", "digits", "mnist, fashion_mnist or digits.")
flags.DEFINE_string("data_dir", None, "Where the data set lies.")
flags.DEFINE_float("epsilon", 4.0, "Privacy budget.", lower_bound=0.0)
flags.DEFINE_float("delta", 1e-5, "Privacy budget.")
flags.DEFINE_integer("batch_size", 512, "Expected records a step.", lower_bound=1)
flags.DEFINE_integer("epochs", 60, "Passes over the records.", lower_bound=1)
flags.DEFINE_integer("code", 16, "Numbers that stand for an image.", lower_bound=1)
flags.DEFINE_integer("patience", 5, "Epochs without a gain on public images after which it ends.", lower_bound=1)
flags.DEFINE_float("learning_rate", 5e-3, "Of Adam, once it is warm.", lower_bound=0.0)
flags.DEFINE_integer("seed", 1, "Of the initial weights and the split; never of noise or sampling.")

WARM = 20  # steps


def network(pixels: int, classes: int) -> tfdp.PrivateModel:
    images = keras.Input((pixels,))
    seen = keras.layers.GaussianNoise(0.1)(images)
    code = keras.layers.Dense(FLAGS.code, activation="tanh", name="code")(keras.layers.Dense(64, "relu")(seen))
    image = keras.layers.Dense(pixels, activation="sigmoid", name="image")(keras.layers.Dense(64, "relu")(code))
    model = tfdp.PrivateModel(images, {"image": image, "label": keras.layers.Dense(classes, name="label")(code)})
    model.compile(
        tfdp.optimizers.ClippedOptimizer(keras.optimizers.Adam(FLAGS.learning_rate), l2_norm_clip=1.0),
        {"image": "mean_squared_error", "label": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"image": 10.0, "label": 1.0},
        metrics={"label": "accuracy"},
    )
    return model


def train(model: tfdp.PrivateModel, x: np.ndarray, y: np.ndarray, public: tuple[np.ndarray, np.ndarray]) -> None:
    budget = tfdp.callbacks.PrivacyBudget(FLAGS.epsilon, FLAGS.delta)
    settings = {"batch_size": FLAGS.batch_size, "epochs": FLAGS.epochs, "callbacks": [budget], "verbose": 0}
    best, since, epoch = np.inf, 0, 0
    with model.private_run(x, {"image": x, "label": y}, **settings) as run:
        for number, batch in enumerate(run, start=1):
            model.optimizer.learning_rate = FLAGS.learning_rate * min(1.0, number / WARM)
            run.step(batch)
            if run.epoch > epoch:
                epoch = run.epoch
                found = model.evaluate(public[0], {"image": public[0], "label": public[1]}, verbose=0, return_dict=True)
                since = 0 if found["loss"] < best else since + 1
                best = min(best, found["loss"])
                if since == FLAGS.patience:
                    break


def main(_: list[str]) -> None:
    keras.utils.set_random_seed(FLAGS.seed)
    data = tfdp.datasets.load(FLAGS.dataset, FLAGS.data_dir)
    x, other = (part.reshape(len(part), -1).astype("float32") for part in (data.x_train, data.x_test))
    half = len(other) // 2  # of the test images one half plays public ones, the other is tested on
    model = network(x.shape[1], data.classes)
    train(model, x, data.y_train, (other[:half], data.y_test[:half]))
    test, labels = other[half:], data.y_test[half:]
    made = model.predict(test, verbose=0)
    explained = 1.0 - np.mean((made["image"] - test) ** 2) / np.mean((x.mean(axis=0) - test) ** 2)
    accuracy = float(np.mean(np.argmax(made["label"], axis=1) == labels))
    spent = float(tfdp.accounting.epsilon(model.ledger, FLAGS.delta))
    print(
        json.dumps({"epsilon": spent, "explained": float(explained), "accuracy": accuracy, "steps": model.ledger.steps})
    )


if __name__ == "__main__":
    app.run(main)
