"""Model files of any content: loaded as private models, or refused by our own error; nothing is executed.

FUZZ=20000 pytest tests/reliability/test_fuzz_models.py -k any_content runs the long version.
"""

import io
import json
import zipfile

import h5py
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdp_layers as tfdp
from helpers.ledgers import LEDGERS
from helpers.mutations import NAMES, damaged_bytes, damaged_trees, examples
from helpers.watching import Watched
from tfdp_layers.accounting.stored import STORED_LEDGER
from tfdp_layers.models.loading import ModelFileError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small trained model's file: its bytes, its members, and a place for damaged ones."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    model = tfdp.PrivateSequential(
        [keras.Input((4,)), tfdp.layers.ClippedDense(3, **clips), tfdp.layers.ClippedDense(2, **clips)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), loss)
    model.fit(np.zeros((8, 4), "float32"), np.zeros(8, "int64"), batch_size=4, verbose=0)
    path = tmp_path_factory.mktemp("models") / "model.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    loaded = tfdp.load_model(path)  # and imports all that a load imports
    assert (loaded.ledger.steps, loaded.ledger.entries) == (2, model.ledger.entries)
    return path.read_bytes(), members, path.with_name("damaged.keras")


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_ledger(weights, ledger):
    """The weights file with other bytes where the ledger was."""
    buffer = io.BytesIO(weights)
    with h5py.File(buffer, "r+") as file:
        del file["vars"][STORED_LEDGER]
        file["vars"][STORED_LEDGER] = np.frombuffer(ledger, np.uint8)
    return buffer.getvalue()


@st.composite
def damaged_models(draw, whole, members):
    kind = draw(st.sampled_from(["config", "config", "file", "weights", "ledger", "member"]))
    if kind == "file":
        return draw(damaged_bytes(whole))
    changed = dict(members)
    if kind == "config":
        changed["config.json"] = json.dumps(draw(damaged_trees(json.loads(members["config.json"])))).encode()
    elif kind == "member":
        del changed[draw(st.sampled_from(sorted(changed)))]
    elif kind == "ledger":
        changed["model.weights.h5"] = with_ledger(members["model.weights.h5"], draw(damaged_bytes(LEDGERS[0].encode())))
    else:
        changed["model.weights.h5"] = draw(damaged_bytes(members["model.weights.h5"]))
    return zipped(changed)


@pytest.mark.slow
@examples(40)
@given(data=st.data())
def test_a_model_file_of_any_content_is_loaded_or_refused(saved, data):
    whole, members, path = saved
    path.write_bytes(data.draw(damaged_models(whole, members)))
    with Watched():
        try:
            model = tfdp.load_model(path)
        except ModelFileError:
            return
    assert isinstance(model, tfdp.PrivateSequential | tfdp.PrivateModel)


@pytest.mark.parametrize(("module", "name"), [*NAMES, (None, "__lambda__")])
def test_names_off_the_list_are_refused_wherever_they_stand(saved, module, name):
    _, members, path = saved
    for place in ("layer", "loss", "activation"):
        config = json.loads(members["config.json"])
        planted = {"module": module, "class_name": name, "config": {}, "registered_name": name}
        if place == "layer":
            config["config"]["layers"][1] = planted
        elif place == "loss":
            config["compile_config"]["loss"] = planted
        else:
            config["config"]["layers"][1]["config"]["activation"] = planted
        path.write_bytes(zipped({**members, "config.json": json.dumps(config).encode()}))
        with Watched(), pytest.raises(ModelFileError, match=r"not on the list|holds code"):
            tfdp.load_model(path)


def test_a_damaged_ledger_leaves_a_model_as_it_was(saved):
    _, members, path = saved
    model = tfdp.load_model(_written(path, zipped(members)))
    weights = path.with_name("damaged.weights.h5")
    weights.write_bytes(with_ledger(members["model.weights.h5"], b'{"format": 1'))
    with pytest.raises(ValueError, match="not a ledger that can be trusted"):
        model.load_weights(weights)
    with (
        pytest.warns(UserWarning, match="could not be loaded"),
        pytest.raises(ValueError, match="the ledger saved with them was not"),
    ):
        model.load_weights(weights, skip_mismatch=True)
    assert model.privacy_statement(1e-5).steps == 2
    model.load_weights(_written(weights, members["model.weights.h5"]))
    assert model.privacy_statement(1e-5).steps == 2


def _written(path, data):
    path.write_bytes(data)
    return path
