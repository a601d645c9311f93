"""Trainings in which each record or unit enters a step with several rows: what they count, charge, state and refuse."""

import json
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.variants import slow_but
from tfdp_layers.accounting import GroupNoise, Ledger, Release, epsilon
from tfdp_layers.models.prospects import warn_of_equal_views

kl = keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 4, 4, 1)).astype("float32"), np.arange(20) % 3
IDS = np.repeat(np.arange(8), [1, 1, 2, 2, 2, 3, 3, 6])
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
EVERYONE = {"sampling": tfdp.sampling.FixedSize(8), "unit_ids": IDS, "records_per_unit": 3}


class Rows(keras.metrics.Metric):
    """How many rows it was given, by their weights."""

    def __init__(self, name="rows", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(tf.reduce_sum(tf.cast(sample_weight, tf.float32)))

    def result(self):
        return self.count


def compiled(*layers, noise=0.0, clip=0.1, **options):
    keras.utils.set_random_seed(1)
    stack = [keras.Input((4, 4, 1)), *layers, kl.Flatten(), kl.Dense(3)]
    model = tfdp.PrivateSequential(stack)
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), noise, clip)
    model.compile(optimizer, LOSS, metrics=["accuracy", Rows()], **options)
    return model


def one_step(model, **options):
    """The model after one step on everyone, and its logs."""
    logs = model.fit(X, Y, epochs=1, sampling_seed=3, verbose=0, **(EVERYONE | options)).history
    return model, {name: values[0] for name, values in logs.items()}


def test_a_step_on_units_counts_rows_and_charges_units(tmp_path):
    model, logs = one_step(compiled(noise=2.0, clip=1.0))
    rows = np.minimum(np.bincount(IDS), 3).sum()
    assert logs["rows"] == rows  # padding does not count
    (entry,) = model.ledger.entries
    release = entry.release
    assert (release.kind, release.records_per_unit, release.views, release.examples) == ("unit_step", 3, 1, 8)
    assert release.independence == "proved"
    same = Ledger()
    units = Release((GroupNoise("all", 1.0, 2.0),), tfdp.sampling.FixedSize(8), 8, unit="unit")
    same.reserve(same.begin(units), 1)
    assert float(epsilon(model.ledger, 1e-3)) == pytest.approx(float(epsilon(same, 1e-3)), rel=1e-6)
    text = " ".join(str(model.privacy_statement(1e-3, unit_name="patient")).split())
    assert "each drawn patient entered with up to 3 of its records; the gradient of the mean of their losses" in text
    assert Ledger.from_json(model.ledger.to_json()).entries[0].release == release
    (written,) = json.loads(model.ledger.to_json())["releases"]
    assert written["records_per_unit"] == 3
    assert "views" not in written  # what files of older versions hold


def loop_over_units(rows_of_unit):
    """The weights after one step of rate 1 without noise, by a loop over units."""
    model = compiled()
    values = [v.value for v in model.trainable_variables]
    total = [np.zeros(v.shape) for v in values]
    for rows in rows_of_unit:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model.per_record_losses(tf.constant(X[rows]), tf.constant(Y[rows])))
        gradients = [np.asarray(g, np.float64) for g in tape.gradient(loss, values)]
        scale = min(1.0, 0.1 / np.sqrt(sum(np.sum(g**2) for g in gradients)))
        total = [a + scale * g for a, g in zip(total, gradients, strict=True)]
    return [v.numpy() - t / len(rows_of_unit) for v, t in zip(values, total, strict=True)]


OPTIONS = {
    "pieces": ({"physical_batch_size": 20}, {}),
    "views": ({"views": 2}, {}),
    "compiled by XLA": ({"physical_batch_size": 20}, {"jit_compile": True}),
    "eager": ({"accept_measured": True}, {"run_eagerly": True}),
}


