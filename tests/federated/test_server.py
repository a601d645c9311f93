"""The server takes nothing it cannot trust and survives being killed."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.federation import BAD, SIZE, server_of, upload
from tfdp_layers.federated.server import RefusedUpload, Server


def state(server: Server) -> tuple:
    return server.round, server.weights.tobytes(), server.counters.tobytes()


def test_uploads_are_added_and_counted_and_the_most_counted_are_downloaded():
    server = server_of()
    server.receive("a", 1, upload([3, 7], [0.5, -0.25]))
    server.receive("b", 1, upload([7, 19], [1.0, 1.0]))
    expected = np.arange(SIZE, dtype=np.float32)
    expected[[3, 7, 19]] += [0.5, 0.75, 1.0]
    np.testing.assert_array_equal(server.weights, expected)
    assert list(np.flatnonzero(server.counters)) == [3, 7, 19]
    received = server.download(0.1)
    assert list(received.indices) == [3, 7]
    np.testing.assert_array_equal(received.values, expected[[3, 7]])
    received.values[:] = 99
    assert server.weights.max() < 99, "a download is a copy"


@pytest.mark.parametrize("bad", BAD)
def test_an_upload_that_breaks_a_rule_is_refused_by_name_and_changes_nothing(bad):
    server = server_of()
    before = state(server)
    update, reason = BAD[bad]
    with pytest.raises(RefusedUpload, match=rf"party 'mallory' in round 1 was ignored: .*{reason}"):
        server.receive("mallory", 1, update)
    assert state(server) == before
    server.receive("mallory", 1, upload([1], [0.1]))  # It may still send a good one.


@pytest.mark.parametrize("number", [0, 2, -1, None, "1", 1.0])
def test_an_upload_for_another_round_is_late(number):
    server = server_of()
    before = state(server)
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("slow", number, upload([1], [0.1]))
    assert state(server) == before


def test_a_party_uploads_once_in_a_round():
    server = server_of()
    server.receive("a", 1, upload([1], [0.1]))
    before = state(server)
    with pytest.raises(RefusedUpload, match="already uploaded"):
        server.receive("a", 1, upload([2], [0.1]))
    assert state(server) == before
    server.start_round()
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("b", 1, upload([2], [0.1]))
    server.receive("a", 2, upload([2], [0.1]))


def test_finite_uploads_never_add_up_to_infinity():
    server = Server(np.zeros(SIZE), 1.0, 3e38)
    server.receive("a", server.start_round(), upload([0, 1], [3e38, 0.5]))
    with pytest.raises(RefusedUpload, match="infinite"):
        server.receive("a", server.start_round(), upload([0, 1], [3e38, 0.5]))
    assert np.isfinite(server.weights).all()
    assert list(server.counters[:2]) == [1, 1]


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_saved(tmp_path):
    path = tmp_path / "server.npz"
    program = f"""
import os, numpy as np
from tfdp_layers.federated.server import Server
from tfdp_layers.federated.selection import Update
server = Server(np.arange({SIZE}), 0.2, 1.0)
for value in (0.5, 0.25):
    server.receive("a", server.start_round(), Update(np.array([3]), np.array([value], np.float32)))
    server.save({str(path)!r})
server.receive("a", server.start_round(), Update(np.array([3]), np.array([1], np.float32)))
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    server = Server(np.arange(SIZE), 0.2, 1.0)
    server.restore(path)
    assert (server.round, server.weights[3], server.counters[3]) == (2, 3.75, 2)
    with pytest.raises(RefusedUpload, match="too late"):
        server.receive("a", 3, upload([1], [0.1]))
    server.receive("a", server.start_round(), upload([1], [0.1]))


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "other model", "infinite", "pickle"])
def test_a_damaged_state_is_refused_and_changes_nothing(tmp_path, damage):
    path = tmp_path / "server.npz"
    server_of().save(path)
    fields = dict(np.load(path))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage in ("text", "empty"):
        path.write_text("no archive" if damage == "text" else "")
    else:
        change = {
            "other model": {"weights": np.zeros(3, np.float32)},
            "infinite": {"weights": np.full(SIZE, np.inf, np.float32)},
            "pickle": {"weights": np.array([None] * SIZE)},
        }[damage]
        np.savez(path, **{**fields, **change})
    server = server_of()
    before = state(server)
    with pytest.raises(ValueError, match=r"server\.npz"):
        server.restore(path)
    assert state(server) == before


def test_a_full_disk_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "server.npz"
    server = server_of()
    server.save(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    server.start_round()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        server.save(path)
    monkeypatch.undo()
    server.restore(path)
    assert server.round == 1


@pytest.mark.parametrize("weights", [np.zeros(0), np.zeros((2, 2)), np.array([np.nan])], ids=str)
def test_a_server_needs_finite_weights(weights):
    with pytest.raises(ValueError, match="finite numbers"):
        Server(weights, 0.1, 1.0)


def test_of_two_saves_at_once_the_newer_state_stands(tmp_path, monkeypatch):
    """The file was put in place outside of the lock: an older state replaced a newer one."""
    server, replace, waits = server_of(), os.replace, threading.Event()

    def slow(*given):
        if threading.current_thread() is first:
            waits.set()
            time.sleep(0.3)
        replace(*given)

    monkeypatch.setattr(os, "replace", slow)
    first = threading.Thread(target=server.save, args=[tmp_path / "server.npz"])
    first.start()
    assert waits.wait(60)
    server.start_round()
    server.save(tmp_path / "server.npz")
    first.join()
    assert int(np.load(tmp_path / "server.npz")["round"]) == server.round


def test_a_save_keeps_rights_and_links_and_looks_once_for_what_killed_jobs_left(tmp_path, monkeypatch):
    server, file, link, looked = server_of(), tmp_path / "server.npz", tmp_path / "link.npz", []
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: (looked.append(folder), iterdir(folder))[1])
    server.save(file)
    file.chmod(0o640)
    link.symlink_to(file)
    server.save(link)
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert looked == [tmp_path]
