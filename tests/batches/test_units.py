"""The privacy unit: a draw holds at most one record of a unit, and the ledger says whose guarantee it is."""

import enum
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger, Release, epsilon
from tfdp_layers.batches.owners import Owners
from tfdp_layers.batches.spellings import warn_of_spellings
from tfdp_layers.batches.units import Units

IDS = np.repeat(np.arange(8), [1, 2, 3, 4, 5, 6, 7, 12])[np.random.default_rng(0).permutation(40)]


def batches(sampling, ids=IDS, **options):
    x = np.arange(40, dtype=np.float32)[:, None]
    return tfdp.PrivateBatches(x, np.zeros(40), sampling, unit_ids=ids, seed=3, **options)


def records_of(batch):
    x, _, weight = batch
    return x[weight > 0, 0].astype(int)


@pytest.mark.parametrize(
    "sampling",
    [
        tfdp.sampling.Poisson(4),
        tfdp.sampling.TruncatedPoisson(4),
        tfdp.sampling.FixedSize(4),
        tfdp.sampling.Partition(4),
        tfdp.sampling.Cyclic(4),
    ],
    ids=lambda s: s.kind,
)
def test_a_draw_holds_at_most_one_record_of_a_unit(sampling):
    stream = batches(sampling).stream()
    for _ in range(50):
        drawn = IDS[records_of(next(stream))]
        assert len(set(drawn)) == len(drawn)


def test_units_are_drawn_alike_however_many_records_they_own_and_their_records_alike():
    stream = batches(tfdp.sampling.Poisson(4)).stream()
    drawn = np.concatenate([records_of(next(stream)) for _ in range(4000)])
    units = np.bincount(IDS[drawn], minlength=8)
    assert np.all(np.abs(units - 2000) < 5 * np.sqrt(4000 * 0.25))
    records = np.bincount(drawn, minlength=40)[IDS == 7]
    assert np.all(np.abs(records - units[7] / 12) < 5 * np.sqrt(units[7] / 12))


def test_two_records_of_a_unit_would_be_seen(monkeypatch):
    monkeypatch.setattr(Units, "choose", lambda self, units, rng: np.flatnonzero(np.isin(IDS, units)))
    stream = batches(tfdp.sampling.Poisson(4)).stream()
    drawn = [IDS[records_of(next(stream))] for _ in range(20)]
    assert any(len(set(units)) < len(units) for units in drawn)


def fitted(**options):
    model = tfdp.PrivateSequential([keras.Input((1,)), tfdp.layers.ClippedDense(1, input_clip=1.0, upstream_clip=0.1)])
    model.compile(tfdp.optimizers.NoisyOptimizer("sgd", 2.0), "mse")
    x = np.random.default_rng(1).normal(size=(40, 1)).astype("float32")
    model.fit(x, x, batch_size=4, epochs=1, verbose=0, **options)
    return model


def test_fit_accounts_for_units_and_the_statement_says_so():
    model = fitted(unit_ids=IDS)
    (entry,) = model.ledger.entries
    assert entry.release.kind == "unit_step"
    assert (entry.release.examples, entry.steps) == (8, 2)
    groups = (tfdp.accounting.GroupNoise("all", 1.0, 2.0),)
    same = Ledger()
    same.reserve(same.begin(Release(groups, tfdp.sampling.Poisson(4), 8)), 2)
    assert float(epsilon(model.ledger, 1e-3)) == pytest.approx(float(epsilon(same, 1e-3)), rel=1e-6)
    text = " ".join(str(model.privacy_statement(1e-3)).split())
    assert "one unit, with all records it owns; add or remove one unit" in text
    assert "(expected batch 4 of 8 units)" in text
    assert "One record is one person" not in text
    assert Ledger.from_json(model.ledger.to_json()).entries[0].release == entry.release


def test_a_ledger_of_records_takes_no_units():
    model = fitted()
    x = np.zeros((40, 1), np.float32)
    with pytest.raises(ValueError, match="protects one record"):
        model.fit(x, x, batch_size=4, verbose=0, unit_ids=IDS)


@pytest.mark.parametrize("ids", [IDS[:5], IDS.astype(float), np.stack([IDS, IDS])], ids=["few", "floats", "matrix"])
def test_bad_ids_are_refused(ids):
    with pytest.raises(ValueError, match="unit_ids"):
        batches(tfdp.sampling.Poisson(4), ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.where(IDS == 7, np.nan, IDS), r"12 of the 40 `unit_ids` are missing.*an id of its own"),
        (np.array([None, *IDS[1:]], object), "1 of the 40 `unit_ids` are missing"),
        (["", *"a" * 39], "1 of the 40 `unit_ids` are missing"),
        (np.ma.masked_equal(IDS, 7), "12 of the 40 `unit_ids` are missing"),
        (IDS.astype(float), r"\[int\(one\) for one in ids\]"),
        (np.array([*"a" * 39, 3], object), r"\[str\(one\) for one in ids\]"),
        (np.stack([IDS, IDS], axis=1), "Of ids in several columns make one"),
        (IDS[1:], r"one id for each of the 40 records, shape \(40,\)"),
    ],
    ids=["nan", "none", "empty", "masked", "floats", "mixed", "columns", "few"],
)
def test_ids_that_name_no_owner_are_refused_with_the_fix(ids, message):
    with pytest.raises(ValueError, match=message):
        Units(ids, 40)


