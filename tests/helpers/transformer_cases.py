"""The transformer layers under test: how each is made, its witness, and its groups of weights with their bounds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.certify import HOSTILE, built, extreme, original_type
from tfdp_layers.layers import (
    ClippedEinsumDense,
    ClippedEmbedding,
    ClippedGroupNormalization,
    ClippedLayerNormalization,
    ClippedMultiHeadAttention,
)

OURS = ("gradient_clip", "input_clip", "upstream_clip", "bound")
CLIPS = {"input_clip": 2.0, "upstream_clip": 0.5}
UPSTREAM = {"upstream_clip": 0.5}
FEATURES = 3
Record = tuple[np.ndarray, np.ndarray]


def plain_twin(layer: Any) -> Any:
    """The Keras layer of the same configuration and weights."""
    config = {key: value for key, value in layer.get_config().items() if key not in OURS}
    twin = original_type(type(layer)).from_config(config)
    twin.build_from_config(layer.get_build_config())
    twin.set_weights(layer.get_weights())
    return twin


@dataclass(frozen=True)
class Attend:
    """Attention as a function of one tensor: the positions of query, value and key one after another.

    With one length the three are the same tensor.
    """

    layer: Any
    lengths: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Any, training: Any = None) -> Any:
        query, *others = tf.split(x, self.lengths, axis=1)
        value, key = (*others, None)[:2] if others else (query, None)
        return self.layer(query, value, key=key, training=training, **self.options)

    @property
    def trainable_variables(self) -> list[Any]:
        return self.layer.trainable_variables

    def groups(self) -> list[tuple[list[int], float]]:
        """(places among trainable_variables, bound) of each projection."""
        place = {id(v): i for i, v in enumerate(self.trainable_variables)}
        parts = self.layer.projections().values()
        return [([place[id(v)] for v in part.trainable_variables], part.sensitivity()) for part in parts]


@dataclass(frozen=True)
class Case:
    """A layer type, its options, the shape of one record's input, and records that attain its bounds."""

    layer_type: type
    shape: tuple[int, ...]
    options: dict[str, Any]
    witnesses: Callable[[Any, tuple[int, ...]], list[Record]]
    lengths: tuple[int, ...] = ()
    call: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {**self.options, **{key: "given" for key in self.call}}
        values = [f"{key}={value}".replace(" ", "") for key, value in shown.items() if key not in OURS]
        return "-".join([self.layer_type.__name__, "x".join(map(str, self.lengths or self.shape)), *values])

    def layer(self, **changes: Any) -> Any:
        """The built layer; attention as a function of one tensor."""
        layer = self.layer_type(**(self.options | changes))
        if not self.lengths:
            return built(layer, self.shape)
        keras.utils.set_random_seed(5)
        layer.build((None, self.lengths[0], FEATURES), (None, self.lengths[min(1, len(self.lengths) - 1)], FEATURES))
        return Attend(layer, self.lengths, self.call)

    def twin(self, layer: Any) -> Any:
        """The Keras layer with the same weights, in the same form."""
        return Attend(plain_twin(layer.layer), self.lengths, self.call) if self.lengths else plain_twin(layer)

    def output_shape(self, layer: Any) -> tuple[int, ...]:
        return tuple(layer(np.zeros((1, *self.shape), np.float32)).shape[1:])

    def hostile(self, layer: Any) -> list[Record]:
        rng, target = np.random.default_rng(3), self.output_shape(layer)
        inputs = self.shape or (1,)
        records = [(extreme(*x, inputs, rng).reshape(self.shape), extreme(*u, target, rng)) for x, u in HOSTILE]
        if self.layer_type is ClippedEmbedding:  # mostly in the vocabulary
            tokens = rng.integers(-1, layer.input_dim + 1, (len(records), *self.shape)).astype(np.float32)
            tokens[::2] = 1.0
            records += [(one, u) for one, (_, u) in zip(tokens, records, strict=True)]
        return records


def groups_of(layer: Any) -> list[tuple[list[int], float]]:
    """(places among trainable_variables, bound) of each group of weights."""
    if isinstance(layer, Attend):
        return layer.groups()
    return [(list(range(len(layer.trainable_variables))), layer.sensitivity())]


def shares(layer: Any, gradient: list[np.ndarray]) -> np.ndarray:
    """What a gradient is of each group's bound: 1 where it attains it, infinite where it is not finite."""
    norms = [np.sqrt(sum(np.sum(gradient[i] ** 2) for i in places)) / bound for places, bound in groups_of(layer)]
    return np.where(np.isfinite(norms), norms, np.inf)


# Witnesses


def same_token(layer: Any, target: tuple[int, ...]) -> list[Record]:
    """All tokens one, all upstream gradients aligned."""
    u = np.broadcast_to(np.arange(1.0, target[-1] + 1.0), target).astype(np.float32)
    return [(np.full(target[:-1], 2.0, np.float32), u)]


def anything_large(layer: Any, target: tuple[int, ...]) -> list[Record]:
    rng = np.random.default_rng(4)
    return [(rng.normal(size=target).astype(np.float32), 1e3 * rng.normal(size=target).astype(np.float32))]


def one_place(layer: Any, target: tuple[int, ...]) -> list[Record]:
    """Input at one position (and one of the labels shared by all), upstream gradient one-hot there."""
    inputs, kernel, outputs = layer.labels()
    sizes = dict(zip(outputs[1:], target, strict=True)) | dict(zip(kernel, layer.kernel.shape, strict=True))
    x = np.zeros([sizes[label] for label in inputs[1:]], np.float32)
    x[tuple(0 if label in outputs else slice(None) for label in inputs[1:])] = 100.0
    u = np.zeros(target, np.float32)
    u[(0,) * len(target)] = -100.0
    return [(x, u)]


