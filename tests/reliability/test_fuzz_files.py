"""Ledgers and model files of any content: read as what they are, or refused by our own error; nothing is executed.

FUZZ=20000 pytest tests/reliability/test_fuzz_files.py -k "ledger or model" runs the long version.
"""

import io
import json
import pickle
import sys
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import NAMES, damaged_bytes, damaged_trees, examples

import tfdp_layers as tfdp
from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, MetricRelease, NumericSparse, Release
from tfdp_layers.model_file import ModelFileError
from tfdp_layers.sampling import Poisson, TruncatedPoisson

EXECUTES = (
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "subprocess.Popen",
    "marshal.loads",
)
seen: list[str] = []
watching = [False]
sys.addaudithook(lambda event, _: seen.append(event) if watching[0] and event in EXECUTES else None)


class Watched:
    """Fails if anything was executed, unpickled or imported by a name in NAMES inside of the block."""

    def __enter__(self):
        seen.clear()
        watching[0] = True

    def __exit__(self, *_):
        watching[0] = False
        assert not seen, seen
        assert "antigravity" not in sys.modules


def whole_ledger():
    ledger = Ledger(dataset="mnist", budget=(50.0, 1e-5))
    groups = (GroupNoise("a", 0.5, 1.5), GroupNoise("b", 2.0, 6.0))
    for release, steps in (
        (Release(groups, Poisson(600), 60_000), 5),
        (Release(groups, TruncatedPoisson(600, 700), 60_000, nominal_noise_multiplier=2.0, generator="secure"), 3),
        (MetricRelease(groups[:1], Poisson(60_000), 60_000), 1),
    ):
        ledger.reserve(ledger.begin(release), steps)
    return ledger.to_json()


def whole_party_ledger():
    ledger = Ledger()
    ledger.reserve(ledger.begin(NumericSparse(1.0, 2.0, 3.0, 4.0)), 7)
    return ledger.to_json()


LEDGERS = [whole_ledger(), whole_party_ledger()]


def without_digest(text):
    """Without it damage has to be found by what it damages."""
    return {key: value for key, value in json.loads(text).items() if key != "digest"}


texts = st.sampled_from(LEDGERS).flatmap(
    lambda text: (
        damaged_trees(without_digest(text)).map(json.dumps)
        | damaged_trees(json.loads(text)).map(json.dumps)
        | damaged_bytes(text.encode()).map(lambda data: data.decode(errors="replace"))
        | st.text()
    )
)


def test_the_watch_sees_what_it_is_there_for():
    with pytest.raises(AssertionError, match="find_class"), Watched():
        pickle.loads(pickle.dumps(Path))


@examples(200)
@given(texts)
def test_a_ledger_of_any_text_is_whole_or_refused(text):
    with Watched():
        try:
            ledger = Ledger.from_json(text)
        except LedgerError:
            return
    assert Ledger.from_json(ledger.to_json()).entries == ledger.entries
    assert all(entry.charges >= 0 and entry.release.event() for entry in ledger.entries)


@pytest.mark.parametrize("text", LEDGERS, ids=["records", "party"])
def test_no_single_changed_character_is_read_as_another_count(text):
    whole = Ledger.from_json(text)
    digits = [i for i, character in enumerate(text) if character.isdigit()]
    for i in digits[:: max(1, len(digits) // 60)]:
        with pytest.raises(LedgerError):
            Ledger.from_json(text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :])
    bare = json.dumps(without_digest(text))
    assert Ledger.from_json(bare).entries == whole.entries
    changed = json.loads(bare)
    changed["entries"][0]["steps"] -= 1  # The witness: without a digest it is believed.
    assert Ledger.from_json(json.dumps(changed)).steps == whole.steps - 1


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
        del file["vars"]["privacy_ledger"]
        file["vars"]["privacy_ledger"] = np.frombuffer(ledger, np.uint8)
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
        with Watched(), pytest.raises(ModelFileError, match="not on the list"):
            tfdp.load_model(path)


def test_a_damaged_ledger_leaves_a_model_that_refuses_to_state_or_train(saved):
    _, members, path = saved
    model = tfdp.load_model(_written(path, zipped(members)))
    weights = path.with_name("damaged.weights.h5")
    weights.write_bytes(with_ledger(members["model.weights.h5"], b'{"format": 1'))
    with pytest.raises(ValueError, match="not a ledger that can be trusted"):
        model.load_weights(weights)
    with pytest.warns(UserWarning, match="could not be loaded"):
        model.load_weights(weights, skip_mismatch=True)
    with pytest.raises(ValueError, match="the ledger saved with them was not"):
        model.privacy_statement(1e-5)
    model.load_weights(_written(weights, members["model.weights.h5"]))
    assert model.privacy_statement(1e-5).steps == 2


def _written(path, data):
    path.write_bytes(data)
    return path
