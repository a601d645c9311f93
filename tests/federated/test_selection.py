"""What a party uploads: selections, the distribution of their noise, and the privacy that the private one claims."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp_layers.federated import laplace, selection
from tfdp_layers.federated.laplace import discrete_laplace
from tfdp_layers.federated.selection import LargestValues, RandomAboveThreshold, SparseVector, most_updated, share_of
from tfdp_layers.federated.server import Server

HOSTILE = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 0.5, -2.0, 1e-3] * 3, np.float32)


class InOrder(np.random.Generator):
    """Tries coordinates in their order: the guarantee does not rest on the order, and the worst case needs it."""

    def permutation(self, x):
        return np.arange(x)


def ordered(seed: int) -> InOrder:
    return InOrder(np.random.Philox(seed))


# the noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [3 * 2**20, 10**12])
@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_laplace_of_the_right_scale(scale, factor, accepted):
    drawn = discrete_laplace(scale, 4000, np.random.default_rng(7))
    assert bool(stats.kstest(drawn / (factor * scale), "laplace").pvalue > 0.01) is accepted


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_on_a_coarse_grid_the_probabilities_are_exact(scale):
    drawn = discrete_laplace(scale, 200_000, np.random.default_rng(3))
    values = np.arange(-4 * scale, 4 * scale + 1)
    expected = np.tanh(0.5 / scale) * np.exp(-np.abs(values) / scale)
    seen = np.array([np.count_nonzero(drawn == value) for value in values])
    rest, rest_expected = len(drawn) - seen.sum(), 1 - expected.sum()
    test = stats.chisquare([*seen, rest], len(drawn) * np.array([*expected, rest_expected]))
    assert test.pvalue > 0.01


def test_both_values_of_neighbours_reach_every_level():
    """Floating-point Laplace noise leaves holes that tell two values apart; here x + noise covers every integer."""
    drawn = discrete_laplace(5, 20_000, np.random.default_rng(0))
    assert set(range(-15, 16)) <= set(drawn) & set(drawn + 3)


@pytest.mark.parametrize("scale", [0, -1, laplace.LARGEST_SCALE + 1])
def test_scales_out_of_range_are_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        discrete_laplace(scale, 1, np.random.default_rng())
    assert np.abs(discrete_laplace(laplace.LARGEST_SCALE, 50_000, np.random.default_rng(0))).max() < 2**62


# not private ----------------------------------------------------------------------------------------------------------


def test_largest_values_are_the_largest_and_bounded():
    change = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    update = LargestValues(0.1, bound=2.0).select(change, np.random.default_rng())
    assert len(update) == 100
    assert np.abs(change[update.indices]).min() >= np.sort(np.abs(change))[-100]
    np.testing.assert_array_equal(update.values, np.clip(change[update.indices], -2, 2))
    assert np.abs(update.values).max() == 2.0


def test_random_above_threshold_draws_evenly_among_those_above():
    change = np.where(np.arange(100) < 40, 0.5, 0.05).astype(np.float32)
    rng = np.random.default_rng(1)
    chosen = [RandomAboveThreshold(0.1, 0.1).select(change, rng).indices for _ in range(2000)]
    counts = np.bincount(np.concatenate(chosen), minlength=100)
    assert counts[40:].sum() == 0
    assert stats.chisquare(counts[:40]).pvalue > 0.01
    assert len(RandomAboveThreshold(0.5, 0.1).select(change, rng)) == 40
    assert len(RandomAboveThreshold(0.5, 0.5).select(change, rng)) == 0


@pytest.mark.parametrize(
    "how",
    [LargestValues(1.0, 0.7), RandomAboveThreshold(1.0, 0.0, 0.7), SparseVector(1.0, 5.0, 0.7, 0.0)],
    ids=lambda how: type(how).__name__,
)
@pytest.mark.parametrize("change", [HOSTILE, np.full(7, np.nan), np.zeros(5), np.arange(4)], ids=str)
def test_no_change_makes_an_upload_that_breaks_the_rules(how, change):
    for seed in range(20):
        update = how.select(change, np.random.default_rng(seed))
        assert (update.indices.dtype, update.values.dtype) == (np.int64, np.float32)
        assert np.isfinite(update.values).all()
        assert np.abs(update.values).max(initial=0) <= np.float32(0.7)
        assert (np.diff(update.indices) > 0).all()
        if not how.private:
            assert np.isfinite(change[update.indices]).all()
            assert (update.values != 0).all()


@pytest.mark.parametrize("change", [np.zeros((2, 2)), np.zeros(0), np.array(["a"]), np.array([1j])], ids=str)
def test_what_is_no_vector_of_numbers_is_refused(change):
    with pytest.raises(ValueError, match="vector of real numbers"):
        LargestValues(0.5).select(change, np.random.default_rng())


@pytest.mark.parametrize(
    ("fraction", "size", "count"), [(0.1, 140_106, 14_010), (0.1, 30, 3), (1e-9, 5, 1), (1.0, 5, 5)]
)
def test_a_share_is_rounded_down_but_never_nothing(fraction, size, count):
    assert share_of(fraction, size) == count


def test_the_most_updated_weights_are_downloaded():
    assert list(most_updated(np.array([0, 5, 2, 5, 1]), 0.4)) == [1, 3]
    assert list(most_updated(np.zeros(5), 0.5)) == [0, 1]


@pytest.mark.parametrize(
    "bad", [{"fraction": 0.0}, {"fraction": 1.1}, {"fraction": math.nan}, {"bound": 0.0}, {"bound": math.inf}]
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LargestValues(**{"fraction": 0.1, **bad})


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"threshold": -1.0}, {"threshold": 1e9}])
def test_private_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SparseVector(**{"fraction": 0.1, "epsilon": 1.0, "bound": 1e-3, "threshold": 0.0, **bad})
    with pytest.raises(ValueError, match="too small"):
        SparseVector(1.0, 1e-9, 1.0, 0.0).release(10**6)


# private --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 105_506])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
def test_an_upload_of_all_its_tests_costs_exactly_epsilon(size, epsilon):
    how = SparseVector(0.1, epsilon, 1e-3, 1e-4)
    release = how.release(size)
    assert how.tests(size) * (release.test_epsilon + release.value_epsilon) == pytest.approx(epsilon, rel=1e-4)
    assert how.tests(size) * (release.test_epsilon + release.value_epsilon) <= epsilon * (1 + 1e-12)
    assert release.test_epsilon == pytest.approx(8 * release.value_epsilon, rel=1e-4)


def noise_of(which: int, factor: float, monkeypatch) -> float:
    """p-value of one of the three noises of a selection against its stated scale times `factor`."""
    drawn = {}

    def spy(scale, size, rng):
        noise = discrete_laplace(scale, size, rng)
        drawn[len(drawn)] = noise
        return noise

    monkeypatch.setattr(selection, "discrete_laplace", spy)
    how = SparseVector(1.0, 900.0, 0.5, 0.0)
    how.select(np.full(3000, 0.5), np.random.default_rng(5))
    release = how.release(3000)
    stated = (release.query_scale, release.threshold_scale, release.value_scale)[which]
    return stats.kstest(drawn[which] * 0.5 / 2**20 / (stated * factor), "laplace").pvalue


@pytest.mark.parametrize("of", [LargestValues, RandomAboveThreshold, SparseVector, Server], ids=lambda of: of.__name__)
def test_a_bound_that_float32_does_not_hold_is_refused(of):
    """Uploads of it would be infinite."""
    largest = float(np.finfo(np.float32).max)
    more = {RandomAboveThreshold: {"threshold": 0.0}, SparseVector: {"threshold": 0.0, "epsilon": 9e9}}.get(of, {})
    more = {"weights": np.zeros(9)} if of is Server else more
    of(fraction=0.5, bound=largest, **more)
    for bound in (1e300, largest * 1.001, math.inf, math.nan):
        with pytest.raises(ValueError, match="float32"):
            of(fraction=0.5, bound=bound, **more)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_the_largest_bound_gives_finite_uploads(scale):
    bound = float(np.finfo(np.float32).max) * scale
    update = SparseVector(1.0, 9.0, bound, 0.0).select(np.full(5, 3e38, np.float32), np.random.default_rng(0))
    assert len(update)
    assert np.isfinite(update.values).all()


@pytest.mark.parametrize("which", [0, 1, 2], ids=["magnitude", "threshold", "value"])
@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_a_selection_draws_the_noise_that_its_release_states(which, factor, accepted, monkeypatch):
    assert bool(noise_of(which, factor, monkeypatch) > 0.01) is accepted


def loss_above(how: SparseVector, data, neighbour, event, runs: int) -> tuple[float, float]:
    """(lower, upper) 99.9% bounds on log P(event | data) / P(event | neighbour)."""
    seen = []
    for seed, change in enumerate((data, neighbour)):
        rng = ordered(seed)
        seen.append(sum(event(how.select(change, rng)) for _ in range(runs)))
    bounds = [stats.binomtest(count, runs).proportion_ci(0.999) for count in seen]
    return math.log(bounds[0].low / bounds[1].high), math.log(bounds[0].high / max(bounds[1].low, 1e-12))


def half_the_noise(scale, size, rng):
    return discrete_laplace(scale // 2, size, rng)


# One value at either end of its range: the Laplace release alone, whose loss is attained exactly.
VALUE = (SparseVector(1.0, 9.0, 1.0, 0.0), np.array([1.0]), np.array([-1.0]), lambda update: (update.values >= 1).any())
# Small magnitudes, then a large one, against large ones and then a small one: the last is the one that passes.
TEST = (
    SparseVector(0.25, 4.5, 1.0, 0.5),
    np.array([0, 0, 0, 1.0]),
    np.array([1.0, 1.0, 1.0, 0]),
    lambda update: list(update.indices) == [3],
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "part", "runs"),
    [(VALUE, "value_epsilon", 3000), pytest.param(TEST, "test_epsilon", 5000, marks=pytest.mark.slow)],
    ids=["value", "test"],
)
def test_the_loss_of_a_worst_case_pair_stays_within_its_claim_and_half_the_noise_does_not(
    pair, part, runs, monkeypatch
):
    how, data, neighbour, event = pair
    claim = getattr(how.release(len(data)), part)
    lower, _ = loss_above(how, data, neighbour, event, runs)
    assert 0.5 * claim < lower <= claim
    monkeypatch.setattr(selection, "discrete_laplace", half_the_noise)
    lower, _ = loss_above(how, data, neighbour, event, runs)
    assert lower > claim, "the experiment has no power against a twofold error"


@pytest.mark.slow
def test_without_the_bound_before_the_noise_the_printed_form_breaks_its_claim(monkeypatch):
    """As printed only the noisy value is bounded: a change of ten bounds shows itself at once."""
    how = SparseVector(1.0, 9.0, 1.0, 0.0)
    data, neighbour = np.array([10.0]), np.array([-10.0])
    claim = how.release(1).test_epsilon + how.release(1).value_epsilon

    def event(update):
        return (update.values >= 1).any()

    lower, upper = loss_above(how, data, neighbour, event, 1500)
    assert upper <= claim

    def unbounded(change, bound):
        return np.rint(np.asarray(change) / bound * 2**20).astype(np.int64)

    monkeypatch.setattr(selection, "_levels", unbounded)
    seen = [sum(event(how.select(change, ordered(1))) for _ in range(1500)) for change in (data, neighbour)]
    assert seen[0] > 1400
    bounds = [stats.binomtest(count, 1500).proportion_ci(0.999) for count in seen]
    assert math.log(bounds[0].low / bounds[1].high) > how.release(1).value_epsilon * 3
    assert lower > 0


def passing_last(magnitudes: np.ndarray, threshold: float, release) -> float:
    """P(all but the last magnitude fail, the last passes), by quadrature over the threshold's noise."""
    noise = np.linspace(-60, 60, 200_001) * release.threshold_scale
    density = np.exp(-np.abs(noise) / release.threshold_scale) / (2 * release.threshold_scale)
    fails = [stats.laplace.cdf(threshold + noise - m, scale=release.query_scale) for m in magnitudes]
    return float(np.sum(density * np.prod(fails[:-1], axis=0) * (1 - fails[-1])) * (noise[1] - noise[0]))


