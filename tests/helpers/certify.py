"""Measures what one record can add to the sum that a clipped layer releases: by witnesses, and by hostile records."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import scipy.linalg
import tensorflow as tf

from tfdp_layers.layers import BoundedLayer, ClippedDense, ClippedDepthwiseConv2D

SLACK = 1e-5
"""Relative numerical slack that a bound may be exceeded by."""

Release = Callable[[Any, Any], list[np.ndarray]]
OURS = ("input_clip", "upstream_clip", "bound")
LARGEST = float(np.finfo(np.float32).max)
DENORMAL = 1e-45
SCALES = (0.0, DENORMAL, 1e-30, 1e-20, 1e-6, 1.0, 1e6, 1e15, 1.8e19, 1e30, LARGEST)
KINDS = ("equal", "one_hot", "normal", "cancelling", "mixed", "nan", "one_nan", "infinite", "one_infinite")

HOSTILE = (
    (("nan", 1.0), ("normal", 1.0)),
    (("normal", 1.0), ("nan", 1.0)),
    (("one_nan", 1.0), ("one_nan", 1.0)),
    (("infinite", 1.0), ("normal", 1.0)),
    (("normal", 1.0), ("one_infinite", 1.0)),
    (("equal", LARGEST), ("normal", 1e6)),
    (("normal", 1e6), ("equal", LARGEST)),
    (("equal", 1e15), ("equal", 1e15)),
    (("normal", 1e6), ("normal", 1e6)),
    (("one_hot", 1e6), ("normal", 1e6)),
    (("equal", DENORMAL), ("equal", DENORMAL)),
    (("mixed", 1.0), ("mixed", 1.0)),
    (("cancelling", 1e6), ("cancelling", 1e6)),
)
"""(kind, scale) of the input and of the upstream gradient."""


def extreme(kind: str, scale: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """One record of a hostile kind: `shape`, float32."""
    normal = np.clip(rng.normal(size=shape) * scale, -LARGEST, LARGEST)
    values = {"equal": np.full(shape, scale), "normal": normal, "nan": np.full(shape, np.nan)}.get(kind, normal)
    place = tuple(rng.integers(0, size) for size in shape)
    if kind == "one_hot":
        values = np.zeros(shape)
        values[place] = scale
    elif kind == "cancelling":
        values = normal - normal.mean(axis=tuple(range(max(len(shape) - 1, 1))), keepdims=True)
    elif kind == "mixed":
        values = rng.choice([-1, 1], shape) * np.minimum(10.0 ** rng.uniform(-45, 38.5, shape), LARGEST)
    elif kind == "infinite":
        values = np.inf * rng.choice([-1, 1], shape)
    elif kind in ("one_nan", "one_infinite"):
        values[place] = np.nan if kind == "one_nan" else -np.inf
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def releaser(layer: BoundedLayer, mode: str = "eager") -> Release:
    """(x, u) -> the sums of gradients of the layer's trainable weights, for the loss sum(layer(x) * u).

    x: (batch, ...) inputs; u: the loss's gradient at the layer's output, (batch, ...). mode: "eager", "graph" or "xla".
    """

    def sums(x: tf.Tensor, u: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) * u)
        gradients = tape.gradient(loss, [v.value for v in layer.trainable_variables])
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    compiled = sums if mode == "eager" else tf.function(sums, autograph=False, jit_compile=mode == "xla")
    return lambda x, u: [np.asarray(g, np.float64) for g in compiled(tf.constant(x), tf.constant(u))]


def gradient_below(layer: Any, x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """What flows to the layers below, of x's shape, for the loss sum(layer(x) * u)."""
    inputs = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) * u)
    return np.asarray(tape.gradient(loss, inputs))


