"""Models of bounded layers know their bounds, or are refused by name with the fix."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.clipped_dense import CLIPS, dense
from tfdp_layers.certificates.certificate import sensitivity_groups
from tfdp_layers.layers import ClippedConv2D, ClippedDense
from tfdp_layers.sensitivity import SensitivityGroup, sensitivity_of

kl = keras.layers
ONE_USE = 0.5 * math.hypot(2.0, 1.0)


def bounds(model: keras.Model) -> dict[str, float]:
    return {group.name: group.bound for group in sensitivity_groups(model)}


def test_groups_cover_every_trainable_weight_once_with_its_layers_bound() -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            ClippedConv2D(2, 3, use_bias=False, name="conv", **CLIPS),
            kl.Flatten(),
            kl.Dropout(0.5),
            dense(name="dense"),
        ]
    )
    groups = sensitivity_groups(model)
    assert bounds(model) == {"conv": pytest.approx(1.0), "dense": pytest.approx(ONE_USE)}
    covered = [id(v) for group in groups for v in group.variables]
    assert sorted(covered) == sorted(id(v) for v in model.trainable_variables)


def test_a_shared_layer_counts_once_for_each_use_also_in_nested_models() -> None:
    shared = dense(5, name="shared")
    inputs = keras.Input((5,))
    inner = keras.Model(inputs, shared(shared(inputs)), name="inner")
    outer = keras.Input((5,))
    model = keras.Model(outer, kl.Add()([inner(inner(outer)), dense(5, name="once")(outer)]))
    assert bounds(model) == {"inner/shared": pytest.approx(4 * ONE_USE), "once": pytest.approx(ONE_USE)}
    model = keras.Sequential([keras.Input((5,)), inner, shared])
    assert bounds(model) == {"inner/shared": pytest.approx(3 * ONE_USE)}


def test_the_bound_of_a_shared_layer_is_attained_by_no_fewer_uses() -> None:
    """Two uses of one layer on one record, aligned: the gradient is twice that of one, not sqrt(2) times."""
    shared = dense(1, use_bias=False)
    inputs = keras.Input((2, 5))
    model = keras.Model(inputs, [shared(inputs[:, 0]), shared(inputs[:, 1])])
    with tf.GradientTape() as tape:
        loss = 100.0 * tf.add_n([tf.reduce_sum(out) for out in model(tf.ones((1, 2, 5)) * 100.0)])
    norm = float(tf.norm(tape.gradient(loss, shared.kernel.value)))
    assert norm == pytest.approx(bounds(model)[shared.name], rel=1e-4)


def test_frozen_layers_need_no_bound_and_partly_frozen_ones_keep_theirs() -> None:
    model = keras.Sequential([keras.Input((5,)), kl.Dense(4), kl.BatchNormalization(), dense(name="last")])
    model.layers[0].trainable = model.layers[1].trainable = False
    assert bounds(model) == {"last": pytest.approx(ONE_USE)}


class Wrapped(kl.Layer):
    """A layer with a bounded layer inside, in a loop that no trace could be trusted to count."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense(5)

    def call(self, inputs: Any) -> Any:
        return self.inner(self.inner(inputs))


