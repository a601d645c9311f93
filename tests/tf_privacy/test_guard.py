"""What guards a model of tensorflow-privacy, without tensorflow-privacy: its `train_step`, weights and steps."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.accounting import Ledger
from tfdp_layers.tf_privacy.guard import OwnTrainStep, step_of
from tfdp_layers.tf_privacy.outside import UNCOUNTED, Outside


class Plain:
    def train_step(self, data):
        return data


def refuse(model):
    if not model.making:
        raise RuntimeError("Call fit.")


class Guarded(Plain):
    making = False
    train_step = OwnTrainStep(refuse)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_is_called_where_it_is_counted_alone(own):
    model = Guarded()
    if own:
        model.train_step = lambda data: -data
    with pytest.raises(RuntimeError, match="Call fit"):
        model.train_step(1)
    assert step_of(model)(1) == (-1 if own else 1)
    model.making = True
    assert model.train_step(1) == (-1 if own else 1)
    assert own or step_of(model).__func__ is Plain.train_step


def test_steps_and_weights_are_compared_with_those_of_the_last_counted_fit():
    weight = tf.Variable(np.arange(4.0))
    model = SimpleNamespace(weights=[weight], built=True, optimizer=SimpleNamespace(iterations=0))
    outside = Outside(model, Ledger())
    weight.assign(weight + 1.0)  # loaded: nobody took gradients
    model.optimizer.iterations = 7
    outside.begins(model, hooked=False)
    weight.assign(weight + 1.0)
    model.optimizer.iterations = 10
    outside.ends(model, 3)
    assert outside.remarks(model) == []
    released = weight.numpy()
    weight.assign(weight + 1.0)
    (changed,) = outside.remarks(model)
    assert "it took from records" in changed
    weight.assign(released)
    assert outside.remarks(model) == []
    model.optimizer.iterations = 11
    assert outside.remarks(model) == [UNCOUNTED]
    with pytest.raises(ValueError, match="by fit alone"):
        outside.begins(model, hooked=False)
