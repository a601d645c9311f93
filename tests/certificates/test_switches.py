"""Layers that draw are switched off while records are compared: Keras' augmentation, which keeps the shape then."""

from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp

kl = keras.layers
X = np.random.default_rng(0).uniform(size=(8, 8, 8, 3)).astype("float32")


def trained(*layers: Any) -> Any:
    model = tfdp.make_private(keras.Sequential([keras.Input((8, 8, 3)), *layers, kl.Flatten(), kl.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, 1.0), "mse")
    model.fit(X, np.zeros((8, 1)), batch_size=4, epochs=1, verbose=0, accept_measured=True)
    return model


CROPS = {
    "plain": lambda: [kl.RandomCrop(6, 6, name="crops")],
    "in one direction": lambda: [kl.RandomCrop(8, 5, name="crops"), kl.Conv2D(2, 3)],
    "in a model": lambda: [keras.Sequential([keras.Input((8, 8, 3)), kl.RandomCrop(4, 6, name="crops")])],
    "behind another": lambda: [kl.RandomFlip(), kl.RandomCrop(6, 6, name="crops")],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("layers", CROPS)
def test_what_crops_in_training_only_is_named(layers: str) -> None:
    with pytest.raises(ValueError, match=r"^Layer 'crops' \(RandomCrop\) crops in training only.*CenterCrop"):
        trained(*CROPS[layers]())


KEEP = [
    [kl.CenterCrop(6, 6)],
    [kl.Resizing(5, 7)],
    [kl.Resizing(5, 7, crop_to_aspect_ratio=True), kl.RandomFlip()],
    [kl.RandomCrop(8, 8)],
    [kl.RandomTranslation(0.2, 0.2), kl.RandomBrightness(0.1), kl.CenterCrop(4, 4)],
    [kl.Rescaling(0.5), kl.RandomZoom(0.1), kl.RandomGrayscale()],
]


@pytest.mark.few(1)
@pytest.mark.parametrize("layers", KEEP, ids=lambda layers: "-".join(type(layer).__name__ for layer in layers))
def test_what_gives_one_shape_trains(layers: list[Any]) -> None:
    assert trained(*layers).ledger.entries
