"""Which KerasHub models DP-SGD trains: by formulas or not, how exact its clipped sums are, and what is proved.

Run: pip install keras-hub; python benchmarks/hub_models.py [--models bert,gpt2] [--ways full,lora] [--markdown]

Each family is made small (two layers, width 8, random weights, no dropout), with the head that one fine-tunes: a
vocabulary of logits (tied to the input embedding where the family ties it) or classes. Its clipped sums of five records
are compared with those of a loop over batches of one by Keras' own gradients, at a clip that binds every record and at
one that binds none; the error is the largest over all weights, relative to the norm of all sums. `full` trains all
weights, `lora` what `backbone.enable_lora(2)` leaves trainable (for T5 and Swin with the names of their projections,
none of which are KerasHub's defaults). docs/models.md holds the table of `--markdown`.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tfdp_layers as tfdp

FLAGS = flags.FLAGS
VOCABULARY, LENGTH, RECORDS, RANK = 23, 6, 5, 2
SIZES = {"vocabulary_size": VOCABULARY, "num_layers": 2, "intermediate_dim": 12, "hidden_dim": 8, "dropout": 0.0}
HEADS = {"num_heads": 2}
GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2}
MAXIMUM = {"max_sequence_length": 9}


def hub() -> Any:
    import keras_hub

    return keras_hub.models


def causal(name: str, **sizes: Any) -> Any:
    """A model of the next token, whose logits come from the token embedding where the family ties them."""
    backbone = getattr(hub(), f"{name}Backbone")(**SIZES | sizes)
    return getattr(hub(), f"{name}CausalLM")(backbone=backbone, preprocessor=None)


def pair(name: str, **sizes: Any) -> Any:
    """An encoder and a decoder, with logits."""
    backbone = getattr(hub(), f"{name}Backbone")(**SIZES | HEADS | sizes)
    return getattr(hub(), f"{name}Seq2SeqLM")(backbone=backbone, preprocessor=None)


def masked(name: str, **sizes: Any) -> Any:
    """A model of masked tokens, whose logits come from the token embedding."""
    backbone = getattr(hub(), f"{name}Backbone")(**SIZES | HEADS | MAXIMUM | sizes)
    return getattr(hub(), f"{name}MaskedLM")(backbone=backbone, preprocessor=None)


def classifier(name: str, **sizes: Any) -> Any:
    """A classifier of texts."""
    backbone = getattr(hub(), f"{name}Backbone")(**SIZES | HEADS | MAXIMUM | sizes)
    return getattr(hub(), f"{name}TextClassifier")(backbone=backbone, num_classes=3, preprocessor=None, dropout=0.0)


def vit() -> Any:
    """A classifier of images."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    backbone = hub().ViTBackbone((8, 8, 3), (4, 4), **sizes)
    return hub().ViTImageClassifier(backbone=backbone, num_classes=3, preprocessor=None)


def mixture(name: str, balance: str = "router_aux_loss_coefficient", **sizes: Any) -> Any:
    """A mixture of experts; the loss that balances them over all tokens of a batch is left out, if it has one."""
    sizes |= {balance: 0.0} if balance else {}
    return causal(name, **GROUPED, num_experts=3, top_k=2, **sizes)


def swin() -> Any:
    """A classifier of images by attention within windows, in the second stage over one window."""
    sizes = {"embed_dim": 4, "depths": (2, 2), "num_heads": (2, 2), "window_size": 2, "patch_size": 2, "drop_path": 0.0}
    backbone = hub().SwinTransformerBackbone((8, 8, 3), **sizes)
    return hub().SwinTransformerImageClassifier(backbone=backbone, num_classes=3, preprocessor=None)


def headed(name: str, **sizes: Any) -> Any:
    """An encoder of images or texts with a dense head on its pooled, or averaged, output."""
    module = importlib.import_module(f"keras_hub.src.models.{name.split('.')[0]}.{name.split('.')[1]}")
    encoder = getattr(module, name.split(".")[2])(**sizes)
    output = encoder.output
    if isinstance(output, dict):
        output = output.get("pooled_output", next(iter(output.values())))
    if len(output.shape) == 3:
        output = keras.layers.GlobalAveragePooling1D()(output)
    return keras.Model(encoder.input, keras.layers.Dense(3)(output))


