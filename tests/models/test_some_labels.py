"""Records that have some of several labels: the refusal of NaN names two ways to train on them, and both work."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5)).astype("float32")
KNOWN = RNG.random((24, 3)) < 0.6
KNOWN[0] = False
TRUE = (X[:, :3] > 0).astype("float32")
Y = np.where(KNOWN, TRUE, np.nan).astype("float32")


def compiled(model, loss):
    model = tfdp.make_private(model)
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0, l2_norm_clip=1e6), loss)
    return model


def of_one_output(loss="mse"):
    keras.utils.set_random_seed(0)
    return compiled(keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)]), loss)


def fitted(model, *args, **kwargs):
    model.fit(*args, **{"batch_size": 8, "verbose": 0} | kwargs)
    assert model.ledger.steps == 3
    return model


class Source:
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


GIVEN = {
    "arrays": lambda: (X, Y),
    "a pipeline": lambda: (tfdp.records(tf.data.Dataset.from_tensor_slices((X, Y))),),
    "by index": lambda: (tfdp.records(Source()),),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("given", GIVEN)
def test_the_refusal_of_nan_names_a_loss_that_leaves_out_what_is_missing(given):
    with pytest.raises(ValueError, match=r"NaN or infinite values") as refusal:
        fitted(of_one_output(), *GIVEN[given]())
    (shown,) = re.findall(r"loss=(lambda y, p: .*?axis=-1\))", str(refusal.value))
    model = fitted(of_one_output(eval(shown, {"keras": keras})), X, np.where(KNOWN, Y, -1))
    for i in range(4):
        one, known = slice(i, i + 1), KNOWN[i]
        y = tf.constant(np.where(known, Y[i], -1)[None], tf.float32)
        kernel, bias = model.bounded_gradient_sums(X[one], y)
        assert np.abs(kernel.numpy()[:, ~known]).max(initial=0) == 0
        assert (bias.numpy()[known] != 0).all()


@pytest.mark.slow
def test_it_names_outputs_with_weights_of_their_own():
    with pytest.raises(ValueError, match="each label an output of its own, and give a sample_weight for each, 0 where"):
        fitted(of_one_output(), X, Y)
    inputs = keras.Input((5,))
    names = ["a", "b", "c"]
    outputs = {name: keras.layers.Dense(1, activation="sigmoid", name=name)(inputs) for name in names}
    model = compiled(keras.Model(inputs, outputs), {name: "binary_crossentropy" for name in names})
    y = {name: np.nan_to_num(Y[:, [i]]) for i, name in enumerate(names)}
    weights = {name: KNOWN[:, i].astype("float32") for i, name in enumerate(names)}
    fitted(model, X, y, sample_weight=weights)
    one = {name: weight[:1] for name, weight in weights.items()}
    assert not any(np.any(g) for g in model.bounded_gradient_sums(X[:1], {k: v[:1] for k, v in y.items()}, one))


def test_labels_of_one_number_are_to_be_left_out():
    for y in (Y[:, 0], Y[:, [0]]):
        with pytest.raises(ValueError, match=r"are no labels\. Leave these records out\.$"):
            fitted(of_one_output(), X, y)
