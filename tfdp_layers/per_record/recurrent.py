"""How Keras' recurrent layers compute with their weights."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp_layers.per_record.contributions import Products, Stored, constant, positions
from tfdp_layers.per_record.gate_masks import GateMasks, drawn_masks
from tfdp_layers.per_record.recording import Recorder
from tfdp_layers.per_record.registry import per_record_formulas

kl = keras.layers


def simple(cell: Any, weights: "_Weights", z: tf.Tensor, states: Sequence[tf.Tensor]) -> tuple[Any, Any]:
    h = states[0]
    z = z + weights.masks.product(h, weights.kernel)
    new = z if cell.activation is None else cell.activation(z)
    return tf.concat([new, h], -1), [new]


def lstm(cell: Any, weights: "_Weights", z: tf.Tensor, states: Sequence[tf.Tensor]) -> tuple[Any, Any]:
    h, c = states
    i, f, g, o = tf.split(z + weights.masks.product(h, weights.kernel), 4, axis=-1)
    gate = cell.recurrent_activation
    c = gate(f) * c + gate(i) * cell.activation(g)
    new = gate(o) * cell.activation(c)
    return tf.concat([new, h], -1), [new, c]


def gru(cell: Any, weights: "_Weights", z: tf.Tensor, states: Sequence[tf.Tensor]) -> tuple[Any, Any]:
    h, masks = states[0], weights.masks
    if cell.reset_after:
        z, probe = tf.split(z, 2, axis=-1)
        recurrent = masks.product(h, weights.kernel) + probe
        recurrent = recurrent if weights.bias is None else recurrent + weights.bias
        z_z, z_r, z_h = tf.split(z, 3, axis=-1)
        r_z, r_r, r_h = tf.split(recurrent, 3, axis=-1)
        update, reset = cell.recurrent_activation(z_z + r_z), cell.recurrent_activation(z_r + r_r)
        candidate = cell.activation(z_h + reset * r_h)
        kept = h
    else:
        z_z, z_r, z_h = tf.split(z, 3, axis=-1)
        gates, last = tf.split(weights.kernel, [2 * cell.units, cell.units], axis=-1)
        r_z, r_r = tf.split(masks.some(0, 2).product(h, gates), 2, axis=-1)
        update, reset = cell.recurrent_activation(z_z + r_z), cell.recurrent_activation(z_r + r_r)
        kept = reset * h
        candidate = cell.activation(z_h + masks.some(2, 3).product(kept, last))
    new = update * h + (1 - update) * candidate
    return tf.concat([new, h, kept], -1), [new]


_STEPS = {kl.SimpleRNNCell: simple, kl.LSTMCell: lstm, kl.GRUCell: gru}


@dataclasses.dataclass(frozen=True)
class _Weights:
    """What a cell multiplies its states with and adds to them."""

    kernel: tf.Tensor
    bias: tf.Tensor | None
    masks: GateMasks


class _Cell(keras.layers.Layer):
    """A recurrent cell without weights of its own, on input projections that were computed for all steps at once."""

    def __init__(self, cell: keras.layers.Layer, weights: _Weights) -> None:
        super().__init__(dtype=cell.dtype_policy, name=cell.name)
        self.state_size = cell.state_size
        self.compute = lambda z, states: _STEPS[type(cell)](cell, weights, z, states)
        self.start = cell.get_initial_state
        self.built = True

    def call(self, z: tf.Tensor, states: Sequence[tf.Tensor]) -> Any:
        return self.compute(z, states)

    def get_initial_state(self, batch_size: int | tf.Tensor | None = None) -> Any:
        return self.start(batch_size)


@per_record_formulas(kl.SimpleRNN, kl.LSTM, kl.GRU)
def recurrent(
    layer: keras.layers.Layer,
    record: Recorder,
    sequences: tf.Tensor,
    initial_state: tf.Tensor | Sequence[tf.Tensor] | None = None,
    mask: tf.Tensor | None = None,
    training: bool | None = False,
) -> Any:
    """The layer's own loop (masks, direction, states) around cells on projections computed for all steps at once.

    The gradient at the projections gives those of kernel and bias as in a Dense layer over time, and, with each step's
    earlier h, that of the recurrent kernel. Dropout masks are those of all steps, drawn before the loop.
    """
    cell = layer.cell
    of_inputs, of_states = drawn_masks(cell, sequences, training)
    biases = list(tf.unstack(constant(cell.bias, sequences.dtype))) if two_biases(cell) else [None, None]
    z = projected(record, cell, of_inputs, sequences)
    if cell.use_bias:
        z = record.offset(cell.bias, z) if biases[0] is None else z + biases[0]
    z = record.watch(z)
    after = isinstance(cell, kl.GRUCell) and cell.reset_after
    probe = record.watch(tf.zeros_like(z)) if after else z
    loop = kl.RNN(
        _Cell(cell, _Weights(constant(cell.recurrent_kernel, z.dtype), biases[1], of_states)),
        return_sequences=True,
        return_state=True,
        go_backwards=layer.go_backwards,
        unroll=layer.unroll,
        zero_output_for_mask=layer.zero_output_for_mask,
        dtype=layer.dtype_policy,
        name=layer.name,
    )
    loop.built = True
    found, *states = loop.call(tf.concat([z, probe], -1) if after else z, initial_state, mask, training)
    units = cell.units
    before = found[..., units : 2 * units], found[..., 2 * units :]
    if layer.go_backwards:
        before = tuple(tf.reverse(values, [1]) for values in before)
    note_recurrent(record, cell, of_states, before, z, probe)
    outputs = found[..., :units] if layer.return_sequences else found[:, -1, :units]
    return (outputs, *states) if layer.return_state else outputs


@per_record_formulas(kl.RNN, kl.ConvLSTM1D, kl.ConvLSTM2D, kl.ConvLSTM3D)
def any_cell(layer: keras.layers.Layer, record: Recorder, *args: Any, **kwargs: Any) -> Any:
    """A loop over cells of whatever kind, the user's own among them: record by record, but for the kinds known above.

    Memory: a gradient of all its weights for each record of a batch, which `physical_batch_size` divides.
    """
    if type(layer.cell) in _STEPS:
        return recurrent(layer, record, *args, **kwargs)
    refuse_dropout(layer, kwargs.get("training"))
    return record.looping_layer(layer, functools.partial(type(layer).call, layer), *args, **kwargs)


def refuse_dropout(layer: Any, training: bool | None) -> None:
    """Raises ValueError for dropout inside of steps: the masks of a record's own gradient would be others."""
    cells = layer.cell._flatten_layers()
    if training and any(getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0) for cell in cells):
        raise ValueError(
            f"Layer {layer.name!r} has dropout inside its steps, for which there is no per-record formula. Put a"
            " keras.layers.Dropout (noise_shape=(None, 1, features) for one mask in all steps) before it."
        )