def test_the_tests_attain_nine_tenths_of_their_bound_and_never_exceed_it():
    release = SparseVector(0.01, 6.75, 1.0, 0.0).release(11)  # test_epsilon = 6
    losses = []
    for before in (1, 3, 10):
        small, large = np.array([0.0] * before + [1.0]), np.array([1.0] * before + [0.0])
        for threshold in (-1.0, 0.0, 0.5, 1.0, 2.0):
            losses.append(math.log(passing_last(small, threshold, release) / passing_last(large, threshold, release)))
    assert 0.9 * release.test_epsilon < max(losses) <= release.test_epsilon


def test_fewer_tests_keep_their_noise_and_their_number():
    how = SparseVector(0.5, 1000.0, 1.0, 0.0)
    change = np.ones(20)
    for most in (0, 1, 4, 10):
        update = how.select(change, np.random.default_rng(most), most)
        assert len(update) == most == how.started(update, most)
    with pytest.raises(ValueError, match="0 to 10 tests"):
        how.select(change, np.random.default_rng(), 11)
    nothing = SparseVector(0.5, 1000.0, 1.0, 900.0).select(change, np.random.default_rng(0))
    assert len(nothing) == 0
    assert how.started(nothing, 10) == 1, "a test that found nothing was started, and costs"
