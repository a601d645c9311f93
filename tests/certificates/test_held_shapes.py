"""Shapes that bounds rest on are those of the step: others are refused there."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.held_models import GENTLE, InTraining, chain, fit, private, share
from helpers.variants import slow_but
from tfdp_layers.models import sums

kl, tl = keras.layers, tfdp.layers


def larger(x: Any) -> Any:
    return tf.repeat(tf.repeat(x, 4, axis=1), 4, axis=2)


def convolved(function: Any, dynamic: bool = False, **options: Any) -> Any:
    conv = tl.LipschitzConv2D(2, 1, use_bias=True, input_clip=1.0, upstream_clip=0.5)
    return chain((4, 4, 1), InTraining(function, dynamic), conv, kl.GlobalAveragePooling2D(), **options)


def pooled(change: bool = True) -> Any:
    pool = kl.MaxPooling2D(8)
    conv = tl.LipschitzConv2D(2, 1, use_bias=True, input_clip=1.0, upstream_clip=0.5)
    model = chain((8, 8, 1), pool, conv, kl.GlobalAveragePooling2D())
    if change:
        pool.strides = pool.pool_size = (1, 1)
    return model


def summed(function: Any) -> Any:
    """`Add` repeats what lost its positions, and the sum's norm is not that of the parts."""
    a = keras.Input((64, 2))
    u = tl.LipschitzDense(2, input_clip=1.0, **GENTLE)(a)
    v = tl.LipschitzDense(2, input_clip=1.0, **GENTLE)(InTraining(function)(a))
    o = tl.LipschitzDense(2, upstream_clip=1.0, **GENTLE)(kl.Add()([u, v]))
    return private(a, kl.GlobalAveragePooling1D()(o))


def shared(function: Any) -> Any:
    """A layer of two calls, of two sizes, each allowed to the other one alone."""
    layer = tl.LipschitzConv2D(2, 1, use_bias=True, input_clip=1.0, upstream_clip=0.5)
    a, b = keras.Input((8, 8, 1)), keras.Input((2, 2, 1))
    both = [kl.GlobalAveragePooling2D()(layer(one)) for one in (a, InTraining(function)(b))]
    return private([a, b], kl.Concatenate()(both))


SHAPES = {
    "larger in training": lambda: convolved(larger),
    "larger in training, eager": lambda: convolved(larger, run_eagerly=True),
    "pooling set later": pooled,
    "fewer positions in a sum": lambda: summed(lambda x: tf.reduce_mean(x, 1, keepdims=True)),
}


@pytest.mark.parametrize("case", slow_but(["larger in training", "pooling set later"], SHAPES))
def test_another_shape_in_the_step_is_refused_before_anything_is_spent(case: str) -> None:
    model = SHAPES[case]()
    with pytest.raises(ValueError, match=r"in the step, and .* in the model's graph"):
        fit(model)
    assert not model.ledger.releases


@pytest.mark.slow
def test_a_shape_of_another_call_is_refused() -> None:
    model = shared(lambda x: tf.repeat(tf.repeat(x, 4, axis=1), 4, axis=2))
    x, y = [np.zeros((1, n, n, 1), "float32") for n in (8, 2)], np.zeros((1, 4), "float32")
    with pytest.raises(ValueError, match=r"\(8, 8, 1\) in the step, and \(2, 2, 1\)"):
        model.bounded_gradient_sums(x, y)
    shared(tf.identity).bounded_gradient_sums(x, y)


@pytest.mark.slow
def test_a_size_that_no_trace_knows_is_held_in_the_step() -> None:
    assert share(convolved(tf.identity, dynamic=True)) <= 1.0
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"not compatible|in the step, and"):
        share(convolved(larger, dynamic=True))


@pytest.mark.parametrize("case", slow_but(["larger in training"], SHAPES))
def test_shapes_that_are_not_held_would_exceed_the_bound(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "held_shapes", lambda model: lambda layer, call, given: call(*given[0], **given[1]))
    assert share(SHAPES[case](), 0.0 if "pool" in case or "larger" in case else 1.0) > 3.0


OPEN = {
    "sizes left open": lambda: chain(
        (None, None, 1),
        tl.LipschitzConv2D(2, 3, input_clip=1.0),
        tl.GroupSort(),
        tl.LipschitzConv2D(2, 3, upstream_clip=1.0),
        kl.GlobalAveragePooling2D(),
    ),
    "dropout, a mask and augmentation": lambda: chain(
        (8, 8, 1),
        kl.RandomFlip(),
        kl.Dropout(0.2),
        tl.LipschitzConv2D(2, 3, input_clip=1.0),
        kl.MaxPooling2D(2),
        kl.Dropout(0.2),
        kl.Flatten(),
        tl.LipschitzDense(2, upstream_clip=1.0),
    ),
    "pooling": lambda: pooled(change=False),
    "in training alone": lambda: convolved(lambda x: 2.0 * x),
}


@pytest.mark.parametrize("case", slow_but(["dropout, a mask and augmentation", "in training alone"], OPEN))
def test_ordinary_models_train_as_ever(case: str, recwarn: pytest.WarningsRecorder) -> None:
    model = OPEN[case]()
    size = [8 if n is None else n for n in model.input_shape[1:]]
    x, y = np.ones((4, *size), "float32"), np.zeros((4, 2), "float32")
    model.fit(x, y, sampling=tfdp.sampling.Poisson(2), epochs=1, verbose=0)
    found = [str(w.message) for w in recwarn if w.category is UserWarning]
    assert not [message for message in found if "learn next to nothing" not in message]
    assert tfdp.check_independence(model).proved
