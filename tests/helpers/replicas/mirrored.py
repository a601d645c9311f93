"""Checks of one process with two devices, which it sets up when it is imported. `checks.py` runs them."""

import ast
import contextlib
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import compiled, mlp
from helpers.replicas.checking import (
    BATCH,
    SIGMA,
    drawn_noise,
    example,
    is_correlated,
    is_standard_normal,
    still,
    stream_noise,
    weights,
    wide_model,
)
from tfdp_layers.accounting import released
from tfdp_layers.batches.slices import Share

# As it stands in the documentation; it sets up two devices.
SAID, DOCUMENTED = io.StringIO(), dict[str, Any]()
with contextlib.redirect_stdout(SAID):
    exec(example("devices"), DOCUMENTED)
STRATEGY = DOCUMENTED["strategy"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
NOISY, ADADP = tfdp.optimizers.NoisyOptimizer, tfdp.optimizers.AdaDPOptimizer


def plain() -> tuple[Any, Any, Any]:
    """An ordinary model with a regularizer, for the methods that bound each record's gradient."""
    _, x, y = mlp()
    layer = keras.layers.Dense(3, kernel_regularizer="l2")
    return tfdp.make_private(keras.Sequential([keras.Input((6,)), layer])), x, y


def trained(made: Any, optimizer: Any, scope: Any, fit: dict[str, Any], **options: Any) -> Any:
    """The model after two epochs, and its history; sampling and initial weights by a seed."""
    keras.utils.set_random_seed(1)
    released._released.clear()  # without noise two of these end with equal numbers, and would pay for each other
    with scope:
        model, x, y = made()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        still(model).compile(optimizer(), loss, metrics=["accuracy"], **options)
    fit = {"sampling": tfdp.sampling.Poisson(5)} | fit
    history = model.fit(x, y, sampling_seed=1, epochs=2, verbose=0, **fit)
    assert int(model.optimizer.releases.numpy()) == model.ledger.steps == 6
    released._released.clear()
    return model, history.history


def the_documented_example_trains() -> None:
    model = DOCUMENTED["model"]
    assert model.ledger.steps == 18
    assert str(model.privacy_statement(delta=1e-5)) in SAID.getvalue()
    assert ast.literal_eval(SAID.getvalue().splitlines()[0])["accuracy"] > 0.3


def two_replicas_equal_one_device() -> None:
    decayed = lambda: keras.optimizers.AdamW(  # noqa: E731
        0.05, clipnorm=0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2
    )
    _, x, y = mlp()
    seen = {"validation_data": (x[:7].copy(), y[:7].copy())}
    cases: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
        (
            mlp,
            lambda: NOISY(decayed(), 1.0, noise_source=tfdp.noise.SeededNoise(3)),
            {"physical_batch_size": 2},
            {"steps_per_execution": 3},
        ),
        (plain, lambda: ADADP(0.01, 0.0, scale_estimator="query"), {"unit_ids": np.arange(12), "views": 2} | seen, {}),
    ]
    for made, optimizer, fit, options in cases:
        one, told = trained(made, optimizer, contextlib.nullcontext(), fit, **options)
        two, heard = trained(made, optimizer, STRATEGY.scope(), fit, **options)
        np.testing.assert_allclose(weights(two), weights(one), rtol=1e-5, atol=1e-6)
        assert set(told) == set(heard)
        for name in told:
            np.testing.assert_allclose(heard[name], told[name], rtol=1e-4, err_msg=name)
        for variable in two.trainable_variables:
            a, b = (component.numpy() for component in variable.value.values)
            np.testing.assert_array_equal(a, b)


def owners_are_stated_as_on_one_device_and_a_record_moves_no_more() -> None:
    owners = {"owners": [[f"p{i}", "ann"] if i < 3 else f"p{i}" for i in range(12)], "records_per_owner": 3}

    def optimizer(seed: int = 3) -> Any:
        return tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 0.5, noise_source=tfdp.noise.SeededNoise(seed))

    one, _ = trained(plain, optimizer, contextlib.nullcontext(), owners)
    two, _ = trained(plain, optimizer, STRATEGY.scope(), owners)
    np.testing.assert_allclose(weights(two), weights(one), rtol=1e-5, atol=1e-6)
    (release,) = two.ledger.releases
    assert (release.unit, release.records_per_owner) == ("owner", 3)
    assert release == replace(one.ledger.releases[0], independence=release.independence)
    assert two.privacy_statement(1e-3, unit_name="friend").epsilon == one.privacy_statement(1e-3).epsilon
    alone, _ = trained(plain, lambda: optimizer(4), STRATEGY.scope(), {})
    assert two.privacy_statement(1e-3).epsilon > 1.2 * alone.privacy_statement(1e-3).epsilon
    with pytest.raises(ValueError, match="own more than records_per_owner=2"):
        trained(plain, lambda: optimizer(5), STRATEGY.scope(), owners | {"records_per_owner": 2})


with STRATEGY.scope():
    WIDE = wide_model()


