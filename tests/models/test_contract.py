"""One record moves the released sum by at most the stated bound."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.clipped_models import MODELS, compiled, feedback, mlp, rows, shared
from helpers.variants import slow_but

EXTREMES = [np.nan, np.inf, -np.inf, 3e38, -1e30, 1e-40, 0.0, 7.0]


def compiled_sums(model):
    """`model.bounded_gradient_sums`, traced once for each batch size."""
    if not hasattr(model, "compiled_sums"):
        model.compiled_sums = tf.function(model.bounded_gradient_sums, autograph=False)
    return lambda *arrays: model.compiled_sums(*keras.tree.map_structure(tf.constant, arrays))


def influence(model, x, y, spoiled):
    """For each group of weights the largest change of the released sum by taking out any one record, over its bound.

    `spoiled` overwrites the last record's features first.
    """
    x = keras.tree.map_structure(np.copy, x)
    for leaf in keras.tree.flatten(x):
        leaf[-1] = spoiled
    sums, groups = compiled_sums(model), model.sensitivities()
    whole = sums(x, y)
    worst = {}
    for i in range(len(keras.tree.flatten(y)[0])):
        rest = np.delete(np.arange(12), i)
        without = sums(rows(x, rest), rows(y, rest))
        moved = {id(v): a - b for v, a, b in zip(model.trainable_variables, whole, without, strict=True)}
        for group in groups:
            size = float(tf.linalg.global_norm([moved[id(v)] for v in group.variables])) / group.bound
            worst[group.name] = max(worst.get(group.name, 0.0), size)
    return worst


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("make", slow_but([mlp, shared, feedback], MODELS), ids=lambda m: m.__name__)
def test_no_record_moves_the_released_sum_beyond_its_bound(make):
    model, x, y = compiled(make())
    model.set_weights([10 * w for w in model.get_weights()])
    reached = 0.0
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    for extreme in EXTREMES:
        worst = influence(model, x, y, extreme)
        assert all(value <= 1 + 1e-4 for value in worst.values()), (extreme, worst)
        reached = max(reached, *worst.values())
    assert reached > 0.3  # the clips do bind: the test would see a missing one


def test_a_forgotten_clip_is_caught(monkeypatch):
    model, x, y = compiled(mlp())
    model.set_weights([10 * w for w in model.get_weights()])
    model.layers[1].rate = 0.0
    assert max(influence(model, x, y, 7.0).values()) <= 1 + 1e-4
    monkeypatch.setattr(type(model.layers[2]), "upstream_rule", property(lambda self: tf.identity))
    del model.compiled_sums
    assert max(influence(model, x, y, 7.0).values()) > 1.5