class Bent(ClippedDense):
    """A subclass may bend the gradient."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return 100.0 * super().call(inputs, training=training)


class OwnCall(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = dense(5)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class OwnSequentialCall(keras.Sequential):
    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(super().call(inputs))


def adapted() -> keras.layers.Normalization:
    layer = kl.Normalization()
    layer.adapt(np.random.default_rng(0).normal(size=(8, 5)))
    return layer


def model_of(*layers: Any, shape: tuple[int, ...] = (5,)) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *layers])


def called(model: keras.Model) -> keras.Model:
    model(np.zeros((1, 5), np.float32))
    return model


def with_own_weight() -> keras.Model:
    model = model_of(dense())
    model.scale = model.add_weight(shape=(), name="scale")
    return model


REFUSED: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "plain Dense": (lambda: model_of(kl.Dense(3)), r"'dense.*Use tfdp.layers.ClippedDense in its place.*make_private"),
    "plain Conv2D": (lambda: model_of(kl.Conv2D(2, 3), shape=(5, 5, 1)), r"tfdp.layers.ClippedConv2D"),
    "no twin": (
        lambda: model_of(kl.PReLU(), dense()),
        r"PReLU.*sensitivity_of.*trainable = Fal",
    ),
    "BatchNormalization": (
        lambda: model_of(kl.BatchNormalization(), dense()),
        r"BatchNormalization: it averages over the batch.*GroupNormalization.*trainable = False",
    ),
    "weightless BatchNormalization": (
        lambda: model_of(kl.BatchNormalization(center=False, scale=False), dense()),
        r"averages over the batch",
    ),
    "nested BatchNormalization": (
        lambda: model_of(model_of(kl.BatchNormalization(), dense(5)), dense()),
        r"averages over the batch",
    ),
    "stateful LSTM": (
        lambda: keras.Sequential([keras.Input(batch_shape=(2, 4, 5)), kl.LSTM(3, stateful=True), dense()]),
        r"LSTM: it carries state.*stateful=False",
    ),
    "plain LSTM": (lambda: model_of(kl.LSTM(3), dense(), shape=(4, 5)), r"LSTM\) has trainable weights and no bound"),
    "adapted Normalization": (lambda: model_of(adapted(), dense()), r"Normalization: its state was learned by adapt"),
    "activity regularizer": (lambda: model_of(dense(activity_regularizer="l2")), r"activity regularizer.*kernel_reg"),
    "weight of the model": (with_own_weight, r"Weight .*scale.* is covered by 0 bounds.*put them into a layer"),
    "subclassed model": (lambda: called(OwnCall()), r"OwnCall defines its own call.*PrivateModel\(inputs, outputs\)"),
    "subclassed Sequential": (lambda: OwnSequentialCall([keras.Input((5,)), dense(5)]), r"OwnSequentialCall defines"),
    "nested subclassed": (
        lambda: model_of(OwnCall(), dense()),
        r"OwnCall\) holds 'clipped_dense.*keras.layers.Dense\) inside of OwnCall",
    ),
    "TimeDistributed": (
        lambda: model_of(kl.TimeDistributed(dense()), shape=(4, 5)),
        r"TimeDistributed\) holds 'clipped_dense.*compile with tfdp.optimizers.ClippedOptimizer",
    ),
    "Bidirectional": (
        lambda: model_of(kl.Bidirectional(kl.SimpleRNN(3)), dense(), shape=(4, 5)),
        r"Bidirectional\) has trainable weights and no bound",
    ),
    "custom wrapper": (lambda: model_of(Wrapped(), dense()), r"Wrapped\) holds 'clipped_dense"),
    "subclassed layer": (lambda: model_of(Bent(3, **CLIPS)), r"Bent\) has trainable weights and no bound"),
    "not built": (lambda: keras.Sequential([dense()]), r"not built.*keras.Input"),
}
for mixer in ("MixUp", "CutMix"):
    if hasattr(kl, mixer):
        REFUSED[mixer] = (
            lambda mixer=mixer: model_of(getattr(kl, mixer)(), kl.Flatten(), dense(), shape=(4, 4, 3)),
            rf"{mixer}: it blends records",
        )


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused_by_name_with_the_mend(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sensitivity_groups(build())


def positions_folded_into_rows() -> keras.Model:
    inputs = keras.Input((4, 3))
    rows = dense(3)(keras.ops.reshape(inputs, (-1, 3)))
    return keras.Model(inputs, keras.ops.reshape(rows, (-1, 4, 3)))


def kernel_used_by_an_operation() -> keras.Model:
    layer, inputs = dense(3), keras.Input((3,))
    return keras.Model(inputs, keras.ops.matmul(layer(inputs), layer.kernel))


def kernel_used_by_a_lambda() -> keras.Model:
    layer, inputs = dense(3), keras.Input((3,))
    return keras.Model(inputs, kl.Lambda(lambda x: tf.matmul(x, layer.kernel))(layer(inputs)))


def layer_used_in_a_loop() -> keras.Model:
    layer, inputs = dense(3), keras.Input((6, 3))
    looped = kl.Lambda(lambda x: tf.transpose(tf.map_fn(layer, tf.transpose(x, (1, 0, 2))), (1, 0, 2)))(inputs)
    return keras.Model(inputs, layer(looped))


@pytest.mark.parametrize(
    "build",
    [positions_folded_into_rows, kernel_used_by_an_operation, kernel_used_by_a_lambda, layer_used_in_a_loop],
)
def test_a_use_that_the_layers_bound_does_not_cover_is_refused(build: Callable[[], keras.Model]) -> None:
    with pytest.raises(ValueError, match=r"rows for|used outside its layer|inside a loop"):
        sensitivity_groups(build())


def test_normalization_with_public_constants_is_allowed() -> None:
    model = model_of(kl.Normalization(mean=0.5, variance=2.0), dense(name="last"))
    assert bounds(model) == {"last": pytest.approx(ONE_USE)}


def test_a_bound_is_registered_once_and_must_be_positive() -> None:
    with pytest.raises(ValueError, match="ClippedDense has a registered bound already"):
        sensitivity_of(ClippedDense)(lambda layer: 1.0)

    @sensitivity_of(Wrapped)
    def nonsense(layer: Any) -> list[SensitivityGroup]:
        return [SensitivityGroup("inner", tuple(layer.trainable_variables), math.nan)]

    from tfdp_layers import sensitivity

    try:
        with pytest.raises(ValueError, match="must be above 0 and at most"):
            sensitivity_groups(model_of(Wrapped()))
    finally:
        del sensitivity._BOUNDS[Wrapped]
