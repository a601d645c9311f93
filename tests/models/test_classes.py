"""Keras' own classes in model files: all that its `save` writes are loaded again, those that hold code never."""

import ast
import inspect
import re
import sys

import keras
import numpy as np
import pytest
from keras.src.api_export import get_name_from_symbol

import tfdp_layers as tfdp
from tfdp_layers.models.classes import class_of_keras
from tfdp_layers.models.loading import ModelFileError, _refuse_unknown

X = np.random.default_rng(0).normal(size=(12, 6)).astype("float32")
CODE = {"Lambda", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"}
RUNS = {"func_load", "pickle", "eval", "exec", "importlib", "import_module", "__import__", "saved_model"}
GIVEN = {  # what classes must be given, by the name of the argument
    **dict.fromkeys(("units", "filters", "pool_size", "output_size", "num_heads", "key_dim", "max_norm", "rank"), 2),
    **dict.fromkeys(("kernel_size", "n", "size", "output_dim", "num_bins", "num_tokens", "epsilon", "input_dim"), 2),
    **dict.fromkeys(("height", "width", "target_height", "target_width", "num_classes", "depth", "num_query_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "decay_steps", "first_decay_steps", "groups", "k"), 2),
    **dict.fromkeys(("rate", "factor", "stddev", "scale", "recall", "precision", "sensitivity", "specificity"), 0.5),
    **dict.fromkeys(("decay_rate", "initial_learning_rate", "l1", "l2", "threshold", "height_factor"), 0.5),
    **dict.fromkeys(("value", "min_value", "sequence_length", "width_factor"), 1),
    **{"shape": (3,), "target_shape": (3,), "dims": (1,), "axes": 1, "boundaries": [1], "values": [0.1, 0.2]},
    **{"target_class_ids": [0], "bin_boundaries": [0.0], "equation": "ab,bc->ac", "output_shape": (3,), "mode": "int8"},
    **{"dtype": "float32", "monotonic": True, "source_dtype": "float32", "dataset": None, "tokenizer": None},
    **{"fn": keras.losses.mean_squared_error, "inner_optimizer": keras.optimizers.SGD(), "activation": "relu"},
    **{"layer": keras.layers.Dense(2), "cell": keras.layers.GRUCell(2), "cells": [keras.layers.GRUCell(2)]},
    **{"layers": [keras.layers.Rescaling(2.0)], "function": None, "max_value": 1.0, "name": "some"},
}

BY_NAME = {  # and for single classes
    "AWQDTypePolicy": {"mode": "awq/4/128", "source_name": "float32"},
    "GPTQDTypePolicy": {"mode": "gptq/4/128", "source_name": "float32"},
    "Int4DTypePolicy": {"mode": "int4/128", "source_name": "float32"},
    "QuantizedDTypePolicy": {"mode": "int8", "source_name": "float32"},
    "QuantizedFloat8DTypePolicy": {"mode": "float8", "source_name": "float32"},
    "DTypePolicyMap": {"default_policy": "mixed_bfloat16", "policy_map": {"a": keras.DTypePolicy("float32")}},
    "Int8QuantizationConfig": {"weight_quantizer": keras.quantizers.AbsMaxQuantizer(axis=0)},
    "LayerScale": {"init_values": 0.1, "projection_dim": 2},
    "StochasticDepth": {"drop_path_rate": 0.1},
    "Discretization": {"num_bins": 2},
    "CategoryEncoding": {"num_tokens": 2},
    "InputLayer": {"shape": (2,)},
    "Bidirectional": {"layer": keras.layers.GRU(2)},
    "RandomPosterization": {"factor": 4},
    "FeatureSpace": {"features": {"a": keras.utils.FeatureSpace.float_normalized()}},
}


def classes():
    """Every class that the installed Keras can save by name: all with a `from_config`, but for bare operations."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "keras"]
    found = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    return {
        one
        for one in found
        if one.__module__.startswith("keras.")
        and hasattr(one, "from_config")
        and (issubclass(one, keras.layers.Layer) or not issubclass(one, keras.Operation))
    }


def written(kind):
    """The module and the name by which Keras saves an object of the class."""
    public = get_name_from_symbol(kind)
    return tuple(public.rsplit(".", 1)) if public else (kind.__module__, kind.__name__)


def test_every_class_that_keras_saves_is_loaded_but_those_that_hold_code():
    kinds = classes()
    assert len(kinds) > 300
    assert {kind.__name__ for kind in kinds if class_of_keras(*written(kind)) is not kind} == CODE
    for module, name in [("keras.layers", "deserialize"), ("keras", "Function"), ("keras.callbacks", "EarlyStopping")]:
        assert class_of_keras(module, name) is None


def words(kind):
    """The names in the source of the modules that the class and its bases are written in."""
    own = {base.__module__ for base in kind.__mro__ if base.__module__.startswith("keras.")}
    return {name for module in own for name in words_of(module)}


def words_of(module, known={}):  # noqa: B006
    if module not in known:
        nodes = list(ast.walk(ast.parse(inspect.getsource(sys.modules[module]))))
        known[module] = {node.id for node in nodes if isinstance(node, ast.Name)}
        known[module] |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return known[module]


def test_no_class_that_is_loaded_is_written_beside_what_runs_code():
    running = {kind.__name__ for kind in classes() if words(kind) & RUNS}
    assert {"Lambda", "TFSMLayer", "TorchModuleWrapper"} <= running <= CODE


def made(kind):
    """An object of the class, of what GIVEN and BY_NAME have; None where they do not say how."""
    needed = [name for name, one in inspect.signature(kind).parameters.items() if one.default is one.empty]
    options = {name: GIVEN[name] for name in needed if name in GIVEN} | BY_NAME.get(kind.__name__, {})
    try:
        return kind(**options)
    except Exception:  # not enough of it, or a base of others
        return None


def test_whatever_keras_writes_and_makes_again_is_on_the_list():
    """The entry of each object, with all that is nested in it: loaded by us where Keras itself can load it."""
    loaded = set()
    for kind in classes():
        one = made(kind) if kind.__name__ not in CODE else None
        if one is None:
            continue
        try:
            entry = keras.saving.serialize_keras_object(one)
            back = keras.saving.deserialize_keras_object(entry)
        except Exception:  # a base of others: no object of this very class is saved
            assert kind not in vars(keras.layers).values()
            continue
        _refuse_unknown(entry, {})
        assert type(back) is kind
        loaded.add(kind.__name__)
    assert len(loaded) > 250
    assert loaded >= BY_NAME.keys() & {kind.__name__ for kind in classes()}


def quantized(mode, config=None):
    model = private()
    model.quantize(mode, config=config) if config else model.quantize(mode)
    return model


def private(first=None, **options):
    first = first or keras.layers.Dense(4, "tanh", **options)
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), first, keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    model.fit(X, X[:, :2], batch_size=4, verbose=0)
    return model


def of_convnext():
    """A model with a layer that Keras writes for a network of keras.applications, under no public name."""
    return private(sys.modules["keras.src.applications.convnext"].LayerScale(0.5, 6, trainable=False))


def by_columns():
    quantizer = keras.quantizers.AbsMaxQuantizer(axis=0)
    return quantized("int8", keras.quantizers.Int8QuantizationConfig(weight_quantizer=quantizer))


MODELS = {
    "int8": lambda: quantized("int8"),
    "int4 in blocks": lambda: quantized("int4", keras.quantizers.Int4QuantizationConfig(block_size=2)),
    "float8": lambda: quantized("float8"),
    "a generator of seeds": lambda: private(
        kernel_initializer=keras.initializers.HeNormal(keras.random.SeedGenerator(1))
    ),
    "int4": lambda: quantized("int4"),
    "int8 by a quantizer of one's own choice": by_columns,
    "a policy": lambda: private(dtype=keras.dtype_policies.DTypePolicy("mixed_bfloat16")),
    "a layer of keras.applications": of_convnext,
}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_is_made_of_comes_back_with_what_it_cost(name, tmp_path):
    model = MODELS[name]()
    model.save(tmp_path / "model.keras")
    loaded = tfdp.load_model(tmp_path / "model.keras")
    assert loaded.ledger.steps == model.ledger.steps == 3
    np.testing.assert_array_equal(model.predict(X, verbose=0), loaded.predict(X, verbose=0))


def test_a_name_that_keras_does_not_have_says_whose_it_may_be():
    with pytest.raises(ModelFileError, match=r"'keras.layers.Newest', which is not on .* If a newer Keras saved"):
        _refuse_unknown({"module": "keras.layers", "class_name": "Newest", "registered_name": None}, {})


def test_the_advice_for_a_class_of_ones_own_loads_it(tmp_path):
    """Where it is registered no more, as in a process that did not import its module."""

    class Shifted(keras.layers.Layer):
        def call(self, x):
            return x + 1.0

    registered = keras.saving.register_keras_serializable("classes")(Shifted)
    model = tfdp.make_private(keras.Sequential([keras.Input((6,)), registered(), keras.layers.Dense(2)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    model.save(tmp_path / "model.keras")
    del keras.saving.get_custom_objects()["classes>Shifted"]
    with pytest.raises(ModelFileError, match="which is not on the list") as refused:
        tfdp.load_model(tmp_path / "model.keras")
    advice = re.search(r"tfdp\.load_model\(.*\)", str(refused.value)).group()
    loaded = eval(advice, {"tfdp": tfdp, "path": tmp_path / "model.keras", "Shifted": Shifted})
    assert any(isinstance(layer, Shifted) for layer in loaded.layers)