def assert_flow_below_is_each_records_own(layer: Any, x: np.ndarray, u: np.ndarray) -> None:
    """Of two records: the second's gradient turned into NaN leaves the first's as it was, and gives itself zero."""
    expected = gradient_below(layer, x, u)
    u[1] = np.nan
    assert np.any(expected[1] != 0)
    np.testing.assert_array_equal(gradient_below(layer, x, u)[0], expected[0])
    np.testing.assert_array_equal(gradient_below(layer, x, u)[1], 0.0)


def distance(a: list[np.ndarray], b: list[np.ndarray] | None = None) -> float:
    """L2 distance of two lists of tensors taken together; infinite if either is not finite."""
    parts = a if b is None else [left - right for left, right in zip(a, b, strict=True)]
    total = float(np.sqrt(sum(np.sum(part**2) for part in parts)))
    return total if np.isfinite(total) else np.inf


def influences(release: Release, records: list[tuple[np.ndarray, np.ndarray]], others: int = 2) -> list[float]:
    """What each record adds to the released sum: the larger of alone (among zeros), and joining `others` ordinary ones.

    All batches are of one size: a compiled release is traced once.
    """
    rng = np.random.default_rng(7)
    ordinary = [rng.normal(size=(others, *part.shape)).astype(np.float32) for part in records[0]]

    def behind(many: list[np.ndarray], one: Any) -> list[np.ndarray]:
        return [np.concatenate([rows, np.asarray(part)[None]]) for rows, part in zip(many, one, strict=True)]

    zeros, nothing = [np.zeros_like(rows) for rows in ordinary], [np.zeros_like(part) for part in records[0]]
    without = release(*behind(ordinary, nothing))
    result = []
    for record in records:
        joined = release(*behind(ordinary, record))
        result.append(max(distance(release(*behind(zeros, record))), distance(joined, without)))
    return result


