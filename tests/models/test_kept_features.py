"""Files of features: for their owner alone, and of names that tell nothing of the records."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.models.kept_features import secret_of

X = np.random.default_rng(0).integers(0, 2, (20, 6)).astype("float32")


def name_in(folder, x):
    """The name of the file that keeps features of x."""
    tfdp.features(keras.layers.Rescaling(2.0), x, cache=folder)
    return {one.name for one in folder.glob("features-*.npy")}


def test_folder_and_files_are_for_their_owner_alone(tmp_path):
    earlier = os.umask(0o022)
    try:
        assert len(name_in(tmp_path / "kept", X)) == 1
    finally:
        os.umask(earlier)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "kept").iterdir())
    assert [one.stat().st_mode & 0o777 for one in files] == [0o600] * 2
    assert {one.name for one in files} == {"features.key", *name_in(tmp_path / "kept", X)}


def test_a_right_guess_of_a_record_has_another_name_elsewhere(tmp_path):
    owners = name_in(tmp_path / "owner", X)
    guesses = {name for last in (0.0, 1.0) for name in name_in(tmp_path / str(last), np.vstack([X[:-1], [[last] * 6]]))}
    assert not owners & name_in(tmp_path / "right", X)
    assert not owners & guesses
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "features.key").write_bytes((tmp_path / "owner" / "features.key").read_bytes())
    assert owners == name_in(tmp_path / "taken", X)  # the secret is all that tells them apart


@pytest.mark.slow
def test_another_process_finds_what_this_one_kept(tmp_path):
    (name,) = name_in(tmp_path, X)
    made = (tmp_path / name).stat().st_mtime_ns
    np.save(tmp_path / "x.npy", X)
    program = (
        "import sys, keras, numpy as np, tfdp_layers as tfdp;"
        "tfdp.features(keras.layers.Rescaling(2.0), np.load(sys.argv[1] + '/x.npy'), cache=sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, timeout=300)
    assert [one.name for one in tmp_path.glob("features-*")] == [name]
    assert (tmp_path / name).stat().st_mtime_ns == made


@pytest.mark.parametrize("links", [True, False])
def test_of_several_at_once_all_get_one_secret(links, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    many = 8 if links else 1
    start = Barrier(many)

    def ask(folder):
        start.wait(60)
        return secret_of(folder)

    with ThreadPoolExecutor(many) as pool:
        for attempt in range(5):
            folder = tmp_path / str(attempt)
            found = set(pool.map(ask, [folder] * many))
            assert found == {secret_of(folder)}
            assert [one.name for one in folder.iterdir()] == ["features.key"]


def test_an_interrupted_write_leaves_no_secret(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            secret_of(tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(secret_of(tmp_path)) == 32


@pytest.mark.parametrize("link", [False, True])
def test_a_secret_that_is_not_whole_is_refused(link, tmp_path):
    secret = tmp_path / "features.key"
    secret.symlink_to(tmp_path / "gone") if link else secret.write_bytes(b"")
    with pytest.raises(ValueError, match="holds 0 bytes in the place of 32"):
        name_in(tmp_path, X)
