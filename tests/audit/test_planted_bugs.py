"""Bugs planted into the library: the audit refutes the claim that the ledger goes on making.

docs/audit.md has the table of which test sees which bug; those that an audit can't see are planted elsewhere.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.accounting import calibrate_noise_multiplier
from tfdp_layers.audit import mechanisms
from tfdp_layers.audit.guarantees import of_ledger
from tfdp_layers.audit.statistics import rates_refute
from tfdp_layers.noise import NoiseSource, SeededNoise, add_noise
from tfdp_layers.optimizers import base
from tfdp_layers.sampling import Poisson
from tfdp_layers.zoo.worst_cases import worst_case


def audit(case, sampling=None, steps=1, **options):
    sampling = sampling or Poisson(2)
    defaults = {"examples": 2, "steps": steps, "runs": 100, "sampling_seed": 1}
    return mechanisms.audit_steps(case.model, case.present, case.absent, sampling, **(defaults | options))


def noise_for(epsilon):
    return calibrate_noise_multiplier(epsilon, 1e-5, Poisson(2), 2, 1)


@pytest.mark.slow
def test_a_clip_forgotten_on_one_layer(monkeypatch):
    case = worst_case("backprop_clipping", noise_for(3.0), SeededNoise(1))
    forgetful = case.model.layers[0]
    rule = type(forgetful).upstream_rule

    def forgets(self):
        return tf.identity if self is forgetful else rule.fget(self)

    monkeypatch.setattr(type(forgetful), "upstream_rule", property(forgets))
    found = audit(case)
    assert found.claimed_epsilon == pytest.approx(3.0, rel=1e-3)
    assert found.refuted


def test_half_the_noise(monkeypatch):
    monkeypatch.setattr(base, "add_noise", lambda source, sums, s: add_noise(source, sums, [d / 2 for d in s]))
    found = audit(worst_case("dpsgd", noise_for(3.0), SeededNoise(2)), runs=250)
    assert found.claimed_epsilon == pytest.approx(3.0, rel=1e-3)
    assert found.refuted


class Replayed(NoiseSource):
    """Uses one key for every draw."""

    def normal(self, shape):
        return tf.random.stateless_normal(shape, seed=[1, 2])


@pytest.mark.slow
def test_a_noise_key_used_twice():
    found = audit(worst_case("dpsgd", noise_for(3.0), Replayed()))
    assert found.claimed_epsilon == pytest.approx(3.0, rel=1e-3)
    assert found.refuted


@pytest.mark.slow
def test_shuffled_batches_accounted_as_poisson_draws(monkeypatch):
    """An epoch of two batches of one record: a record is in one of them for certain, where Poisson draws would leave
    it out of both with probability 1/4.
    """

    def shuffles(self, rows, examples, rng):
        while True:
            yield from np.array_split(rng.permutation(examples), examples // self.batch_size)

    def one_row_less(self, rows, examples, rng):
        return ([i for i in drawn if i < rows] for drawn in shuffles(self, rows, examples, rng))

    case = worst_case("dpsgd", 0.15, SeededNoise(3))
    assert not refutes_two_steps(case)
    monkeypatch.setattr(Poisson, "_draws", lambda *a: map(np.array, one_row_less(*a)))
    assert refutes_two_steps(case)


def refutes_two_steps(case):
    """The claim itself alone: bounds for sampled steps of so little noise take long."""
    score = mechanisms.matched_filter(case.model, case.present, case.absent)
    kept = [
        mechanisms.repeated_scores(case.model, x, y, Poisson(1), score, 2, steps=2, runs=100, sampling_seed=1)
        for x, y in (case.present, case.absent)
    ]
    middle = np.median(kept[0].array()) / 2  # nobody's presence scores 0 on average
    counts = [(int(np.sum(k.array() >= middle)), 100) for k in kept]
    return rates_refute(of_ledger(kept[0].claim(2), 1e-5).at(1.0), *counts, 0.05)
