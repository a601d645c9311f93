"""What is given in a wrong place, a model for a path or a path for a ledger, is told what belongs there."""

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers import accounting, audit, callbacks, datasets, federated, layers, plots, preprocessing, tuning
from tfdp_layers.models.model import PrivateModel

X, Y = np.random.default_rng(0).normal(size=(64, 4)).astype("float32"), np.arange(64) % 3
POISSON = tfdp.sampling.Poisson(16)


def plain(kind=keras.Model, outputs=3):
    inputs = keras.Input((4,))
    return kind(inputs, keras.layers.Dense(outputs)(inputs))


def private():
    model = tfdp.make_private(plain())
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "sparse_categorical_crossentropy")
    return model


def release():
    return accounting.Release((accounting.GroupNoise("all", 1.0, 1.0),), POISSON, 64)


def searched(given):
    options = {"batch_size": 8, "epochs": 1, "objective": "val_loss", "validation_data": (X[:9] + 1, Y[:9])}
    return tuning.random_search(lambda _: private(), {"a": [1]}, X, Y, budget=(3.0, 1e-4), ledger=given, **options)


def server():
    return federated.Server(np.zeros(4, "float32"), 0.5, 1.0)


def pipeline():
    return tf.data.Dataset.from_tensor_slices((X, Y))


quantiles = {"lower": 0.0, "upper": 1.0, "noise_multiplier": 9.0}
TAKES = {
    "path": {
        "tfdp.load_model": tfdp.load_model,
        "tfdp.PrivateModel.save": lambda given: private().save(given),
        "tfdp.PrivateModel.save_weights": lambda given: private().save_weights(given),
        "tfdp.PrivateModel.load_weights": lambda given: private().load_weights(given),
        "tfdp.PrivateModel.export": lambda given: private().export(given),
        "tfdp.records": lambda given: tfdp.records(pipeline(), cache=given),
        "tfdp.features": lambda given: tfdp.features(keras.layers.Rescaling(2.0), X, cache=given),
        "accounting.Ledger": accounting.Ledger,
        "accounting.Ledger.read": accounting.Ledger.read,
        "callbacks.PrivacyTensorBoard": callbacks.PrivacyTensorBoard,
        "datasets.image_folder": lambda given: datasets.image_folder(given, (8, 8)),
        "datasets.load": lambda given: datasets.load("digits", given),
        "datasets.load_default": datasets.load_default,
        "federated.Server.save": lambda given: server().save(given),
        "federated.Server.restore": lambda given: server().restore(given),
        "plots.save": lambda given: plots.save(plots.noise(POISSON, 64, 1, epsilons=(1.0, 8.0)), given),
    },
    "ledger": {
        "tfdp.release_metric": lambda given: tfdp.release_metric(np.ones(9), given, stddev=0.1),
        "tfdp.PrivateModel.ledger": lambda given: setattr(private(), "ledger", given),
        "accounting.Ledger.merge": lambda given: accounting.Ledger().merge(given),
        "accounting.Ledger.holds": lambda given: accounting.Ledger().holds(given),
        "accounting.EpsilonCurve": lambda given: accounting.EpsilonCurve(given, release(), 1e-5),
        "accounting.Statement.from_ledger": lambda given: accounting.Statement.from_ledger(given, 1e-5),
        "accounting.affordable_steps": lambda given: accounting.affordable_steps(
            3.0, 1e-5, POISSON, 64, 1.0, ledger=given
        ),
        "accounting.calibrate_noise_multiplier": lambda given: accounting.calibrate_noise_multiplier(
            3.0, 1e-5, POISSON, 64, 4, ledger=given
        ),
        "accounting.epsilon": lambda given: accounting.epsilon(given, 1e-5),
        "accounting.nominal_epsilon": lambda given: accounting.nominal_epsilon(given, 1e-5),
        "accounting.exact_multiplier": accounting.exact_multiplier,
        "accounting.privacy_profile": accounting.privacy_profile,
        "accounting.together": accounting.together,
        "audit.audited": lambda given: audit.audited(given, np.ones(9), np.arange(9) % 2 == 0, 1e-5),
        "audit.of_ledger": lambda given: audit.of_ledger(given, 1e-5),
        "federated.Party": lambda given: federated.Party(
            "a", lambda weights: weights, federated.LargestValues(0.1), np.zeros(4), ledger=given
        ),
        "preprocessing.quantiles": lambda given: preprocessing.quantiles(X, given, [0.5], **quantiles),
        "preprocessing.vocabulary": lambda given: preprocessing.vocabulary(
            ["a"] * 9, given, noise_multiplier=9.0, failure=1e-6
        ),
        "tuning.random_search": searched,
    },
    "model": {
        "tfdp.check_independence": tfdp.check_independence,
        "tfdp.make_private": tfdp.make_private,
        "tfdp.public": tfdp.public,
        "tfdp.replace_batch_normalization": tfdp.replace_batch_normalization,
        "tfdp.features with a prefix": lambda given: tfdp.features(given, X),
    },
}
NAMED = {"path": ("path", "filepath", "folder", "data_dir", "log_dir", "cache"), "ledger": ("ledger",)}
GIVEN = {"a number": 5, "a dict": {"a": 1}, "an array": X, "bytes": b"x.json", "a class": tfdp.accounting.Ledger}
GIVEN |= {"a model": None, "a path": Path("x.json"), "a ledger": tfdp.accounting.Ledger(), "text": "x.json"}
FITS = {"path": ("a path", "text"), "ledger": ("a ledger",), "model": ("a model",)}