BLOCKS = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
IMAGES = BLOCKS | {"patch_size": 4, "image_shape": (8, 8, 3)}
TEXTS = BLOCKS | {"vocabulary_size": VOCABULARY}
ENCODERS: dict[str, Callable[[], Any]] = {
    "CLIP images": lambda: headed("clip.clip_vision_encoder.CLIPVisionEncoder", **IMAGES),
    "CLIP texts": lambda: headed("clip.clip_text_encoder.CLIPTextEncoder", **TEXTS, **MAXIMUM, embedding_dim=8),
    "SigLIP images": lambda: headed("siglip.siglip_vision_encoder.SigLIPVisionEncoder", **IMAGES),
    "SigLIP texts": lambda: headed(
        "siglip.siglip_text_encoder.SigLIPTextEncoder", **TEXTS, embedding_dim=8, max_sequence_length=LENGTH
    ),
    "DeiT": lambda: headed("deit.deit_backbone.DeiTBackbone", **IMAGES),
    "DINOv2": lambda: headed(
        "dinov2.dinov2_backbone.DINOV2Backbone", **IMAGES, position_embedding_shape=(8, 8, 3), use_mask_token=False
    ),
    "RoFormer": lambda: headed(
        "roformer_v2.roformer_v2_backbone.RoformerV2Backbone", **TEXTS, head_size=4, dropout=0.0, num_segments=2
    ),
}
"""Encoders with layers that have no formula: what each record adds follows from the layers' own calls."""


MODELS: dict[str, Callable[[], Any]] = {
    "BERT classifier": lambda: classifier("Bert"),
    "BERT masked LM": lambda: masked("Bert"),
    "RoBERTa classifier": lambda: classifier("Roberta"),
    "RoBERTa masked LM": lambda: masked("Roberta"),
    "DistilBERT classifier": lambda: classifier("DistilBert"),
    "DistilBERT masked LM": lambda: masked("DistilBert"),
    "ALBERT classifier": lambda: classifier("Albert", embedding_dim=6),
    "ALBERT masked LM": lambda: masked("Albert", embedding_dim=6),
    "DeBERTa classifier": lambda: classifier("DebertaV3", bucket_size=4),
    "DeBERTa masked LM": lambda: masked("DebertaV3", bucket_size=4),
    "GPT-2": lambda: causal("GPT2", **HEADS, **MAXIMUM),
    "OPT": lambda: causal("OPT", **HEADS, **MAXIMUM),
    "Bloom": lambda: causal("Bloom", **HEADS),
    "Llama": lambda: causal("Llama", **GROUPED),
    "Mistral": lambda: causal("Mistral", **GROUPED),
    "Gemma": lambda: causal("Gemma", **GROUPED, head_dim=4),
    "Qwen": lambda: causal("Qwen", **GROUPED),
    "Mixtral": lambda: mixture("Mixtral", "router_aux_loss_coef"),
    "Qwen MoE": lambda: mixture("QwenMoe", moe_intermediate_dim=5, shared_expert_intermediate_dim=6),
    "Qwen 3 MoE": lambda: mixture("Qwen3Moe", moe_intermediate_dim=5, head_dim=4),
    "GPT-OSS": lambda: mixture("GptOss", "", sliding_window=4),
    "T5": lambda: pair("T5"),
    "BART": lambda: pair("Bart", **MAXIMUM),
    "ViT": vit,
    "Swin": swin,
}


PROJECTIONS = {"T5": ["query_projector", "value_projector"], "Swin": ["attention_qkv"]}
"""What LoRA is put on where KerasHub's own names are none of the family's."""


def key(name: str) -> str:
    """The name as the flag takes it: bert_classifier."""
    return name.lower().replace("-", "").replace(" ", "_")


def made(name: str, lora: bool = False) -> Any:
    """The model with weights moved from where they start, so that none is zero or one; with LoRA on its backbone."""
    keras.utils.set_random_seed(1)
    model = (MODELS | ENCODERS)[name]()
    if lora:
        model.backbone.enable_lora(RANK, PROJECTIONS.get(name))
    rng = np.random.default_rng(2)
    for variable in model.variables:
        if variable.dtype.startswith("float"):
            variable.assign(variable + 0.1 * rng.normal(size=variable.shape))
    return model


