"""What takes the place of draws, noise or a process does not pass for what a training was certified with."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.forks import in_fork
from helpers.variants import slow_but
from tfdp_layers import sensitivity
from tfdp_layers.models.fit_arguments import shares_records

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = np.ones((40, 1), "float32")


def model_of(optimizer=None, **options):
    inputs = keras.Input((3,))
    model = tfdp.make_private(keras.Model(inputs, keras.layers.Dense(1)(inputs)))
    model.compile(optimizer or tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse", **options)
    return model


@pytest.mark.parametrize("eager", slow_but([True], [True, False]))
def test_a_training_does_not_go_on_in_a_fork(eager):
    """Parent and child stepped with the same noise, on the draws that lay ready."""
    model = model_of(run_eagerly=eager)
    with model.private_run(X, Y, batch_size=10, verbose=0, accept_measured=True) as run:
        run.step(next(run))
        batch = next(run)
        said = in_fork(lambda: run.step(batch))
        assert "A training goes on, with its draws and noise, in a forked process" in said
        run.step(batch)
    assert model.ledger.steps == 2


def first_record(pad=False, start=0):
    """Batches of one and the same record, whose place is unknown beforehand."""
    signature = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)), tf.TensorSpec((None,)))
    same = (X[:1], Y[:1], np.ones(1, "float32"))
    return tf.data.Dataset.from_generator(lambda: iter([same] * 9), output_signature=signature)


class OwnDraws(tfdp.PrivateBatches):
    def dataset(self, pad=False, start=0):
        return first_record()


def replaced_draws():
    batches = tfdp.PrivateBatches(X, Y, tfdp.sampling.Poisson(1))
    batches.dataset = first_record
    return batches


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: OwnDraws(X, Y, tfdp.sampling.Poisson(1)), "OwnDraws is a class of your own"),
        (replaced_draws, r"PrivateBatches has a dataset\(\) of its own"),
    ],
)
def test_draws_by_other_code_are_not_charged_as_this_librarys(make, why):
    """Three steps on one record, at q = 1, were stated as draws of 1 of 40."""
    model = model_of()
    with pytest.raises(ValueError, match=f"{why}: how it draws is unknown"):
        model.fit(make(), steps_per_epoch=3, verbose=0)
    assert model.ledger.steps == 0


@pytest.mark.parametrize("name", ["release", "stddevs"])
def test_a_release_replaced_on_the_optimizer_is_refused(name):
    """With a `release` of its own the weights moved by bare sums, and the ledger held nothing."""
    optimizer = tfdp.optimizers.ClippedOptimizer("sgd", 1.0)
    setattr(optimizer, name, getattr(optimizer, name))
    with pytest.raises(ValueError, match=rf"overrides {name}\(\)"):
        model_of(optimizer).fit(X, Y, verbose=0)


class Exchanges(keras.callbacks.Callback):
    def __init__(self, thing, name):
        super().__init__()
        self.thing, self.name = thing, name

    def on_epoch_begin(self, epoch, logs=None):
        setattr(self.thing, self.name, getattr(self.thing, self.name))


@pytest.mark.parametrize("name", slow_but(["release"], ["release", "normal"]))
def test_nothing_that_releases_is_replaced_while_fit_runs(name):
    model = model_of(run_eagerly=True)
    thing = model.optimizer if name == "release" else model.optimizer.noise_source
    with pytest.raises(RuntimeError, match="was changed while fit runs"):
        model.fit(X, Y, verbose=0, callbacks=[Exchanges(thing, name)], accept_measured=True)
    assert model.ledger.steps == 0


@pytest.mark.parametrize("attribute", ["normal", "perturbed", "seeded"])
def test_a_source_with_a_method_of_its_own_is_stated_as_the_callers(attribute):
    source = tfdp.noise.SeededNoise(0) if attribute == "seeded" else tfdp.noise.NoiseSource()
    assert source.generator == "default"
    setattr(source, attribute, False if attribute == "seeded" else lambda *given: tf.zeros(given[0]))
    assert source.generator == "custom"


class Copied:
    """Gives a new array whenever it is asked for one, as a data frame of several types does."""

    shape = X.shape

    def __len__(self):
        return len(X)

    def __array__(self, dtype=None, copy=None):
        return X.copy()


@pytest.mark.parametrize("make", slow_but([Copied], [Copied, lambda: tf.Variable(X)]))
@pytest.mark.parametrize("way", slow_but(["batches"], ["arrays", "batches"]))
def test_private_records_that_make_arrays_when_asked_are_no_public_ones(make, way):
    """`EarlyStopping` stopped by their metrics, and as public rows they were added without noise."""
    records, model = make(), model_of()
    given = {"x": records, "y": Y, "batch_size": 10}
    if way == "batches":
        given = {"x": tfdp.PrivateBatches(records, Y, tfdp.sampling.Poisson(10))}
    with pytest.raises(ValueError, match="is the private training data itself"):
        model.fit(**given, validation_data=(records, Y), verbose=0)
    with model.private_run(**given, verbose=0) as run:
        batch = next(run)
        with pytest.raises(ValueError, match="`public` holds private records"):
            run.step(batch, public=(records, Y))


def test_a_declared_pipeline_is_no_public_one():
    pipeline = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    model = model_of()
    batches = tfdp.declare_sampling(pipeline, tfdp.sampling.Partition(10), examples=40)
    for validation in (pipeline, pipeline.take(2), batches):
        with pytest.raises(ValueError, match="is the private training data itself, or some of it"):
            model.fit(batches, validation_data=validation, verbose=0)
    assert not shares_records(batches, tf.data.Dataset.from_tensor_slices((X, Y)).batch(10))


def bounded():
    layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)
    inputs = keras.Input((3,))
    model = tfdp.make_private(keras.Model(inputs, layer(inputs)))
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 1.0), "mse")
    return model, layer


@pytest.mark.parametrize("name", ["linear", "sensitivity"])
def test_a_layer_with_a_method_of_its_own_has_no_bound(name):
    """A `linear` of 100 times the product moved the weights by 70 times the bound."""
    model, layer = bounded()
    linear = layer.linear
    own = {"linear": lambda x: 100.0 * linear(x), "sensitivity": lambda: 1e-3}
    setattr(layer, name, own[name])
    with pytest.raises(ValueError, match=rf"has a {name}\(\) that was put on the object"):
        model.sensitivities()
    with pytest.raises(ValueError, match=rf"has a {name}\(\) that was put on the object"):
        model.fit(X, Y, verbose=0)


def test_a_method_put_on_a_layer_breaks_the_bound_that_its_class_keeps(monkeypatch):
    """What the refusal is there for: without it a record exceeds the bound."""
    monkeypatch.setattr(sensitivity, "refuse_replaced", lambda path, layer: None)
    model, layer = bounded()
    (group,) = model.sensitivities()
    linear = layer.linear
    layer.linear = lambda x: 100.0 * linear(x)
    sums = model.bounded_gradient_sums(X[:1] * 1e3, Y[:1] * 1e3)
    assert tf.linalg.global_norm(sums) > 50.0 * group.bound


class OwnSum(tfdp.layers.DPCentering):
    def total(self, data):
        return 1e6 * super().total(data)


def summed_otherwise():
    layer = tfdp.layers.DPCentering(1.0)
    layer.build((None, 3))
    total = layer.total
    layer.total = lambda data: 1e6 * total(data)
    return layer


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: OwnSum(1.0), "OwnSum, is of a class of your own"),
        (summed_otherwise, r"DPCentering, has a total\(\) that was put on the object"),
    ],
)
def test_a_sum_of_other_code_is_not_released_as_an_adapted_layers(make, why):
    """A million times the sum was released with the noise of the sum, at an epsilon of 3.8."""
    layer = make()
    with pytest.raises(ValueError, match=why):
        layer.adapt(X)
    assert layer.ledger.steps == 0
    assert not layer.adapted


@pytest.mark.parametrize("kind", [tfdp.layers.DPCentering, tfdp.layers.DPWhitening, tfdp.layers.PrivateNormalization])
def test_this_librarys_own_layers_adapt(kind):
    layer = kind(1.0, lower=-1.0, upper=1.0) if kind is tfdp.layers.PrivateNormalization else kind(1.0)
    layer.adapt(X)
    assert layer.ledger.steps == 1


class Often(tfdp.tuning.NumberOfTrials):
    def draw(self, randomness):
        return 12


class Bare(tfdp.tuning.NoisyMean):
    def __call__(self, model, examples):
        return 0.0


class Free(tfdp.noise.Correlated):
    def squared_sensitivity(self, visits, gap, steps):
        return 1e-6


class Little(tfdp.noise.SparsityPreserving):
    pass


def put_on(thing, name):
    object.__setattr__(thing, name, lambda *_, **__: None)
    return thing


def search(**options):
    options = {"objective": lambda model: 0.0, "batch_size": 10, "budget": (3.0, 1e-3), "trials": 2.0} | options
    return tfdp.tuning.random_search(lambda settings: model_of(), {"rate": [0.1]}, X, Y, **options)


OTHER_CODE = {
    "trials": lambda: search(trials=Often(2.0)),
    "trials of an object": lambda: search(trials=put_on(tfdp.tuning.NumberOfTrials(2.0), "draw")),
    "score": lambda: search(objective=Bare(lambda model: np.ones(40), 0.1)),
    "noise": lambda: tfdp.optimizers.ClippedOptimizer("sgd", 1.0, noise=Free(0.5)),
    "rows": lambda: tfdp.optimizers.ClippedOptimizer("sgd", 1.0, sparsity_preserving=Little()),
    "sampler": lambda: model_of().fit(X, Y, sampling=put_on(tfdp.sampling.Poisson(10), "draws"), verbose=0),
    "party": lambda: tfdp.federated.Party(
        "one",
        lambda weights: weights,
        put_on(tfdp.federated.SparseVector(0.5, 1.0, 1.0, 0.5), "select"),
        np.ones(4, "float32"),
        tfdp.federated.Budget(1.0, 1e-3),
    ),
}


@pytest.mark.parametrize("case", OTHER_CODE)
def test_values_that_say_what_something_costs_have_no_code_of_their_own(case):
    """A search of twelve trials was paid as one of two, and a sampler that drew all records as one of ten."""
    with pytest.raises(ValueError, match=r"of a class of your own|put on the object|no method put on it"):
        OTHER_CODE[case]()
