"""Whatever reads a file looks first whether it is one: a pipe or a device is read for ever."""

import os
import socket
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.plain_files import refuse_no_plain_file
from tfdp_layers.accounting.stored import ledger_of_model_file
from tfdp_layers.federated.server import Server

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
X = np.ones((8, 3), "float32")
KINDS = {"folder": "a folder", "pipe": r"a named pipe \(FIFO\)", "device": "a device", "socket": "a socket"}


def put(kind: str, path: Path) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
        finally:
            os.chdir(here)


def model_of():
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


def records(path):
    return tfdp.records(tf.data.Dataset.from_tensor_slices((X, X)), cache=path.parent)


def features(path):
    """The file of features, which is named by a digest, is the one that is there."""
    prefix = keras.layers.Rescaling(2.0)
    tfdp.features(prefix, X, cache=path.parent)
    (file,) = path.parent.glob("features-*")
    file.unlink()
    path.rename(file)
    return tfdp.features(prefix, X, cache=path.parent)


def images(path):
    (path.parent / "kind").mkdir()
    path.rename(path.parent / "kind" / "a.png")
    return tfdp.datasets.image_folder(path.parent, (8, 8))


READ = {
    "load_weights": ("w.weights.h5", lambda path: model_of().load_weights(path)),
    "load_weights of a model": ("m.keras", lambda path: model_of().load_weights(str(path))),
    "load_weights of hdf5": ("m.h5", lambda path: model_of().load_weights(path, public=False)),
    "load_model": ("m.keras", tfdp.load_model),
    "save": ("m.keras", lambda path: model_of().save(path)),
    "save_weights": ("w.weights.h5", lambda path: model_of().save_weights(path)),
    "ledger": ("ledger.json", Ledger),
    "ledger to look at": ("ledger.json", Ledger.read),
    "mark of a ledger": ("ledger.json.mark", lambda path: Ledger(path.parent / "ledger.json")),
    "ledger in a model": ("m.keras", ledger_of_model_file),
    "features": ("anything", features),
    "secret of features": (
        "features.key",
        lambda path: tfdp.features(keras.layers.Rescaling(2.0), X, cache=path.parent),
    ),
    "records": ("records.json", records),
    "images": ("a.png", images),
    "server": ("server.npz", lambda path: Server(np.zeros(3, np.float32), 0.5, 1.0).restore(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READ)
def test_what_is_no_file_is_refused_before_it_is_opened(name, kind, tmp_path):
    """A pipe or /dev/zero in the place of weights was read for ever."""
    file, read = READ[name]
    put(kind, tmp_path / file)
    raised = []

    def call() -> None:
        try:
            read(tmp_path / file)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)  # it would never end
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(raised[0], ValueError | LedgerError)
    what = "model that" if (name, kind) == ("load_model", "folder") else "file:"  # folders of save are read, too
    with pytest.raises(AssertionError, match=f"is {KINDS[kind]}, and no {what} .*\\. [A-Z].*\\."):
        raise AssertionError(str(raised[0]))


def test_files_links_and_what_is_not_there_pass(tmp_path):
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in (tmp_path / "a", str(tmp_path / "b"), tmp_path / "none", "gs://far/away", "zero\0byte", 3, None):
        refuse_no_plain_file(path, "Fix.")
    (tmp_path / "c").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "c", bytes(tmp_path)):
        with pytest.raises(LookupError, match=r"is a folder, and no file: .* Fix\."):
            refuse_no_plain_file(path, "Fix.", LookupError)
