"""A number of NumPy, as loops over `np.arange` and search spaces give them, is the number that it says."""

import ast
import functools
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers import layers, optimizers, sampling

ROOT = Path(__file__).resolve().parents[2]
CLIPS = {"input_clip": 2.0, "upstream_clip": 1.0}
SGD = {"optimizer": "sgd", "noise_multiplier": 2.0}
STACK = {"units": [3, 4], "activation": "tanh", "output_units": 2, "activation_clip": 2.0, "error_clip": 1.0}
MADE = {
    "RandomFilters2D": (layers.RandomFilters2D, {"filters": 4, "grid": 3, "threshold": 0.5, "seed": 1}),
    "Scattering2D": (layers.Scattering2D, {"J": 2, "L": 4, "max_order": 1}),
    "ClippedDense": (functools.partial(layers.ClippedDense, 4), CLIPS),  # Keras takes plain units alone
    "FeedbackStack": (layers.FeedbackStack, STACK),
    "GroupSort": (layers.GroupSort, {"group_size": 2}),
    "Orthogonal": (layers.Orthogonal, {"iterations": 3}),
    "DPPCA": (layers.DPPCA, {"components": 2, "noise_multiplier": 1.0, "l2_norm_clip": 2.0}),
    "PrivateNormalization": (layers.PrivateNormalization, {"noise_multiplier": 1.0, "lower": 0.0, "upper": 1.0}),
    "ClippedOptimizer": (optimizers.ClippedOptimizer, SGD | {"l2_norm_clip": 1.0}),
    "NoisyOptimizer": (optimizers.NoisyOptimizer, SGD | {"noise_allocation": {"a": 2.0}}),
    "Poisson": (sampling.Poisson, {"batch_size": 8}),
    "TruncatedPoisson": (sampling.TruncatedPoisson, {"batch_size": 8, "maximum": 16}),
    "FixedSize": (sampling.FixedSize, {"batch_size": 8}),
    "Correlated": (tfdp.noise.Correlated, {"decay": 0.5}),
    "PrivacyBudget": (tfdp.callbacks.PrivacyBudget, {"epsilon": 2.0, "delta": 0.5}),
}


def numpys(value):
    """The same numbers, as NumPy has them."""
    if isinstance(value, list):
        return [numpys(one) for one in value]
    if isinstance(value, dict):
        return {name: numpys(one) for name, one in value.items()}
    kinds = {int: np.int64, float: np.float32}
    return kinds.get(type(value), lambda same: same)(value)


def told(made):
    """What an object says of itself, as files hold it."""
    if hasattr(made, "get_config"):
        config = keras.saving.serialize_keras_object({**made.get_config(), "name": ""})
        return re.sub(r'(seed": |sgd_)\d+|sgd(?=")', "", json.dumps(config, sort_keys=True))  # anew each time
    return json.dumps(made.to_json()) if hasattr(made, "to_json") else repr(made)


@pytest.mark.parametrize("name", MADE)
def test_a_number_of_numpy_is_taken_and_written_as_a_plain_one(name):
    kind, arguments = MADE[name]
    assert told(kind(**numpys(arguments))) == told(kind(**arguments))


def plain_alone(source):
    """Checks that take Python's own numbers alone: they turn booleans away, and then ask `isinstance(x, int)`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.BoolOp):
            inside = [ast.unparse(one.args[1]) for one in ast.walk(node) if _asks(one)]
            if "bool" in inside and {"int", "int | float", "float"} & set(inside):
                found.append(ast.unparse(node))
    return found


def _asks(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2


@pytest.mark.slow
def test_no_check_of_an_argument_takes_plain_numbers_alone():
    sources = [file for folder in ("tfdp_layers", "accounting", "callbacks") for file in (ROOT / folder).rglob("*.py")]
    read = {"tfdp_layers/commands/training_options.py"}  # of text
    found = {str(file.relative_to(ROOT)): plain_alone(file.read_text(encoding="utf-8")) for file in sources}
    assert {name: checks for name, checks in found.items() if checks and name not in read} == {}
    assert plain_alone("isinstance(n, bool) or not isinstance(n, int) or n < 1")
