"""The model as Keras users know it: save, load, clone, convert, refuse."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.clipped_models import CLIPS, MODELS, cnn, compiled, feedback, mlp, rows, two_inputs_two_outputs
from helpers.variants import slow_but

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
kl, tl = keras.layers, tfdp.layers
FEW = [cnn, two_inputs_two_outputs, feedback]


def trained(make=mlp, **options):
    model, x, y = compiled(make(), optimizer=keras.optimizers.Adam(0.01), **options)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    return model, x, y


# Not `shared`: Keras itself cannot load a model that uses one layer both inside and outside of a nested model.
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make", slow_but(FEW[1:], [m for m in MODELS if m.__name__ != "shared"]), ids=lambda m: m.__name__
)
def test_a_saved_model_goes_on_with_its_weights_optimizer_and_ledger(make, tmp_path):
    model, x, y = trained(make)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(loaded.optimizer.releases.numpy()) == 3
    assert int(loaded.optimizer.iterations.numpy()) == 3
    assert loaded.optimizer.noise_multiplier == model.optimizer.noise_multiplier
    assert loaded.ledger.steps == 3
    bounds = [(g.name, g.bound) for g in model.sensitivities()]
    assert [(g.name, g.bound) for g in loaded.sensitivities()] == bounds
    loaded.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert loaded.ledger.steps == 6
    assert tfdp.accounting.epsilon(loaded.ledger, 1e-5) > tfdp.accounting.epsilon(model.ledger, 1e-5)


@pytest.mark.slow
def test_no_key_is_saved_and_a_loaded_model_draws_other_noise(tmp_path):
    model, x, y = trained()
    model.save(tmp_path / "model.keras")
    first, second = (keras.models.load_model(tmp_path / "model.keras") for _ in range(2))
    for loaded in (first, second):
        loaded.fit(x, y, batch_size=4, epochs=1, verbose=0)
    assert not np.isclose(first.get_weights()[0], second.get_weights()[0]).any()
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "checkpoint"))]
    assert names
    assert not [n for n in names if "generator" in n.lower() or "noise" in n.lower() or "releases_left" in n]


def test_the_ledger_never_rewinds_with_weights(tmp_path):
    model, x, y = trained()
    model.save_weights(tmp_path / "early.weights.h5")
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    model.load_weights(tmp_path / "early.weights.h5")
    assert model.ledger.steps == 6
    other, *_ = trained()
    other.load_weights(tmp_path / "early.weights.h5")  # both histories touched the data: they add up
    assert other.ledger.steps == 6


def test_copies_draw_noise_of_their_own():
    model, *_ = trained()
    optimizer = copy.deepcopy(model.optimizer.noise_source)
    a, b = model.optimizer.noise_source.normal((100,)), optimizer.normal((100,))
    assert not np.isclose(a, b).any()


@pytest.mark.parametrize("make", slow_but(FEW, MODELS), ids=lambda m: m.__name__)
def test_a_plain_model_predicts_the_same(make, tmp_path):
    model, x, _ = compiled(make())
    model.set_weights([3 * w for w in model.get_weights()])
    plain = model.to_keras()
    assert not [layer for layer in plain._flatten_layers() if type(layer).__module__.startswith("tfdp_layers")]
    huge = keras.tree.map_structure(lambda a: a * 50, x)  # the input clips bind
    for inputs in (x, huge):
        for a, b in zip(
            keras.tree.flatten(model.predict(inputs, verbose=0)),
            keras.tree.flatten(plain.predict(inputs, verbose=0)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    plain.save(tmp_path / "plain.keras")
    assert "tfdp_layers" not in plain.to_json()


def test_make_private_shares_or_swaps():
    plain = keras.Sequential(
        [keras.Input((6, 6, 1)), kl.Conv2D(2, 3), kl.Flatten(), kl.Dense(4, activation="relu"), kl.Dense(3)]
    )
    shared = tfdp.make_private(plain)
    assert shared.trainable_variables[0] is plain.trainable_variables[0]
    with pytest.raises(ValueError, match="ClippedConv2D"):
        shared.sensitivities()
    swapped = tfdp.make_private(plain, bounding="backprop_clipping", input_clip=1e4, upstream_clip=1.0)
    assert len(swapped.sensitivities()) == 3
    x = np.random.default_rng(0).normal(size=(5, 6, 6, 1)).astype("float32")
    np.testing.assert_allclose(plain(x), swapped(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="bounding"):
        tfdp.make_private(plain, bounding="magic")
    with pytest.raises(ValueError, match="not built"):
        tfdp.make_private(keras.Sequential([kl.Dense(2)]))


def test_a_private_optimizer_refuses_to_step_in_a_plain_model():
    _, x, y = mlp()
    model = keras.Sequential([keras.Input((6,)), kl.Dense(3)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), LOSS)
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="make_private"):
        model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(before[0], model.get_weights()[0])
    clone = keras.models.clone_model(compiled(mlp())[0])
    if type(clone) is keras.Sequential:  # Keras makes a plain Sequential of a Sequential's subclass
        with pytest.raises(RuntimeError, match="make_private"):
            clone.fit(x, y, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("make", [two_inputs_two_outputs], ids=lambda m: m.__name__)
def test_a_cloned_functional_model_trains_with_a_ledger_of_its_own(make):
    model, x, y = trained(make)
    clone = keras.models.clone_model(model)
    assert type(clone) is type(model)
    clone.fit(x, y, batch_size=4, verbose=0)
    assert clone.ledger.steps == 3
    assert model.ledger.steps == 3


def several():
    """Of newer versions of Keras: it has no rate of its own, and picks an optimizer for each weight."""
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD()))


def test_what_an_optimizer_may_wrap():
    noisy = tfdp.optimizers.NoisyOptimizer
    for bad, message in [
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "scales losses"),
        (keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps"),
        (noisy("sgd", 1.0), "private already"),
        *([(several(), "several optimizers inside")] if hasattr(keras.optimizers, "MultiOptimizer") else []),
    ]:
        with pytest.raises(ValueError, match=message):
            noisy(bad, 1.0)
    for z in (-1.0, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="noise_multiplier"):
            noisy("sgd", z)
    for allocation in ("even", {}, {"a": -1.0}, {"a": 0.0}):
        with pytest.raises(ValueError, match="noise_allocation"):
            noisy("sgd", 1.0, noise_allocation=allocation)


@pytest.mark.parametrize("allocation", ["uniform", "dimension", {"clipped_dense_a": 3.0, "clipped_dense_b": 1.0}])
def test_every_allocation_is_one_mechanism_of_the_stated_noise_multiplier(allocation):
    model = tfdp.PrivateSequential(
        [
            keras.Input((50,)),
            tl.ClippedDense(20, name="clipped_dense_a", **CLIPS),
            tl.ClippedDense(2, name="clipped_dense_b", input_clip=3.0, upstream_clip=2.0),
        ]
    )
    groups = model.sensitivities()
    stddevs = tfdp.optimizers.NoisyOptimizer("sgd", 1.7, noise_allocation=allocation).stddevs(groups)
    joint = sum((g.bound / s) ** 2 for g, s in zip(groups, stddevs, strict=True)) ** -0.5
    assert joint == pytest.approx(1.7, rel=1e-12)
    if allocation != "uniform":
        assert stddevs[0] / groups[0].bound < stddevs[1] / groups[1].bound


@pytest.mark.slow
def test_schedules_averages_and_decay_of_the_wrapped_optimizer_work():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    inner = keras.optimizers.AdamW(schedule, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=None)
    model, x, y = compiled(mlp(), optimizer=inner)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1 * 0.5**6)
    averages = inner._model_variables_moving_average
    np.testing.assert_allclose(averages[0].numpy(), model.get_weights()[0])  # finalized at the end of fit
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), LOSS)
    model.optimizer.learning_rate = 0.25
    assert float(model.optimizer.inner_optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": [keras.callbacks.EarlyStopping(monitor="loss")]}, "decide by validation data that are public"),
        ({"callbacks": [keras.callbacks.ReduceLROnPlateau(monitor="accuracy")]}, "accuracy"),
        ({"callbacks": keras.callbacks.TerminateOnNaN()}, "TerminateOnNaN"),
        (
            {"callbacks": [keras.callbacks.ModelCheckpoint("x.keras", monitor="loss", save_best_only=True)]},
            "ModelCheckpoint",
        ),
        ({"validation_split": 0.2}, "validation_split"),
        ({"batch_size": 13}, "larger than the data"),
        ({"sampling": "poisson"}, "must be a sampler"),
        ({"batch_size": 3, "sampling": tfdp.sampling.Poisson(4)}, "contradicts"),
    ],
)
def test_fit_refuses_what_would_leak_and_changes_nothing(arguments, message):
    model, x, y = compiled(mlp())
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, verbose=0, **({"batch_size": 4} if "sampling" not in arguments else {}) | arguments)
    np.testing.assert_array_equal(before[0], model.get_weights()[0])
    assert model.ledger.steps == 0


def test_fit_takes_callbacks_on_public_data():
    model, x, y = compiled(mlp())
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[stop], validation_data=(x[:4].copy(), y[:4]))
    assert model.ledger.steps


def test_data_that_no_sampler_draws_are_refused():
    model, x, y = compiled(mlp())
    for data in (tf.data.Dataset.from_tensor_slices((x, y)).batch(4), iter([(x, y)])):
        with pytest.raises(ValueError, match="declare_sampling"):
            model.fit(data, verbose=0)
    with pytest.raises(ValueError, match="validation_data"):
        model.fit(x, y, batch_size=4, validation_data=(x, y), verbose=0)
    with pytest.raises(ValueError, match=r"0\.\.2"):
        model.fit(x, y + 1, batch_size=4, verbose=0)
    with pytest.raises(RuntimeError, match="no sampler drew"):
        model.train_on_batch(x, y)
    with pytest.raises(ValueError, match="Compile the model first"):
        mlp()[0].fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="private optimizer"):
        model.compile("sgd", LOSS)


def test_weights_of_records_and_classes_scale_their_part_and_keep_the_bound():
    model, x, y = compiled(mlp(), noise=0.0)
    model.layers[1].rate = 0.0
    plain = model.bounded_gradient_sums(x, y)
    tiny = model.bounded_gradient_sums(x, y, 1e-6 * np.ones(12, "float32"))
    none = model.bounded_gradient_sums(x, y, np.zeros(12, "float32"))
    huge = model.bounded_gradient_sums(rows(x, slice(0, 1)), rows(y, slice(0, 1)), np.array([1e30], "float32"))
    assert float(tf.linalg.global_norm(tiny)) < 1e-3 * float(tf.linalg.global_norm(plain))
    assert float(tf.linalg.global_norm(none)) == 0.0
    assert float(tf.linalg.global_norm(huge)) <= sum(g.bound for g in model.sensitivities()) * (1 + 1e-5)
    model.fit(x, y, batch_size=4, verbose=0, class_weight={0: 0.0, 1: 0.0, 2: 0.0})
    for a, b in zip(plain, model.bounded_gradient_sums(x, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # all weights zero: nothing moved


def test_a_metric_of_one_number_for_a_batch_is_refused_with_the_fix():
    def error(y_true, y_pred):
        return keras.ops.mean(keras.ops.max(y_pred, axis=-1))

    model, x, y = compiled(cnn(), metrics=[error])
    with pytest.raises(ValueError, match=r"'error' gives one number for a whole batch.*axis=-1"):
        model.fit(x, y, batch_size=8, verbose=0)
    assert model.ledger.steps == 0


@pytest.mark.slow
def test_another_inner_optimizer_or_noise_source_is_used_by_the_next_fit():
    model, x, y = compiled(cnn(), noise=1.0, optimizer=keras.optimizers.SGD(0.1))
    model.fit(x, y, batch_size=8, verbose=0)
    model.optimizer.inner_optimizer = keras.optimizers.SGD(0.0)
    before = model.get_weights()
    model.fit(x, y, batch_size=8, verbose=0)
    assert all(map(np.array_equal, before, model.get_weights()))
    model.optimizer.inner_optimizer = keras.optimizers.SGD(0.1)
    found = []
    for seed in (1, 2):
        model.optimizer.noise_source = tfdp.noise.SeededNoise(seed)
        model.set_weights(before)
        model.fit(x, y, batch_size=8, verbose=0, sampling_seed=3)
        found.append(model.get_weights())
    assert not any(map(np.array_equal, *found))


@pytest.mark.slow
def test_metrics_ignore_padding():
    model, x, y = compiled(cnn(), noise=0.0, optimizer=keras.optimizers.SGD(0.0), metrics=["accuracy"])
    batches = tfdp.PrivateBatches(x, y, tfdp.sampling.TruncatedPoisson(4, maximum=12), seed=1)
    history = model.fit(batches, epochs=30, verbose=0).history
    everything = model.evaluate(x, y, verbose=0, return_dict=True)
    assert np.mean(history["loss"]) == pytest.approx(everything["loss"], rel=0.1)
    assert np.mean(history["accuracy"]) == pytest.approx(everything["accuracy"], abs=0.1)


@pytest.mark.slow
def test_statement_and_several_outputs():
    model, *_ = trained(two_inputs_two_outputs)
    text = str(model.privacy_statement(delta=1e-2))
    assert "epsilon" in text.lower()
    assert "12" in text
    assert float(tfdp.accounting.epsilon(model.ledger, 1e-2)) > 0
