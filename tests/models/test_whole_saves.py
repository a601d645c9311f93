"""Folders and weights in several files: what a save writes is loaded with its ledger, and is whole or not there."""

import errno
import os
import warnings
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.whole_file import whole_file, whole_folder, whole_shards

pytestmark = pytest.mark.filterwarnings("ignore:This fit can learn next to nothing")
X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
kl = keras.layers


def made(units=4):
    model = tfdp.PrivateSequential([keras.Input((3,)), kl.Dense(units, name="first"), kl.Dense(1, name="last")])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    return model


@pytest.fixture(scope="module")
def trained():
    model = made()
    model.fit(X, Y, batch_size=4, verbose=0)
    return model


def by_method(model, path):
    model.save(path, zipped=False)


def by_place(model, path):
    model.save(path, True, False)


def by_keras(model, path):
    keras.saving.save_model(model, path, zipped=False)


def files_of(folder):
    """All that a folder holds; half files, too."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in Path(folder).rglob("*") if one.is_file()}


def assert_same(again, model):
    assert again.ledger.steps == model.ledger.steps == 2
    assert again.privacy_statement(1e-2).epsilon == model.privacy_statement(1e-2).epsilon
    for one, other in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("save", [by_method, by_place, by_keras])
def test_a_folder_is_loaded_with_its_ledger(save, trained, tmp_path):
    """`save` wrote it, and `load_model` refused it: "is a folder, and no file"."""
    for _ in range(1 if save is by_keras else 2):  # over the earlier one, too, of which Keras alone makes an error
        save(trained, tmp_path / "served")
        again = tfdp.load_model(tmp_path / "served")
        assert_same(again, trained)
        assert isinstance(again.optimizer, tfdp.optimizers.ClippedOptimizer)
    assert [one.name for one in tmp_path.iterdir()] == ["served"]
    assert set(files_of(tmp_path / "served")) == {"config.json", "metadata.json", "model.weights.h5"}
    assert tfdp.load_model(tmp_path / "served", compile=False).ledger.steps == 2
    fresh = made()
    with pytest.raises(ValueError, match=r"in a folder of save, its model\.weights\.h5"):
        fresh.load_weights(tmp_path / "served")
    fresh.load_weights(tmp_path / "served" / "model.weights.h5")
    assert_same(fresh, trained)


def test_a_vocabulary_goes_along_to_a_folder_of_a_relative_path(tmp_path, monkeypatch):
    """Keras writes what layers hold beside weights to a temporary folder there, and removes it."""
    monkeypatch.chdir(tmp_path)
    words = kl.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")
    model = tfdp.PrivateSequential([keras.Input((1,), dtype="string"), words, kl.Dense(1)])
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    model.save("served", zipped=False)
    again = tfdp.load_model("served")
    asked = tf.constant([["a"], ["c"]])
    np.testing.assert_array_equal(again(asked), model(asked))


def test_a_folder_that_an_ordinary_model_wrote_is_said_to_be_that(tmp_path):
    keras.Sequential([keras.Input((3,)), kl.Dense(1)]).save(tmp_path / "plain", zipped=False)
    with pytest.raises(ModelFileError, match=r"holds a Sequential, no private model\. Load it with keras\.saving"):
        tfdp.load_model(tmp_path / "plain")


def linked(folder):
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / "more").symlink_to(folder.parent)


def piped(folder):
    os.mkfifo(folder / "assets.txt")


def long_config(folder):
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b" " * (65 * 2**20))


def more_arrays(folder):
    with h5py.File(folder / "model.weights.h5", "a") as file:
        file.create_dataset("vars/more", (2**20, 1000), "float32", chunks=(1024, 1000), compression="gzip")


def named_code(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"class_name": "Dense"', '"class_name": "Popen"'))


SPOILT = {
    "a link": (linked, "link to another folder"),
    "a pipe": (piped, "named pipe"),
    "a long config": (long_config, "at most 67,108,864 are read"),
    "arrays": (more_arrays, "holds arrays of"),
    "a large file": (lambda folder: os.truncate(folder / "metadata.json", 300 * 2**20), "unpacks to"),
    "a class": (named_code, "Popen"),
    "no weights": (lambda folder: (folder / "model.weights.h5").unlink(), r"no model\.weights\.h5"),
    "a damaged file": (lambda folder: (folder / "model.weights.h5").write_bytes(b"x"), "not a whole model|is whole"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_folder_is_read_within_the_limits_of_a_file(how, trained, tmp_path):
    trained.save(tmp_path / "served", zipped=False)
    spoil, message = SPOILT[how]
    spoil(tmp_path / "served")
    with pytest.raises(ModelFileError, match=message):
        tfdp.load_model(tmp_path / "served", max_bytes=200 * 2**20)


def test_folders_that_hold_no_model_are_named_so(trained, tmp_path):
    with pytest.raises(ModelFileError, match=r"has no config\.json and no metadata\.json"):
        tfdp.load_model(tmp_path)
    trained.save(tmp_path / "served", zipped=False)
    (tmp_path / "served").rename(tmp_path / "served.keras")
    with pytest.raises(ModelFileError, match="another name"):
        tfdp.load_model(tmp_path / "served.keras")
    (tmp_path / "text").write_text("mine")
    with pytest.raises(ValueError, match="is a file, and zipped=False writes a folder"):
        trained.save(tmp_path / "text", zipped=False)
    assert (tmp_path / "text").read_text() == "mine"


def sharded(model, folder, gigabytes=5e-6, name="s.weights.json"):
    model.save_weights(folder / name, max_shard_size=gigabytes)


@pytest.mark.parametrize("name", ["weights.json", "best_weights.json", "weights.h5"])
def test_a_list_that_keras_would_not_load_is_not_written(name, trained, tmp_path):
    with pytest.raises(ValueError, match=r"end in \.weights\.json alone"):
        sharded(trained, tmp_path, name=name)
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("name", ["s.weights.json", "a.b.weights.json"])
def test_weights_in_several_files_are_read_with_their_ledger(name, tmp_path):
    model = made(300)
    model.fit(X, Y, batch_size=4, verbose=0)
    for _ in range(2):
        sharded(model, tmp_path, name=name)
        assert len(list(tmp_path.glob("*_0000?.weights.h5"))) > 1
        fresh = made(300)
        fresh.load_weights(tmp_path / name)
        assert_same(fresh, model)
    assert not list(tmp_path.glob(".*"))


def test_a_list_that_is_named_h5_is_written_as_json(trained, tmp_path):
    """As in Keras; it ended in FileNotFoundError, and left half files."""
    with pytest.warns(UserWarning, match=r"s\.weights\.json\. Give that path"):
        sharded(trained, tmp_path, name="s.weights.h5")
    assert set(files_of(tmp_path)) == {"s.weights.json", "s_00000.weights.h5"}


def fails(model, monkeypatch, after):
    """Has the layers of a model raise as the disk is full, from some on."""
    wrote = []

    def save_own_variables(self, store, by_keras=kl.Dense.save_own_variables):
        if len(wrote) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        wrote.append(by_keras(self, store))

    for layer in model.layers:
        monkeypatch.setattr(layer, "save_own_variables", save_own_variables.__get__(layer))


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_a_save_that_fails_leaves_what_was_there(kind, there, after, tmp_path, monkeypatch):
    """A shard was left half written, also over that of an earlier save, under its list."""
    model = made(300)
    save = sharded if kind == "shards" else lambda model, folder: by_method(model, folder / "served")
    if there:
        save(model, tmp_path)
    before = files_of(tmp_path)
    assert bool(before) is there
    model.fit(X, Y, batch_size=4, verbose=0)
    fails(model, monkeypatch, after)
    with pytest.raises(OSError, match="No space left") as raised:
        save(model, tmp_path)
    assert ".partial." not in str(raised.value)
    assert files_of(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


def test_a_size_that_no_array_keeps_to_leaves_nothing(trained, tmp_path):
    with pytest.raises(ValueError, match="exceeds the maximum shard size"):
        sharded(trained, tmp_path, 1e-8)
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("at", range(8))
def test_a_move_that_fails_is_taken_back(at, tmp_path, monkeypatch):
    for number, whole in enumerate((whole_shards, whole_folder)):
        path = tmp_path / str(number) / ("s.weights.json" if whole is whole_shards else "served")
        path.parent.mkdir()
        for text in ("old", "new"):
            moves, replace = [], os.replace

            def moved(one, other, moves=moves, replace=replace, text=text):
                moves.append(one)
                if text == "new" and len(moves) == at + 1:
                    raise PermissionError(errno.EACCES, "Permission denied", str(one))
                replace(one, other)

            def write(text=text, whole=whole, path=path):
                with whole(path) as half:
                    folder = half.parent if whole is whole_shards else half
                    folder.mkdir(exist_ok=True)
                    for name in ("s_00000.weights.h5", "s_00001.weights.h5", "s.weights.json"):
                        (folder / name).write_text(text)

            with monkeypatch.context() as patched:
                patched.setattr(os, "replace", moved)
                if text == "new" and at < 6:
                    with pytest.raises(PermissionError):
                        write()
                else:
                    write()
        assert set(files_of(path.parent).values()) == {b"old" if at < 6 else b"new"}
        assert len(files_of(path.parent)) == 3


def test_whoever_is_killed_as_files_are_moved_leaves_no_list_of_two_saves(tmp_path, monkeypatch):
    """The list goes first and comes last: no moment has shards of the one beside shards of the other under a list."""
    path, seen, replace = tmp_path / "s.weights.json", [], os.replace

    def moved(one, other):
        replace(one, other)
        there = {one.name: one.read_text() for one in tmp_path.iterdir() if one.is_file()}
        seen.append(path.name not in there or len(set(there.values())) == 1)

    monkeypatch.setattr(os, "replace", moved)
    for text in ("old", "new"):
        with whole_shards(path) as half:
            for name in ("s_00000.weights.h5", "s_00001.weights.h5", "s.weights.json"):
                (half.parent / name).write_text(text)
    assert len(seen) == 9
    assert all(seen)


def test_what_else_a_folder_holds_stays_and_killed_writers_are_cleaned_up(trained, tmp_path):
    folder, old = tmp_path / "served", 1e9
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    half = folder / f".partial.{'a' * 16}.served"
    fresh = folder / f".partial.{'b' * 16}.served"
    for one in (half, fresh):
        (one / "written").mkdir(parents=True)
        (one / "written" / "config.json").write_text("half")
    for one in (half / "written" / "config.json", half / "written", half):
        os.utime(one, (old, old))
    os.utime(fresh, (old, old))  # whose writer is at a file within
    trained.save(folder, zipped=False)
    assert not half.exists()
    assert fresh.exists()
    assert (folder / "README.md").read_text() == "mine"
    assert tfdp.load_model(folder).ledger.steps == 2


def test_ordinary_saves_bring_no_word(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.save("a/b/served", zipped=False)  # Keras makes the folders
        trained.save("served", zipped=False, overwrite=True)
        trained.save(Path("model.keras"), zipped=True)
        trained.save("model.keras", zipped=None)
        trained.save_weights("w.weights.h5", True)
        trained.save_weights("w.weights.h5", max_shard_size=None)
        trained.save_weights("s.weights.json", True, 1)
        tfdp.load_model("a/b/served")
        made().load_weights("s.weights.json")
    said = [str(one.message) for one in caught if "__array__" not in str(one.message)]
    assert [one for one in said if "Skipping variable loading" not in one] == []
    with pytest.raises(ValueError, match=r"zipped=False.*Received: filepath=x\.keras"):
        trained.save("x.keras", zipped=False)
    with pytest.raises(ValueError, match=r"Received: filepath=x\.txt"):
        trained.save_weights("x.txt", max_shard_size=1)
    with whole_file("gs://bucket/a.keras") as path:
        assert path == "gs://bucket/a.keras"
    assert not list(tmp_path.rglob("*x.*"))
