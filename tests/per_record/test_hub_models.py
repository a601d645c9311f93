"""KerasHub's models: clipped sums of formulas are those of a loop over batches of one, without `allow_generic`.

All families, and the time and memory they take, are in `benchmarks/hub_models.py` and `hub_time.py`, which made
docs/models.md; here is one of each kind of layer.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.per_record import registry, tables

pytest.importorskip("keras_hub", reason="KerasHub is not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hub_models.py"
RTOL = 1e-4
FAMILIES = [
    *("BERT masked LM", "DeBERTa classifier", "GPT-2", "Gemma", "T5", "ViT"),
    *("Mixtral", "Qwen MoE", "Qwen 3 MoE", "GPT-OSS", "Swin"),
]


@pytest.fixture(scope="module")
def hub():
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("hub_models", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["hub_models"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", FAMILIES)
def test_clipped_sums_are_those_of_batches_of_one(hub, name, lora):
    model = hub.made(name, lora)
    x, y = hub.batch(model)
    assert hub.error(model, x, y) < RTOL
    assert hub.proof(hub.private(model, 1.0), x, y) == "proved"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen MoE", "Qwen 3 MoE"])
def test_a_loss_over_the_tokens_of_a_batch_is_refused_with_the_way_without(hub, name, lora):
    model = hub.made(name, lora)
    coefficient = "router_aux_loss_coef" if name == "Mixtral" else "router_aux_loss_coefficient"
    for layer in model._flatten_layers():
        if hasattr(layer, "expert_bank"):
            setattr(layer, coefficient, 0.01)
    with pytest.raises(
        ValueError, match=rf"adds a loss over the tokens of all records.*without it: {coefficient}=0\.0"
    ):
        hub.private(model, 1.0).bounded_gradient_sums(*hub.batch(model))


def test_a_fit_says_that_records_are_proved_to_be_apart(hub):
    model = hub.made("Llama", lora=True)
    x, y = hub.batch(model)
    private = hub.private(model, 1.0)
    private.fit(x, y, batch_size=3, verbose=0)
    assert "contribution is proved" in " ".join(str(private.privacy_statement(1e-5)).split())


def test_a_masked_position_beyond_the_sequence_reads_no_other_record(hub):
    """KerasHub's own head would: it counts positions along all records in a row."""
    model = hub.made("BERT masked LM")
    x, y = hub.batch(model)
    private = hub.private(model, 1e9)
    alone = [np.asarray(g) for g in private.bounded_gradient_sums(*first(x, y, 1))]
    x["mask_positions"][1:] = 10_000
    both = [np.asarray(g) for g in private.bounded_gradient_sums(*first(x, y, 2))]
    x["token_ids"][0] = (x["token_ids"][0] + 1) % hub.VOCABULARY
    changed = [np.asarray(g) for g in private.bounded_gradient_sums(*first(x, y, 2))]
    other = [np.asarray(g) for g in private.bounded_gradient_sums(*first(x, y, 1))]
    for a, b, c, d in zip(alone, both, changed, other, strict=True):
        np.testing.assert_allclose(b - a, c - d, atol=1e-4)


def first(x, y, count):
    return {name: rows[:count] for name, rows in x.items()}, y[:count]


def test_every_class_named_computes_what_its_formula_says():
    """The names are those of the version that is installed, and of no class that is gone."""
    entries = [kind for kind in registry._FORMULAS if isinstance(kind, str) and kind.startswith("keras_hub.")]
    assert len(entries) > 15
    for kind in entries:
        module, name = kind.rsplit(".", 1)
        layer_type = getattr(importlib.import_module(module), name)
        if "Norm" not in name or "Embed" in name:
            continue
        layer = layer_type(6) if "modeling" in module else layer_type()
        private = tfdp.make_private(tf.keras.Sequential([tf.keras.Input((4, 6)), layer]))
        private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
        assert private.sensitivities(), kind


# Planted bug ----------------------------------------------------------------------------------------------------------


def test_the_uses_of_a_tied_table_taken_apart_are_seen(hub, monkeypatch):
    model = hub.made("GPT-2")
    x, y = hub.batch(model)
    monkeypatch.setattr(tables.Tied, "cross", lambda self: tf.zeros(tf.shape(self.lookups.u)[:1]))
    assert hub.error(model, x, y) > 10 * RTOL
