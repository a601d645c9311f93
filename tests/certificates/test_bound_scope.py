"""What is excused in the loops of the optimizer's own bound excuses no mixing that comes before it."""

import dataclasses

import keras
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.proof import mixing
from tfdp_layers.certificates.independence import SCOPE, but_for_the_bound, unknown_within_the_bound
from tfdp_layers.proof import Finding, Report
from tfdp_layers.proof.models import prove_traced, traced_sums

ROWS, LABELS = tf.TensorSpec((None, 6)), tf.TensorSpec((None, 3))
WITHIN = Finding("w", "mixed", "a row by its place", "while", "While", place=f"/{SCOPE}/while|body/while")


class Meets(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return tf.ensure_shape(self.function(x), (None, None))


def report_of(name):
    """What is proved of DP-SGD behind a function in which records meet; None where Keras or the library refuses it."""
    function = mixing.ROWS[name]()
    try:
        model = keras.Sequential([keras.Input((6,)), Meets(function), keras.layers.Dense(3)])
        private = tfdp.make_private(model)
        private.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
        return prove_traced(private, traced_sums(private, ROWS, LABELS))
    except ValueError:
        return None


@pytest.mark.slow
def test_no_mixing_before_the_bound_is_excused():
    found = [report for report in map(report_of, sorted(mixing.ROWS)[::3]) if report is not None]
    assert sum(report.status == "mixed" for report in found) > 33
    assert [report for report in found if but_for_the_bound(report).status != report.status] == []
    assert not any(report.proved for report in found)


def test_only_what_is_at_fault_within_the_bound_is_excused():
    assert unknown_within_the_bound(WITHIN).status == "unknown"
    for place in ("", "/model_1/while", f"/model_1/{SCOPE}/while", f"/{SCOPE}x/while", SCOPE):
        other = dataclasses.replace(WITHIN, place=place)
        assert unknown_within_the_bound(other) == other
    layers = dataclasses.replace(WITHIN, place="/layer_1/Mean")
    assert but_for_the_bound(Report((WITHIN, layers))).status == "mixed"  # one fault elsewhere is enough
    assert but_for_the_bound(Report((WITHIN,), (layers,))).status == "mixed"