@pytest.mark.parametrize(
    "ids",
    [IDS[:, None], IDS.astype(object), IDS.astype(str).astype(object), IDS.astype("S2")],
    ids=["column", "integers", "strings", "bytes"],
)
def test_a_column_of_ids_and_what_pandas_makes_of_them_are_ids(ids):
    assert np.array_equal(Units(ids, 40).positions, Units(IDS, 40).positions)


WRITTEN = [*range(20), *map(str, range(20))]
ALIKE = {
    "numbers as text": (WRITTEN, "all of one kind. Received: int, str"),
    "numbers of NumPy as text": ((np.int64(1), "1") * 20, "all of one kind. Received: int(64)?, str"),
    "text and bytes": ([*map(str, range(20)), *(str(one).encode() for one in range(20))], "Received: bytes, str"),
    "missing as text": (["nan", float("nan")] * 20, "20 of the 40 `unit_ids` are missing"),
    "truth": ([True, 1] * 20, "all of one kind. Received: bool, int"),
    "trailing zeros": (["a", "a\0"] * 20, r"20 of the `unit_ids` end in a zero character, as 'a\\x00'"),
    "bytes with trailing zeros": ([b"a", b"a\0\0"] * 20, "end in a zero character"),
    "trailing zeros in texts of NumPy": ([np.str_("a"), np.str_("a\0")] * 20, "end in a zero character"),
    "zeros alone": (["\0"] * 40, "end in a zero character"),
}


CONVERTED = {
    "bytes beside text": [[f"p{one}".encode() for one in range(20)], [f"p{one}" for one in range(20)]],
    "bytes of NumPy beside text": [np.array([f"p{one}" for one in range(20)], "S"), [f"p{one}" for one in range(20)]],
    "bytes beside numbers": [[str(one).encode() for one in range(20)], range(20)],
    "numbers beside text": [range(20), map(str, range(20))],
    "tensors beside text": [[tf.constant(f"p{one}") for one in range(20)], [f"p{one}" for one in range(20)]],
    "tensors beside numbers": [[tf.constant(str(one)) for one in range(20)], range(20)],
    "floats": [np.arange(20.0), np.arange(20.0)],
    "floats as objects": [np.array(range(20), object) * 1.0, np.array(range(20), object) * 1.0],
    "days": [np.arange(20).astype("M8[D]"), np.arange(20).astype("M8[D]")],
    "zeros behind": [[f"p{one}\0" for one in range(20)], [f"p{one}" for one in range(20)]],
    "zeros behind bytes": [[b"p%d\0" % one for one in range(20)], [b"p%d" % one for one in range(20)]],
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_the_error_says_to_write_gives_as_many_units_as_there_are_people(name):
    """Run on the very ids that were refused: `str(b"p7")` is "b'p7'", and the person would be two."""
    ids = [one for part in CONVERTED[name] for one in part]
    for _ in range(3):
        try:
            found = Units(ids, 40)
            break
        except ValueError as error:
            ids = eval(re.search(r"(\[(?:one|str|int|np).* for one in ids\])", str(error))[1], {"ids": ids, "np": np})
    assert len(found) == 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_spellings(found.names.tolist(), "unit_ids")


def test_ids_that_are_all_tensors_are_what_they_hold():
    assert (
        Units([tf.constant(f"p{one}") for one in IDS], 40).names.tolist()
        == Units([f"p{one}".encode() for one in IDS], 40).names.tolist()
    )


def test_of_too_many_ids_it_is_said_that_filters_drop_some():
    with pytest.raises(ValueError, match=r"unit_ids=\[one for i, one in enumerate\(ids\) if source\[i\] is not None\]"):
        Units(IDS, 39)


@pytest.mark.parametrize("of", [list, tuple, lambda ids: np.fromiter(ids, object)], ids=["list", "tuple", "array"])
@pytest.mark.parametrize("name", ALIKE)
def test_ids_that_numpy_would_make_alike_are_refused(name, of):
    """Two people would be one unit, in a plain list as in an array of objects, and as owners."""
    ids, message = ALIKE[name]
    with pytest.raises(ValueError, match=message):
        Units(of(ids), 40)
    message = (
        "20 of the 40 records have no owner" if name.startswith("missing") else message.replace("unit_id", "owner")
    )
    with pytest.raises(ValueError, match=message):
        Owners(of(ids), 40)


@pytest.mark.parametrize("ids", [[*range(20)] * 2, [f"a{one}\0b" for one in range(20)] * 2, [b"\0a", b"a"] * 20])
def test_ids_that_numpy_keeps_apart_are_taken(ids):
    assert len(Units(ids, 40)) == len(set(ids)) == len(Owners([[one] for one in ids], 40).names)


class Tagged(str):
    """Equal to its text, by a hash of its own."""

    __slots__ = ()
    __hash__ = object.__hash__


class Name(str, enum.Enum):
    A = "a"


@pytest.mark.parametrize("of", [list, tuple, lambda ids: np.array(ids, object)])
def test_equal_texts_of_other_classes_are_one_unit(of):
    """NumPy writes a member of an Enum as "Name.A": one person passed for two."""
    ids = of([Tagged("a"), "a", np.str_("a"), Name.A, "b", "b"])
    assert len(Units(ids, 6)) == 2
    assert len(Owners([[one] for one in ids], 6).names) == 2
