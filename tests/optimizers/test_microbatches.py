"""Microbatches: a group of records is given as one record, whose mean gradient is filtered and bounded.

One record of a group can turn the group's gradient round: the sum then moves by twice the bound, which is what sampling
under "replace one" accounts for.
"""

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.ordinary import length
from tfdp_layers.accounting import epsilon

MEMBERS, FEATURES, SCALE, RANGE, CLIP = 3, 5, 0.7, 0.2, 0.9


def grouped(bound="clip"):
    """A linear model of groups of records, (members, features), by mean squared error."""
    model = tfdp.PrivateSequential([keras.Input((MEMBERS, FEATURES)), keras.layers.Dense(1)])
    optimizer = tfdp.optimizers.TanhFilteredOptimizer("sgd", 1.0, CLIP, SCALE, RANGE, bound)
    model.compile(optimizer, "mse")
    return model


def mean_gradients(model, x, y):
    """Of each group: kernel and bias."""
    kernel, bias = (np.asarray(v, np.float64) for v in model.get_weights())
    errors = 2.0 * (x @ kernel + bias - y)  # (groups, members, 1)
    return [[np.mean(a * e, axis=0)[:, None], np.mean(e, axis=0)] for a, e in zip(x, errors, strict=True)]


def filtered_and_clipped(gradients):
    found = [SCALE * np.tanh(g / RANGE) for g in gradients]
    return [f * min(1.0, CLIP / length(found)) for f in found]


def data(groups=6):
    rng = np.random.default_rng(0)
    return rng.normal(size=(groups, MEMBERS, FEATURES)).astype("f"), rng.normal(size=(groups, MEMBERS, 1)).astype("f")


def test_the_mean_gradient_of_each_group_is_filtered_and_clipped():
    model, (x, y) = grouped(), data()
    wanted = [sum(parts) for parts in zip(*map(filtered_and_clipped, mean_gradients(model, x, y)), strict=True)]
    found = model.bounded_gradient_sums(x, y)
    assert length([np.asarray(a) - b for a, b in zip(found, wanted, strict=True)]) <= 1e-4 * length(wanted)


def test_filtering_each_member_by_itself_is_something_else():
    """The planted bug: groups that are taken apart."""
    model, (x, y) = grouped(), data()
    alone = [filtered_and_clipped(g) for i in range(6) for g in mean_gradients(model, x[i][:, None], y[i][:, None])]
    wrong = [sum(parts) / MEMBERS for parts in zip(*alone, strict=True)]
    found = model.bounded_gradient_sums(x, y)
    assert length([np.asarray(a) - b for a, b in zip(found, wrong, strict=True)]) > 0.1 * length(found)


@pytest.mark.parametrize("bound", ["clip", "dimension"])
def test_one_record_of_a_group_can_move_the_sum_by_twice_the_bound_and_no_more(bound):
    model = grouped(bound)
    limit = model.sensitivities()[0].bound
    x = np.ones((1, MEMBERS, FEATURES), "f")
    y = np.full((1, MEMBERS, 1), 1e3, "f")
    for value, least in ((-1e6, 2.0 * (1 - 1e-4)), (np.nan, 0.9), (3e38, 0.9), (-1e18, 0.9), (0.0, 0.0)):
        changed = np.copy(y)
        changed[0, 0, 0] = value
        sums = [[np.asarray(s, np.float64) for s in model.bounded_gradient_sums(x, labels)] for labels in (y, changed)]
        moved = length([a - b for a, b in zip(*sums, strict=True)])
        assert least * limit <= moved <= 2.0 * limit * (1 + 1e-5), value


@pytest.mark.slow
def test_twice_the_bound_is_what_sampling_under_replace_one_accounts_for():
    """Under "add or remove one" the same steps cost less: there a whole group comes or goes."""
    spent = []
    for sampling in (tfdp.sampling.FixedSize(6), tfdp.sampling.Poisson(6)):
        model, (x, y) = grouped(), data()
        model.fit(x, y, sampling=sampling, epochs=1, verbose=0)
        spent.append(float(epsilon(model.ledger, 1e-5)))
    assert spent[0] > 1.8 * spent[1]  # every group drawn: one Gaussian mechanism of half the noise multiplier
