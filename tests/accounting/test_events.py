import json
import math
import random

import dp_accounting
import numpy as np
import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import (
    GroupNoise,
    Ledger,
    MetricRelease,
    Release,
    Statement,
    UnitMetricRelease,
    UnitRelease,
    epsilon,
    joint_noise_multiplier,
)
from tfdp_layers.accounting.releases import release_from_json
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson


def test_groups_join_by_the_root_of_squares():
    groups = [GroupNoise("a", 1.0, 2.0), GroupNoise("b", 0.5, 0.25)]
    assert joint_noise_multiplier(groups) == pytest.approx((0.25 + 4.0) ** -0.5)
    uniform = [GroupNoise(str(i), bound, 1.3 * math.sqrt(7) * bound) for i, bound in enumerate(range(1, 8))]
    assert joint_noise_multiplier(uniform) == pytest.approx(1.3)


class SaysPoisson(Poisson):
    """Draws the same records in every step."""

    def draws(self, *args, **options):
        return iter(lambda: np.arange(600), None)


def test_a_sampler_of_ones_own_is_not_charged_as_that_which_it_comes_from():
    with pytest.raises(ValueError, match="no subclass"):
        release_of(SaysPoisson(600), 1.0)


def test_a_group_without_noise_makes_the_whole_step_unprotected():
    groups = (GroupNoise("a", 1.0, 2.0), GroupNoise("b", 1e-9, 0.0))
    assert joint_noise_multiplier(groups) == 0.0
    assert epsilon(ledger_of(Release(groups, Poisson(10), 100), 1), 1e-5) == math.inf
    assert joint_noise_multiplier([GroupNoise("a", 1.0, 2.0), GroupNoise("b", 0.0, 0.0)]) == 2.0


def test_groups_share_one_draw_so_accounting_them_apart_claims_too_little():
    layers, z, steps = 4, 2.0, 1000
    groups = tuple(GroupNoise(str(i), 1.0, z * math.sqrt(layers)) for i in range(layers))
    truth = epsilon(ledger_of(Release(groups, Poisson(2048), 60_000), steps), 1e-5)
    apart = epsilon(ledger_of(release_of(Poisson(2048), z * math.sqrt(layers)), layers * steps), 1e-5)
    assert truth == epsilon(ledger_of(release_of(Poisson(2048), z), steps), 1e-5)
    assert apart < 0.95 * truth


def test_event_multipliers_are_python_floats():
    group = GroupNoise("a", np.float32(1.0), np.float32(1.5))
    event = Release((group,), Poisson(10), np.int64(100)).event()
    assert type(event.event.noise_multiplier) is float
    assert type(event.sampling_probability) is float
    assert type(Poisson(10).event(np.float32(1.5), 100).event.noise_multiplier) is float
    assert type(Poisson(10).event(2, 100).event.noise_multiplier) is float


def test_relations_and_events_belong_to_the_sampler():
    relation = dp_accounting.NeighboringRelation
    assert release_of(Poisson(10), 1.0).relation is relation.ADD_OR_REMOVE_ONE
    assert release_of(TruncatedPoisson(10), 1.0).relation is relation.ADD_OR_REMOVE_ONE
    assert release_of(FixedSize(10), 1.0).relation is relation.REPLACE_ONE
    assert release_of(Partition(10), 1.0).relation is relation.REPLACE_SPECIAL


@pytest.mark.parametrize("sampling", [Poisson(10), TruncatedPoisson(10, 30), FixedSize(10), Partition(10)], ids=str)
def test_json_round_trip(sampling):
    release = Release((GroupNoise("a", 0.1, 1 / 3), GroupNoise("b", 1e-30, 0.0)), sampling, 100, True, True)
    assert release_from_json(json.loads(json.dumps(release.to_json()))) == release


@pytest.mark.parametrize(("bound", "stddev"), [(-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf), ("1", 1.0)])
def test_group_refuses_what_is_no_bound(bound, stddev):
    with pytest.raises(ValueError, match="finite number of at least 0"):
        GroupNoise("a", bound, stddev)


