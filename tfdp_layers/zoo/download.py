"""Downloads a data set by Keras' own loader, in a process of its own, which is ended once too little arrives.

The timeout of a socket bounds neither the look-up of a host, nor a server that sends a byte now and then, nor the
attempts at each address of a host. A process can be ended whatever it waits for. No TensorFlow is imported here.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tfdp_layers.zoo import image_files

__all__ = ["DownloadFailed", "download", "read_cached"]

# A pace of 5 kB a second is enough to go on; Fashion-MNIST, 30 MB, would then take 100 minutes.
_PATIENCE_SECONDS = 10.0
_LEAST_BYTES = 50_000
_UNPACK_SECONDS = 60.0  # instead of 10 where all is in the cache already
_START_SECONDS = 120.0  # for the import of Keras, which needs no network

# When this process ends, however it ends, the child's input does, and so does the child.
_CHILD = """
import os, sys
name, folder, path = sys.argv[1:]
sys.path[:] = path.split("\\n")
import threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
import keras, numpy
os.mkdir(os.path.join(folder, "started"))
(x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
numpy.savez(os.path.join(folder, "arrays.npz"), **arrays)
"""


class DownloadFailed(OSError):  # noqa: N818 (says what happened)
    """A download broke off or was given up; the message says why in one line."""


def download(name: str, cache: Path) -> image_files.Arrays:
    """Returns the arrays of a set of `keras.datasets`, and keeps its files in Keras' cache where that can be written.

    Gives up once fewer than 50 kB have arrived in 10 seconds; a slow download that goes on is never cut off. Keras has
    a home of its own meanwhile, so that nothing half downloaded gets into the cache.

    Raises:
        DownloadFailed: nothing, too little or something else was received. The cache is as it was.
    """
    with _folder_in(cache) as folder:
        arrays = _load(name, folder, folder, _PATIENCE_SECONDS)
        _keep(folder / "datasets", cache)
        return arrays


def read_cached(name: str, cache: Path) -> tuple[image_files.Arrays, str] | None:
    """Returns the arrays of a set that lies in Keras' cache in a form that only Keras reads, and the cache.

    None where Keras found files missing or damaged, and could not download them.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, contextlib.suppress(DownloadFailed):
        return _load(name, Path(folder), cache.parent, _UNPACK_SECONDS), f"Keras' cache {cache}"
    return None


@contextlib.contextmanager
def _folder_in(cache: Path) -> Iterator[Path]:
    """An empty folder, on the cache's own disk if possible; gone afterwards."""
    parent: Path | None = cache
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError:
        parent = None  # nothing can be kept then
    with tempfile.TemporaryDirectory(prefix=".download-", dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _load(name: str, folder: Path, home: Path, patience: float) -> image_files.Arrays:
    """What Keras' loader returns, given its home, as long as data arrive there or in the folder."""
    errors = folder / "errors"
    with open(errors, "wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, name, str(folder), "\n".join(map(str, sys.path))],
            stdin=subprocess.PIPE,
            stdout=None if sys.stdout.isatty() else subprocess.DEVNULL,  # the progress bar is for people
            stderr=stderr,
            env={**os.environ, "KERAS_HOME": str(home), "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        try:
            _wait(child, folder, home, patience)
        finally:
            child.kill()
            child.communicate()
    if child.returncode:
        lines = errors.read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), f"exit status {child.returncode}")
        raise DownloadFailed(said.removeprefix("Exception: "))
    found = image_files.read_npz(folder / "arrays.npz")
    if found is None:
        raise DownloadFailed("Keras' loader ended without the data")
    return found[0]


def _wait(child: "subprocess.Popen[bytes]", folder: Path, home: Path, patience: float) -> None:
    """Returns when the process has ended. Raises DownloadFailed when it gets nowhere."""
    started, received, deadline = False, 0, time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.1)
            return
        now, size = time.monotonic(), sum(_size(place) for place in {folder, home})
        if not started and (folder / "started").exists():
            started, received, deadline = True, size, now + patience
        elif started and size >= received + _LEAST_BYTES:
            received, deadline = size, now + patience
        elif now > deadline:
            raise DownloadFailed(
                f"less than {_LEAST_BYTES / 1000:g} kB arrived in {patience:g} seconds"
                if started
                else f"Keras was not imported within {_START_SECONDS:g} seconds"
            )


def _size(folder: Path) -> int:
    """Bytes in all files below; files may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.stat(os.path.join(parent, name)).st_size
    return size


def _keep(downloaded: Path, cache: Path) -> None:
    """Moves Keras' files into its cache, each in one piece. What cannot be kept is downloaded again another time."""
    with contextlib.suppress(OSError):
        for file in sorted(path for path in downloaded.rglob("*") if path.is_file()):
            target = cache / file.relative_to(downloaded)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
