"""`fit` on arrays of any dtype, shape, layout and content: an error, or sound steps; never a silent leak.

FUZZ=20000 pytest tests/reliability/test_hostile_data.py runs the long version.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tfdp_layers as tfdp
from helpers.mutations import examples

ROWS, FEATURES, CLASSES = 6, 4, 3
DTYPES = [
    *("float32", "float64", "float16", ">f4", "int8", "uint8", "int32", "int64", "uint64", "bool"),
    *("complex64", "<U3", "S2", "object", "datetime64[s]", "V4"),
]
FILLS = [0.0, 1.0, -1.0, 3e38, 1e300, 1e-40, np.nan, np.inf, -np.inf, 2.0**63, 255.0]
SHAPES = [(FEATURES,), (FEATURES, 1), (1, FEATURES), (FEATURES + 1,), (2, 2), (0,), ()]
LAYOUTS = [
    np.ascontiguousarray,
    np.asfortranarray,
    lambda a: a[::-1],
    lambda a: np.repeat(a, 2, axis=0)[::2] if a.ndim else a,
    lambda a: np.broadcast_to(a[:1], a.shape) if a.ndim else a,
]
CONTAINERS = [
    list,
    tuple,
    lambda a: [a],
    lambda a: {"x": a},
    lambda a: np.ma.masked_invalid(a),
    lambda a: tf.constant(a),
    lambda a: tf.RaggedTensor.from_tensor(tf.constant(a)),
    lambda a: tf.sparse.from_dense(a),
    lambda a: tf.data.Dataset.from_tensors(a),
    lambda a: iter([a]),
    lambda a: np.array([[1.0], [1.0, 2.0], None, "x", 5, {}], object),
]


def rarely(draw, usual, hostile):
    """The usual value, or one time in six one of the hostile ones."""
    return draw(st.sampled_from(hostile)) if draw(st.integers(0, 5)) == 3 else usual


def array(draw, shape, shapes, dtype="float32"):
    """An array of six rows (rarely another number) of normal numbers, rarely hostile in each respect."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rarely(draw, ROWS, [0, 1, ROWS + 1])
    numbers = rng.normal(size=(rows, *rarely(draw, shape, shapes)))
    for _ in range(2):
        fill = rarely(draw, None, FILLS)
        numbers = numbers if fill is None else np.where(rng.random(numbers.shape) < 0.2, fill, numbers)
    with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
        numbers = numbers.astype(rarely(draw, dtype, DTYPES))
    laid_out = draw(st.sampled_from(LAYOUTS))(numbers)
    with contextlib.suppress(TypeError, ValueError, tf.errors.OpError):
        return rarely(draw, lambda a: a, CONTAINERS)(laid_out)
    return laid_out


def labels(draw):
    """Classes (rarely out of range, negative or of another dtype), or any array."""
    if draw(st.integers(0, 5)) == 3:
        return array(draw, (), [(1,), (CLASSES,)])
    low, high = rarely(draw, (0, CLASSES), [(-2, CLASSES), (0, 2**31), (CLASSES, CLASSES + 1)])
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(low, high, ROWS)
    values = values.astype(rarely(draw, "int64", ["uint8", "float32", "bool", ">i4", "<U3", "object"]))
    return rarely(draw, values, [values[:, None], values[::-1], values.tolist()])


@st.composite
def fits(draw):
    """Arguments of a `fit`."""
    given = {"x": array(draw, SHAPES[0], SHAPES), "y": labels(draw)}
    weight = rarely(draw, None, [True])
    if weight is not None:
        given["sample_weight"] = array(draw, (), [(1,)])
    given["batch_size"] = rarely(draw, 3, [1, ROWS, 0, -1, 2.5, "3", True, 10**9])
    given["physical_batch_size"] = rarely(draw, None, [1, 2, 0, -1, 1.5, 10**9])
    return given


@pytest.fixture(scope="module", params=["clipped_layers", "dp_sgd"])
def model(request):
    """One model for all examples, of SGD with rate 1e-3, so that it stays where gradients are large."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if request.param == "dp_sgd":
        layers = [keras.layers.Dense(CLASSES)]
        optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1e-3), 1.0, l2_norm_clip=0.5)
    else:
        layers = [tfdp.layers.ClippedDense(5, "tanh", **clips), tfdp.layers.ClippedDense(CLASSES, **clips)]
        optimizer = tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(1e-3), 1.0)
    model = tfdp.PrivateSequential([keras.Input((FEATURES,)), *layers])
    model.compile(optimizer, loss, run_eagerly=True)
    return model


def largest_influence(model, x, y, sample_weight):
    """The most that leaving one of the records out moves the released sum of any group, over its bound."""
    whole = model.bounded_gradient_sums(x, y, sample_weight)
    worst = 0.0
    for i in range(len(sample_weight)):
        rest = np.delete(np.arange(len(sample_weight)), i)
        without = model.bounded_gradient_sums(
            *keras.tree.map_structure(lambda a, rest=rest: a[rest], (x, y, sample_weight))
        )
        moved = {id(v): a - b for v, a, b in zip(model.trainable_variables, whole, without, strict=True)}
        for group in model.sensitivities():
            norm = float(tf.linalg.global_norm([moved[id(v)] for v in group.variables]))
            worst = max(worst, norm / group.bound if np.isfinite(norm) else np.inf)
    return worst


def test_fit_refuses_or_makes_sound_steps(model):
    counts = {"refused": 0, "sound": 0}

    @examples(10)
    @given(arguments=fits())
    def fit(arguments):
        counts["sound" if is_sound(model, arguments) else "refused"] += 1

    fit()
    assert min(counts.values()) >= 2


def is_sound(model, arguments):
    """Whether `fit` takes them, and makes sound steps; where it refuses, nothing is changed."""
    released, counted, before = int(model.optimizer.releases), model.ledger.steps, model.get_weights()
    refused = False
    try:
        model.fit(**arguments, verbose=0)
    except (ValueError, TypeError, tf.errors.OpError):
        refused = True
        if int(model.optimizer.releases) == released:
            for old, new in zip(before, model.get_weights(), strict=True):
                np.testing.assert_array_equal(old, new)
    else:
        assert int(model.optimizer.releases) > released
        sampling = tfdp.sampling.FixedSize(len(keras.tree.flatten(arguments["x"])[0]))
        batches = tfdp.PrivateBatches(
            arguments["x"], arguments["y"], sampling, sample_weight=arguments.get("sample_weight")
        )
        assert largest_influence(model, *batches[0]) <= 1 + 1e-4
    assert model.ledger.steps - counted >= int(model.optimizer.releases) - released
    assert all(np.isfinite(w).all() for w in model.get_weights())
    return not refused
