"""Folders and weights: what a save writes is loaded with its ledger, and is whole or not there."""

import contextlib
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
from tfdp_layers.layers import carried
from tfdp_layers.models import weight_files
from tfdp_layers.models.loading import ModelFileError
from tfdp_layers.models.whole_file import whole_file, whole_folder

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
    (folder / "assets").mkdir(exist_ok=True)
    os.mkfifo(folder / "assets" / "words.txt")


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


def test_what_else_is_in_a_folder_is_the_users_and_not_read(trained, tmp_path):
    """A link to logs, a broken link, a table of 5 GiB and a long JSON file were refused, as parts of the model."""
    folder = tmp_path / "served"
    trained.save(folder, zipped=False)
    linked(folder.parent)  # beside the folder
    (folder / "logs").symlink_to(tmp_path)
    (folder / "latest.keras").symlink_to(tmp_path / "nowhere")
    for name, size in (("events.csv", 5 * 2**30), ("data.json", 70 * 2**20)):
        (folder / name).touch()
        os.truncate(folder / name, size)
    (folder / f".partial.{'a' * 16}.served").mkdir()
    os.mkfifo(folder / "pipe")
    assert_same(tfdp.load_model(folder), trained)
    (folder / "model.weights.h5").rename(tmp_path / "big.h5")
    (folder / "model.weights.h5").symlink_to(tmp_path / "big.h5")
    assert_same(tfdp.load_model(folder), trained)


SEVERAL = r"privacy ledger and the weights must be one file.*Files of two saves.*save_weights\('name\.weights\.h5'\)"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("s.weights.json", {"max_shard_size": 1}),
        ("s.weights.h5", {"max_shard_size": 5e-6}),
        ("s.weights.json", {}),
        ("weights.json", {"max_shard_size": 1, "overwrite": False}),
    ],
)
def test_weights_in_several_files_are_refused_before_anything_is_written(name, given, trained, tmp_path):
    """A program that loaded while another one saved read weights of 10 steps with the ledger of 2."""
    (tmp_path / name).write_text("mine")
    (tmp_path / "s_00000.weights.h5").write_text("mine")
    with pytest.raises(ValueError, match=SEVERAL):
        trained.save_weights(tmp_path / name, **given)
    with pytest.raises(ValueError, match=SEVERAL):
        trained.save_weights(str(tmp_path / name), True, *given.values() or [1])
    assert set(files_of(tmp_path).values()) == {b"mine"}


def test_keras_own_function_writes_no_weights_to_several_files_either(trained, tmp_path):
    def sharded(model, name):
        keras.saving.save_weights(model, tmp_path / name, max_shard_size=5e-6)

    with pytest.raises(ValueError, match=SEVERAL):
        sharded(trained, "a.weights.json")
    layer = tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)
    private = tfdp.PrivateSequential([keras.Input((3,)), layer])
    private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    inside = keras.Sequential([keras.Input((3,)), layer])
    sharded(inside, "public.weights.json")  # which cost nothing yet
    assert (tmp_path / "public.weights.json").is_file()
    private.fit(X, Y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match=SEVERAL):
        sharded(inside, "b.weights.json")
    assert not (tmp_path / "a.weights.json").exists()
    assert not (tmp_path / "b.weights.json").exists()
    sharded(trained.to_keras(), "published.weights.json")  # an ordinary model, which holds no ledger
    assert (tmp_path / "published.weights.json").is_file()


def test_weights_that_an_earlier_version_wrote_to_several_files_are_read(tmp_path, monkeypatch):
    model = made(300)
    model.fit(X, Y, batch_size=4, verbose=0)
    for module in (carried, weight_files):
        monkeypatch.setattr(module, "refuse_several_files", lambda store: None)
    with carried.saving_whole():
        keras.saving.save_weights(model, tmp_path / "s.weights.json", max_shard_size=5e-6)
    assert len(list(tmp_path.glob("*_0000?.weights.h5"))) > 1
    fresh = made(300)
    fresh.load_weights(tmp_path / "s.weights.json")
    assert_same(fresh, model)


def fails(model, monkeypatch, after):
    """Has the layers of a model raise as the disk is full, from some on."""
    wrote = []

    def save_own_variables(self, store, by_keras=kl.Dense.save_own_variables):
        if len(wrote) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        wrote.append(by_keras(self, store))

    for layer in model.layers:
        monkeypatch.setattr(layer, "save_own_variables", save_own_variables.__get__(layer))


def to_folder(model, folder):
    model.save(folder / "served", zipped=False)


