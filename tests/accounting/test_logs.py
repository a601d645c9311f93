"""What a number in the logs is called proves nothing, and one place alone goes by it."""

import ast
import pickle
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting.logs import is_private, is_unprotected, mark_unprotected, posing_names

ROOT = Path(__file__).resolve().parents[2]
_PREFIX = re.compile(r"\^?val_?(\.?\*)?")


def by_prefix(source):
    """The strings of a source that are the prefix of validation metrics and nothing else."""
    strings = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return [one.value for one in strings if isinstance(one.value, str) and _PREFIX.fullmatch(one.value)]


def test_no_other_code_goes_by_the_prefix_of_a_name():
    found = {
        str(file.relative_to(ROOT)): by_prefix(file.read_text(encoding="utf-8"))
        for folder in ("tfdp_layers", "callbacks", "accounting")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert [name for name, strings in found.items() if strings] == ["accounting/logs.py"]


@pytest.mark.parametrize(
    "planted",
    ["n.startswith('val_')", "n[:4] == 'val_'", "n.removeprefix('val_')", "f'val_{n}'", "re.match('^val_', n)"],
)
def test_the_search_finds_what_is_planted(planted):
    assert by_prefix(f"kept = {planted}")


def test_a_name_is_public_where_nothing_poses_and_validation_data_are_there():
    assert not is_private("val_loss", validated=True, posing=False)
    assert is_private("val_loss", validated=False, posing=False)
    assert is_private("val_loss", validated=True, posing=True)
    assert is_private("loss", validated=True, posing=False)
    assert not is_private("epsilon", validated=False, posing=True)
    assert posing_names(["value", "valence", "sum_val_loss", "dense", "VAL_x"]) == []
    assert posing_names(["val", "val_acc", "loss"]) == ["val", "val_acc"]


def model_of(output, metric="mae"):
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in (output, "other")}
    model = tfdp.make_private(keras.Model(inputs, outputs))
    model.compile(
        tfdp.optimizers.ClippedOptimizer("adam", noise_multiplier=1.0),
        loss=dict.fromkeys(outputs, "mse"),
        metrics={name: [metric] for name in outputs},
    )
    return model


def data_of(output, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(64, 3)).astype("float32")
    return x, {output: x[:, :1] * 0.3, "other": x[:, 1:2]}


@pytest.mark.parametrize("output", ["val", "value"])
def test_a_history_keeps_which_of_its_numbers_are_private(output):
    model = model_of(output)
    first = model.fit(*data_of(output), batch_size=32, epochs=1, verbose=0, validation_data=data_of(output, 5))
    second = model.fit(*data_of(output), batch_size=32, epochs=1, verbose=0)
    public = {name for name in first.history if name.startswith("val_")} if output == "value" else set()
    assert set(first.unprotected) == set(first.history) - public, "of its own fit, not of the later one"
    assert set(second.unprotected) == set(second.history)
    assert is_unprotected(first, f"{output}_mae")
    assert is_unprotected(first, "val_other_mae") == (output == "val")
    again = keras.callbacks.History()
    again.history, again.unprotected = pickle.loads(pickle.dumps((first.history, first.unprotected)))
    assert is_unprotected(again, f"{output}_mae")


def test_while_a_fit_runs_the_model_knows_it():
    told = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            told.append(is_unprotected(self.model.history, "val_mae"))

    model_of("val").fit(*data_of("val"), batch_size=32, epochs=1, verbose=0, callbacks=[Look()])
    model_of("value").fit(
        *data_of("value"), batch_size=32, epochs=1, verbose=0, callbacks=[Look()], validation_data=data_of("value", 5)
    )
    assert told == [True, False]


def test_of_a_plain_mapping_the_name_is_the_callers_word():
    assert not is_unprotected({"epsilon": [1.0], "val_mae": [0.5]}, "val_mae")
    assert is_unprotected({"epsilon": [1.0], "mae": [0.5]}, "mae")


def test_a_history_that_is_used_twice_keeps_both():
    history = keras.callbacks.History()
    history.history = {"val_a": [1.0], "a": [1.0]}
    mark_unprotected(history, lambda name: name == "val_a")
    mark_unprotected(history, lambda name: name == "a")
    assert history.unprotected == ("val_a", "a")
