"""What is released of all records where they have owners: what one owner moves, what it is charged, what is stated."""

import math

import keras
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, get_epsilon_gaussian

import tfdp_layers as tfdp
from tfdp_layers import metrics
from tfdp_layers.accounting import BudgetExhausted, Ledger, Statement, TokenSelection, epsilon
from tfdp_layers.batches.whose import Whose
from tfdp_layers.layers import adapted
from tfdp_layers.preprocessing import ranks, tokens
from tfdp_layers.sampling import FixedSize, Poisson

N, HERS, DELTA = 40, 3, 1e-5
OWNERS = [["ann", f"p{i}"] if i < HERS else [f"p{i}"] for i in range(N)]
WHOSE = {"owners": OWNERS, "records_per_owner": HERS}
RNG = np.random.default_rng(0)
X = RNG.uniform(size=(N, 4)).astype("float32")
HOSTILE = [np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.0, 1.0, -1.0]


def quantiles(x, ledger, **options):
    settings = {"lower": 0.0, "upper": 1.0, "noise_multiplier": 2.0, "levels": 3} | options
    tfdp.preprocessing.quantiles(x, ledger, [0.5], **settings)


def metric(x, ledger, **options):
    tfdp.release_metric(x[:, 0], ledger, **({"stddev": 0.1, "lower": -1.0, "upper": 1.0} | options))


def adapting(make):
    def release(x, ledger, **options):
        layer = make()
        layer.adapt(x, **options)
        ledger.merge(layer.ledger)

    return release


RELEASES = {
    "quantiles": quantiles,
    "metric": metric,
    "normalization": adapting(lambda: tfdp.layers.PrivateNormalization(2.0, -1.0, 1.0)),
    "centering": adapting(lambda: tfdp.layers.DPCentering(2.0)),
    "pca": adapting(lambda: tfdp.layers.DPPCA(2, 2.0)),
    "whitening": adapting(lambda: tfdp.layers.DPWhitening(2.0)),
}


@pytest.fixture
def exact(monkeypatch):
    """Sums that are released without their noise, as they come."""
    kept = []

    def silent(source, sums, stddevs):
        kept.append(np.asarray(sums[0], np.float64))
        return sums

    for module in (metrics, ranks, adapted):
        monkeypatch.setattr(module, "add_noise", silent)
    return kept


def multiplier_of(event):
    """Of a Gaussian mechanism on all records: of single ones it is a Poisson draw that draws each for sure."""
    if isinstance(event, PoissonSampledDpEvent):
        assert event.sampling_probability == 1.0
        event = event.event
    assert isinstance(event, GaussianDpEvent)
    return event.noise_multiplier


def true_multiplier(release, exact, hers):
    """The noise over what the owner of these first records moves the sum by, emptied or not, and what is charged."""
    ledger, x = Ledger(), np.copy(X)
    x[:HERS] = hers
    release(x, ledger, **WHOSE)
    (entry,) = ledger.entries
    release(x[HERS:], Ledger(), examples=N, owners=OWNERS[HERS:])
    after, before = exact.pop(), exact.pop()
    (group,) = entry.release.groups
    return group.stddev / max(float(np.linalg.norm(before - after)), 1e-300), multiplier_of(entry.release.event())


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("value", HOSTILE, ids=str)
def test_no_owner_moves_a_sum_by_more_than_is_charged(name, value, exact):
    hostile = [one for one in HOSTILE if name != "quantiles" or one == one]
    if value not in hostile:
        with pytest.raises(ValueError, match="3 of the 40 records hold NaN"):
            true_multiplier(RELEASES[name], exact, value)
        return
    true, charged = true_multiplier(RELEASES[name], exact, value)
    assert charged <= true * (1 + 1e-6)
    mixed = np.resize(np.array(hostile, np.float32), (HERS, 4))
    true, charged = true_multiplier(RELEASES[name], exact, mixed)
    assert charged <= true * (1 + 1e-6)


