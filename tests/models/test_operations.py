"""Keras' operations in model files: those that compute are loaded again, those that run functions never."""

import inspect
import json
import re
import zipfile

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.operations import operation, runs_functions

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
X[0, 0] = np.nan
Dense = keras.layers.Dense
REFUSED = {  # all that the installed Keras has and that no file may name
    **dict.fromkeys(("AssociativeScan", "Cond", "ForiLoop", "JVP", "Map"), "runs a function that it is given"),
    **dict.fromkeys(("Scan", "Switch", "VectorizedMap", "WhileLoop"), "runs a function that it is given"),
    "Function": "holds operations",
    "FakeQuantWithMinMaxVars": "of no module that computes",
}


def known(x):
    """As docs/recipe_tabular.md prepares a column."""
    empty = keras.ops.isnan(x)
    number = keras.ops.where(empty, 0.0, 2.0 * (x - 1.0) / 3.0 - 1.0)
    return keras.ops.concatenate([keras.ops.clip(number, -1.0, 1.0), keras.ops.cast(empty, "float32")], axis=-1)


MODELS = {
    "h + x": lambda x: Dense(1)(Dense(6, "tanh")(x) + x),
    "x[:, :3]": lambda x: Dense(1)(x[:, :3]),
    "x[..., 0, None]": lambda x: Dense(1)(x[..., 0, None]),
    "keras.ops.maximum": lambda x: Dense(1)(keras.ops.maximum(x, 0)),
    "keras.ops.clip": lambda x: Dense(1)(keras.ops.clip(x, -1, 1)),
    "x * 2": lambda x: Dense(1)(keras.ops.concatenate([x, x * 2])),
    "a NumPy constant": lambda x: Dense(1)(x * np.arange(6, dtype="float32")),
    "keras.activations": lambda x: Dense(1)(keras.activations.relu(x, max_value=1.0)),
    "a table": lambda x: Dense(1)(known(x)),
}


def private(function):
    inputs = keras.Input((6,))
    model = tfdp.make_private(keras.Model(inputs, function(inputs)))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), loss="mse")
    return model


