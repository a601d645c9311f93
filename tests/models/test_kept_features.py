"""Files of features: for their owner alone, and of names that tell nothing of the records."""

import errno
import os
import subprocess
import sys
import time
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


def half_files(folder):
    return sorted(one.name for one in folder.iterdir() if "partial" in one.name)


def test_two_containers_of_one_pid_write_no_file_together(tmp_path, monkeypatch):
    """Half files were named by the pid, 1 in every container: one job's half file got the other's final name."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    seen, rescale, stands = [], keras.layers.Rescaling(2.0), []
    real, others = os.fsync, []

    def fsync(descriptor):
        real(descriptor)
        if half_files(tmp_path) and not others:  # all of one is written, and has no name yet
            others.append(True)
            seen.append(tfdp.features(rescale, X, cache=tmp_path))
            stands.extend(one.stat().st_ino for one in tmp_path.glob("features-*.npy"))

    secret_of(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    seen.append(tfdp.features(rescale, X, cache=tmp_path))
    assert len(seen) == 2
    assert stands == [one.stat().st_ino for one in tmp_path.glob("features-*.npy")]  # the first one's, which is mapped
    for found in seen:
        np.testing.assert_array_equal(found, 2 * X)
    assert not half_files(tmp_path)


def test_features_reach_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    secret_of(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        name_in(tmp_path, X)
    assert [one.name for one in tmp_path.iterdir()] == ["features.key"]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no room can be claimed here")
@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EOPNOTSUPP, False)])
def test_a_full_disk_is_an_error_before_the_features_are_computed(number, full, tmp_path, monkeypatch):
    """The file was as long as it should be, and had no room: the process was ended by SIGBUS."""
    refused = OSError(number, os.strerror(number))
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(refused))
    if not full:
        assert len(name_in(tmp_path, X)) == 1
        return
    with pytest.raises(OSError, match=r"features-\w+\.npy'$") as refusal:
        name_in(tmp_path, X)
    assert refusal.value.errno == number
    assert [one.name for one in tmp_path.iterdir()] == ["features.key"]


def test_what_killed_jobs_left_is_removed_an_hour_later(tmp_path):
    whole = {*name_in(tmp_path, X), "features.key", "mine.partial", "features-0.npy"}
    digest, old = "0" * 32, time.time() - 7200
    left = [f".partial.{'a' * 16}.features-{digest}.npy", f"features-{digest}.npy.1.partial"]
    left += [f".partial.{'b' * 16}.features-{digest}.npy"]
    for name in (*left, "mine.partial", "features-0.npy"):
        (tmp_path / name).write_text("half")
        if name != left[-1]:  # whose writer is at it
            os.utime(tmp_path / name, (old, old))
    name_in(tmp_path, X)
    assert {one.name for one in tmp_path.iterdir()} == whole | {left[-1]}


@pytest.mark.parametrize("left", [0, 60, 200])
def test_a_file_of_features_that_was_cut_off_is_named_with_the_fix(left, tmp_path):
    (name,) = name_in(tmp_path, X)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
    with pytest.raises(ValueError, match=rf"{name} was cut off or changed. Remove it"):
        name_in(tmp_path, X)


GARBLED = {
    "brackets": lambda raw: raw[:10] + b"{'descr': (((" + raw[23:],
    "no name": lambda raw: raw.replace(b"'descr'", b"'d\nscr'"),
    "a type of none": lambda raw: raw.replace(b"<f4", b"|O "),
    "other columns": lambda raw: raw.replace(b"(20, 6)", b"(20, 5)"),
    "too much": lambda raw: raw + b"more",
    "another order": lambda raw: raw.replace(b"False", b"True "),
    "larger than any memory": lambda raw: raw.replace(b"(20, 6), }" + b" " * 19, b"(20, 9999999999999999999), }\x20"),
    "a link to nothing": None,
}


@pytest.mark.parametrize("change", GARBLED)
def test_a_file_of_features_that_was_changed_is_named_with_the_fix(change, tmp_path):
    (name,) = name_in(tmp_path, X)
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if change == "a link to nothing":
        (tmp_path / name).symlink_to(tmp_path / "gone")
    else:
        assert GARBLED[change](raw) != raw
        (tmp_path / name).write_bytes(GARBLED[change](raw))
    with pytest.raises(ValueError, match=rf"{name} was cut off or changed. Remove it"):
        name_in(tmp_path, X)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_files_hold_what_is_computed_without_them(dtype, tmp_path):
    layer, caches = keras.layers.Dense(3), (None, tmp_path, tmp_path)
    found = [tfdp.features(layer, X, batch_size=7, cache=one, dtype=dtype) for one in caches]
    for one in found:
        assert one.dtype == np.dtype(dtype or "float32")
        np.testing.assert_array_equal(one, found[0])
