"""Keras loads our classes after a mere `import tfdp_layers`: a stand-in imports each one when a file names it."""

import importlib
import pkgutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.saving import get_custom_objects

import tfdp_layers as tfdp
from tfdp_layers.stand_ins import REGISTERED, StandIn, import_registered, stand_in

ORDERS = ("import keras, tfdp_layers", "import tfdp_layers, keras", "import tfdp_layers; from tensorflow import keras")


def ours() -> dict[str, object]:
    """What Keras has registered under our names."""
    return {name: thing for name, thing in get_custom_objects().items() if name.startswith("tfdp_layers>")}


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def registry():
    """Keras' registry with all of our classes, which is put back as it was."""
    import_registered()
    before = dict(get_custom_objects())
    yield get_custom_objects()
    get_custom_objects().clear()
    get_custom_objects().update(before)


def test_the_table_is_what_is_registered_once_everything_is_imported():
    for package in (tfdp, tfdp.accounting, tfdp.callbacks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name not in ("tfdp_layers.federated.app", "tfdp_layers.federated.strategy"):  # need Flower
                importlib.import_module(module.name)
    left = {name for name, thing in ours().items() if isinstance(thing, type) and issubclass(thing, StandIn)}
    assert not left, "in the table of stand_ins.py, and registered nowhere: take them out of the table"
    assert set(ours()) == set(REGISTERED), "registered, and not in the table of stand_ins.py: add them to the table"
    for registered, (module, name) in REGISTERED.items():
        assert getattr(importlib.import_module(module), name) is ours()[registered]
        assert keras.saving.get_registered_name(ours()[registered]) == registered


def test_a_class_that_is_registered_keeps_its_place(registry):
    before = ours()
    stand_in()
    assert ours() == before
    assert registry["tfdp_layers>ClippedDense"] is tfdp.layers.ClippedDense


def test_a_stand_in_makes_objects_of_the_class_in_every_way_that_keras_does(registry):
    arguments = {"activation": tfdp.activations.tempered_sigmoid(), "input_clip": 1.0, "upstream_clip": 0.1}
    config = keras.saving.serialize_keras_object(tfdp.layers.ClippedDense(2, **arguments))
    optimizer = keras.optimizers.serialize(tfdp.optimizers.NoisyOptimizer("sgd", 1.0))
    for name in REGISTERED:
        registry.pop(name)
    stand_in()
    assert all(issubclass(thing, StandIn) for thing in ours().values())
    for made in (
        keras.saving.deserialize_keras_object(config),
        keras.layers.deserialize(config),
        registry["tfdp_layers>ClippedDense"](2, **arguments),
    ):
        assert type(made) is tfdp.layers.ClippedDense
        assert (made.activation, made.input_clip) == (arguments["activation"], 1.0)
    assert type(keras.optimizers.deserialize(optimizer)) is tfdp.optimizers.NoisyOptimizer


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_a_plain_model_with_our_layers_loads_in_a_fresh_process(order, tmp_path):
    clips = {"input_clip": 1.0, "upstream_clip": 0.1}
    activation = tfdp.activations.tempered_sigmoid(2.0, 3.0)
    model = keras.Sequential([keras.Input((3,)), tfdp.layers.ClippedDense(2, activation=activation, **clips)])
    model.save(tmp_path / "plain.keras")
    x = np.linspace(-1, 1, 12).reshape(4, 3).astype("float32")
    np.savez(tmp_path / "plain.npz", x=x, predictions=model.predict(x, verbose=0))
    in_a_fresh_process(f"""
{order}
import sys, numpy as np
assert not any(name.startswith("tfdp_layers.layers") for name in sys.modules), "only what a file names is imported"
model, data = keras.models.load_model(r"{tmp_path}/plain.keras"), np.load(r"{tmp_path}/plain.npz")
np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["predictions"], rtol=1e-5)
from tfdp_layers.activations import TemperedSigmoid
from tfdp_layers.layers import ClippedDense
assert type(model.layers[0]) is ClippedDense and type(model.layers[0].activation) is TemperedSigmoid
model.save(r"{tmp_path}/again.keras")
assert keras.models.load_model(r"{tmp_path}/again.keras").get_config() == model.get_config()
""")


@pytest.mark.slow
def test_keras_imported_by_our_own_modules_finds_the_classes_too():
    in_a_fresh_process("""
import tfdp_layers.layers.einsum
import keras
registry = keras.saving.get_custom_objects()
assert registry["tfdp_layers>ClippedEinsumDense"] is tfdp_layers.layers.einsum.ClippedEinsumDense
assert issubclass(registry["tfdp_layers>NoisyOptimizer"], tfdp_layers.stand_ins.StandIn)
""")