def two_biases(cell: keras.layers.Layer) -> bool:
    """Whether the bias has a row for the projections and one for the recurrent ones."""
    return isinstance(cell, kl.GRUCell) and cell.reset_after and cell.use_bias


def projected(record: Recorder, cell: Any, masks: GateMasks, sequences: tf.Tensor) -> tf.Tensor:
    """The inputs of all steps times the kernel, with its use noted."""
    if not masks.by_gate:
        return record.product(cell.kernel, masks.applied(sequences))
    z = record.watch(masks.product(sequences, constant(cell.kernel, sequences.dtype)))
    if cell.kernel.trainable:
        record.note_at(cell.kernel, [z], lambda u: Stored(cell.kernel, masks.gradient(sequences, u)))
    return z


def note_recurrent(
    record: Recorder, cell: Any, masks: GateMasks, before: tuple[tf.Tensor, tf.Tensor], z: tf.Tensor, probe: tf.Tensor
) -> None:
    """Notes the recurrent kernel's use, and that of a bias with two rows."""
    kernel, units = cell.recurrent_kernel, cell.units
    h, kept = before

    def of_kernel(u: tf.Tensor) -> Any:
        if isinstance(cell, kl.GRUCell) and not cell.reset_after:
            gates = masks.some(0, 2).gradient(h, u[..., : 2 * units])
            return Stored(kernel, tf.concat([gates, masks.some(2, 3).gradient(kept, u[..., 2 * units :])], -1))
        return Stored(kernel, masks.gradient(h, u)) if masks.by_gate else Products(kernel, masks.applied(h), u)

    if kernel.trainable:
        record.note_at(kernel, [probe], of_kernel)
    if two_biases(cell) and cell.bias.trainable:
        both = lambda u, v: Stored(cell.bias, tf.stack([summed(u), summed(v)], 1))  # noqa: E731
        record.note_at(cell.bias, [z, probe], both)


def summed(u: tf.Tensor) -> tf.Tensor:
    """(batch, steps, units) -> (batch, units), float32."""
    return tf.reduce_sum(tf.cast(positions(u), tf.float32), axis=1)
