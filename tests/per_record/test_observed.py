"""Layers of a user's own, without a formula: what their call shows is the gradient of each record by itself."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.certify import SLACK
from helpers.hostile_batches import influences
from helpers.layer_cases import normal
from helpers.oracle import error_of, recorded
from helpers.own_layers import OWN_CASES, OWN_FEW, OWN_OF_POSITIVE, OWN_REFUSED, OfDense, Own, kl, refused
from helpers.private_models import private, sums_of
from helpers.variants import slow_but
from tfdp_layers.per_record import meeting_rules, observed
from tfdp_layers.per_record.contributions import Lookups, Products

RTOL = 1e-4


@pytest.mark.few(2)
@pytest.mark.parametrize("name", slow_but(OWN_FEW, OWN_CASES))
def test_clipped_sums_are_those_of_batches_of_one_and_proved(name):
    model, x = OWN_CASES[name]()
    assert error_of(model, x, "graph") < RTOL
    assert tfdp.check_independence(private(model)).proved


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OWN_OF_POSITIVE)
def test_functions_of_positive_numbers_are_tried_on_those(name):
    model, x = OWN_OF_POSITIVE[name]()
    x = 1.0 / (1.0 + tf.exp(-x)) + (1.0 if name == "from one on" else 0.0)
    assert error_of(model, x, "graph") < RTOL
    assert tfdp.check_independence(private(model)).proved


@pytest.mark.parametrize("mode", ["eager", "xla"])
@pytest.mark.parametrize("name", slow_but(OWN_FEW[:1], OWN_FEW))
def test_other_modes(name, mode):
    assert error_of(*OWN_CASES[name](), mode) < RTOL


@pytest.mark.parametrize("name", slow_but(OWN_FEW[1:3], OWN_CASES))
def test_no_record_exceeds_its_bound_whatever_it_holds(name):
    found = influences(private(OWN_CASES[name]()[0], clip=1e-3))
    assert 0.99 < max(found) <= 1 + SLACK


@pytest.mark.parametrize("reason", OWN_REFUSED)
def test_what_the_call_does_not_show_is_refused(reason):
    compute, message = OWN_REFUSED[reason]
    with pytest.raises(ValueError, match=message):
        tfdp.check_independence(private(refused(compute)))


def test_a_loss_over_the_batch_is_refused_of_a_layer_that_takes_the_slow_way():
    def compute(s, x):
        s.add_loss(tf.reduce_sum(x))
        return tf.minimum(x, s.w[0])

    with pytest.raises(ValueError, match="add_loss"):
        tfdp.check_independence(private(refused(compute), allow_generic=True))


@pytest.mark.slow
def test_products_and_lookups_are_not_written_out():
    for name, kinds in {"dense over positions": {"w": Products}, "looked up by place": {"t": Lookups}}.items():
        model, x = OWN_CASES[name]()
        found = []

        def parts(x, model=model):
            return found.append(recorded(model, x, upstream_of(model)))  # noqa: B023

        tf.function(parts).get_concrete_function(x)
        assert kinds.items() <= {v.name: type(found[0][id(v)]) for v in model.trainable_variables}.items()


def upstream_of(model):
    return [tf.ones((3, *t.shape[1:])) for t in model.outputs]


@pytest.mark.slow
def test_texts_of_any_length():
    pooled = OWN_CASES["attention pooling"]()[0].layers[-1]
    ids = keras.Input((None, 6))
    model = keras.Model(ids, pooled(ids))
    assert error_of(model, normal(5, 6), "graph") < RTOL
    assert tfdp.check_independence(private(model), normal(5, 6), np.zeros((3, 6), "float32")).proved


def test_rows_that_are_one_a_record_at_the_trials_length_alone_are_refused():
    """Bounded row by row, a longer record would add its bound several times."""

    def compute(s, x):
        rows = tf.reshape(x[:, 2:], (-1, 6)) @ s.w
        return tf.reduce_sum(tf.reshape(rows, (tf.shape(x)[0], -1, 6)), axis=1)

    x = keras.Input((None, 6))
    model = private(keras.Model(x, Own(compute, w=(6, 6))(x)))
    with pytest.raises(ValueError, match="an unknown number of rows for 1009 records"):
        model.sensitivities()


def test_a_subclass_adds_what_its_own_call_says():
    twice, plain = keras.Sequential([keras.Input((6,)), OfDense(3)]), keras.Sequential([keras.Input((6,)), kl.Dense(3)])
    twice.set_weights(plain.get_weights())
    x, y = normal(6), np.ones((3, 3), "float32")
    kernels = [sums_of(private(model, clip=1e6))(x, y)[0] for model in (twice, plain)]
    np.testing.assert_allclose(kernels[0], 2 * kernels[1], rtol=1e-5)


def test_fit_says_that_it_is_proved_and_warns_of_nothing_slow():
    model = private(OWN_CASES["looked up by place"]()[0])
    x = np.random.default_rng(0).integers(0, 11, (20, 4))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*per-record formula")
        model.fit(x, np.ones((20, 4, 6)), batch_size=5, verbose=0)
    assert "contribution is proved" in " ".join(str(model.privacy_statement(1e-5)).split())


def test_rows_of_one_unit_are_one_contribution():
    model = private(OWN_CASES["class token"]()[0], clip=1e-3)
    x = np.repeat(np.asarray(normal(4, 6))[:, None], 5, 1)  # all pull one way: bounded apart they would add five times
    sums = model.bounded_gradient_sums(x[:1], np.ones((1, 5, 5, 6), "float32"), rows_each=5)
    assert np.sqrt(sum(np.sum(np.square(g)) for g in sums)) == pytest.approx(1e-3, rel=1e-3)


# Planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["squared differences", "weight normalization"])
def test_a_rule_that_is_wrong_is_seen_by_the_trial(name, monkeypatch):
    model, _ = OWN_CASES[name]()
    monkeypatch.setattr(meeting_rules, "derivative", lambda place, u: u)
    monkeypatch.setattr(
        observed, "pulled", lambda chain, end, values, gradients: [tf.zeros((7, *v.shape)) for v in values]
    )
    with pytest.raises(ValueError, match="are not those of its records"):
        private(model).sensitivities()


def test_gradients_of_the_wrong_records_are_seen_by_the_trial():
    compute = lambda s, x: tf.reverse(tf.reverse(x, [0]) @ s.w, [0])  # noqa: E731
    with pytest.raises(ValueError, match="are not those of its records"):
        private(refused(compute)).sensitivities()
