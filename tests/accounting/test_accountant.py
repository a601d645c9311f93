import math
import pickle
import subprocess
import sys

import dp_accounting
import pytest
from scipy.stats import norm

from helpers.accounting_tools import ledger_of, release_of
from helpers.variants import slow_but
from tfdp_layers.accounting import EpsilonCurve, GroupNoise, Ledger, Release, composition, epsilon, loss_distributions
from tfdp_layers.accounting.convolutions import points
from tfdp_layers.accounting.loss_distributions import composed_pld, pld_epsilon, pld_interval
from tfdp_layers.accounting.renyi import convert_rdp, rdp_curve, rdp_epsilon, zcdp_epsilon
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

ADD_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = dp_accounting.NeighboringRelation.REPLACE_ONE


def gaussian_delta(eps: float, sensitivity: float, stddev: float) -> float:
    """Balle and Wang 2018, arXiv:1805.06530, Theorem 8."""
    half, slope = sensitivity / (2.0 * stddev), eps * stddev / sensitivity
    return norm.cdf(half - slope) - math.exp(eps) * norm.cdf(-half - slope)


def inverse(profile, delta: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_one_poisson_step_is_never_below_the_exact_profile_and_close_to_it(probability, multiplier):
    # Removing the record: delta(log(1 + q (e^e - 1))) = q delta_Gauss(e).
    # Source: Balle, Barthe, Gaboardi 2018, arXiv:1807.01647.
    def profile(eps):
        inner = math.log1p(math.expm1(eps) / probability)
        return probability * gaussian_delta(inner, 1.0, multiplier)

    truth = inverse(profile, 1e-5)
    spent = epsilon(ledger_of(release_of(Poisson(int(60_000 * probability)), multiplier), 1), 1e-5)
    assert truth - 1e-9 <= spent <= truth * 1.01 + 1e-3


def test_replace_one_reads_the_noise_relative_to_twice_the_bound():
    release = release_of(FixedSize(1000), 1.0, examples=1000)
    by_rdp = rdp_epsilon(((release.event(), 1),), REPLACE_ONE, 1e-5)
    assert by_rdp == pytest.approx(10.73, abs=0.01)
    exact = epsilon(ledger_of(release, 1), 1e-5)
    assert exact == pytest.approx(inverse(lambda eps: gaussian_delta(eps, 2.0, 1.0), 1e-5), rel=1e-6)
    # A sampler that forgets the factor 2 is caught by the figure it gives.
    careless = dp_accounting.SampledWithoutReplacementDpEvent(1000, 1000, dp_accounting.GaussianDpEvent(1.0))
    assert rdp_epsilon(((careless, 1),), REPLACE_ONE, 1e-5) == pytest.approx(4.73, abs=0.01)


@pytest.mark.parametrize("batch", [600, 6000])
def test_one_step_without_replacement_is_never_below_the_exact_profile(batch):
    def profile(eps):
        inner = math.log1p(math.expm1(eps) * 60_000 / batch)
        return batch / 60_000 * gaussian_delta(inner, 2.0, 2.0)

    assert epsilon(ledger_of(release_of(FixedSize(batch), 2.0), 1), 1e-5) >= inverse(profile, 1e-5)


def test_partition_epochs_compose_exactly():
    release = release_of(Partition(600), 5.0)
    spent = epsilon(ledger_of(release, 10 * 100), 1e-5)
    assert spent == pytest.approx(inverse(lambda eps: gaussian_delta(eps, 1.0, 5.0 / math.sqrt(10)), 1e-5), rel=1e-6)
    assert spent.accountant == "analytic Gaussian"
    ledger = ledger_of(release, 100)
    ledger.reserve(ledger.begin(release_of(Partition(600), 3.0)), 100)
    joined = (1 / 25 + 1 / 9) ** -0.5
    assert epsilon(ledger, 1e-5) == pytest.approx(inverse(lambda e: gaussian_delta(e, 1.0, joined), 1e-5), rel=1e-6)


def test_zcdp_is_valid_and_looser_than_the_analytic_gaussian():
    for multiplier in (0.05, 1.0, 50.0):
        exact = dp_accounting.get_epsilon_gaussian(multiplier, 1e-5)
        assert exact <= zcdp_epsilon(multiplier, 1e-5) <= 1.3 * exact + 0.05


@pytest.mark.parametrize(("batch", "multiplier", "steps"), [(2048, 1.3, 1200), (600, 0.9, 1800), (256, 4.0, 500)])
def test_pld_is_at_most_one_percent_above_rdp_and_is_chosen_when_smaller(batch, multiplier, steps):
    release = release_of(Poisson(batch), multiplier)
    counts = ((release.event(), steps),)
    by_pld, by_rdp = (f(counts, ADD_REMOVE, 1e-5) for f in (pld_epsilon, rdp_epsilon))
    assert by_pld <= 1.01 * by_rdp
    spent = epsilon(ledger_of(release, steps), 1e-5)
    assert spent == min(by_pld, by_rdp)
    assert spent.accountant == ("PLD" if by_pld <= by_rdp else "RDP")


@pytest.mark.parametrize(("batch", "multiplier", "steps"), [(2048, 1.3, 1200), (60, 1.0, 10_000), (600, 10.0, 1000)])
def test_halving_the_interval_changes_little(batch, multiplier, steps):
    counts = ((release_of(Poisson(batch), multiplier).event(), steps),)
    interval = pld_interval(counts)
    halved = pld_epsilon(counts, ADD_REMOVE, 1e-5, interval / 2)
    assert halved * (1 - 1e-9) <= pld_epsilon(counts, ADD_REMOVE, 1e-5) <= halved * 1.001


def test_a_cap_at_six_deviations_costs_nothing_and_at_the_mean_it_is_ruinous():
    plain, capped, ruined = (
        epsilon(ledger_of(release_of(sampling, 2.0), 500), 1e-5)
        for sampling in (Poisson(2048), TruncatedPoisson(2048), TruncatedPoisson(2048, 2048))
    )
    assert plain == pytest.approx(1.66, abs=0.01)
    assert plain <= capped <= plain * 1.0001
    assert ruined > 3 * plain


def test_epsilon_is_a_number_that_knows_its_meaning():
    spent = epsilon(ledger_of(release_of(Poisson(600), 2.0), 10), 1e-5)
    assert f"{spent:.3f}" == f"{float(spent):.3f}"
    assert repr(spent) == repr(float(spent))
    assert (spent.delta, spent.relation, spent.sampling) == (1e-5, ADD_REMOVE, "poisson")
    assert pickle.loads(pickle.dumps(spent)).accountant == spent.accountant
    assert epsilon(Ledger(), 1e-5) == 0.0
    assert epsilon(ledger_of(release_of(Poisson(600), 0.0), 1), 1e-5) == math.inf


@pytest.mark.parametrize("delta", ["1e-5", 0.0, 1.0, -1e-5, 2.0, math.nan, None, "x"])
def test_delta_must_lie_between_0_and_1(delta):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        epsilon(Ledger(), delta)


def test_what_no_accountant_can_bound_is_an_error_not_a_number():
    with pytest.raises(NotImplementedError, match="larger delta"):
        epsilon(ledger_of(release_of(TruncatedPoisson(600), 1.0), 1), 1e-30)


def test_an_old_dp_accounting_accounts_add_or_remove_and_epochs(monkeypatch):
    exact = epsilon(ledger_of(release_of(Partition(600), 2.0), 201), 1e-5)
    monkeypatch.setattr(composition.importlib.metadata, "version", lambda _: "0.4.3")
    monkeypatch.delattr(composition.dp_accounting, "get_epsilon_gaussian")
    composition._smallest_epsilon.cache_clear()
    assert epsilon(ledger_of(release_of(Poisson(601), 2.0), 10), 1e-5) > 0
    assert exact.accountant == "analytic Gaussian"
    assert exact <= epsilon(ledger_of(release_of(Partition(600), 2.0), 201), 1e-5) < exact * 1.001
    with pytest.raises(NotImplementedError, match=r"dp-accounting >= 0\.6"):
        epsilon(ledger_of(release_of(FixedSize(601), 2.0), 10), 1e-5)


def test_negative_divergences_are_left_out_not_read_as_zero():
    orders, _ = rdp_curve((), ADD_REMOVE)
    truth = convert_rdp(orders, orders / 2.0, 1e-5)
    damaged = orders / 2.0
    damaged[:3] = (-1e-3, math.nan, -math.inf)
    assert convert_rdp(orders, damaged, 1e-5) == truth


@pytest.mark.parametrize(
    "sampling", [Poisson(600), TruncatedPoisson(600), FixedSize(600), Partition(600)], ids=lambda s: s.kind
)
@pytest.mark.parametrize("before", [0, 130])
def test_curve_agrees_with_the_ledger_and_its_bound_is_never_below_it(sampling, before):
    release = release_of(sampling, 1.5)
    ledger = ledger_of(release, before) if before else Ledger()
    snapshot = ledger.to_json()
    curve = EpsilonCurve(ledger, release, 1e-5)
    steps = [0, 1, 2, 3, 7, 20, 99, 100, 101, 150, 250]
    bounds = [curve.bound(count) for count in steps]
    assert ledger.to_json() == snapshot
    assert bounds == sorted(bounds)
    for count, bound in zip(steps, bounds, strict=True):
        exact = curve.at(count)
        assert exact <= bound <= 1.15 * exact + 1e-3
        after = Ledger.from_json(snapshot)
        after.reserve(after.begin(release), count)
        assert exact == epsilon(after, 1e-5)


def test_curve_refuses_another_relation():
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        EpsilonCurve(ledger_of(release_of(Poisson(600), 1.5), 1), release_of(FixedSize(600), 1.5), 1e-5)


def test_accounting_loads_no_tensorflow_and_prints_no_warnings():
    program = """
import logging, sys
import dp_accounting
from absl import logging as absl_logging
from tfdp_layers.accounting.renyi import rdp_epsilon
from tfdp_layers.accounting import GroupNoise, Ledger, Release, Statement, epsilon
from tfdp_layers.sampling import Poisson

seen = []
class Keep(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())
absl_logging.get_absl_logger().addHandler(Keep())

release = Release((GroupNoise("all", 1.0, 20.0),), Poisson(30_000), 60_000)
ledger = Ledger()
ledger.reserve(ledger.begin(release), 3)
print(Statement.from_ledger(ledger, 1e-5).epsilon)
print(rdp_epsilon(((release.event(), 3),), release.relation, 1e-5))
assert not seen, seen
absl_logging.warning("ours")
assert seen == ["ours"], seen
dp_accounting.rdp.RdpAccountant().compose(release.event())  # The same call, unfiltered, does warn.
assert len(seen) > 1, seen
assert not any(name.split(".")[0] in ("tensorflow", "keras") for name in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("sampling", [Poisson(10), FixedSize(10), Partition(10)], ids=lambda s: s.kind)
@pytest.mark.parametrize("multiplier", [1e-6, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_hardly_any_noise_has_a_large_epsilon_and_no_overflow(sampling, multiplier):
    ledger = Ledger()
    ledger.reserve(ledger.begin(Release((GroupNoise("all", 1.0, multiplier),), sampling, 1000)), 3)
    # One Gaussian mechanism on a record that is surely drawn costs about 1 / (2 z^2); no sampling helps here.
    assert 0.4 / multiplier**2 < float(epsilon(ledger, 1e-5)) < math.inf


@pytest.mark.parametrize("multiplier", slow_but([0.1], [0.05, 0.1, 0.2]))
def test_large_epsilons_take_few_points_and_stay_exact(multiplier):
    """A baseline of epsilon 1,000 took half a minute: losses are large, and were cut as finely as small ones."""
    counts = ((release_of(Poisson(100), multiplier, examples=600).event(), 6),)
    interval = pld_interval(counts)
    assert 0.5 / multiplier**2 / interval < 10_000
    chosen, finer, coarser = (pld_epsilon(counts, ADD_REMOVE, 1e-5, interval * k) for k in (1, 0.25, 16))
    assert (
        finer <= chosen * (1 + 1e-9) <= finer * (1 + 1e-5) < coarser
    )  # above the truth by a hair; 16 times would tell


def test_where_next_to_nothing_is_drawn_another_accountant_answers():
    """Privacy loss distributions round there, and dp-accounting raises."""
    release = Release((GroupNoise("weights", 1.0, 0.02),), FixedSize(1), 10**7)
    ledger = Ledger()
    ledger.reserve(ledger.begin(release), 10)
    found = epsilon(ledger, 1e-9)
    assert found.accountant == "RDP"
    assert 0.0 <= found < math.inf


def test_where_a_draw_is_rarer_than_delta_nothing_is_spent():
    """dp-accounting's own distribution of such a draw rounds, and it raises."""
    ledger = ledger_of(Release((GroupNoise("weights", 1.0, 1.0),), Poisson(1), 10**15), 10)
    assert (epsilon(ledger, 1e-9), epsilon(ledger, 1e-9).accountant) == (0.0, "PLD")


@pytest.mark.parametrize("sampling", [Poisson(60), FixedSize(60)], ids=lambda one: one.kind)
def test_what_was_released_before_is_composed_once_and_gives_the_same_epsilon(sampling, monkeypatch):
    """A search for noise asks for the epsilon of much the same ledger dozens of times: a fifth `fit` took seconds."""
    made, repeated = [], loss_distributions.repeated
    monkeypatch.setattr(loss_distributions, "repeated", lambda one, count: made.append(count) or repeated(one, count))
    monkeypatch.setattr(loss_distributions, "_kept", {})
    relation, before = sampling.relation, [release_of(sampling, z).event() for z in (1.0, 1.1, 1.2)]
    found = []
    for multiplier in (2.0, 2.1, 2.2):
        counts = tuple((event, 20) for event in (*before, release_of(sampling, multiplier).event()))
        found.append((counts, pld_epsilon(counts, relation, 1e-5, 2e-2)))
    assert len(made) == (3 + 3) * (2 if sampling.kind == "poisson" else 1)  # both orders, where they are two
    for counts, value in found:
        loss_distributions._kept.clear()
        assert pld_epsilon(counts, relation, 1e-5, 2e-2) == value


def test_few_compositions_are_kept_and_no_large_one(monkeypatch):
    monkeypatch.setattr(loss_distributions, "_kept", {})
    counts = [((release_of(Poisson(60), 1.0 + 0.1 * k).event(), 20),) for k in range(3)]
    made = [composed_pld(one, Poisson.relation, 1e-2, order=0) for one in (*counts, counts[1])]
    assert made[3] is made[1]
    assert [key[0] for key in loss_distributions._kept] == [counts[k][0][0] for k in (0, 2, 1)]
    monkeypatch.setattr(loss_distributions, "_MOST_KEPT_TOGETHER", sum(points(one) for one in made[1:3]))
    loss_distributions._kept.popitem()  # the last, made anew
    composed_pld(counts[1], Poisson.relation, 1e-2, order=0)
    assert [key[0] for key in loss_distributions._kept] == [counts[2][0][0], counts[1][0][0]]
    monkeypatch.setattr(loss_distributions, "_MOST_KEPT_POINTS", 10)
    loss_distributions._kept.clear()
    pld_epsilon(counts[0], Poisson.relation, 1e-5, 1e-2)
    assert not loss_distributions._kept