@pytest.mark.parametrize("function", [(kind, name) for kind, table in TAKES.items() for name in table], ids="-".join)
def test_what_is_given_in_a_wrong_place_is_told_what_belongs_there(function, tmp_path, monkeypatch):
    """In a sentence with what was received, and not as Python, TensorFlow or the system put it; nothing is written."""
    monkeypatch.chdir(tmp_path)
    kind, name = function
    for what, given in GIVEN.items():
        if what in FITS[kind]:
            continue
        with pytest.raises(
            ValueError, match=r"Received: |is .*, a class, and not an object|is a ledger|not a model"
        ) as refusal:
            TAKES[kind][name](private() if what == "a model" else given)
        said = str(refusal.value)
        assert len(said) < 700, said
        assert "expected str, bytes" not in said
    assert not list(tmp_path.iterdir())


def test_no_public_function_that_takes_a_path_or_a_ledger_is_left_out():
    rooms = {"accounting": accounting, "audit": audit, "callbacks": callbacks, "datasets": datasets, "layers": layers}
    rooms |= {"federated": federated, "plots": plots, "preprocessing": preprocessing, "tuning": tuning, "tfdp": tfdp}
    found = {f"tfdp.PrivateModel.{name}": getattr(PrivateModel, name) for name in dir(PrivateModel) if name[0] != "_"}
    for room, module in rooms.items():
        found |= {f"{room}.{name}": getattr(module, name) for name in dir(module) if name[0] != "_"}
    for name, what in found.items():
        try:
            takes = inspect.signature(what).parameters if callable(what) else {}
        except ValueError:
            continue
        for kind, names in NAMED.items():
            if set(names) & set(takes) and str(getattr(what, "__module__", "")).startswith("tfdp_layers"):
                assert name in TAKES[kind], name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ledger", "model.ledger = ledger"),
        ("epsilon", "callbacks=.tfdp.callbacks.PrivacyBudget"),
        ("optimizer", "goes to compile"),
        ("noise_multiplier", "the optimizer's"),
        ("unit_ids", "goes to fit"),
        ("gradient_clipp", "Did you mean 'gradient_clip'"),
        ("colour", "$"),
    ],
)
def test_an_argument_that_make_private_does_not_have(name, says):
    with pytest.raises(TypeError, match=f"make_private got an unexpected argument '{name}'.*{says}"):
        tfdp.make_private(plain(), **{name: 5})


@pytest.mark.parametrize("name", ["call", "train_step", "compute_loss"])
def test_a_model_with_code_of_its_own_is_not_trained_without_it(name):
    """Keras makes a functional model of one's own class that is given inputs and outputs, and calls its methods."""

    def own(self, *args, **kwargs):
        raise AssertionError("never called")

    def build(kind):
        return plain(kind, outputs=2)

    model = build(type("Own", (keras.Model,), {name: own}))
    with pytest.raises(ValueError, match=rf"Own has a {name}\(\) of its own.*keras.Model\(model.inputs, model.outputs"):
        tfdp.make_private(model)
    assert tfdp.make_private(keras.Model(model.inputs, model.outputs)).count_params() == 10
    put = plain()
    setattr(put, name, own)
    with pytest.raises(ValueError, match="of its own"):
        tfdp.make_private(put)


@pytest.mark.parametrize("kind", [keras.Model, type("Own", (keras.Model,), {"predict_step": keras.Model.predict_step})])
def test_a_model_whose_own_code_trains_nothing_is_taken(kind):
    assert tfdp.make_private(plain(kind)).count_params() == 15
    assert tfdp.make_private(private()).count_params() == 15


@pytest.mark.parametrize("name", ["save", "write", "to_file", "to_text", "to_dict", "json"])
def test_what_is_looked_for_in_a_statement_says_how_it_is_written(name):
    statement = private().privacy_statement(1e-5)
    assert not hasattr(statement, name)
    with pytest.raises(AttributeError, match=r"str\(statement\)|statement.to_json\(\)"):
        getattr(statement, name)
    with pytest.raises(AttributeError, match="in that file by itself"):
        _ = accounting.Ledger().save


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("max_grad_norm", "l2_norm_clip=1.0"),
        ("noise_scale", "noise_multiplier=1.0"),
        ("num_microbatches", "physical_batch_size"),
        ("delta", "A budget is a callback"),
        ("lr", r"ClippedOptimizer\(keras.optimizers.Adam\(lr="),
        ("epsilon", r"ClippedOptimizer\(keras.optimizers.Adam\(epsilon="),
    ],
)
def test_an_argument_that_a_private_optimizer_does_not_have(name, says):
    with pytest.raises(TypeError, match=f"ClippedOptimizer has no argument {name}.*{says}"):
        tfdp.optimizers.ClippedOptimizer("adam", **{name: 1.0})


@pytest.mark.parametrize(
    ("name", "says"), [("unit_ids", "goes to fit"), ("ledger", "model.ledger = ledger"), ("los", "Did you mean 'loss'")]
)
def test_an_argument_that_compile_does_not_have(name, says):
    with pytest.raises(TypeError, match=f"compile got an unexpected argument '{name}'.*{says}"):
        tfdp.make_private(plain()).compile(tfdp.optimizers.ClippedOptimizer("adam"), "mse", **{name: 1.0})
