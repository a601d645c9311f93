"""Disks that are full or read-only, files cut short, saves that break off, clocks that jump, processes that die."""

import os
import resource
import stat
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.models.loading import ModelFileError

_FAULTS = """
import os, resource, signal, sys
from pathlib import Path
from tfdp_layers.accounting import GroupNoise, Ledger, LedgerError, Release
from tfdp_layers.sampling import Poisson
path = Path(sys.argv[1])
release = Release((GroupNoise("all", 1.0, 1.0),), Poisson(600), 60_000)
ledger = Ledger(path)
token = ledger.begin(release)
ledger.reserve(token, 3)
whole = path.read_text()

def refused(text, change=lambda: ledger.reserve(token, 1)):
    try:
        change()
    except LedgerError as error:
        assert text in str(error), error
        assert path.read_text() == whole
        assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.json", "ledger.json.mark"], "left over"
    else:
        raise AssertionError("not refused")

resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, resource.RLIM_INFINITY))
refused("cannot be written")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.settle(token, 3)  # and the file is as it should be, once there is room
assert Ledger(path).steps == ledger.steps >= 3
whole = path.read_text()
if os.getuid() == 0:
    for file in (path.parent, *path.parent.iterdir()):
        os.chown(file, 65534, 65534)
    os.setuid(65534)
path.parent.chmod(0o500)
ledger.reserve(token, 1)  # It is open: a row at its end needs no right on the folder,
assert Ledger.read(path).steps == ledger.steps
whole = path.read_text()
two = Ledger()
for multiplier in (1.0, 2.0):
    two.reserve(two.begin(Release((GroupNoise("all", 1.0, multiplier),), Poisson(600), 60_000)), 1)
refused("cannot be written", lambda: ledger.merge(two))  # but a new file does.
try:
    Ledger(path)
except LedgerError as error:
    assert "not writable" in str(error)
else:
    raise AssertionError("a folder that cannot be written was accepted")
path.parent.chmod(0o700)
print("sound")
"""


@pytest.mark.slow
def test_a_full_disk_and_a_read_only_folder_refuse_the_step_and_keep_the_file(tmp_path):
    folder = tmp_path / "ledger"
    folder.mkdir()
    for parent in tmp_path.parents:  # so that a user without rights can reach it
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    program = [sys.executable, "-c", _FAULTS, str(folder / "ledger.json")]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.stdout == "sound\n", done.stderr


@pytest.fixture(scope="module")
def trained():
    """A model after two steps, and its data."""
    clips = {"input_clip": 1.0, "upstream_clip": 0.5}
    model = tfdp.PrivateSequential([keras.Input((4,)), tfdp.layers.ClippedDense(3, **clips)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer(keras.optimizers.SGD(0.1), 1.0), loss)
    x, y = np.ones((8, 4), "float32"), np.zeros(8, "int64")
    model.fit(x, y, batch_size=4, verbose=0)
    return model, x, y


def test_a_save_that_breaks_off_leaves_the_earlier_file(trained, tmp_path, monkeypatch):
    model, *_ = trained
    for path, save in ((tmp_path / "m.keras", model.save), (tmp_path / "m.weights.h5", model.save_weights)):
        save(path)
        whole = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, limits[1]))
        try:
            with pytest.raises(OSError):  # noqa: PT011 (h5py and zipfile word it each in their own way)
                save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole

        def dies(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dies)
            with pytest.raises(KeyboardInterrupt):
                save(path)
        assert path.read_bytes() == whole
        assert os.listdir(tmp_path) == [path.name]
        path.unlink()


@pytest.mark.parametrize("kept", [0, 0.1, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_refused(trained, tmp_path, kept):
    model, *_ = trained
    path = tmp_path / "m.keras"
    model.save(path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(ModelFileError, match="not a whole model file"):
        tfdp.load_model(path)


def test_a_jumping_clock_changes_no_count(trained, tmp_path, monkeypatch):
    model, x, y = trained
    jumps = iter(np.random.default_rng(0).uniform(-1e9, 4e9, 100_000).tolist())
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: next(jumps))
    model.ledger = Ledger(tmp_path / "ledger.json")
    before = int(model.optimizer.releases)
    budget = tfdp.callbacks.PrivacyBudget(500.0, 1e-2)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[budget])
    assert model.ledger.steps - before == int(model.optimizer.releases) - before == 6
    monkeypatch.undo()
    assert Ledger(tmp_path / "ledger.json").steps == model.ledger.steps
    model.ledger.close()


def test_a_ledger_that_fails_in_mid_training_stops_it_before_the_step(trained, tmp_path, monkeypatch):
    model, x, y = trained
    model.ledger = Ledger(tmp_path / "ledger.json")
    made, weights = int(model.optimizer.releases), model.get_weights()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="No space left"):
        model.fit(x, y, batch_size=4, verbose=0)
    assert int(model.optimizer.releases) == made
    for old, new in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