@pytest.mark.parametrize("name", slow_but([], OPTIONS))
def test_a_step_is_that_of_a_loop_over_units(name):
    fit, options = OPTIONS[name]
    model, _ = one_step(compiled(**options), records_per_unit=6, **fit)
    wanted = loop_over_units([np.flatnonzero(unit == IDS) for unit in range(8)])
    for found, exact in zip(model.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_random_layers_draw_anew_for_each_view():
    model = compiled(kl.RandomTranslation(0.4, 0.4, seed=1), kl.RandomFlip(seed=2))
    seen = np.asarray(model.layers[1](model.layers[0](np.repeat(X[:1], 8, axis=0), training=True), training=True))
    assert len(np.unique(seen.reshape(8, -1), axis=0)) > 4
    report = one_step(model, unit_ids=None, records_per_unit=None, views=3, sampling=tfdp.sampling.FixedSize(20))
    release = report[0].ledger.entries[0].release
    assert (release.unit, release.views, release.independence) == ("record", 3, "proved")
    text = " ".join(str(model.privacy_statement(1e-3)).split())
    assert "each drawn record entered 3 times, once for each view" in text
    assert "One record is one person" in text


def test_views_that_nothing_changes_are_warned_of():
    def said(model, x=X, y=Y, views=2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_equal_views(model, tfdp.PrivateBatches(x, y, tfdp.sampling.Poisson(4), views=views))
        return [str(one.message)[:7] for one in caught]

    assert said(compiled()) == ["views=2"]
    assert said(compiled(), views=1) == said(compiled(kl.RandomFlip())) == said(compiled(kl.Dropout(0.1))) == []
    records = tfdp.records(list(zip(X, Y, strict=True)), lambda item: item)
    assert said(compiled(), records, None) == []


@pytest.mark.slow
def test_a_loop_of_ones_own_steps_alike():
    model = compiled()
    with model.private_run(X, Y, epochs=1, sampling_seed=3, verbose=0, **EVERYONE) as run:
        for batch in run:
            assert batch.records()[0].shape == (8, 3, 4, 4, 1)
            run.step(batch, public=(X[:2] + 1.0, Y[:2]))  # rows as the model takes them
    assert model.ledger.entries[0].release.records_per_unit == 3


@pytest.mark.parametrize("layer", ["ClippedConv2D", "ClippedLayerNormalization"])
def test_layers_that_bound_each_row_are_refused_before_anything_is_spent(layer):
    model = compiled(getattr(tfdp.layers, layer)(**({"filters": 2, "kernel_size": 2} if "Conv" in layer else {})))
    with pytest.raises(ValueError, match=r"bounds each row by itself.*Leave records_per_unit and views at 1"):
        one_step(model)
    assert model.ledger.steps == 0


class ReadsOthers(kl.Layer):
    """Adds to each row the mean over all rows: units mix."""

    def call(self, x):
        return x + tf.reduce_mean(x, axis=0, keepdims=True)


def test_a_model_that_mixes_units_is_refused():
    with pytest.raises(ValueError, match="Records are not independent"):
        one_step(compiled(ReadsOthers()))


def test_data_that_are_drawn_already_take_no_counts():
    own = tfdp.PrivateBatches(X, Y, tfdp.sampling.Poisson(4), views=2)
    with pytest.raises(ValueError, match=r"holds its labels.*\['views'\]"):
        compiled().fit(own, views=2)
    with pytest.raises(ValueError, match="needs to know which records belong to one unit"):
        compiled().fit(X, Y, records_per_unit=2)


@pytest.mark.parametrize("options", [{"views": 0}, {"records_per_unit": 2}, {"views": 2, "purpose": "metric"}], ids=str)
def test_a_release_of_no_such_rows_is_none(options):
    with pytest.raises(ValueError, match=r"views|records_per_unit"):
        Release((GroupNoise("all", 1.0, 2.0),), tfdp.sampling.FixedSize(8), 8, **options)