def the_noise_of_a_step_is_the_stated_one() -> None:
    assert is_standard_normal(drawn_noise(*WIDE))


def correlated_noise_takes_back_a_part_of_the_last_steps_once() -> None:
    with STRATEGY.scope():
        wide = wide_model(noise=tfdp.noise.Correlated(0.8))
    noise = stream_noise(*wide)
    assert is_correlated(noise, 0.8)
    assert not is_correlated(noise, 0.5)  # 0.7 is too near for so few weights: one run in some hundred passes it


def noise_on_every_replica_is_seen() -> None:
    """Planted: each replica adds the noise of the whole sum to its own part."""
    with STRATEGY.scope():
        model, x, y = wide_model()
    bare = type(model)._local_sums

    def noisy(self: Any, data: Any) -> Any:
        return [s + tf.random.normal(s.shape, stddev=SIGMA) for s in bare(self, data)]

    with mock.patch.object(type(model), "_local_sums", noisy):
        released = drawn_noise(model, x, y)
    assert not is_standard_normal(released)
    np.testing.assert_allclose(released.std(), np.sqrt(3), rtol=0.05)  # of both replicas, and of the step


def largest_move() -> float:
    """How far one huge record moves the sum of a step, over its bound: 1 where the bound is attained."""
    with STRATEGY.scope():
        layer = tfdp.layers.ClippedDense(4, use_bias=False, input_clip=1.0, upstream_clip=1.0)
        model = tfdp.PrivateSequential([keras.Input((8,)), layer])
        model.compile(NOISY(keras.optimizers.SGD(1.0), 0.0), lambda y, p: 1e3 * p[:, 0])
    x, y, others_count_nothing = np.ones((3, 8), "float32"), np.zeros(3), np.array([0.0, 1.0, 0.0])
    x[1] = 1e15
    before = weights(model)
    sampling = tfdp.sampling.FixedSize(3)
    model.fit(x, y, sampling=sampling, sample_weight=others_count_nothing, steps_per_epoch=1, verbose=0)
    (group,) = model.sensitivities()
    return float(np.linalg.norm(before - weights(model)) * 3 / group.bound)


def a_record_moves_the_sum_by_its_bound_at_most() -> None:
    np.testing.assert_allclose(largest_move(), 1.0, rtol=1e-4)


def a_record_summed_on_two_replicas_is_seen() -> None:
    """Planted: every replica gets the whole draw, and says that it is its slice."""
    bare = tfdp.PrivateBatches.slices

    def whole(self: Any, share: Share, pad: bool = False) -> tf.data.Dataset:
        twice = lambda batch, stamp: tf.data.Dataset.range(2).map(  # noqa: E731
            lambda i: (batch, tf.stack([stamp[0], i]))
        )
        return bare(self, Share(0, 1, 1)).flat_map(twice)

    with mock.patch.object(tfdp.PrivateBatches, "slices", whole):
        np.testing.assert_allclose(largest_move(), 2.0, rtol=1e-4)


class Doubled(Share):
    """Planted: every replica gets the first slice."""

    def numbers(self) -> tf.data.Dataset:
        return tf.data.Dataset.range(self.count).map(lambda i: tf.zeros_like(i))


@contextlib.contextmanager
def nothing_is_released() -> Iterator[Any]:
    """Yields a model and records; its `fit` must raise and leave the weights and the ledger as they are."""
    model, x, y = WIDE
    before, steps = weights(model), model.ledger.steps
    with pytest.raises(RuntimeError, match="slices of different draws, or one slice twice"):
        yield model, tfdp.PrivateBatches(x, y, tfdp.sampling.FixedSize(BATCH))
    np.testing.assert_array_equal(weights(model), before)
    assert model.ledger.steps == int(model.optimizer.releases.numpy()) == steps


def a_record_on_two_replicas_releases_nothing() -> None:
    with nothing_is_released() as (model, batches):
        replicas = model._privacy.replicas_of(model._distribute_strategy)
        with mock.patch.object(replicas, "share", Doubled(**vars(replicas.share))):
            model.fit(batches, verbose=0)


def replicas_of_two_draws_release_nothing() -> None:
    """Planted: each replica's slice is of a draw of its own."""
    with nothing_is_released() as (model, batches):
        share = model._privacy.replicas_of(model._distribute_strategy).share
        halves = [batches.slices(replace(share, first=i, count=1)) for i in (0, 1)]
        apart = tf.data.Dataset.zip(*halves).flat_map(
            lambda a, b: tf.data.Dataset.from_tensors(a).concatenate(tf.data.Dataset.from_tensors(b))
        )
        with mock.patch.object(tfdp.PrivateBatches, "slices", return_value=apart):
            model.fit(batches, steps_per_epoch=3, verbose=0)


