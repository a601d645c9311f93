"""What a stream of correlated noise costs, against brute force over all visits of a record."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest

from tfdp_layers.accounting.gaussian_events import exact_gaussian
from tfdp_layers.sampling import Cyclic, FixedSize, Partition, Poisson, TruncatedPoisson
from tfdp_layers.sampling.correlated import Correlated

RNG = np.random.default_rng(0)
# Numbers of float32: as which a decay is used and accounted.
DECAYS = [float(np.float32(decay)) for decay in (0.0, 0.3, 0.95, *RNG.uniform(0.0, 1.0, 2))]
SHORT = [(n, b, float(decay)) for n in range(1, 13) for b in range(1, n + 1) for decay in DECAYS]


def precision(decay: float, steps: int) -> np.ndarray:
    """X = C^T C from the definition of the noise, B Z: no formula of the library is in it."""
    b = np.eye(steps) - decay * np.eye(steps, k=-1)
    c = np.linalg.inv(b)
    return np.asarray(c.T @ c)


def worst(x: np.ndarray, ways: Iterable[list[int]]) -> float:
    return max(float(np.abs(x[np.ix_(way, way)]).sum()) for way in ways if way)


def cyclic_ways(b: int, steps: int) -> list[list[int]]:
    return [list(range(start, steps, b)) for start in range(min(b, steps))]


def shuffled_ways(b: int, steps: int) -> Iterable[list[int]]:
    places = itertools.product(range(b), repeat=-(-steps // b))
    return ([e * b + place for e, place in enumerate(way) if e * b + place < steps] for way in places)


def separated_ways(visits: int, gap: int, steps: int) -> Iterable[list[int]]:
    chosen = itertools.chain.from_iterable(itertools.combinations(range(steps), k) for k in range(1, visits + 1))
    return (list(way) for way in chosen if all(q - p >= gap for p, q in itertools.pairwise(way)))


def cyclic(decay: float, b: int, steps: int) -> float:
    return Cyclic(1)._squared_sensitivity(Correlated(decay), steps, b)


def test_the_cost_of_a_fixed_order_is_attained_at_every_step() -> None:
    for n, b, decay in SHORT:
        for t in range(1, n + 1):  # stopping early is the mechanism of that length
            assert cyclic(decay, b, t) == pytest.approx(worst(precision(decay, t), cyclic_ways(b, t)), rel=1e-9)


def test_no_contributions_of_one_record_exceed_it() -> None:
    for n, b, decay in SHORT:
        x, bound = precision(decay, n), cyclic(decay, b, n) * (1 + 1e-9)
        for way in cyclic_ways(b, n):
            g = RNG.normal(size=(len(way), 3))
            for shift in (g / np.linalg.norm(g, axis=1, keepdims=True), np.sign(g[:, :1])):
                assert np.sum(x[np.ix_(way, way)] * (shift @ shift.T)) <= bound


def test_a_bound_for_shuffled_epochs_holds_for_every_placement() -> None:
    ratios = []
    for n, b, decay in SHORT:
        if b ** -(-n // b) <= 1000:
            found = worst(precision(decay, n), shuffled_ways(b, n))
            bound = Partition(1)._squared_sensitivity(Correlated(decay), n, b)
            assert bound >= found * (1 - 1e-12)
            ratios.append(bound / found)
    assert len(ratios) > 200
    assert np.mean(ratios) < 1.2
    assert Partition(1)._squared_sensitivity(Correlated(0.0), 12, 3) == 4  # independent noise: one an epoch


@pytest.mark.parametrize(("visits", "gap"), [(1, 1), (3, 1), (2, 3), (3, 4), (4, 2)])
def test_separated_visits_are_the_worst_from_the_first_step_on(visits: int, gap: int) -> None:
    for decay in DECAYS:
        for n in range((visits - 1) * gap + 1, 11):
            found = worst(precision(decay, n), separated_ways(visits, gap, n))
            assert Correlated(decay).squared_sensitivity(visits, gap, n) == pytest.approx(found, rel=1e-9)


def test_planted_bugs_cost_more_than_is_said() -> None:
    n, b, decay = 12, 3, 0.75
    stated = cyclic(decay, b, n)
    x = precision(decay, n)
    # Separation overstated.
    assert cyclic(decay, b + 1, n) < 0.9 * worst(x, cyclic_ways(b, n))
    # A stream that goes on, counted as two that started afresh.
    assert 2 * cyclic(decay, b, n // 2) < 0.9 * stated
    # Noise S_t z_t - decay S_(t-1) z_(t-1), where the clip falls tenfold; contributions follow their clip.
    clips = np.where(np.arange(n) < n // 2, 1.0, 0.1)
    wrong = np.diag(clips) - decay * np.diag(clips[:-1], -1)
    right = np.diag(clips) @ (np.eye(n) - decay * np.eye(n, k=-1))
    found = []
    for noise in (wrong, right):
        c = np.linalg.inv(noise) @ np.diag(clips)
        found.append(worst(c.T @ c, cyclic_ways(b, n)))
    assert found[0] > 5 * stated
    assert found[1] == pytest.approx(stated)


def test_removing_a_record_that_shifts_the_others_is_not_covered() -> None:
    """Why add-or-remove is refused: every batch after it changes, by up to two records' contributions."""
    records, batch, passes, decay = 12, 4, 4, 0.6
    b = records // batch
    with_it, without = np.arange(records), np.arange(1, records)
    shifts = np.zeros((passes * b, records))
    signs = np.where(np.arange(records) // 4 % 2, 1.0, -1.0) * np.where(np.arange(records) % 4 == 0, 1.0, -1.0)
    for step in range(passes * b):
        now = with_it[step % b * batch :][:batch]
        other = without[step % b * batch :][:batch]
        shifts[step] = np.isin(with_it, now) * 1.0 - np.isin(with_it, other) * 1.0
    moved = shifts @ signs
    found = float(moved @ precision(decay, passes * b) @ moved)
    assert found > 1.5 * cyclic(decay, b, passes * b)


def test_charges_are_whole_and_compose_to_the_exact_mechanism() -> None:
    noise, sampling, examples = Correlated(0.9), Cyclic(7), 50
    decay = float(np.float32(0.9))
    charges = [sampling.charges(steps, examples, noise) for steps in range(40)]
    assert charges == sorted(set(charges))
    assert all(type(one) is int for one in charges)
    for steps in range(1, 40):
        found = exact_gaussian(((sampling.event(3.0, examples, noise), charges[steps]),))
        assert found is not None
        exact = 3.0 / math.sqrt(worst(precision(decay, steps), cyclic_ways(8, steps)))
        assert exact * (1 - 1e-9) <= found <= exact  # rounded to the private side
    assert [sampling.charges(steps, examples) for steps in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [sampling.charges(steps, examples, Correlated(0.0)) for steps in (0, 8)] == [0, 2**32 + 1]  # rounded up


def test_long_streams_keep_their_precision() -> None:
    for decay in (0.5, 1 - 2.0**-20):
        b, steps = 3, 30_000
        v = total = 0.0
        for t in range(steps):
            v = decay * v + (t % b == 0)
            total += v * v
        assert cyclic(decay, b, steps) == pytest.approx(total, rel=1e-9)
    assert cyclic(0.93, 29, 10_000_000) > cyclic(0.93, 29, 9_999_999)


def test_the_chosen_decay_makes_the_least_error_of_sums() -> None:
    steps, examples = 280, 700
    for sampling in (Cyclic(100), Partition(100)):
        chosen = sampling.settled(Correlated(), steps, examples)

        def error(decay: float, sampling: Cyclic | Partition = sampling) -> float:
            noise = Correlated(decay)
            return sampling._squared_sensitivity(noise, steps, examples) * noise.error(steps)

        assert chosen.decay == round(chosen.number, 4)
        assert error(chosen.number) <= min(error(decay) for decay in (*np.arange(0.0, 1.0, 0.01), 1 - 2 / 7)) * 1.0001
        assert error(chosen.number) < 0.5 * error(0.0)
        assert sampling.settled(Correlated(0.5), steps, examples) == Correlated(0.5)
    sums = np.tril(np.ones((steps, steps))) @ (np.eye(steps) - 0.75 * np.eye(steps, k=-1))
    assert Correlated(0.75).error(steps) == pytest.approx((sums**2).sum(1).mean())
    np.testing.assert_allclose(Correlated(0.5).coefficients(4), [1, 0.5, 0.25, 0.125])


@pytest.mark.parametrize("sampling", [Poisson(5), TruncatedPoisson(5), FixedSize(5)])
def test_chance_and_correlation_are_not_both_credited(sampling: Poisson) -> None:
    for call in (sampling.charges, sampling.event, lambda n, of, noise: sampling.settled(noise, n, of)):
        with pytest.raises(ValueError, match=r"tfdp\.sampling\.Cyclic or Partition"):
            call(3, 50, Correlated(0.5))


@pytest.mark.parametrize("decay", [1.0, 1 - 1e-9, -0.1, math.nan, "0.5", True, [0.5]])
def test_a_decay_out_of_range_is_refused(decay: object) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        Correlated(decay)  # type: ignore[arg-type]


def test_an_unchosen_decay_costs_nothing_that_can_be_said() -> None:
    with pytest.raises(ValueError, match="no decay yet"):
        Cyclic(5).charges(3, 50, Correlated())


def test_every_pass_follows_one_order() -> None:
    draws = Cyclic(20).draws(50, np.random.default_rng(1))
    passes = [[next(draws) for _ in range(3)] for _ in range(4)]
    assert [len(batch) for batch in passes[0]] == [20, 20, 10]
    assert sorted(np.concatenate(passes[0])) == list(range(50))
    for one in passes[1:]:
        for a, b in zip(passes[0], one, strict=True):
            np.testing.assert_array_equal(a, b)
    assert Cyclic(25).largest(50) == 25
    assert Cyclic(20).largest(50) is None
