"""Per-record gradients by a loop over batches of one, and by the recorder; how far they are apart."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp_layers.per_record import Recorder, recording

ROWS = 3


def leaves(structure: Any) -> list[Any]:
    return keras.tree.flatten(structure)


def upstream(model: Any, x: Any, seed: int = 0) -> list[tf.Tensor]:
    """Random coefficients c of the loss sum(outputs * c), one tensor for each output."""
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=t.shape), tf.float32) for t in leaves(model(x))]


def loss_of(outputs: Any, coefficients: list[Any]) -> tf.Tensor:
    return tf.add_n(
        [tf.reduce_sum(tf.cast(t, tf.float32) * c) for t, c in zip(leaves(outputs), coefficients, strict=True)]
    )


def recorded(model: Any, x: Any, c: list[Any], allow_generic: bool = False) -> dict[int, Any]:
    """What the library finds: each variable's contribution, by the variable's id."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        recorder = Recorder(tape, records=tf.shape(leaves(x)[0])[0])
        with recording(model, recorder, allow_generic):
            outputs = model(x, training=True)
        loss = loss_of(outputs, c)
    return recorder.contributions(tape.gradient(loss, recorder.watched, unconnected_gradients="zero"))


WEIGHTS = tf.constant([0.3, -1.7, 0.9])


def measured(model: Any, x: Any, c: list[Any], mode: str = "eager", **options: Any) -> list[list[np.ndarray]]:
    """For each trainable variable: [norms, gradients, weighted sums, largest squared norms]."""

    def parts(x: Any, c: Any) -> list[Any]:
        contributions = recorded(model, x, c, **options)
        found = [contributions[id(v)] for v in model.trainable_variables]
        return [[p.squared_norms(), p.gradients(), p.weighted_sum(WEIGHTS), p.largest_squared_norms()] for p in found]

    function = parts if mode == "eager" else tf.function(parts, jit_compile=mode == "xla", autograph=False)
    return keras.tree.map_structure(lambda t: np.asarray(t, np.float64), function(x, c))


def one_by_one(model: Any, x: Any, c: list[Any]) -> list[np.ndarray]:
    """For each trainable variable the gradients of all records, (ROWS, *shape), each from a batch of one."""
    values = [v.value for v in model.trainable_variables]
    found = []
    for i in range(ROWS):
        one = keras.tree.map_structure(lambda t, i=i: t[i : i + 1], x)
        with tf.GradientTape() as tape:
            loss = loss_of(model(one, training=True), [t[i : i + 1] for t in c])
        gradients = tape.gradient(loss, values, unconnected_gradients="zero")
        found.append([np.asarray(tf.convert_to_tensor(g), np.float64) for g in gradients])
    return [np.stack(rows) for rows in zip(*found, strict=True)]


def norms_of(gradients: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(gradients.reshape(ROWS, -1) ** 2, axis=1))


def largest_error(parts: list[list[np.ndarray]], exact: list[np.ndarray]) -> float:
    """The largest difference of norms, gradients and sums over all variables, relative to the variable's largest norm.

    A variable whose gradient is below 1% of the largest one's (that of a key's bias in attention is zero) counts as 1%.
    Infinite where `largest_squared_norms` is below the squared norm of the gradient that it is stated for.
    """
    worst, top = 0.0, max(1e-6, *[norms_of(reference).max() for reference in exact])
    for (squared, gradients, total, largest), reference in zip(parts, exact, strict=True):
        norms = norms_of(reference)
        sums = total - np.tensordot(WEIGHTS, reference, 1)
        errors = [np.sqrt(np.maximum(squared, 0)) - norms, gradients - reference, sums]
        worst = max(worst, *[np.abs(e).max() / max(norms.max(), 0.01 * top) for e in errors])
        if not (np.sqrt(largest) >= norms_of(gradients) * (1 - 1e-5)).all():
            return np.inf
    return worst


def error_of(model: Any, x: Any, mode: str = "eager", **options: Any) -> float:
    """How far the library's per-record gradients of a model with moved weights are from the loop's."""
    rng = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(v + 0.1 * rng.normal(size=v.shape))
    c = upstream(model, x)
    return largest_error(measured(model, x, c, mode, **options), one_by_one(model, x, c))