def a_budget_and_a_ledger_hold() -> None:
    with STRATEGY.scope():
        model, x, y = compiled(mlp(), steps_per_execution=2)
    budget = tfdp.callbacks.PrivacyBudget(9.0, 1e-5)
    model.fit(x, y, batch_size=4, epochs=30, verbose=0, callbacks=[budget])
    assert budget.exhausted
    assert 8.0 < model.privacy_statement(1e-5).epsilon <= 9.0
    assert model.ledger.steps == int(model.optimizer.releases.numpy())
    before = weights(model)
    with pytest.raises(RuntimeError, match="other than the training that runs"):
        model.optimizer.release(model.bounded_gradient_sums(x, y), model.trainable_variables, model.sensitivities(), 4)
    np.testing.assert_array_equal(weights(model), before)  # outside of a counted step


def masks_of(options: dict[str, Any], steps: int = 3) -> tuple[set[tuple[int, ...]], list[list[int]], Any]:
    """The masks of dropout of the rows of all steps, each once; seeds that a thread saw meanwhile; those left after.

    Of record i all features are 2^i, so that the bits of a sum are the masks.
    """
    x, y = np.stack([np.full(64, 2.0**i) for i in range(8)]).astype("float32"), np.zeros((8, 1), "float32")
    with STRATEGY.scope():
        dense = keras.layers.Dense(1, use_bias=False)
        made = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=1), dense])
        model = tfdp.make_private(made)
        clipped = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 0.0, 1e6)
        model.compile(clipped, lambda y, p: p[:, 0], run_eagerly=options.pop("run_eagerly", False))
    (seeds,) = [v for v in model.non_trainable_variables if "seed_generator" in v.path]
    found, seen, ended = set(), [], threading.Event()

    def reads() -> None:
        while not ended.is_set():
            seen.extend(component.numpy().tolist() for component in seeds.value.values)

    class Decodes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            model.trainable_variables[0].assign(np.zeros((64, 1)))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            sums = np.round(-weights(model).ravel() * 8 / 2).astype(int)
            found.update(tuple(sums >> i & 1) for i in range(8))

    thread = threading.Thread(target=reads)
    thread.start()
    fit = {"sampling": tfdp.sampling.Poisson(8), "examples": 8, "steps_per_epoch": steps} | options
    model.fit(x, y, verbose=0, callbacks=[Decodes()], accept_measured=True, **fit)
    ended.set()
    thread.join()
    return found, seen, [component.numpy().tolist() for component in seeds.value.values]


def masks_differ_from_row_to_row_and_nobody_sees_their_seeds() -> None:
    steps = 3  # which are counted, and not the pieces of a draw
    for options in {"physical_batch_size": 2}, {"run_eagerly": True}:
        masks, seen, left = masks_of(options)
        assert len(masks) == 24
        assert {first for first, _ in seen} == {1}
        assert left == [[1, steps], [1, steps]]


def steps_per_execution_may_change_between_fits() -> None:
    with STRATEGY.scope():
        model, x, y = compiled(mlp())
    for together, steps in ((1, 4), (4, 8), (2, 12)):
        model.steps_per_execution = together
        model.fit(x, y, batch_size=4, steps_per_epoch=4, verbose=0)
        assert model.ledger.steps == int(model.optimizer.releases.numpy()) == steps


def copies_that_a_broken_step_left_different_are_made_equal() -> None:
    with STRATEGY.scope():
        model, x, y = compiled(mlp())
    model.fit(x, y, batch_size=4, verbose=0)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    moved = [v.value.values for v in variables if v.dtype == "float32" and v.value.values[0].shape.rank]
    for _, second in moved:
        second.assign_add(np.ones(second.shape, "float32"))
    model.fit(x, y, batch_size=4, verbose=0)
    for first, second in moved:
        np.testing.assert_array_equal(first.numpy(), second.numpy())


class WritesOneCopy(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        copy = STRATEGY.experimental_local_results(self.model.trainable_variables[0].value)[1]
        copy.assign(tf.fill(copy.shape, 30.0))


def a_copy_that_a_callback_wrote_is_made_equal() -> None:
    """One device went on with weights of its own: what a record added depended on the device that it was on."""
    with STRATEGY.scope():
        model, x, y = compiled(mlp())
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[WritesOneCopy()])
    first, second = STRATEGY.experimental_local_results(model.trainable_variables[0].value)
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert np.abs(first.numpy()).max() < 30.0


CHECKS = (
    the_documented_example_trains,
    two_replicas_equal_one_device,
    owners_are_stated_as_on_one_device_and_a_record_moves_no_more,
    the_noise_of_a_step_is_the_stated_one,
    correlated_noise_takes_back_a_part_of_the_last_steps_once,
    noise_on_every_replica_is_seen,
    a_record_moves_the_sum_by_its_bound_at_most,
    a_record_summed_on_two_replicas_is_seen,
    a_record_on_two_replicas_releases_nothing,
    replicas_of_two_draws_release_nothing,
    a_budget_and_a_ledger_hold,
    masks_differ_from_row_to_row_and_nobody_sees_their_seeds,
    steps_per_execution_may_change_between_fits,
    copies_that_a_broken_step_left_different_are_made_equal,
    a_copy_that_a_callback_wrote_is_made_equal,
)
