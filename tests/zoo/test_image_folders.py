"""A folder of images gives the records that Keras' own utility gives, one by one."""

import os
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers import datasets


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for kind, number in {"cats": 5, "dogs": 7}.items():
        (tmp_path / kind / "more").mkdir(parents=True)
        for image in range(number):
            pixels = draw.integers(0, 256, (9 + image, 12, 3), np.uint8)
            place = tmp_path / kind / ("more" if image % 2 else ".") / f"{image}.png"
            place.write_bytes(tf.io.encode_png(pixels).numpy())
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    (tmp_path / "dogs" / "LAST.JPG").write_bytes(tf.io.encode_jpeg(np.full((8, 8, 3), 200, np.uint8)).numpy())
    return tmp_path


@pytest.mark.parametrize("color_mode", ["rgb", "grayscale"])
def test_records_are_those_of_keras(folder, color_mode):
    source = datasets.image_folder(folder, (8, 6), color_mode=color_mode)
    settings = {"color_mode": color_mode, "image_size": (8, 6), "shuffle": False, "batch_size": None, "verbose": False}
    theirs = list(keras.utils.image_dataset_from_directory(folder, **settings))
    assert len(source) == len(theirs) == 13
    assert source.classes == ["cats", "dogs"]

    def key(record):
        return (int(record[1]), float(np.sum(record[0])))

    mine = sorted((source[index] for index in range(len(source))), key=key)
    for (image, label), (expected, kind) in zip(mine, sorted(theirs, key=key), strict=True):
        np.testing.assert_array_equal(image, expected)
        assert image.dtype == np.float32
        assert label == int(kind)


def test_a_model_trains_on_it_by_poisson_draws(folder):
    layers = [keras.Input((8, 6, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    model = tfdp.PrivateSequential([*layers, tfdp.layers.ClippedDense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", noise_multiplier=1.0), loss)
    model.fit(datasets.image_folder(folder, (8, 6)), batch_size=4, epochs=1, verbose=0)
    (entry,) = model.ledger.entries
    assert entry.release.examples == 13
    assert entry.release.sampling == tfdp.sampling.Poisson(4)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_several_names_of_one_file_are_told_of(folder, link):
    link(folder / "cats" / "0.png", folder / "cats" / "again.png")
    with pytest.warns(UserWarning, match="The 14 images are 13 files.*is in k records"):
        assert len(datasets.image_folder(folder, (8, 6))) == 14


def test_links_to_files_of_their_own_and_copies_bring_no_word(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "one.png"
    elsewhere.write_bytes((folder / "cats" / "0.png").read_bytes())
    (folder / "cats" / "linked.png").symlink_to(elsewhere)
    (folder / "dogs" / "copy.png").write_bytes(elsewhere.read_bytes())  # by its name nobody knows it for one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(datasets.image_folder(folder, (8, 6))) == 15


def test_what_is_wrong_is_said(folder, tmp_path_factory):
    with pytest.raises(ValueError, match="does not exist or is no folder"):
        datasets.image_folder(folder / "none", (8, 6))
    with pytest.raises(ValueError, match="holds no images"):
        datasets.image_folder(tmp_path_factory.mktemp("empty"), (8, 6))
    with pytest.raises(ValueError, match="color_mode must be one of"):
        datasets.image_folder(folder, (8, 6), color_mode="gray")
    with pytest.raises(ValueError, match="image_size must be"):
        datasets.image_folder(folder, (8, 0))
    source = datasets.image_folder(folder, (8, 6))
    source.paths[3].write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be read as an image of 3 channels"):
        source[3]
    source.paths[3].unlink()
    with pytest.raises(ValueError, match="cannot be read as an image"):
        source[3]