def to_file(model, folder):
    model.save_weights(folder / "s.weights.h5")


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("save", [to_folder, to_file])
def test_a_save_that_fails_leaves_nothing(save, after, tmp_path, monkeypatch):
    """A folder was left half written."""
    model = made(300)
    with monkeypatch.context() as patched:
        fails(model, patched, after)
        with pytest.raises(OSError, match="No space left") as raised:
            save(model, tmp_path)
    assert ".partial." not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    save(model, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def write_folder(path, text, then=lambda: None):
    with whole_folder(path) as half:
        half.mkdir()
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            (half / name).write_text(text)
        then()


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), KeyboardInterrupt()])
def test_a_folder_that_cannot_get_its_name_leaves_nothing(error, tmp_path, monkeypatch):
    def rename(one, other):
        raise error

    monkeypatch.setattr(os, "rename", rename)
    with contextlib.suppress(type(error)):
        write_folder(tmp_path / "served", "new")
        pytest.fail("nothing was raised")
    assert list(tmp_path.iterdir()) == []


def saved_before(place, model):
    model.save(place, zipped=False)


def with_notes(place, model):
    place.mkdir()
    (place / "README.md").write_text("mine")


def linked_folder(place, model):
    with_notes(place.with_name("store"), model)
    place.symlink_to(place.with_name("store"))


THERE = {
    "saved before": saved_before,
    "notes": with_notes,
    "an empty folder": lambda place, model: place.mkdir(),
    "a file": lambda place, model: place.write_text("mine"),
    "a link": linked_folder,
    "a broken link": lambda place, model: place.symlink_to(place.with_name("nowhere")),
}


@pytest.mark.parametrize("ending", ["", "/"])
@pytest.mark.parametrize("how", THERE)
def test_nothing_that_is_there_is_replaced_by_a_folder(how, ending, trained, tmp_path, monkeypatch):
    """Folders of the user's that were called as a file of the model were deleted, and earlier saves taken away."""
    place = tmp_path / "served"
    THERE[how](place, trained)
    before = files_of(tmp_path), sorted(tmp_path.rglob("*")), place.is_symlink()
    other = made()
    wrote = []
    monkeypatch.setattr(other.layers[0], "save_own_variables", wrote.append)
    for given in ({"zipped": False}, {"zipped": False, "overwrite": False}):
        with pytest.raises(FileExistsError, match=r"served is there already.*Name a new folder, or remove"):
            other.save(f"{place}{ending}", **given)
    assert (files_of(tmp_path), sorted(tmp_path.rglob("*")), place.is_symlink()) == before
    assert wrote == []


@pytest.mark.parametrize("writers", [2, 3])
def test_of_several_writers_at_once_the_first_one_s_folder_stands(writers, tmp_path):
    """Files of both were in it: weights of the one with the configuration of the other."""

    def write(number):
        write_folder(tmp_path / "served", str(number), lambda: number and write(number - 1))  # another one, first

    with pytest.raises(FileExistsError, match=r"served is there already.*Name a new folder"):
        write(writers - 1)
    assert set(files_of(tmp_path / "served").values()) == {b"0"}
    assert [one.name for one in tmp_path.iterdir()] == ["served"]


def test_folders_of_killed_writers_are_cleaned_up_and_no_others(trained, tmp_path):
    old, names = 1e9, [f".partial.{letter * 16}.served" for letter in "abc"]
    half, fresh, inside = (tmp_path / name for name in names)
    mine = [
        tmp_path / name for name in (".partial.served", f".partial.{'a' * 16}.other", f".partial.{'A' * 16}.served")
    ]
    for one in (half, fresh, inside, *mine):
        one.mkdir()
        (one / "config.json").write_text("half")
        if one is not fresh:
            os.utime(one / "config.json", (old, old))
        if one is not inside:
            os.utime(one, (old, old))
    trained.save(tmp_path / "served", zipped=False)
    assert not half.exists()
    assert all(one.exists() for one in (fresh, inside, *mine))  # whose writers are at them, or that are the user's
    assert tfdp.load_model(tmp_path / "served").ledger.steps == 2


def test_ordinary_saves_bring_no_word(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.save("a/b/served", zipped=False)  # Keras makes the folders
        trained.save("served", zipped=False, overwrite=True)
        trained.save("a/b/more/", True, False)
        trained.save(Path("model.keras"), zipped=True)
        trained.save("model.keras", zipped=None)
        trained.save_weights("w.weights.h5", True)
        trained.save_weights("w.weights.h5", max_shard_size=None)
        tfdp.load_model("a/b/served")
        made().load_weights("w.weights.h5")
    said = [str(one.message) for one in caught if "__array__" not in str(one.message)]
    assert [one for one in said if "Skipping variable loading" not in one] == []
    with pytest.raises(ValueError, match=r"zipped=False.*Received: filepath=x\.keras"):
        trained.save("x.keras", zipped=False)
    with pytest.raises(ValueError, match=r"Received: filepath=x\.txt"):
        trained.save_weights("x.txt")
    with whole_folder("gs://bucket/served") as path:
        assert path == "gs://bucket/served"
    with whole_file("gs://bucket/a.keras") as path:
        assert path == "gs://bucket/a.keras"
    assert not list(tmp_path.rglob("*x.*"))