def saved(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


def all_operations():
    """Every class of an operation, and no layer, that the installed Keras has."""
    found, left = set(), [keras.Operation]
    while left:
        left += (kinds := left.pop().__subclasses__())
        found |= {kind for kind in kinds if kind.__module__.startswith("keras.src.")}
    return {kind for kind in found if not issubclass(kind, keras.layers.Layer)}


def admitted():
    return {kind for kind in all_operations() if operation(kind.__module__, kind.__name__) is kind}


def with_config(path, change):
    """The file with another configuration."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config["config"]["layers"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, "config.json": json.dumps(config).encode()}.items():
            archive.writestr(name, data)
    return path


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_operations_come_back_as_they_were(name, tmp_path):
    model = private(MODELS[name])
    loaded = tfdp.load_model(saved(model, tmp_path))
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(model.predict(X, verbose=0), loaded.predict(X, verbose=0))


@pytest.mark.slow
def test_a_loaded_model_of_operations_goes_on_training(tmp_path):
    model, y = private(MODELS["a table"]), np.zeros((12, 1), "float32")
    model.fit(np.nan_to_num(X), y, batch_size=4, verbose=0)
    loaded = tfdp.load_model(saved(model, tmp_path))
    loaded.fit(np.nan_to_num(X), y, batch_size=4, verbose=0)
    assert (model.ledger.steps, loaded.ledger.steps) == (3, 6)


def test_every_operation_of_keras_is_admitted_by_a_rule_or_refused_by_name():
    kinds, allowed = all_operations(), admitted()
    assert len(allowed) > 250
    assert {kind.__name__ for kind in kinds - allowed} == REFUSED.keys() & {kind.__name__ for kind in kinds}
    assert not {kind.__name__ for kind in allowed} & REFUSED.keys()
    for kind in allowed:  # each is made of what its config holds, as it is
        between = kind.__mro__[: kind.__mro__.index(keras.Operation)]
        assert not any("from_config" in vars(base) for base in between)
        assert not runs_functions(kind.__module__, kind.__name__)
    for kind in kinds - allowed:
        assert runs_functions(kind.__module__, kind.__name__) == kind.__module__.startswith("keras.src.ops.")


def test_the_operations_that_keras_documents_as_running_functions_are_those_refused():
    """By another way: what the public functions make that say so in their docstrings."""
    made = set()
    for name in dir(keras.ops):
        function = getattr(keras.ops, name)
        if inspect.isfunction(function) and re.search(
            "(?i)callable|`function`|function to|branches", inspect.getdoc(function) or ""
        ):
            made |= set(re.findall(r"\b([A-Z]\w+)\(", inspect.getsource(function).split('"""')[-1]))
    names = {kind.__name__ for kind in all_operations()}
    assert made & names == {name for name in REFUSED if "function" in REFUSED[name]} & names
    assert not made & {kind.__name__ for kind in admitted()}


@pytest.mark.slow
def test_no_admitted_operation_is_given_something_to_run(tmp_path):
    """Not by its config and not where it is called, though a file may name the function elsewhere, as an activation."""
    path = saved(private(MODELS["keras.ops.maximum"]), tmp_path)
    planted = {"module": "keras.activations", "class_name": "function", "config": "relu", "registered_name": "relu"}
    kinds = sorted((kind.__module__, kind.__name__) for kind in admitted())

    def plant(layers, named, place):
        entry = next(one for one in layers if one["name"].startswith("maximum"))
        entry |= dict(zip(("module", "class_name", "registered_name"), (*named, named[1]), strict=True))
        entry["config"]["dtype"] = planted if place == "config" else None
        entry["inbound_nodes"][0]["kwargs"] = {"f": planted} if place == "call" else {}

    for named in kinds:
        for place in ("config", "call"):
            with pytest.raises(ModelFileError, match=r"gives the operation .* something to run, 'function'"):
                tfdp.load_model(with_config(path, lambda layers, n=named, p=place: plant(layers, n, p)))


@pytest.mark.parametrize("decoy", ["none", "beside", "within a value"])
def test_an_operation_computes_nothing_while_it_is_loaded(decoy, tmp_path):
    def plant(layers):
        entry = next(one for one in layers if one["name"].startswith("maximum"))
        entry |= {"class_name": "Full", "registered_name": "Full"}
        entry["config"] = {"name": entry["name"], "shape": [10**6, 10**6], "dtype": "float32"}
        tensor = entry["inbound_nodes"][0]["args"][0]
        value = {"class_name": "__numpy__", "config": {"value": [0.0], "dtype": "float32", "more": tensor}}
        node = {"args": [value if decoy == "within a value" else 0.0], "kwargs": {}}
        entry["inbound_nodes"] = [node | ({"more": tensor} if decoy == "beside" else {})]

    path = saved(private(MODELS["keras.ops.maximum"]), tmp_path)
    with pytest.raises(ModelFileError, match=r"'keras.src.ops.numpy.Full' on no tensor of the model"):
        tfdp.load_model(with_config(path, plant))


@keras.saving.register_keras_serializable("operations")
def doubled(row):
    return row * 2.0


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("core.Map", lambda x: keras.ops.map(doubled, x)),
        ("core.VectorizedMap", lambda x: keras.ops.vectorized_map(doubled, x)),
    ],
)
def test_operations_that_run_functions_are_refused_though_the_function_is_registered(kind, function, tmp_path):
    path = saved(private(lambda x: Dense(1)(function(x))), tmp_path)
    with pytest.raises(ModelFileError, match=rf"keras.src.ops.{kind}', an operation of Keras that runs functions"):
        tfdp.load_model(path)


def test_a_class_of_another_kind_in_the_place_of_an_operation_is_refused_by_name(tmp_path):
    model = private(MODELS["h + x"])
    path = saved(model, tmp_path)
    with pytest.raises(ModelFileError, match=r"keras.src.layers.merging.add.Add was given .* Leave 'Add' out"):
        tfdp.load_model(path, custom_objects={"Add": keras.layers.Add})
    (own,) = (kind for kind in admitted() if kind.__name__ == "Add")
    loaded = tfdp.load_model(path, custom_objects={"Add": own})
    np.testing.assert_array_equal(model.predict(X, verbose=0), loaded.predict(X, verbose=0))


@keras.saving.register_keras_serializable("operations")
class Add(keras.layers.Layer):
    """Of a name that an operation of Keras has too."""

    def call(self, x):
        return x + 1.0


def test_a_registered_class_stands_beside_the_operation_of_its_name(tmp_path):
    model = private(lambda x: Dense(1)(Add()(x) + x))
    loaded = tfdp.load_model(saved(model, tmp_path))
    np.testing.assert_array_equal(model.predict(X, verbose=0), loaded.predict(X, verbose=0))


class Scaled(keras.layers.Layer):
    def __init__(self, scale, **options):
        super().__init__(**options)
        self.scale = scale

    def call(self, x):
        return x * self.scale

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


class Other(keras.layers.Layer):
    def call(self, x):
        return x


def test_what_custom_objects_give_is_named_where_keras_cannot_make_it(tmp_path):
    path = saved(private(lambda x: Dense(1)(Scaled(2.0)(x))), tmp_path)
    assert isinstance(tfdp.load_model(path, custom_objects={"Scaled": Scaled}).layers[1], Scaled)
    with pytest.raises(ModelFileError, match=r"(?s)={'Scaled': [\w.]*Other}: .* the model was saved with"):
        tfdp.load_model(path, custom_objects={"Scaled": Other})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"is not a whole model file: .* Restore it from a backup"):
        tfdp.load_model(path)
