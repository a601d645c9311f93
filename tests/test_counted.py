"""A number that was counted is a function of the records: what divides by it is charged, or divides by a noisy one."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers import metrics
from tfdp_layers.accounting import GroupNoise, Ledger, Release, Statement, UnitRelease
from tfdp_layers.layers import adapted, dp_whitening
from tfdp_layers.preprocessing import ranks
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

N = 60
OTHERS, WITNESS = np.ones(N - 1), np.append(np.ones(N - 1), 0.0)


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    """What would be released, without its noise: by how far it moves is what is asked here."""
    for module in (metrics, adapted, ranks):
        monkeypatch.setattr(module, "add_noise", lambda source, sums, stddevs: sums)


def mean(values, ledger=None, **options):
    return tfdp.release_metric(values, Ledger() if ledger is None else ledger, stddev=0.05, **options)


def charged(values, ledger=None, **options):
    """How far one record moves the mean, as the ledger has it: noise over the noise multiplier."""
    ledger = Ledger() if ledger is None else ledger
    mean(values, ledger, **options)
    return 0.05 / ledger.entries[-1].release.noise_multiplier


def of(sampling, kind=Release, **whose):
    ledger = Ledger()
    ledger.reserve(ledger.begin(kind((GroupNoise("all", 1.0, 2.0),), sampling, N, **whose)), 1)
    return ledger


def test_one_record_more_at_the_other_end_moves_a_counted_mean_by_what_is_charged():
    moved = abs(mean(WITNESS) - mean(OTHERS))
    assert moved == pytest.approx(1.0 / N)  # the whole range over the larger number
    assert charged(WITNESS) == pytest.approx(moved)
    assert charged(OTHERS) > moved  # and the neighbour states more


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 1e300, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("others", [OTHERS, np.zeros(N - 1), np.linspace(-1.0, 2.0, N - 1), np.full(N - 1, np.nan)])
def test_no_record_moves_it_by_more(value, others):
    more = np.append(others, value)
    assert abs(mean(more) - mean(others)) <= charged(more) * (1.0 + 1e-9)


def test_the_test_sees_the_half_that_was_charged_before(monkeypatch):
    monkeypatch.setattr(metrics, "one_more", lambda *_: False)
    assert abs(mean(WITNESS) - mean(OTHERS)) == pytest.approx(2.0 * charged(WITNESS))


def test_a_declared_number_costs_half():
    moved = abs(mean(WITNESS, examples=N) - mean(OTHERS, examples=N))
    assert moved == pytest.approx(0.5 / N) == pytest.approx(charged(WITNESS, examples=N))


def test_units_are_counted_as_well():
    ids = np.append(np.arange(N - 1), [N, N])
    more = np.append(OTHERS, [0.0, 0.0])
    moved = abs(mean(more, unit_ids=ids) - mean(OTHERS, unit_ids=ids[: N - 1]))
    assert moved == pytest.approx(1.0 / N) == pytest.approx(charged(more, unit_ids=ids))
    assert charged(more, of(Poisson(6), UnitRelease), unit_ids=ids) == pytest.approx(1.0 / N)


@pytest.mark.parametrize("sampling", [FixedSize(6), Partition(6)], ids=lambda one: one.kind)
def test_of_neighbours_of_one_number_half_is_charged_as_before(sampling):
    """By `FixedSize` the sampling doubles it: the two differ by the whole range over the number."""
    assert charged(WITNESS, of(sampling)) == pytest.approx(0.5 / N)


def test_owners_whose_records_are_emptied_leave_their_number():
    owners = [[k] for k in range(N)]
    ledger = of(Poisson(6), unit="owner", records_per_owner=1)
    assert charged(WITNESS, ledger, owners=owners) == pytest.approx(0.5 / N)


def test_a_search_plans_for_what_its_trials_release():
    x = np.zeros((N, 2), "float32")
    batches = tfdp.PrivateBatches(x, np.zeros(N), sampling=Poisson(6))
    for examples, bound in ((None, 1.0), (N, 0.5)):
        release, _ = tfdp.tuning.NoisyMean(lambda _: WITNESS, 0.05, examples=examples).part(batches)
        assert release.groups[0].bound == bound
        ledger = Ledger()
        mean(WITNESS, ledger, examples=tfdp.tuning.NoisyMean(len, 0.05, examples=examples)._examples(N))
        assert ledger.entries[0].release.groups[0].bound == bound
        assert type(ledger.entries[0].release.examples) is int


LAYERS = {
    "normalization": lambda: tfdp.layers.PrivateNormalization(1.0, 0.0, 10.0),
    "centering": lambda: tfdp.layers.DPCentering(1.0, 3.0),
    "whitening": lambda: tfdp.layers.DPWhitening(1.0, 3.0),
}
ENDS = np.full((N - 1, 2), 10.0, "float32"), np.zeros((1, 2), "float32")


def sums(monkeypatch, layer, x, **options):
    """All that the weights are computed from, by one `adapt`."""
    kept = []
    monkeypatch.setattr(adapted, "add_noise", lambda source, total, stddevs: kept.append(np.asarray(total[0])) or total)
    layer.adapt(x, **options)
    return kept[0]


@pytest.mark.parametrize("name", LAYERS)
def test_adapt_divides_by_a_number_with_noise(name, monkeypatch):
    layer, less = LAYERS[name](), LAYERS[name]()
    moved = sums(monkeypatch, layer, np.concatenate(ENDS)) - sums(monkeypatch, less, ENDS[0])
    bound = layer.ledger.entries[0].release.groups[0].bound
    assert bound == pytest.approx(layer.sensitivity * 1.25**0.5)
    assert np.linalg.norm(moved) <= bound
    assert moved[-1] == pytest.approx(layer.sensitivity / 2.0)  # the number is among the noisy sums
    used = []
    again = LAYERS[name]()
    monkeypatch.setattr(type(again), "use", lambda self, found, count, stddev: used.append((count, stddev)))
    monkeypatch.setattr(adapted, "add_noise", lambda source, total, stddevs: [total[0] + layer.sensitivity])
    again.adapt(ENDS[0])  # noise of one bound on everything: two records more
    assert used == [(pytest.approx(N + 1), pytest.approx(bound))]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", [{"examples": N - 1}, {"sampling": FixedSize(6)}], ids=["declared", "replaced"])
def test_adapt_divides_by_a_public_number_as_it_is(name, options, monkeypatch):
    layer = LAYERS[name]()
    found = sums(monkeypatch, layer, ENDS[0], **options)
    assert layer.ledger.entries[0].release.groups[0].bound == layer.sensitivity
    np.testing.assert_array_equal(found, np.asarray(layer.total(ENDS[0])))


def test_components_do_not_depend_on_the_number(monkeypatch):
    layer = tfdp.layers.DPPCA(1, 1.0)
    sums(monkeypatch, layer, ENDS[0])
    assert layer.ledger.entries[0].release.groups[0].bound == layer.sensitivity


def test_ranks_go_by_the_noisy_number(monkeypatch):
    """Of counts that noise doubled the quantiles are what they were: nothing else says how many there are."""
    values, settings = np.linspace(0.0, 1.0, 500), {"lower": 0.0, "upper": 1.0, "noise_multiplier": 1.0}
    plain = tfdp.preprocessing.quantiles(values, Ledger(), [0.25, 0.75], **settings)
    monkeypatch.setattr(ranks, "add_noise", lambda source, found, stddevs: [2.0 * found[0]])
    np.testing.assert_array_equal(plain, tfdp.preprocessing.quantiles(values, Ledger(), [0.25, 0.75], **settings))
    declared = tfdp.preprocessing.quantiles(values, Ledger(), [0.25, 0.75], examples=500, **settings)
    assert np.all(declared < plain - 0.1)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("entry", [-1e6, 0.0, 1.5], ids=["negative", "none", "less than one"])
def test_noise_leaves_at_least_one_record(name, entry, monkeypatch):
    layer, used = LAYERS[name](), []
    use = layer.use
    monkeypatch.setattr(
        type(layer), "use", lambda self, found, count, stddev: used.append(count) or use(found, count, stddev)
    )
    last = entry * layer_share(layer)
    monkeypatch.setattr(adapted, "add_noise", lambda source, total, stddevs: [tf.concat([total[0][:-1], [last]], 0)])
    layer.adapt(ENDS[0])
    assert used == [pytest.approx(max(1.0, entry))]
    assert all(np.isfinite(one).all() for one in layer.get_weights())


def layer_share(layer):
    """What a record adds to the entry that counts them."""
    layer.build((None, 2))
    return layer.sensitivity / 2.0


@pytest.mark.parametrize("count", [1.0, 30.0, 59.0])
@pytest.mark.parametrize("noise", [0.0, 1.0, 1e3])
def test_no_variance_is_larger_than_numbers_of_the_range_have(count, noise):
    layer = tfdp.layers.PrivateNormalization(1.0, 0.0, 10.0)
    layer.build((None, 2))
    layer.use(np.array([5.0, -60.0, 60.0, 60.0]), count, noise)
    assert np.all(layer.variance <= 25.0 * (1.0 + 1e-6))
    assert np.all(layer.variance > 0.0)


def test_an_ordinary_variance_is_what_it_was():
    x = np.random.default_rng(0).uniform(2.0, 8.0, (200, 2))
    layer = tfdp.layers.PrivateNormalization(1e-9, 0.0, 10.0)
    layer.adapt(x, examples=200)
    np.testing.assert_allclose(layer.variance, x.var(0), rtol=1e-4)


def test_whitening_is_damped_by_the_noise_that_it_got(monkeypatch):
    edges = []
    monkeypatch.setattr(dp_whitening, "whitener_of", lambda found, edge, damping: edges.append(edge) or found)
    for options, wider in (({"examples": N - 1}, 1.0), ({}, 1.25**0.5)):
        layer = tfdp.layers.DPWhitening(2.0, 3.0)
        layer.adapt(ENDS[0], **options)
        assert edges.pop() == pytest.approx(2.0 * 9.0 * wider * 2.0 / (N - 1))  # times sqrt(2 channels)


RELEASES = {
    "release_metric": lambda number: mean(OTHERS, examples=number),
    "quantiles": lambda number: tfdp.preprocessing.quantiles(
        OTHERS, Ledger(), [0.5], lower=0.0, upper=2.0, noise_multiplier=1.0, examples=number
    ),
    "adapt": lambda number: mean_adapted(number),
}


def mean_adapted(number):
    layer = LAYERS["normalization"]()
    layer.adapt(ENDS[0], examples=number)
    return layer.mean.numpy()


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("number", [0, 2.5, True, "50"])
def test_what_is_no_number_of_records_is_refused_by_its_name(name, number):
    with pytest.raises(ValueError, match=r"^examples, the number of records.* must be"):
        RELEASES[name](number)


@pytest.mark.parametrize("name", RELEASES)
def test_whole_numbers_of_numpy_are_taken(name):
    assert np.isfinite(RELEASES[name](np.int64(N))).all()


@pytest.mark.parametrize(
    ("sampling", "kind", "name"),
    [(Poisson(6), Release, None), (Poisson(6), UnitRelease, "patient"), (TruncatedPoisson(6), Release, None)],
)
def test_a_statement_says_what_a_counted_number_leaves_open(sampling, kind, name):
    said = " ".join(Statement.from_ledger(of(sampling, kind), 1e-5, unit_name=name).assumptions)
    assert f"epsilon hides what a {name or 'record'} holds" in said
    assert "examples=" in said


def test_no_other_statement_speaks_of_it():
    """One size is public there, owners' records are emptied, and the number of a metric is charged."""
    metric = Ledger()
    mean(OTHERS, metric)
    for ledger in (of(FixedSize(6)), of(Partition(6)), of(Poisson(6), unit="owner", records_per_owner=1), metric):
        assert "epsilon hides what" not in " ".join(Statement.from_ledger(ledger, 1e-5).assumptions)