def batch(model: Any, seed: int = 3) -> tuple[Any, np.ndarray]:
    """Records for the model's inputs, and labels for its output."""
    rng = np.random.default_rng(seed)

    def rows(name: str, tensor: Any) -> np.ndarray:
        shape = (RECORDS, *(LENGTH if n is None else n for n in tensor.shape[1:]))
        if tensor.dtype.startswith("float"):
            return rng.normal(size=shape).astype("float32")
        if "padding_mask" in name:
            return (np.arange(LENGTH) < rng.integers(3, LENGTH + 1, (RECORDS, 1))).astype("int32")
        highest = {"segment_ids": 2, "mask_positions": LENGTH}.get(name, VOCABULARY)
        return rng.integers(0, highest, (RECORDS, 3) if name == "mask_positions" else shape).astype("int32")

    inputs = model.input
    x = {n: rows(n, t) for n, t in inputs.items()} if isinstance(inputs, dict) else rows("", inputs)
    outputs = model(x)
    return x, rng.integers(0, outputs.shape[-1], outputs.shape[:-1])


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def alone(model: Any, x: Any, y: np.ndarray) -> list[list[np.ndarray]]:
    """Each record's gradient by Keras and a batch of one: one list of arrays for each record."""
    found = []
    for i in range(len(y)):
        with tf.GradientTape() as tape:
            one = keras.tree.map_structure(lambda t, i=i: tf.constant(t[i : i + 1]), x)
            loss = LOSS(y[i : i + 1], model(one, training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables], unconnected_gradients="zero")
        found.append([np.asarray(tf.convert_to_tensor(g), np.float64) for g in gradients])
    return found


def clipped(gradients: list[list[np.ndarray]], clip: float) -> list[np.ndarray]:
    """The sum of the records' gradients, each scaled to at most `clip`."""
    norms = [np.sqrt(sum(np.sum(g**2) for g in record)) for record in gradients]
    scaled = [[min(1.0, clip / n) * g for g in record] for n, record in zip(norms, gradients, strict=True)]
    return [np.sum(parts, axis=0) for parts in zip(*scaled, strict=True)]


def private(model: Any, clip: float, **options: Any) -> Any:
    made_private = tfdp.make_private(model)
    made_private.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0, clip, **options), LOSS)
    return made_private


def error(model: Any, x: Any, y: np.ndarray, **options: Any) -> float:
    """The largest difference of the clipped sums from the loop's, relative to the norm of all, over both clips."""
    gradients, worst = alone(model, x, y), 0.0
    norms = [np.sqrt(sum(np.sum(g**2) for g in record)) for record in gradients]
    for clip in (0.5 * min(norms), 2.0 * max(norms)):
        expected = clipped(gradients, clip)
        sums = private(model, clip, **options).bounded_gradient_sums(x, y)
        scale = np.sqrt(sum(np.sum(e**2) for e in expected))
        worst = max(worst, *[np.abs(np.asarray(s) - e).max() / scale for s, e in zip(sums, expected, strict=True)])
    return float(worst)


def proof(model: Any, x: Any, y: np.ndarray) -> str:
    """What is known of records being kept apart by the traced step."""
    try:
        report = tfdp.check_independence(model, x, y)
    except ValueError as refusal:
        return f"refused: {refusal}"
    return "proved" if report.proved else f"measured: {report.reason}"


def examine(name: str, lora: bool) -> dict[str, Any]:
    """One line of the table."""
    by = "own call" if name in ENCODERS else "formula"
    row: dict[str, Any] = {"model": name, "way": "lora" if lora else "full", "by": by, "error": None}
    model = made(name, lora)
    x, y = batch(model)
    row["weights"] = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    try:
        row["error"] = error(model, x, y)
    except ValueError as refusal:
        row |= {"by": "refused", "why": str(refusal)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row |= {"error": error(model, x, y, allow_generic=True), "by": "generic"}
        except ValueError as again:
            row["why"] = str(again)
    if row["by"] != "refused":
        row["proof"] = proof(private(model, 1.0, allow_generic=row["by"] == "generic"), x, y)
    return row


def main(_: list[str]) -> None:
    known = [*MODELS, *ENCODERS]
    chosen = [n for n in known if not FLAGS.models or any(key(n).startswith(m) for m in FLAGS.models)]
    if FLAGS.markdown:
        print("| model | trained | by | clipped sums' error | records apart |\n|---|---|---|---|---|")
    for name in chosen:
        for way in FLAGS.ways if name in MODELS else ["full"]:
            row = examine(name, way == "lora")
            found = "" if row["error"] is None else f"{row['error']:.0e}"
            cells = [name, f"{way}, {row['weights']:,}", row["by"], found, row.get("proof", "")]
            print("| " + " | ".join(cells) + " |" if FLAGS.markdown else row, flush=True)


if __name__ == "__main__":
    flags.DEFINE_list("models", [], "Beginnings of names; all if left out.")
    flags.DEFINE_list("ways", ["full", "lora"], "What is trained.")
    flags.DEFINE_bool("markdown", False, "Print the table of docs/models.md.")
    app.run(main)
