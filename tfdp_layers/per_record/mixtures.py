"""How KerasHub's mixtures of experts compute: every token by each expert, summed by what the router says.

Their own calls lay the tokens of all records along one axis, and some add a loss over all of them. Here each record
keeps its axis, and the sum over experts is one product, so that gradients are those of products over positions:
sum_e s_e (h_e W_e) = [s_e h_e]_(e, m) W_(e, m). Formulas are used where the experts are frozen, too: the loss over the
batch that a layer's own call adds, if only zero times, would be refused.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.agreement import RefusedLayerError
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import formula_of, per_record_formulas

HUB = "keras_hub.src.models."
ops = keras.ops


@per_record_formulas(HUB + "gpt_oss.gpt_oss_decoder.GptOssSparseMoeBlock", also_frozen=True)
def gpt_oss(layer: Any, record: Recorder, hidden_states: tf.Tensor) -> Any:
    """Gated experts with biases, by the softmax of the largest router logits."""
    experts, router = layer.experts, layer.router
    top, chosen = ops.top_k(dense(router.router_dense, record, hidden_states), layer.top_k)
    scores = spread(ops.softmax(top, axis=-1), chosen, layer.num_experts)
    both = of_each_expert(record, experts.gate_up_proj, hidden_states)
    both = record.offset(experts.gate_up_proj_bias, both, (layer.num_experts, 1, 2 * layer.intermediate_dim))
    gate = ops.clip(both[..., ::2], -1e9, experts.limit)
    up = ops.clip(both[..., 1::2], -experts.limit, experts.limit)
    hidden = (up + 1) * gate * ops.sigmoid(gate * experts.alpha)
    outputs = summed(record, experts.down_proj, hidden, scores)
    return outputs + record.product(experts.down_proj_bias, scores), flattened(scores)


@per_record_formulas(HUB + "mixtral.mixtral_decoder.MixtralSparseMoeBlock", also_frozen=True)
def mixtral(
    layer: Any, record: Recorder, hidden_states: tf.Tensor, attention_mask: Any = None, training: Any = None
) -> Any:
    """Gated experts, by the largest router probabilities, which are made to sum to one."""
    refuse_loss_over_the_batch(layer, layer.router_aux_loss_coef, "router_aux_loss_coef")
    experts = layer.expert_bank
    logits, scores = routed(layer, record, hidden_states, normalized=True)
    gate = of_each_expert(record, experts._expert_feedforward_gate_dense, hidden_states)
    gate = ops.cast(experts.activation(ops.cast(gate, "float32")), experts.compute_dtype)
    up = of_each_expert(record, experts._expert_feedforward_intermediate_dense, hidden_states)
    outputs = summed(record, experts._expert_feedforward_output_dense, up * gate, scores)
    return outputs, flattened(logits)


@per_record_formulas(
    HUB + "qwen_moe.qwen_moe_decoder.QwenSparseMoeBlock",
    HUB + "qwen3_moe.qwen3_moe_decoder.Qwen3SparseMoeBlock",
    also_frozen=True,
)
def qwen(
    layer: Any, record: Recorder, hidden_states: tf.Tensor, attention_mask: Any = None, training: Any = None
) -> Any:
    """Gated experts, by the largest router probabilities; in Qwen 2 beside one that sees every token."""
    refuse_loss_over_the_batch(layer, layer.router_aux_loss_coefficient, "router_aux_loss_coefficient")
    experts = layer.expert_bank
    logits, scores = routed(layer, record, hidden_states, layer.norm_top_k_prob)
    both = of_each_expert(record, experts._expert_feedforward_gate_dense, hidden_states)
    gate, up = ops.split(both, 2, axis=-1)
    outputs = summed(record, experts._expert_feedforward_output_dense, up * experts.activation(gate), scores)
    if hasattr(layer, "shared_expert_dense"):
        weight = ops.sigmoid(dense(layer.shared_expert_gate_dense, record, hidden_states))
        outputs += shared_expert(layer.shared_expert_dense, record, hidden_states) * weight
    return outputs, flattened(logits)


def shared_expert(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    """A gated feed-forward network; its activation in float32."""
    gate = ops.cast(dense(layer._feedforward_gate_dense, record, inputs), "float32")
    gate = ops.cast(layer.activation(gate), layer.compute_dtype)
    return dense(
        layer._feedforward_output_dense, record, dense(layer._feedforward_intermediate_dense, record, inputs) * gate
    )


def refuse_loss_over_the_batch(layer: Any, coefficient: float, name: str) -> None:
    """Raises RefusedLayerError for a loss that balances experts over the tokens of all records."""
    if coefficient != 0:
        raise RefusedLayerError(
            f"Layer {layer.name!r} ({type(layer).__name__}) adds a loss over the tokens of all records together, to"
            f" balance its experts ({name}={coefficient}): no clip bounds a record's part in it. Make the backbone"
            f" without it: {name}=0.0."
        )


def dense(layer: Any, record: Recorder, inputs: tf.Tensor) -> Any:
    """A Dense layer within the mixture, by its own formula."""
    return formula_of(layer)(layer, record, inputs)


def routed(layer: Any, record: Recorder, hidden_states: tf.Tensor, normalized: bool) -> tuple[Any, Any]:
    """The router's logits, and each expert's weight for each token: (batch, tokens, experts) both."""
    logits = dense(layer._sparse_feedforward_gate_dense, record, hidden_states)
    top, chosen = ops.top_k(ops.softmax(logits, axis=-1), layer.top_k)
    if normalized:
        top = top / ops.sum(top, axis=-1, keepdims=True)
    return logits, ops.cast(spread(top, chosen, layer.num_experts), hidden_states.dtype)


def spread(weights: tf.Tensor, chosen: tf.Tensor, experts: int) -> Any:
    """Weights of the chosen experts, zero for the others: (batch, tokens, experts)."""
    hot = ops.cast(ops.one_hot(chosen, experts), weights.dtype)
    return ops.sum(hot * weights[..., None], axis=-2)


def of_each_expert(record: Recorder, kernels: keras.Variable, inputs: tf.Tensor) -> Any:
    """inputs (batch, tokens, n) times each of the kernels (experts, n, m): (batch, experts, tokens, m)."""
    return record.einsum("bth,ehm->betm", kernels, inputs)


def summed(record: Recorder, kernels: keras.Variable, hidden: tf.Tensor, scores: tf.Tensor) -> Any:
    """Each token's sum over experts of score times hidden (batch, experts, tokens, m) times kernel (experts, m, n)."""
    return record.einsum("betm,emh->bth", kernels, hidden * ops.transpose(scores, (0, 2, 1))[..., None])


def flattened(values: tf.Tensor) -> Any:
    """(batch, tokens, n) with all tokens along one axis, as the layers themselves give it."""
    return ops.reshape(values, (-1, values.shape[-1]))
