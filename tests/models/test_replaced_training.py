"""Models without BatchNormalization train privately, and what their weights cost goes along."""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.normalized import mobile, sequential
from tfdp_layers.accounting import released as released_numbers
from tfdp_layers.models import replacement

kl = keras.layers
RNG = np.random.default_rng(0)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def private(model):
    made = tfdp.make_private(model)
    made.compile(tfdp.optimizers.ClippedOptimizer(keras.optimizers.SGD(0.1), 1.0, 1.0), LOSS)
    return made


def fit(model, steps=2):
    x = RNG.normal(size=(12, *model.inputs[0].shape[1:])).astype("float32")
    model.fit(x, RNG.integers(0, 3, 12), batch_size=4, steps_per_epoch=steps, verbose=0)
    return model


@pytest.mark.slow
def test_the_refusal_names_the_way_and_the_way_leads_to_a_fit():
    model = mobile()
    with pytest.raises(ValueError, match=r"averages over the batch.*tfdp.replace_batch_normalization"):
        fit(private(model))
    for by in ("group", "frozen"):
        made = fit(private(tfdp.replace_batch_normalization(model, by)))
        assert made.ledger.steps == 2


def released():
    """An ordinary model whose weights a private training made, its normalization frozen meanwhile."""
    model = sequential()
    model.layers[1].trainable = False
    made = fit(private(model))
    model.layers[1].trainable = True
    return model, made


@pytest.mark.slow
def test_what_weights_cost_goes_with_their_copies():
    model, _ = released()
    copy = private(tfdp.replace_batch_normalization(model))
    assert copy.ledger.steps == 2
    fit(copy, 1)
    assert copy.ledger.steps == 3


@pytest.mark.slow
def test_copies_that_lose_their_cost_are_seen(monkeypatch):
    monkeypatch.setattr(released_numbers, "digest_of_noisy", lambda _: None)
    test_what_weights_cost_goes_with_their_copies()  # weights say who pays, whatever their values
    monkeypatch.setattr(replacement, "open_account", lambda *_: None)
    with pytest.raises(AssertionError):
        test_what_weights_cost_goes_with_their_copies()


@pytest.mark.slow
def test_a_served_copy_brings_its_cost_by_its_values():
    _, made = released()
    plain = made.to_keras()
    plain.layers[2].trainable = True
    assert private(tfdp.replace_batch_normalization(plain)).ledger.steps == 2


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [tfdp.PrivateModel, tfdp.PrivateSequential])
def test_a_private_model_gives_a_private_model_with_its_ledger(kind, tmp_path):
    _, made = released()
    if kind is tfdp.PrivateSequential:
        made = tfdp.PrivateSequential([keras.Input((6,)), *made.layers[1:]])
    copy = tfdp.replace_batch_normalization(made)
    assert type(copy) is kind
    assert not copy.compiled
    assert copy.ledger is made.ledger
    assert copy.privacy_statement(1e-2).steps == 2
    copy.save(tmp_path / "copy.keras")
    assert keras.models.load_model(tmp_path / "copy.keras").ledger.steps == 2
    made._privacy.unpaid = True
    with pytest.raises(ValueError, match="the ledger saved with them was not"):
        tfdp.replace_batch_normalization(made)


@pytest.mark.slow
def test_a_private_model_inside_of_an_ordinary_one_is_charged_for():
    _, made = released()
    inputs = keras.Input((6,))
    outer = keras.Model(inputs, kl.BatchNormalization()(made(inputs)))
    assert private(tfdp.replace_batch_normalization(outer, "layer")).ledger.steps == 2
