"""A model file is opened within stated limits of memory: what it declares is added up before it is read."""

import io
import json
import resource
import zipfile

import h5py
import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.loading import ModelFileError

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    clips = {"input_clip": 1.0, "upstream_clip": 1.0}
    model = tfdp.PrivateSequential(
        [keras.Input((4,)), tfdp.layers.ClippedDense(300, **clips), tfdp.layers.ClippedDense(2, **clips)]
    )
    model.compile(tfdp.optimizers.NoisyOptimizer("adam", 1.0), "mse")
    model.fit(np.zeros((8, 4), "float32"), np.zeros((8, 2), "float32"), batch_size=4, verbose=0)
    path = tmp_path_factory.mktemp("models") / "model.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def changed_arrays(weights, change):
    buffer = io.BytesIO(weights)
    with h5py.File(buffer, "r+") as file:
        change(file)
    return buffer.getvalue()


def packed_zeros(file):
    file.create_dataset("vars/more", (2**20, 1000), "float32", chunks=(1024, 1000), compression="gzip")


def with_units(config, units):
    value = json.loads(config)
    value["config"]["layers"][1]["config"]["units"] = units
    return json.dumps(value).encode()


BOMBS = {
    "weights of zeros": lambda m: m | {"model.weights.h5": bytes(300 * MEGABYTE)},
    "a config of blanks": lambda m: m | {"config.json": m["config.json"] + b" " * (100 * MEGABYTE)},
    "another member": lambda m: m | {"assets/vocabulary.txt": bytes(300 * MEGABYTE)},
    "arrays packed again": lambda m: m | {"model.weights.h5": changed_arrays(m["model.weights.h5"], packed_zeros)},
    "a layer of many units": lambda m: m | {"config.json": with_units(m["config.json"], 10**9)},
    "a layer of too many units": lambda m: m | {"config.json": with_units(m["config.json"], 10**30)},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_file_that_asks_for_too_much_is_refused_before_it_gets_it(members, bomb, tmp_path):
    path = written(tmp_path / "bomb.keras", bomb(members))
    assert path.stat().st_size < 2 * MEGABYTE
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match=r"allowed|at most|whole model file|no model can be made"):
        tfdp.load_model(path, max_bytes=256 * MEGABYTE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # kB


def test_the_limit_counts_what_the_optimizer_makes_and_can_be_raised(members, tmp_path):
    path = written(tmp_path / "model.keras", members)
    weights = 4 * (4 * 300 + 300 + 300 * 2 + 2)
    assert len(members["model.weights.h5"]) > weights
    with pytest.raises(ModelFileError, match="with a larger max_bytes="):
        tfdp.load_model(path, max_bytes=2 * weights)
    model = tfdp.load_model(path, max_bytes=len(members["model.weights.h5"]) + 20 * weights)
    assert model.ledger.steps == 2
    assert tfdp.load_model(path).ledger.steps == 2


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True])
def test_a_limit_is_a_positive_number(limit, tmp_path):
    with pytest.raises(ValueError, match="max_bytes"):
        tfdp.load_model(tmp_path / "none.keras", max_bytes=limit)


def test_arrays_in_other_files_are_refused(members, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(64))

    def point_outside(file):
        file.create_dataset("vars/more", (4,), "float32", external=[(str(tmp_path / "secret"), 0, 16)])

    weights = changed_arrays(members["model.weights.h5"], point_outside)
    with pytest.raises(ModelFileError, match="other files"):
        tfdp.load_model(written(tmp_path / "model.keras", members | {"model.weights.h5": weights}))