@pytest.mark.parametrize("name", RELEASES)
def test_equal_records_attain_it_and_a_forgotten_count_would_be_exceeded(name, exact, monkeypatch):
    hers = np.array([1.0, 0.0, 0.0, 0.0]) if name in ("centering", "pca", "whitening") else 1.0
    true, charged = true_multiplier(RELEASES[name], exact, hers)
    assert charged == pytest.approx(true, rel=1e-4)
    monkeypatch.setattr(Whose, "stated", lambda whose, *_: {"unit": whose.unit})  # planted
    true, charged = true_multiplier(RELEASES[name], exact, hers)
    assert charged == pytest.approx(HERS * true, rel=1e-4)


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("records", [1, HERS, 7])
def test_it_costs_what_a_group_of_so_many_records_does(name, records):
    ledger = Ledger()
    RELEASES[name](X, ledger, owners=[str(i // records) for i in range(N)], records_per_owner=records)
    (entry,) = ledger.entries
    assert (entry.release.unit, entry.release.records_per_owner, entry.release.examples) == ("owner", records, N)
    noise = entry.release.noise_multiplier / records
    assert multiplier_of(entry.release.event()) == pytest.approx(noise)
    assert float(epsilon(ledger, DELTA)) == pytest.approx(get_epsilon_gaussian(noise, DELTA), rel=1e-6)
    assert Ledger.from_json(ledger.to_json()).releases == ledger.releases


def words(texts, ledger, **options):
    settings = {"noise_multiplier": 5.0, "failure": 1e-6} | options
    return tfdp.preprocessing.vocabulary(texts, ledger, **settings)


def selection(k, noise=1.0, failure=0.05, most=4):
    return TokenSelection(most, noise, failure, Poisson(N), N, unit="owner", records_per_owner=k)


def shown(release, hers, runs=2000):
    """How often some token is released that one owner's records alone have."""
    weights = tokens.summed_weights(hers, release.tokens)
    many = {f"{name} {run}": weight for run in range(runs) for name, weight in weights.items()}
    source = tfdp.noise.SeededNoise(5)
    source.rekey()
    return len({name.split()[1] for name in tokens.passing(many, release, source)}) / runs


HERS_ALONE = {
    "equal, one token": [["a"]] * HERS,
    "equal": [list("abcd")] * HERS,
    "disjoint": [[f"{token}{i}" for token in "abcd"] for i in range(HERS)],
    "one shared": [["a", f"b{i}", f"c{i}"] for i in range(HERS)],
    "unequal": [["a"], list("abcd"), list("ab")],
    "fewer": [["a"]],
    "empty": [[], ["a"], []],
}
WITHIN = 0.05 + 5 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("noise", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("name", HERS_ALONE)
def test_an_owners_own_tokens_show_as_seldom_as_is_said_and_its_weights_move_as_charged(name, noise):
    hers, release = HERS_ALONE[name], selection(HERS, noise)
    assert shown(release, hers) <= WITHIN
    moved = math.hypot(*tokens.summed_weights(hers, 4).values()) / 2**30
    assert moved <= HERS
    assert release.event().event == GaussianDpEvent(noise / HERS)
    if name == "equal":
        assert moved == pytest.approx(HERS)


def test_thresholds_nearly_attain_it_and_one_for_single_records_would_show_more(monkeypatch):
    assert shown(selection(HERS, 50.0), HERS_ALONE["disjoint"]) > 0.03  # weights below the noise: all tokens alike
    assert shown(selection(HERS, 0.1), HERS_ALONE["equal, one token"]) > 0.01  # of a union bound over three tokens
    monkeypatch.setattr(TokenSelection, "threshold", selection(1, 0.5).threshold)  # planted
    assert shown(selection(HERS, 0.5), HERS_ALONE["equal, one token"]) > 0.9


def test_a_vocabulary_for_owners_is_charged_kept_and_stated_so():
    ledger, texts = Ledger(), [["often", f"name{i}"] for i in range(2000)]
    owners = [[f"a{i}", f"b{i // 2}"] for i in range(2000)]
    assert words(texts, ledger, owners=owners, records_per_owner=2) == ["often"]
    (entry,) = ledger.entries
    read = Ledger.from_json(ledger.to_json())
    assert read.releases == ledger.releases == (entry.release,)
    assert entry.release.records_per_owner == 2
    alone = Ledger()
    words(texts, alone, noise_multiplier=2.5)
    assert float(epsilon(ledger, DELTA)) == pytest.approx(float(epsilon(alone, DELTA)), rel=1e-6)
    assert "records_per_owner" not in alone.to_json()  # as it was written before there were owners
    text = " ".join(str(Statement.from_ledger(ledger, DELTA, "correspondent")).split())
    assert "the tokens of 2000 records" in text
    assert "tokens of one correspondent alone show with probability at most" in text
    assert "no correspondent owns more than 2 records of them, alone or with others" in text


def test_one_ledger_of_owners_takes_them_all_and_states_them_with_the_owners_word(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    for release in RELEASES.values():
        release(X, ledger, **WHOSE)
    words([["a"]] * N, ledger, **WHOSE)
    assert ledger.unit == "owner"
    kinds = sorted({entry.release.kind for entry in ledger.entries})
    assert kinds == ["owner_metric", "owner_whole_data", "token_selection"]
    text = " ".join(str(Statement.from_ledger(ledger, DELTA, "correspondent")).split())
    for part in (
        "what all records hold that one correspondent owns, alone or with others",
        "1 noisy sum over all records",
        "a mean over 40 records",
        "one record moves the sum by at most",
        "Who owns which record is public",
    ):
        assert part in text
    assert text.count("no correspondent owns more than 3 records of them") == len(RELEASES) + 1
    assert "over all correspondents" not in text
    for wrong in ({}, {"unit_ids": np.arange(N)}):
        for release in (quantiles, metric, RELEASES["pca"]):
            with pytest.raises(ValueError, match="protects one owner"):
                release(X, ledger, **wrong)
        with pytest.raises(ValueError, match="protects one owner"):
            words([["a"]] * N, ledger, **wrong)
    ledger.close()


@pytest.mark.slow
def test_a_fit_and_an_adapt_for_owners_share_a_budget():
    layer = tfdp.layers.PrivateNormalization(20.0, -1.0, 1.0)
    model = tfdp.PrivateSequential([keras.Input((4,)), layer, tfdp.layers.ClippedDense(1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd"), "mse")
    layer.adapt(X, **WHOSE)
    options = {"batch_size": 4, "verbose": 0, "callbacks": [tfdp.callbacks.PrivacyBudget(3.0, 1e-3)]}
    with pytest.raises(ValueError, match="protects one owner"):
        model.fit(X, X[:, :1], **options)
    model.fit(X, X[:, :1], **options, **WHOSE)
    assert {entry.release.kind for entry in model.ledger.entries} == {"owner_whole_data", "owner_step"}
    assert 2.9 < float(epsilon(model.ledger, 1e-3)) <= 3.0


REFUSED = {
    "over": ({"owners": OWNERS}, "1 of the 41 owners own more than records_per_owner=1"),
    "few": ({"owners": OWNERS[1:], "records_per_owner": HERS}, "for 40 records"),
    "zero": ({"owners": OWNERS, "records_per_owner": 0}, "an integer of at least 1"),
    "alone": ({"records_per_owner": 2}, "needs to know who owns each record"),
    "both": ({**WHOSE, "unit_ids": np.arange(N)}, "two guarantees"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", [*RELEASES, "vocabulary"])
def test_owners_that_cannot_be_used_are_refused_and_cost_nothing(name, case):
    options, message = REFUSED[case]
    ledger, release = Ledger(), RELEASES.get(name, lambda x, *rest, **options: words([["a"]] * N, *rest, **options))
    with pytest.raises(ValueError, match=message):
        release(X, ledger, **options)
    assert ledger.steps == 0


def test_draws_that_do_not_hide_an_owner_are_refused():
    layer = tfdp.layers.DPCentering(2.0)
    with pytest.raises(ValueError, match="not known here"):
        layer.adapt(X, FixedSize(8), **WHOSE)
    assert layer.ledger.steps == 0
    for fields in ({"unit": "record"}, {"unit": "owner", "sampling": FixedSize(N)}):
        settings = {"tokens": 4, "noise_multiplier": 1.0, "failure": 0.1, "sampling": Poisson(N), "examples": N}
        with pytest.raises(ValueError, match=r"is for owners|not known here"):
            TokenSelection(**(settings | {"records_per_owner": 2} | fields))


def test_a_budget_for_owners_lets_nothing_out_once_it_is_spent(monkeypatch):
    ledger = Ledger(dataset="mail", budget=(1.0, DELTA))
    one = get_epsilon_gaussian(8.0, DELTA)
    assert one < 1.0 < get_epsilon_gaussian(8.0 / HERS, DELTA)
    monkeypatch.setattr(ranks, "read", lambda *_: pytest.fail("released"))
    with pytest.raises(BudgetExhausted):
        quantiles(X, ledger, noise_multiplier=8.0, **WHOSE)
    assert ledger.steps == 0


def test_the_best_trial_by_a_noisy_score_is_charged_for_owners():
    batches = tfdp.PrivateBatches(X, X, Poisson(4), **WHOSE)
    release, count = tfdp.tuning.NoisyMean(len, 0.1, **WHOSE).part(batches)
    assert count == 1
    assert (release.kind, release.records_per_owner, release.examples) == ("owner_metric", HERS, N)
    assert release.event().noise_multiplier == pytest.approx(0.1 * N / 0.5 / HERS)
