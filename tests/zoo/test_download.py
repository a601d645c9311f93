"""A download ends within seconds unless data arrive, whatever it hangs in; what it leaves in Keras' cache is whole.

Keras is a stand-in here, found by the process that downloads where this one would find it: no network is needed.
"""

import http.server
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.variants import slow_but
from tfdp_layers.zoo import datasets, download, image_files

HEAD = """
import os, time, types, numpy as np
home = os.environ["KERAS_HOME"]
folder = os.path.join(home, "datasets", "fashion-mnist")

def save(name, content):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "ab") as file:
        file.write(content)

def arrays():
    x = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28)
    return (x, np.array([1, 2, 3], np.uint8)), (x[:1], np.array([4], np.uint8))
"""
TAIL = "datasets = types.SimpleNamespace(fashion_mnist=types.SimpleNamespace(load_data=load_data))\n"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Keras' cache, empty, on a machine without data; it waits two seconds where users wait ten."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(download, "_PATIENCE_SECONDS", 2.0)
    return tmp_path / "keras" / "datasets"


@pytest.fixture
def keras_does(tmp_path, monkeypatch):
    """Puts a stand-in for Keras on the import path, with this body of `load_data`."""

    def write(body: str) -> None:
        package = tmp_path / "stand_in" / "keras"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(
            HEAD + "def load_data():\n" + textwrap.indent(textwrap.dedent(body), " ") + "\n" + TAIL
        )
        monkeypatch.syspath_prepend(package.parent)

    return write


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_was_downloaded_is_returned_and_kept(cache, keras_does):
    keras_does("save('a.gz', b'1' * 1000); save('b.gz', b'2'); return arrays()")
    got = download.download("fashion_mnist", cache)
    np.testing.assert_array_equal(got.x_train, np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28))
    assert got.y_test.tolist() == [4]
    assert files(cache) == ["fashion-mnist/a.gz", "fashion-mnist/b.gz"]


@pytest.mark.parametrize(
    "body",
    slow_but(
        ["time.sleep(600)"],
        [
            "time.sleep(600)",  # a name server or a firewall that never answers
            "while True:\n    save('a.gz', b'1'); time.sleep(0.05)",  # a byte now and then
            "save('a.gz', b'1' * 200_000); time.sleep(600)",  # a connection that dies half-way
        ],
    ),
)
def test_a_download_that_gets_nowhere_is_given_up_in_seconds_and_leaves_nothing(cache, keras_does, body):
    keras_does(body)
    before = time.monotonic()
    with pytest.raises(download.DownloadFailed, match="less than 50 kB arrived in 2 seconds"):
        download.download("fashion_mnist", cache)
    assert time.monotonic() - before < 20  # most of it to start Python on a busy machine
    assert list(cache.iterdir()) == []


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(cache, keras_does):
    class Drips(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            for _ in range(600):
                self.wfile.write(b".")
                time.sleep(0.1)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drips) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        keras_does(f"""
        from urllib.request import ProxyHandler, build_opener
        os.makedirs(folder)
        with build_opener(ProxyHandler({{}})).open({url!r}, timeout=10) as response:
            while True:  # No read of a byte takes long: the timeout never strikes.
                save("a.gz", response.read(1))
        """)
        before = time.monotonic()
        data = datasets.load_default()
        assert time.monotonic() - before < 20
        server.shutdown()
    assert data.name == "digits"
    assert "less than 50 kB arrived" in data.note


@pytest.mark.slow
def test_a_slow_download_that_goes_on_is_not_given_up(cache, keras_does):
    keras_does("for _ in range(16):\n    save('a.gz', b'1' * 60_000); time.sleep(0.3)\nreturn arrays()")
    assert download.download("fashion_mnist", cache).y_test.tolist() == [4]  # 5 seconds, where 2 without data end it


def test_the_reason_of_a_failure_is_told_in_one_line(cache, keras_does):
    keras_does("save('a.gz', b'<html>'); raise Exception('URL fetch failure on there: 403 -- Forbidden')")
    data = datasets.load_default()
    assert data.name == "digits"
    assert "could not be downloaded (URL fetch failure on there: 403 -- Forbidden), so this runs on" in data.note
    assert "\n" not in data.note
    with pytest.raises(datasets.DatasetNotFound, match="the download failed \\(URL fetch failure on there"):
        datasets.load("fashion_mnist")
    assert files(cache) == [], "half a download would be taken for a damaged data set the next time"


def test_a_cache_that_cannot_be_written_costs_the_copy_and_not_the_data(tmp_path, cache, keras_does):
    keras_does("save('a.gz', b'1'); return arrays()")
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert download.download("fashion_mnist", cache).y_test.tolist() == [4]
    assert cache.read_text() == "a file where the folder should be"


def test_cifar10_in_kerass_cache_is_read_by_keras_and_else_downloaded(cache, keras_does, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (4, 32, 32, 3), np.uint8), rng.integers(0, 10, (4, 1)).astype(np.uint8)
    monkeypatch.setattr(datasets, "_download", lambda name: image_files.Arrays(x, y, x, y))
    (cache / "cifar-10-batches-py-target").mkdir(parents=True)
    keras_does(f"assert home == {str(cache.parent)!r}; raise Exception('damaged')")
    assert datasets.load("cifar10").source == "downloaded by keras.datasets"


@pytest.mark.slow
def test_the_download_ends_when_the_process_that_wants_it_is_killed(tmp_path, cache, keras_does):
    keras_does(f"save('a.gz', b'1'); open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    code = f"""
    import sys; sys.path.insert(0, {str(tmp_path / "stand_in")!r})
    from tfdp_layers import datasets; datasets._DEBIAN = datasets.Path("nowhere"); datasets.load("fashion_mnist")
    """
    wants = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        wants.kill()
        wants.wait()
    child = int((tmp_path / "pid").read_text())
    wait_for(lambda: not alive(child))
    assert not alive(child)


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Whether it runs; one that ended and was not collected yet does not."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc, or it ended just now
        return Path("/proc/self").exists() is False
