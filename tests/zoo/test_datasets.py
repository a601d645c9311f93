"""Data sets are found in the stated order, read as stated, and never replaced when they were named."""

import gzip
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfdp_layers.zoo import datasets, image_files

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def arrays(seed: int, shape: tuple[int, ...] = (28, 28), train: int = 12, test: int = 5) -> image_files.Arrays:
    rng = np.random.default_rng(seed)
    return image_files.Arrays(
        rng.integers(0, 256, (train, *shape), np.uint8),
        rng.integers(0, 10, train).astype(np.uint8),
        rng.integers(0, 256, (test, *shape), np.uint8),
        rng.integers(0, 10, test).astype(np.uint8),
    )


def write_npz(path: Path, content: image_files.Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **content._asdict())


def write_idx(folder: Path, content: image_files.Arrays, compress: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX, content, strict=True):
        data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
        (folder / (f"{name}.gz" if compress else name)).write_bytes(gzip.compress(data) if compress else data)


def no_network(name: str) -> image_files.Arrays:
    raise Exception(f"URL fetch failure on {name}")  # Keras raises no less bare ones.


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path, monkeypatch):
    """A machine without Keras' cache, Debian's package and network."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(datasets, "_download", no_network)


def assert_holds(data: datasets.Dataset, content: image_files.Arrays, channels: int = 1) -> None:
    shape = (*content.x_train.shape[1:3], channels)
    np.testing.assert_array_equal(data.x_train, content.x_train.reshape(-1, *shape) / np.float32(255))
    np.testing.assert_array_equal(data.x_test, content.x_test.reshape(-1, *shape) / np.float32(255))
    np.testing.assert_array_equal(data.y_train, content.y_train.reshape(-1))
    np.testing.assert_array_equal(data.y_test, content.y_test.reshape(-1))
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int64
    assert data.classes == 10
    assert data.note == ""


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("folder", [".", "own"])
@pytest.mark.parametrize("kind", ["npz", "idx", "idx.gz"])
def test_files_in_the_data_folder_are_read_exactly(tmp_path, name, folder, kind):
    content = arrays(1)
    place = tmp_path / "data" / (datasets._IMAGES[name].folders[0] if folder == "own" else "")
    if kind == "npz":
        write_npz(place / f"{name}.npz", content)
    else:
        write_idx(place, content, compress=kind == "idx.gz")
    data = datasets.load(name, tmp_path / "data")
    assert_holds(data, content)
    assert str(tmp_path / "data") in data.source


def test_cifar10_is_read_with_its_column_of_labels(tmp_path):
    content = arrays(2, (32, 32, 3))
    content = content._replace(y_train=content.y_train[:, None], y_test=content.y_test[:, None])
    write_npz(tmp_path / "cifar10.npz", content)
    assert_holds(datasets.load("cifar10", tmp_path), content, channels=3)


def test_places_are_searched_in_the_stated_order(tmp_path, monkeypatch):
    found = {place: arrays(seed) for seed, place in enumerate(("given", "cache", "debian", "download"))}
    write_npz(tmp_path / "given" / "fashion_mnist.npz", found["given"])
    write_idx(tmp_path / "keras" / "datasets" / "fashion-mnist", found["cache"], compress=True)
    write_idx(tmp_path / "debian", found["debian"], compress=False)
    monkeypatch.setattr(datasets, "_download", lambda name: found["download"])
    assert_holds(datasets.load("fashion_mnist", tmp_path / "given"), found["given"])
    assert_holds(datasets.load("fashion_mnist"), found["cache"])
    (tmp_path / "empty").mkdir()
    assert_holds(datasets.load("fashion_mnist", tmp_path / "empty"), found["cache"])
    (tmp_path / "keras").rename(tmp_path / "away")
    assert_holds(datasets.load("fashion_mnist"), found["debian"])
    (tmp_path / "debian" / IDX[3]).unlink()
    assert_holds(datasets.load("fashion_mnist"), found["download"])


def test_debians_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    write_idx(tmp_path / "debian", arrays(3), compress=True)
    with pytest.raises(datasets.DatasetNotFound):
        datasets.load("mnist")


def test_idx_files_of_the_other_set_are_refused(tmp_path):
    content = arrays(4)
    content.y_train[:10] = (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)  # As MNIST's training labels begin.
    write_idx(tmp_path, content, compress=False)
    with pytest.raises(ValueError, match="are those of mnist"):
        datasets.load("fashion_mnist", tmp_path)
    assert_holds(datasets.load("mnist", tmp_path), content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("compress", [False, True])
def test_a_damaged_idx_file_is_an_error_and_no_reason_to_take_another_set(tmp_path, compress):
    write_idx(tmp_path, arrays(5), compress)
    truncate(next(tmp_path.glob("t10k-images*")))
    with pytest.raises(ValueError, match=r"t10k-images.*damaged"):
        datasets.load_default(tmp_path)


def test_a_damaged_npz_file_is_an_error(tmp_path):
    write_npz(tmp_path / "mnist.npz", arrays(6))
    truncate(tmp_path / "mnist.npz")
    with pytest.raises(ValueError, match=r"mnist\.npz is damaged"):
        datasets.load("mnist", tmp_path)
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((3, 28, 28), np.uint8))
    with pytest.raises(ValueError, match="Keras' layout"):
        datasets.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.full(12, 10)}, "must lie in 0..9"),
        ({"y_test": np.arange(4)}, "one integer for each"),
        ({"y_train": np.zeros(12, np.float32)}, "one integer for each"),
        ({"x_train": np.zeros((12, 28, 28), np.float32)}, "must be uint8"),
        ({"x_train": np.zeros((12, 28, 27), np.uint8)}, "must be uint8"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "n at least 1"),
    ],
)
def test_arrays_that_are_no_such_data_set_are_refused(tmp_path, change, message):
    write_npz(tmp_path / "mnist.npz", arrays(7)._replace(**change))
    with pytest.raises(ValueError, match=message):
        datasets.load("mnist", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_named_data_set_that_cannot_be_had_is_an_error_with_the_ways_to_get_it(tmp_path, name):
    with pytest.raises(datasets.DatasetNotFound) as caught:
        datasets.load(name, tmp_path)
    message = str(caught.value)
    for part in (name, str(tmp_path / "keras"), "URL fetch failure", "--data-dir", f"{name}.npz", "--dataset digits"):
        assert part in message
    assert ("apt install dataset-fashion-mnist" in message) == (name == "fashion_mnist")


def test_only_the_default_falls_back_and_says_so(tmp_path):
    data = datasets.load_default()
    assert data.name == "digits"
    assert "fashion_mnist is not on this machine" in data.note
    assert "(URL fetch failure on fashion_mnist)" in data.note
    write_idx(tmp_path / "debian", arrays(8), compress=True)
    assert datasets.load_default().name == "fashion_mnist"
    assert datasets.load_default().note == ""


def test_the_digits_are_split_once_and_for_all():
    data = datasets.load("digits")
    assert data.x_train.shape == (1437, 8, 8, 1)
    assert data.x_test.shape == (360, 8, 8, 1)
    assert data.x_train.dtype == np.float32
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    rows = {row.tobytes() for row in data.x_train} & {row.tobytes() for row in data.x_test}
    assert not rows, "a test image is among the training images"
    np.testing.assert_array_equal(data.x_test, datasets.load("digits").x_test)


def test_unknown_names_and_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Choose one of: mnist, fashion_mnist, cifar10, digits"):
        datasets.load("imagenet")
    with pytest.raises(ValueError, match="does not exist"):
        datasets.load("digits", tmp_path / "nowhere")


@pytest.mark.slow
def test_finding_data_on_disk_loads_no_tensorflow():
    code = (
        "import sys; from tfdp_layers import datasets; datasets.load('digits');"
        " assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
