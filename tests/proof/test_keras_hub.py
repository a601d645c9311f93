"""Small random backbones of KerasHub: their rows, their sums under record clipping; batch normalization is refused."""

from collections.abc import Callable
from typing import Any

import keras
import pytest

import tfdp_layers as tfdp
from helpers.proof.provable import private, specs_of, sums_proof
from tfdp_layers.proof import prove_rows

hub = pytest.importorskip("keras_hub", reason="KerasHub is not installed", exc_type=ImportError).models
SIZES = {"vocabulary_size": 13, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12}
LENGTH = 6


def t5() -> Any:
    return hub.T5Backbone(num_heads=2, dropout=0.1, **SIZES)


def bert() -> Any:
    return hub.BertBackbone(num_heads=2, max_sequence_length=LENGTH, **SIZES)


def distil_bert() -> Any:
    return hub.DistilBertBackbone(num_heads=2, max_sequence_length=LENGTH, **SIZES)


def gpt2() -> Any:
    return hub.GPT2Backbone(num_heads=2, max_sequence_length=LENGTH, **SIZES)


def llama() -> Any:
    return hub.LlamaBackbone(num_query_heads=2, num_key_value_heads=1, **SIZES)


def gemma() -> Any:
    return hub.GemmaBackbone(num_query_heads=2, num_key_value_heads=1, head_dim=4, **SIZES)


def vit() -> Any:
    return hub.ViTBackbone(
        image_shape=(8, 8, 3), patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=12, dropout_rate=0.1
    )


def resnet() -> Any:
    return hub.ResNetBackbone([64], [3], [64], [1], [1], block_type="basic_block", image_shape=(8, 8, 3))


TEXTS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "distil bert": distil_bert,
    "gpt-2": gpt2,
    "llama": llama,
    "gemma": gemma,
    "t5": t5,
}


def classifier(name: str) -> Any:
    """The backbone, its inputs of a fixed length, with a head on the mean of what it says of each position."""
    if name in ("vit", "resnet"):
        return head({"vit": vit, "resnet": resnet}[name](), keras.Input((8, 8, 3)))
    backbone = TEXTS[name]()
    inputs = {key: keras.Input((LENGTH,), dtype="int32", name=key) for key in backbone.input}
    return head(backbone, inputs)


def head(backbone: Any, inputs: Any) -> Any:
    found = backbone(inputs)
    if isinstance(found, dict):
        found = found.get("sequence_output", found.get("decoder_sequence_output"))
    pooled = keras.ops.mean(found, axis=tuple(range(1, len(found.shape) - 1)))
    return keras.Model(inputs, keras.layers.Dense(3)(pooled))


@pytest.mark.parametrize("name", [*TEXTS, "vit"])
def test_rows_of_backbones(name: str) -> None:
    model = classifier(name)
    report = prove_rows(lambda x: model(x, training=True), specs_of(model)[0])
    assert report.proved, report


@pytest.mark.parametrize("name", [*TEXTS, "vit"])
def test_sums_of_backbones_under_record_clipping(name: str) -> None:
    optimizer = tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0)
    report = sums_proof(private(classifier(name), optimizer))
    assert report.proved, report


def test_batch_normalization_is_refused() -> None:
    model = classifier("resnet")
    report = prove_rows(lambda x: model(x, training=True), specs_of(model)[0], layers=names_of(model))
    assert report.status == "mixed"
    assert "bn" in report.layer, report


def names_of(model: Any) -> list[str]:
    return [layer.name for layer in model._flatten_layers(include_self=False)]