def output_shape(layer: BoundedLayer, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(layer.compute_output_shape((None, *shape))[1:])


def hostile_records(layer: BoundedLayer, shape: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    target = output_shape(layer, shape)
    return [(extreme(*x, shape, rng), extreme(*u, target, rng)) for x, u in HOSTILE]


def certify(layer: BoundedLayer, shape: tuple[int, ...], mode: str = "eager") -> float:
    """The largest influence found, of the witness (or supremum) and of hostile records. `shape`: one record's input."""
    records = [best_record(layer, shape), *hostile_records(layer, shape)]
    return max(influences(releaser(layer, mode), records))


# Witnesses, from the geometry of the Keras layer rather than from the code under test


def original_type(layer_type: type) -> type:
    """The Keras layer that a clipped layer extends."""
    return next(base for base in layer_type.__mro__ if base.__module__.startswith("keras.") and base is not layer_type)


def keras_twin(layer: BoundedLayer, **changes: Any) -> Any:
    """The Keras layer of the same configuration, without our arguments."""
    config = {key: value for key, value in layer.get_config().items() if key not in OURS}
    return original_type(type(layer)).from_config(config | changes)


def placed(layer: BoundedLayer, shape: tuple[int, ...], space: np.ndarray, channels: slice | int) -> np.ndarray:
    """Zeros of `shape` with `space`, (batch, pixels) or (batch, pixels, channels), put into some channels."""
    first = getattr(layer, "channels_first", False)
    pixels = shape[1:] if first else shape[:-1]
    result = np.zeros((len(space), int(np.prod(pixels)), shape[0] if first else shape[-1]), np.float32)
    result[:, :, channels] = space
    result = result.reshape(len(space), *pixels, -1)
    return np.moveaxis(result, -1, 1) if first else result


def responses(layer: BoundedLayer, shape: tuple[int, ...], kernels: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """For each kernel: what pixel i of channel 0 adds to position p of filter 0, (pixels, positions)."""
    first = getattr(layer, "channels_first", False)
    pixels = int(np.prod(shape[1:] if first else shape[:-1]))
    twin = keras_twin(layer, use_bias=False, activation=None)
    twin.build((None, *shape))
    inputs = placed(layer, shape, np.eye(pixels), 0)
    for kernel in kernels:
        twin.kernel.assign(kernel)
        outputs = np.asarray(twin(inputs))
        yield (outputs[:, 0] if first else outputs[..., 0]).reshape(pixels, -1)


def visibility(layer: BoundedLayer, shape: tuple[int, ...]) -> np.ndarray:
    """Which pixels the layer sees at which positions: (pixels, positions), bool."""
    if isinstance(layer, ClippedDense):
        return np.eye(int(np.prod(shape[:-1])), dtype=bool)
    return next(responses(layer, shape, iter([np.ones(layer.kernel.shape)]))) != 0


def witness(layer: BoundedLayer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """A record, beyond both clips, that attains the certified bound; None if no pixel is in one patch alone ("patch").

    The input lies inside one receptive field, the upstream gradient is one-hot there. Under "patch" the input is one
    pixel that no other patch holds.
    """
    seen = visibility(layer, shape)
    rng = np.random.default_rng(11)
    if getattr(layer, "bound", None) == "patch":
        alone = np.flatnonzero(seen.sum(axis=1) == 1)
        if not len(alone):
            return None
        pixels = np.arange(len(seen)) == alone[0]
        position = int(np.argmax(seen[alone[0]]))
    else:
        position = int(np.argmax(seen.sum(axis=0)))
        pixels = seen[:, position]
    # Filter 0 sees the first channels only: those of its group.
    reach = 1 if isinstance(layer, ClippedDepthwiseConv2D) else layer.kernel.shape[-2]
    values = rng.uniform(1, 2, (1, len(pixels), reach)) * pixels[None, :, None]
    x = placed(layer, shape, values * 10 * layer.input_clip / np.linalg.norm(values), slice(0, reach))
    u = placed(layer, output_shape(layer, shape), -10 * layer.upstream_clip * np.eye(seen.shape[1])[[position]], 0)
    return x[0], u[0]


def supremum(layer: BoundedLayer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The worst record found by alternating maximisation, for the bound "patch" of a convolution.

    The kernel gradient is bilinear in (x, u). With u fixed, the best x is a leading singular vector; with x fixed, the
    best u a leading generalised eigenvector. One input channel and one filter.
    """
    size = tuple(layer.kernel.shape)
    taps = int(np.prod(layer.kernel_size))
    one_hot = (np.eye(size[-1] * size[-2] * taps)[i * size[-1] * size[-2]].reshape(size) for i in range(taps))
    shift = np.stack(list(responses(layer, shape, one_hot))).astype(np.float64)
    positions = shift.shape[2]
    holds = np.maximum((shift != 0).any(axis=0).sum(axis=1), 1e-12)
    bias, t = float(layer.use_bias), layer.input_clip
    upstream_norm = (t**2 * np.eye(positions) + bias) / (t**2 + bias)
    best, best_pair = -1.0, None
    for seed in range(3):
        u = np.random.default_rng(seed).normal(size=positions)
        for _ in range(20):
            x = np.linalg.svd((shift @ u) / np.sqrt(holds))[2][0] * t / np.sqrt(holds)
            gradient = np.vstack([np.einsum("wip,i->wp", shift, x), bias * np.ones((1, positions))])
            values, vectors = scipy.linalg.eigh(gradient.T @ gradient, upstream_norm)
            u = vectors[:, -1]
        if values[-1] > best:
            best, best_pair = values[-1], (x, u)
    x, u = best_pair
    target = output_shape(layer, shape)
    return placed(layer, shape, 10 * x[None], 0)[0], placed(layer, target, 10 * layer.upstream_clip * u[None], 0)[0]


def best_record(layer: BoundedLayer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The witness where there is one, otherwise the numerical supremum."""
    found = witness(layer, shape)
    return supremum(layer, shape) if found is None else found


def built(layer: Any, shape: tuple[int, ...], seed: int = 5) -> Any:
    """The layer, built for records of `shape`, with ordinary weights."""
    keras.utils.set_random_seed(seed)
    layer.build((None, *shape))
    return layer
