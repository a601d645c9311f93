import datetime
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from dp_accounting import NeighboringRelation

import tfdp_layers
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
)
from tfdp_layers.accounting.planning import PlannedRun, RunPlan
from tfdp_layers.accounting.reach import assumptions
from tfdp_layers.accounting.token_selection import TokenSelection
from tfdp_layers.accounting.wording import meaning
from tfdp_layers.sampling import FixedSize, Partition, Poisson, TruncatedPoisson

GROUPS = (GroupNoise("conv/kernel", 0.5, 1.5), GroupNoise("dense/kernel", 2.0, 6.0))


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Poisson(600), "add or remove one record"),
        (TruncatedPoisson(600), "random subset"),
        (FixedSize(600), "replace one record"),
        (Partition(600), "zero out one record"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_statement_says_what_whom_and_how(sampling, words):
    ledger = ledger_of(Release(GROUPS, sampling, 60_000), 50)
    statement = Statement.from_ledger(ledger, 1e-5)
    spent = epsilon(ledger, 1e-5)
    text = " ".join(str(statement).split())
    shown = re.search(rf"epsilon = (\S+) at delta = 1e-05 \(by {spent.accountant}\)", text)
    assert shown is not None
    assert spent <= float(shown[1]) <= 1.001 * spent  # four digits, rounded up: never less than the truth
    for part in (words, "one record", "50 noisy gradient sums", "conv/kernel", "0.5, noise stddev 1.5", "600", "60000"):
        assert part in text
    for part in (
        "One record is one person",
        "All that was released of these data",
        "Training loss",
        "seeds of sampling and noise are secret",
    ):
        assert part in text
    assert "NOT HOLD" not in text
    assert "Note:" not in text
    assert max(map(len, str(statement).splitlines())) < 100


def test_every_statement_assumes_that_nothing_later_decided_which_weights_were_kept():
    """Of several fits, the file of the best is saved between two: it cannot know what the choice cost."""
    said = "decided that these weights were kept, all of that counts, too"
    statement = Statement.from_ledger(ledger_of(release_of(Poisson(600), 1.0), 3), 1e-5)
    for text in (str(statement), json.loads(statement.to_json())["assumptions"][-1]):
        assert said in " ".join(text.split())
    for unit in ("", "record", "unit", "owner", "party"):
        assert said in " ".join(assumptions(unit, "patient", (), NeighboringRelation.ADD_OR_REMOVE_ONE))


LATER = "has counted 4 more releases since this copy of it was made"


@pytest.mark.parametrize("named", [False, True])
def test_a_copy_says_how_much_its_ledger_counted_since_where_that_is_here(named):
    ledger = Ledger(dataset="people") if named else Ledger()
    token = ledger.begin(release_of(Poisson(600), 1.0))
    ledger.reserve(token, 3)
    copied = ledger.copy()
    taken_over = Ledger()
    taken_over.merge(copied)
    assert all(Statement.from_ledger(one, 1e-5).notes == () for one in (ledger, copied, taken_over))
    ledger.reserve(token, 4)
    for one in (copied, taken_over):
        assert LATER in Statement.from_ledger(one, 1e-5).notes[0]
    taken_over = Ledger() if named else taken_over
    taken_over.reserve(taken_over.begin(release_of(Poisson(600), 2.0)), 1)  # what went on by itself is no copy
    for one in (ledger, ledger.copy(), taken_over):
        assert Statement.from_ledger(one, 1e-5).notes == ()


def test_json_holds_the_same_facts():
    statement = Statement.from_ledger(ledger_of(Release(GROUPS, Poisson(600), 60_000), 50), 1e-5)
    value = json.loads(statement.to_json())
    assert value["epsilon"] == statement.epsilon
    assert value["releases"][0]["groups"] == [["conv/kernel", 0.5, 1.5], ["dense/kernel", 2.0, 6.0]]
    assert value["releases"][0]["noise_multiplier"] == statement.releases[0].noise_multiplier
    assert value["void"] == []
    assert len(value["assumptions"]) >= 6


def test_a_seeded_source_voids_the_statement():
    statement = Statement.from_ledger(ledger_of(release_of(Poisson(600), 1.0, seeded=True), 5), 1e-5)
    assert any("seed" in reason for reason in statement.void)
    assert str(statement).startswith("VOID:")


def test_no_noise_voids_the_statement_and_json_stays_valid():
    statement = Statement.from_ledger(ledger_of(release_of(Poisson(600), 0.0), 5), 1e-5)
    assert any("without noise" in reason for reason in statement.void)
    assert json.loads(statement.to_json())["epsilon"] is None


def test_declared_sampling_and_a_large_delta_are_noted():
    ledger = ledger_of(release_of(Poisson(600), 1.0, declared=True), 5)
    assert "declared by the caller" in " ".join(str(Statement.from_ledger(ledger, 1e-5)).split())
    assert "1 / number" not in str(Statement.from_ledger(ledger, 1e-5))
    assert "above 1 / number of records" in str(Statement.from_ledger(ledger, 1e-4))


def test_equal_updates_of_several_runs_are_stated_once():
    ledger = ledger_of(release_of(Poisson(600), 1.0), 5)
    ledger.merge(ledger_of(release_of(Poisson(600), 1.0), 6))
    ledger.reserve(ledger.begin(release_of(Poisson(600), 2.0)), 7)
    assert [release.steps for release in Statement.from_ledger(ledger, 1e-5).releases] == [11, 7]


def test_an_empty_ledger_states_that_nothing_was_released():
    statement = Statement.from_ledger(Ledger(), 1e-5)
    assert statement.epsilon == 0.0
    assert "nothing was released" in str(statement)


SAMPLINGS = pytest.mark.parametrize("sampling", [Poisson, TruncatedPoisson, FixedSize, Partition])
NAMED = (GroupNoise("record_encoder/kernel", 0.5, 1.5), GroupNoise("records", 2.0, 6.0))


def text_of(*releases):
    ledger = Ledger()
    for release in releases:
        ledger.reserve(ledger.begin(release), 3)
    statement = Statement.from_ledger(ledger, 1e-5)
    return " ".join(str(statement).split()), statement


@SAMPLINGS
def test_names_that_hold_the_word_record_are_printed_as_they_are(sampling):
    metric = (GroupNoise("record_accuracy", 0.5, 60.0),)
    for step, mean, unit in ((Release, MetricRelease, "record"), (UnitRelease, UnitMetricRelease, "unit")):
        text, _ = text_of(step(NAMED, sampling(60), 600), mean(metric, sampling(600), 600))
        assert f"record_encoder/kernel: one {unit} moves the sum by at most 0.5" in text
        assert f"Group: records: one {unit} moves the sum" in text
        assert f"the metric 'record_accuracy', a mean over 600 {unit}s with noise" in text
        assert f"(expected batch 60 of 600 {unit}s)" in text


@SAMPLINGS
def test_a_statement_per_unit_names_units_wherever_one_per_record_names_records(sampling):
    groups = (GroupNoise("kernel", 0.5, 1.5),)
    per_record, of_records = text_of(Release(groups, sampling(60), 600))
    per_unit, of_units = text_of(UnitRelease(groups, sampling(60), 600))
    rows_per_record, rows_per_unit = (re.search("Sampling:(.*)Generator:", text)[1] for text in (per_record, per_unit))
    assert rows_per_record.count("record") >= 3  # how they are drawn, of how many, and what one moves
    assert rows_per_unit == rows_per_record.replace("record", "unit")
    assert of_units.relation == of_records.relation.replace("record", "unit")
    assert of_units.releases[0].sampling == of_records.releases[0].sampling.replace("record", "unit")
    assert json.loads(of_units.to_json())["releases"][0]["sampling"] == sampling(60).describe(600, "unit")


def test_sums_over_all_records_are_stated_per_record():
    text, _ = text_of(Release((GroupNoise("record_pca", 0.5, 1.5),), Poisson(600), 600, purpose="whole_data"))
    assert "3 noisy sums over all records" in text
    assert "record_pca: one record moves the sum" in text


def test_a_notebook_shows_a_statement_and_a_plan_as_print_does():
    run = PlannedRun(60, 10, 100, 1.0, 2.0, 3.0, 0.5, None)
    statement = text_of(Release((GroupNoise("kernel", 0.5, 1.5),), Poisson(60), 600))[1]
    for value in (statement, RunPlan(600, 1.0, 1e-5, None, (run,), run)):
        assert said_by_ipython(value) == [str(value)] != [repr(value)]


def said_by_ipython(value):
    """By the rule of IPython.lib.pretty: class by class, `_repr_pretty_` of its own before `__repr__` of its own."""
    shown = []
    for kind in type(value).__mro__:
        if "_repr_pretty_" in vars(kind):
            kind._repr_pretty_(value, SimpleNamespace(text=shown.append), False)
            return shown
        if "__repr__" in vars(kind):
            return [repr(value)]
    return shown


def words_of(statement):
    return " ".join(str(statement).split())


@pytest.mark.parametrize(
    ("release", "delta", "says"),
    [
        (
            Release,
            1e-5,
            "as if each record's data were shown outright with that probability: those of any of",
        ),
        (UnitRelease, 1e-5, "those of any of the 600 patients of one release with 0.6% at most"),
        (UnitMetricRelease, 1e-7, "any of the 600 patients of one release with 0.006% at most"),
        (UnitRelease, 0.1, "any of the 600 patients of one release with 100% at most"),
    ],
)
def test_a_statement_says_what_delta_is_beside_the_number_of_those_it_protects(release, delta, says):
    ledger = Ledger()
    ledger.reserve(ledger.begin(release(GROUPS[:1], Poisson(600), 600)), 3)
    name = None if release is Release else "patient"
    statement = Statement.from_ledger(ledger, delta, unit_name=name)
    assert says in words_of(statement)
    assert says in json.loads(statement.to_json())["meaning"]


@pytest.mark.parametrize(("spent", "says"), [(2.7, ""), (50.0, "= 5.185e+21"), (1e6, "= more than 1e+304")])
def test_an_epsilon_that_protects_nobody_is_called_so(spent, says):
    told = meaning(spent, 1e-5)
    assert says in told
    assert ("next to no protection" in told) == bool(says)


def test_where_the_number_of_those_it_protects_is_not_known_delta_is_left_alone():
    release = Release(GROUPS, Poisson(60), 600, unit="owner", records_per_owner=2)
    for ledger in (Ledger(), ledger_of(release, 1), ledger_of(release_of(Poisson(600), 0.0), 5)):
        assert "outright" not in str(Statement.from_ledger(ledger, 1e-5))


def test_delta_is_beside_the_number_of_owners_where_the_ledger_knows_it():
    """1,400 people behind 806 records: 1 / 806 says nothing of them. Another 50 people own 200 records: nor does it."""
    for records, owners, delta, warned in ((806, 1400, 1e-3, True), (806, 1400, 7e-4, False), (200, 50, 1e-2, False)):
        release = Release(GROUPS, Poisson(60), records, unit="owner", records_per_owner=4, owners=owners)
        read = Ledger.from_json(ledger_of(release, 3).to_json())
        assert read.releases[0] == release
        statement = Statement.from_ledger(read, delta, unit_name="patient")
        assert f"any of the {owners} patients of one release with" in words_of(statement)
        assert [f"above 1 / number of patients = {1 / owners:g}" in note for note in statement.notes] == [True] * warned


def test_where_it_does_not_know_it_the_note_says_so():
    """A ledger that was written before releases said it, beside one that was not."""
    old = Release(GROUPS, Poisson(60), 600, unit="owner", records_per_owner=2)
    ledger = ledger_of(replace(old, owners=900), 1)
    ledger.merge(ledger_of(old, 1))
    (note,) = Statement.from_ledger(ledger, 1e-3, unit_name="patient").notes
    assert "does not know how many patients there are" in note
    assert "compared with the number of records, 600" in note
    assert len(Statement.from_ledger(ledger, 1e-2).notes) == 2


@pytest.mark.parametrize(("unit", "owners"), [("record", 3), ("unit", 3), ("owner", -1), ("owner", True)])
def test_a_number_of_owners_is_of_owners(unit, owners):
    with pytest.raises(ValueError, match="owners, how many there are"):
        Release(GROUPS, Poisson(60), 600, unit=unit, owners=owners)
    with pytest.raises(ValueError, match="owners, how many there are"):
        TokenSelection(2, 1.0, 1e-6, Poisson(9), 9, unit=unit, owners=owners)


@pytest.mark.parametrize("dataset", [None, "patients"])
def test_a_statement_says_which_data_when_and_by_which_version(dataset):
    """And whether other trainings of the same data are in it: those of one model's ledger are not."""
    ledger = Ledger(dataset=dataset)
    ledger.reserve(ledger.begin(release_of(Poisson(600), 1.0)), 3)
    statement = Statement.from_ledger(ledger, 1e-5)
    assert words_of(statement).count("Data set:") == 1
    assert ("Data set: not named: this ledger counts one model's trainings" in words_of(statement)) == (dataset is None)
    today = f"{datetime.date.today()}, by tfdp-layers {tfdp_layers.__version__} with dp-accounting "
    assert statement.stated.startswith(today)
    assert f"Stated: {today}" in words_of(statement)
    assert json.loads(statement.to_json())["stated"] == statement.stated
    assert replace(statement, stated="2020-01-01") == statement


def test_what_is_computed_from_the_weights_is_covered_and_from_records_anew_is_not():
    text = words_of(Statement.from_ledger(ledger_of(release_of(Poisson(600), 1.0), 5), 1e-5))
    assert "and whatever is computed from these and from public data alone, as an exported model is" in text
    assert "Not covered: Predictions of private records" in text
    assert "(noise_source='secure' is for both)" in text
