"""Run by a Python that has TensorFlow Privacy: python tf_privacy_sums.py MODEL IN.npz OUT.npz

Reads x, y, clip and weights in order; writes the sum over records of gradients clipped to L2 norm `clip`, weight by
weight, as TensorFlow Privacy's vectorized DPKerasSGDOptimizer makes it without noise.
"""

import sys

import numpy as np
import tensorflow as tf
from tensorflow_privacy import VectorizedDPKerasSGDOptimizer


def layers(keras, name):
    """The models of `test_tf_privacy`, of this Keras or of that one."""
    kl = keras.layers
    return {
        "mlp": [keras.Input((7,)), kl.Dense(6, activation="tanh"), kl.Dense(3)],
        "cnn": [
            *(keras.Input((9, 9, 2)), kl.Conv2D(4, 3, strides=2, padding="same", activation="relu")),
            *(kl.MaxPooling2D(2), kl.Conv2D(5, 2), kl.Flatten(), kl.Dense(3)),
        ],
        "text": [keras.Input((6,), dtype="int32"), kl.Embedding(11, 4), kl.GlobalAveragePooling1D(), kl.Dense(3)],
        "lstm": [keras.Input((5, 4)), kl.LSTM(4), kl.Dense(3)],
    }[name]


def main(name, given, wanted):
    data = np.load(given)
    x, y, clip = data["x"], data["y"], float(data["clip"])
    model = tf.keras.Sequential(layers(tf.keras, name))
    model.set_weights([data[f"w{i}"] for i in range(len(model.weights))])
    optimizer = VectorizedDPKerasSGDOptimizer(clip, 0.0, num_microbatches=len(x), learning_rate=1.0)
    with tf.GradientTape() as tape:
        losses = tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
    means = [g for g, _ in optimizer._compute_gradients(losses, model.trainable_variables, tape=tape)]
    np.savez(wanted, *[np.asarray(tf.convert_to_tensor(g)) * len(x) for g in means])


if __name__ == "__main__":
    main(*sys.argv[1:])
