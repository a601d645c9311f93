"""Ids that no row of a table has are refused before a step is paid for; ids written as floats are looked up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.certificates.lookups import Lookup, lookups
from tfdp_layers.certificates.synthetic import synthetic_inputs
from tfdp_layers.models.ids import check_ids

kl = keras.layers
IDS = np.random.default_rng(0).integers(0, 9, (40, 3))
Y = np.arange(40)[:, None] % 2


def made(dtype="float32"):
    """Ids (3,), and numbers (2,) with one more id beside them, cut out."""
    ids, mixed = keras.Input((3,), dtype=dtype, name="ids"), keras.Input((3,), name="mixed")
    inner = keras.Sequential([keras.Input((3,), dtype=dtype), kl.Embedding(9, 4, name="words"), kl.Flatten()])
    last = kl.Flatten()(kl.Embedding(5, 2, name="places")(mixed[:, 2:]))
    model = keras.Model({"ids": ids, "mixed": mixed}, kl.Dense(1)(kl.Concatenate()([inner(ids), last, mixed[:, :2]])))
    model = tfdp.make_private(model)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", noise_multiplier=1.0), "mse")
    return model


def test_what_looks_an_input_up_is_followed_into_models_and_through_slices():
    assert lookups(made()) == [[Lookup("words", 9, True)], [Lookup("places", 5, False)]]
    dense = keras.Sequential([keras.Input((3,)), kl.Dense(2), kl.Embedding(9, 4)])
    assert lookups(dense) == [[]]  # these are no ids of the input's any more


def test_ids_written_as_floats_train():
    """Made-up numbers for the check of independence were no rows of the table: it ended in TensorFlow's error."""
    model = made()
    x = {"ids": IDS.astype("float32"), "mixed": np.concatenate([np.ones((40, 2)), IDS[:, :1] % 5], 1)}
    model.fit(x, Y, batch_size=20, verbose=0)
    assert model.ledger.steps == 2
    spec = {name: tf.TensorSpec((None, 3), tf.float32) for name in x}
    made_up = synthetic_inputs(model, spec, rows=50, scale=10.0)
    assert {float(v) for v in np.unique(made_up["ids"])} == {0.0, 1.0, 2.0, 3.0, 4.0}


@pytest.mark.parametrize("outside", [9, -1, 2**40])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_ids_outside_of_the_table_are_refused_and_the_message_tells_nothing_of_the_records(outside, dtype):
    model, wrong = made(dtype), IDS.astype(dtype)
    wrong[7, 1] = outside
    with pytest.raises(ValueError, match=r"x\['ids'\] holds ids outside of 0\.\.8.* 'words' .* 9 rows") as refusal:
        model.fit({"ids": wrong, "mixed": np.zeros((40, 3), "float32")}, Y, batch_size=8, verbose=0)
    assert model.ledger.steps == 0
    for shown in ("1099511627776", "-1", "40"):
        assert shown not in str(refusal.value).replace("9 - 1", "")


def test_ids_within_the_table_and_other_inputs_are_taken():
    model = made()
    check_ids(model, {"ids": IDS, "mixed": np.full((40, 3), 1e9)})
    check_ids(model, [IDS, np.full((40, 3), -1e9)])
    check_ids(model, None)  # what is read one by one is not looked at
    with pytest.raises(ValueError, match=r"x\[0\] holds ids"):
        check_ids(model, [IDS + 1, IDS])
    with pytest.raises(ValueError, match=r"^x holds ids outside of 0\.\.2"):
        check_ids(keras.Sequential([keras.Input((3,)), kl.Embedding(3, 2)]), IDS)