def opposite_and_equal_keys(layer: Any, target: tuple[int, ...]) -> list[Record]:
    """One query. Two opposite keys, which are the values too: query and key. Two equal values: the others.

    The weights are set so that the output projection's input has the norm of its clip, and passes much on below.
    """
    rng, t, parts = np.random.default_rng(6), CLIPS["input_clip"], layer.layer.projections()
    query, key = (v * t / np.linalg.norm(v) for v in rng.normal(size=(2, FEATURES)).astype(np.float32))
    equal = np.stack([query, key / np.sqrt(2), key / np.sqrt(2)])
    context = np.asarray(parts["value"](equal[None, 1:]))[0, 0]  # whatever the attention, as both are the same
    if "gate" in parts:
        context = context * np.asarray(parts["gate"](equal[None, :1]))[0, 0]
    parts["value"].kernel.assign(np.asarray(parts["value"].kernel) * t / np.linalg.norm(context))
    parts["output"].kernel.assign(np.asarray(parts["output"].kernel) * 1e4)
    u = 1e6 * rng.normal(size=target)
    return [(x.astype(np.float32), u.astype(np.float32)) for x in (np.stack([query, key, -key]), equal)]


def not_attained(layer: Any, target: tuple[int, ...]) -> list[Record]:
    return []


def einsum(equation: str, shape: tuple[int, ...], output_shape: Any, bias_axes: str | None) -> Case:
    options = {"equation": equation, "output_shape": output_shape, "bias_axes": bias_axes, **CLIPS}
    return Case(ClippedEinsumDense, shape, options, one_place)


def attention(lengths: tuple[int, ...], call: dict[str, Any] | None = None, **options: Any) -> Case:
    witnesses = opposite_and_equal_keys if lengths == (1, 2) else not_attained
    options = {"num_heads": 2, "key_dim": 4, **CLIPS, **options}
    return Case(ClippedMultiHeadAttention, (sum(lengths), FEATURES), options, witnesses, lengths, call or {})


def normalization(layer_type: type, shape: tuple[int, ...], **options: Any) -> Case:
    return Case(layer_type, shape, {**options, **UPSTREAM}, anything_large)


EMBEDDINGS = [
    Case(ClippedEmbedding, shape, {"input_dim": 7, "output_dim": 4, "mask_zero": mask, **UPSTREAM}, same_token)
    for shape, mask in [((5,), False), ((), False), ((2, 3), True)]
]
NORMALIZATIONS = [
    normalization(ClippedLayerNormalization, (5,)),
    normalization(ClippedLayerNormalization, (4, 5), center=False),
    normalization(ClippedLayerNormalization, (4, 5), scale=False, epsilon=0.1),
    normalization(ClippedLayerNormalization, (4, 3, 2), axis=[2, 3]),
    normalization(ClippedLayerNormalization, (4, 5), axis=1),
    normalization(ClippedGroupNormalization, (3, 2, 4), groups=2),
    normalization(ClippedGroupNormalization, (4, 3, 2), groups=-1, axis=1),
    normalization(ClippedGroupNormalization, (6,), groups=3, center=False),
]
EINSUMS = [
    einsum("ab,bc->ac", (5,), 4, "c"),
    einsum("abc,cd->abd", (4, 5), (None, 3), "d"),
    einsum("abc,cd->abd", (4, 5), (None, 3), None),
    einsum("abc,cd->abd", (4, 5), (4, 3), "bd"),
    einsum("abc,cd->abd", (4, 5), (4, 3), "b"),
    einsum("abc,cde->abde", (4, 5), (None, 2, 3), "de"),
    einsum("abc,cde->abed", (4, 5), (None, 3, 2), "d"),
    einsum("abcd,cde->abe", (4, 2, 3), (None, 5), "e"),
    einsum("...x,xy->...y", (2, 3, 4), 5, "y"),
    einsum("ab...,bc->ac...", (3, 4), 2, "c"),
    einsum("abc,bcd->abd", (4, 3), (4, 2), "d"),
    einsum("abc,bcd->abd", (4, 3), (4, 2), "bd"),
    einsum("abc,bc->ab", (4, 3), (4,), "b"),
    einsum("abc,cd->adb", (4, 3), (2, None), "d"),
]
MASK = np.tril(np.ones((1, 4, 4), bool))
ATTENTIONS = [
    attention((1, 2)),
    attention((1, 2), use_bias=False, value_dim=3, output_shape=5),
    attention((4,), {"use_causal_mask": True}),
    attention((4,), {"attention_mask": MASK}, use_bias=False),
    attention((3, 4)),
    attention((3, 2, 2), value_dim=2),
    attention((2, 3), input_clip={"query": 1.0, "key": 2.0, "value": 3.0, "output": 0.5}),
]
if "use_gate" in keras.layers.MultiHeadAttention.__init__.__code__.co_varnames:
    ATTENTIONS.append(attention((1, 2), use_gate=True))
CASES = [*EMBEDDINGS, *NORMALIZATIONS, *EINSUMS, *ATTENTIONS]
FEW = [EMBEDDINGS[0], NORMALIZATIONS[1], NORMALIZATIONS[5], EINSUMS[1], EINSUMS[10], ATTENTIONS[0], ATTENTIONS[2]]
"""One of each kind."""
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def clips_of(layer_type: type) -> dict[str, float]:
    return CLIPS if layer_type in (ClippedEinsumDense, ClippedMultiHeadAttention) else UPSTREAM


def ordinary(case: Case, rows: int = 3) -> Any:
    rng = np.random.default_rng(1)
    if case.layer_type is ClippedEmbedding:
        return rng.integers(0, 7, (rows, *case.shape))
    return rng.normal(size=(rows, *case.shape)).astype(np.float32)
