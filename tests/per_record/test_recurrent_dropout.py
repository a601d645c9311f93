"""Dropout inside of recurrent layers: each record's gradient is that of a batch of it alone, under the same masks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import influences
from helpers.layer_cases import normal, stack
from helpers.oracle import error_of
from helpers.private_models import CLIP, product
from helpers.variants import slow_but
from tfdp_layers.per_record.gate_masks import GateMasks

kl = keras.layers
RTOL = 1e-4
LAYERS = {
    "lstm": lambda **options: kl.LSTM(3, **options),
    "lstm, backwards": lambda **options: kl.LSTM(3, go_backwards=True, use_bias=False, **options),
    "gru": lambda **options: kl.GRU(3, **options),
    "gru, reset before": lambda **options: kl.GRU(3, reset_after=False, **options),
    "simple": lambda **options: kl.SimpleRNN(3, **options),
    "bidirectional": lambda **options: kl.Bidirectional(kl.LSTM(2, **options)),
    "of a cell": lambda **options: kl.RNN(kl.GRUCell(3, **options)),
}
RATES = {
    "inputs": {"dropout": 0.4},
    "states": {"recurrent_dropout": 0.4},
    "both": {"dropout": 0.3, "recurrent_dropout": 0.4},
}


def masks_of_the_record(cell, values, rate):
    """In place of random ones: masks that a record has in every batch, others for each gate."""
    count = getattr(cell, "dropout_mask_count", None)
    places = 1.0 + tf.range(values.shape[-1], dtype=values.dtype)
    each = [tf.cast(tf.cos(50 * values + place * places) > -0.3, values.dtype) / (1 - rate) for place in range(1, 5)]
    return each[0] if count is None else each[:count]


@pytest.fixture
def known_masks(monkeypatch):
    for cell in (kl.LSTMCell, kl.GRUCell, kl.SimpleRNNCell):
        monkeypatch.setattr(cell, "_create_dropout_mask", masks_of_the_record)


@pytest.mark.few(4)
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("name", slow_but(["lstm", "gru, reset before", "simple"], LAYERS))
def test_gradients_are_those_of_batches_of_one(name, rates, known_masks):
    model, x = stack((4, 5), LAYERS[name](**RATES[rates]), kl.Dense(2))
    assert error_of(model, x) < RTOL


def test_dropout_of_inputs_in_four_parts(known_masks):
    layer = kl.LSTM(3, dropout=0.4, return_sequences=True, use_cudnn=False)
    layer.cell.implementation, layer.cell.dropout_mask_count = 1, 4
    model, x = stack((4, 5), layer, kl.GRU(2, recurrent_dropout=0.3, unroll=True))
    assert error_of(model, x) < RTOL


@pytest.mark.parametrize("method", ["product", "gradient"])
def test_a_forgotten_mask_is_found(method, known_masks, monkeypatch):
    """The planted bug: products or gradients without the masks of the gates."""
    plain = {"product": lambda _, x, kernel: tf.matmul(x, kernel), "gradient": GateMasks([]).gradient.__func__}
    forgetting = plain[method] if method == "product" else lambda _, x, u: plain[method](GateMasks([]), x, u)
    monkeypatch.setattr(GateMasks, method, forgetting)
    model, x = stack((4, 5), kl.LSTM(3, dropout=0.3, recurrent_dropout=0.4))
    assert error_of(model, x) > 0.01


def test_records_draw_masks_of_their_own_and_new_ones_in_every_step():
    model = tfdp.make_private(keras.Sequential([keras.Input((3, 40)), kl.LSTM(40, dropout=0.5, recurrent_dropout=0.5)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    lstm, seen = model.layers[-1], []
    draw = type(lstm.cell)._create_dropout_mask

    def noted(values, rate):
        seen.append(draw(lstm.cell, values, rate))
        return seen[-1]

    lstm.cell._create_dropout_mask = noted
    x, y = tf.ones((8, 3, 40)), np.zeros((8, 40))
    for _ in range(2):
        model.bounded_gradient_sums(x, y)
    first, second = [np.stack(masks) for masks in seen[-4:-2]], [np.stack(masks) for masks in seen[-2:]]
    for masks in (*first, *second):
        assert {0.0, 2.0} == set(np.unique(masks))
        rows = masks.transpose(1, 0, 2).reshape(8, -1)
        assert len(np.unique(rows, axis=0)) == 8
    assert all(np.any(a != b) for a, b in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [kl.LSTM, kl.GRU, kl.SimpleRNN], ids=lambda kind: kind.__name__)
def test_a_step_keeps_its_bound(kind, known_masks):
    layers = [keras.Input((6, 5)), kl.LayerNormalization(), kind(4, dropout=0.2, recurrent_dropout=0.3), kl.Dense(3)]
    model = tfdp.PrivateSequential(layers)
    model.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(1.0), 1.0, CLIP), product)
    assert max(influences(model)) <= 1 + SLACK


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [kl.LSTM, kl.GRU, kl.SimpleRNN], ids=lambda kind: kind.__name__)
def test_a_step_with_random_masks_is_proved(kind):
    layers = [keras.Input((6, 5)), kind(4, dropout=0.2, recurrent_dropout=0.3), kl.Dense(3)]
    model = tfdp.PrivateSequential(layers)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, CLIP), product)
    assert tfdp.check_independence(model, normal(6, 5), normal(3)).proved