def test_release_refuses_what_describes_no_step():
    group = GroupNoise("a", 1.0, 1.0)
    with pytest.raises(ValueError, match="at least one GroupNoise"):
        Release((), Poisson(10), 100)
    with pytest.raises(ValueError, match="share a name"):
        Release((group, group), Poisson(10), 100)
    with pytest.raises(ValueError, match="larger than the data"):
        Release((group,), Poisson(101), 100)
    with pytest.raises(ValueError, match="seeded"):
        Release((group,), Poisson(10), 100, seeded=1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value.update(kind="os.system"),
        lambda value: value["sampling"].update(kind="Poisson"),
        lambda value: value["sampling"].pop("batch_size"),
        lambda value: value["groups"][0].update(bound=-1.0),
        lambda value: value["groups"][0].update(extra=1),
        lambda value: value.update(groups={}),
        lambda value: value.update(examples=3.5),
        lambda value: value.pop("seeded"),
    ],
)
def test_reading_refuses_unknown_kinds_and_fields(damage):
    value = release_of(Poisson(10), 1.0).to_json()
    release_from_json(value)
    damage(value)
    with pytest.raises(ValueError, match=r"."):
        release_from_json(value)


def test_partition_costs_the_epochs_started():
    release = release_of(Partition(30), 1.0, examples=100)
    assert [release.charges(steps) for steps in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    ledger = Ledger()
    for _ in range(3):  # Three segments of one step: three fresh permutations.
        ledger.reserve(ledger.begin(release), 1)
    assert sum(entry.charges for entry in ledger.entries) == 3
    joined = random.Random(0).choice([5, 6, 7, 8])
    assert epsilon(ledger_of(release, joined), 1e-5) == epsilon(ledger_of(release, 8), 1e-5)


@pytest.mark.parametrize("sampling", [Poisson(1000), FixedSize(1000), Partition(1000)], ids=lambda s: s.kind)
def test_a_sum_over_the_whole_data_is_one_gaussian_mechanism(sampling):
    release = Release((GroupNoise("sum", 2.0, 6.0),), sampling, 1000, purpose="whole_data")
    assert release_from_json(json.loads(json.dumps(release.to_json()))) == release
    ledger = Ledger()
    ledger.settle(ledger.begin(release), 2)
    assert (ledger.steps, ledger.updates) == (2, 0)
    # Under replace-one the sum moves by twice a record's bound.
    multiplier = (1.5 if isinstance(sampling, FixedSize) else 3.0) / math.sqrt(2)
    assert epsilon(ledger, 1e-5) == pytest.approx(dp_accounting.get_epsilon_gaussian(multiplier, 1e-5), rel=1e-3)
    assert Statement.from_ledger(ledger, 1e-5).releases[0].kind == "whole_data"
    with pytest.raises(ValueError, match="batch_size=1000"):
        Release(release.groups, type(sampling)(10), 1000, purpose="whole_data")


@pytest.mark.parametrize(
    ("make", "unit", "purpose", "kind"),
    [
        (Release, "record", "step", "step"),
        (UnitRelease, "unit", "step", "unit_step"),
        (MetricRelease, "record", "metric", "metric"),
        (UnitMetricRelease, "unit", "metric", "unit_metric"),
    ],
)
def test_kinds_of_releases_are_two_fields_and_files_name_them_as_ever(make, unit, purpose, kind):
    release = make((GroupNoise("a", 0.5, 1.5),), Poisson(1000), 1000, generator="secure")
    assert (release.unit, release.purpose, release.kind) == (unit, purpose, kind)
    assert release == Release(release.groups, Poisson(1000), 1000, generator="secure", unit=unit, purpose=purpose)
    assert release.to_json()["kind"] == kind
    assert release_from_json(json.loads(json.dumps(release.to_json()))) == release
    assert release.as_published() is release


@pytest.mark.parametrize(
    "fields",
    [{"unit": "party"}, {"purpose": "metric "}, {"unit": ["unit"]}],
    ids=str,
)
def test_units_and_purposes_that_nothing_accounts_for_are_refused(fields):
    with pytest.raises(ValueError, match="unit and purpose"):
        Release((GroupNoise("a", 1.0, 1.0),), Poisson(100), 100, **fields)


def test_a_metric_is_one_number_over_all_records():
    groups = (GroupNoise("a", 1.0, 1.0), GroupNoise("b", 1.0, 1.0))
    with pytest.raises(ValueError, match="one number"):
        MetricRelease(groups, Poisson(100), 100)
    with pytest.raises(ValueError, match="batch_size=100"):
        MetricRelease(groups[:1], Poisson(10), 100)
    value = MetricRelease(groups[:1], Poisson(100), 100).to_json()
    with pytest.raises(ValueError, match="one number"):
        release_from_json(value | {"groups": value["groups"] + [{"name": "b", "bound": 1.0, "stddev": 1.0}]})
