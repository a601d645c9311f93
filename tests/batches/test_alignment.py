"""Rows are matched by place; where an index of pandas names others at these places, ids would guard others."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from tfdp_layers.accounting import Ledger
from tfdp_layers.batches.alignment import refuse_other_rows
from tfdp_layers.batches.arrays import PrivateBatches
from tfdp_layers.sampling import Partition, Poisson


class Index:
    def __init__(self, labels: Any, anew: bool = False) -> None:
        self.labels = list(labels)
        if anew:
            self.start, self.step = 0, 1

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Any:
        return iter(self.labels)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return np.asarray(self.labels)

    def equals(self, other: Any) -> bool:
        return bool(self.labels == other.labels)


def objects(values: Any) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found


class Column:
    """As pandas' Series and DataFrame look from here: an array with `iloc` and an index."""

    iloc = None

    def __init__(self, values: Any, labels: Any = None) -> None:
        self.values = np.asarray(values)
        self.index = Index(range(len(self.values)) if labels is None else labels, anew=labels is None)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


ROWS = 6
X, IDS, MOVED = np.ones((ROWS, 2), "float32"), np.arange(ROWS) % 3, [3, 1, 2, 0, 5, 4]
SAYS = "matched by place, and their pandas indexes name different rows"


def drawn(x: Any = X, y: Any = None, **options: Any) -> Any:
    return PrivateBatches(x, y, Partition(2), **options)


@pytest.mark.parametrize(
    ("x", "beside"),
    [
        (Column(X, MOVED), {"unit_ids": Column(IDS)}),  # records were shuffled, or split; ids as they stand in the file
        (Column(X), {"unit_ids": Column(IDS, MOVED)}),
        (Column(X, MOVED), {"owners": Column(np.arange(ROWS))}),
        ({"age": Column(X, MOVED)}, {"unit_ids": Column(IDS, sorted(MOVED, reverse=True))}),
        (Column(X, MOVED), {"y": Column(IDS, MOVED[::-1])}),
        (Column(X, MOVED), {"y": {"ill": IDS, "old": Column(IDS, MOVED[::-1])}}),
        (Column(X, MOVED), {"sample_weight": Column(np.ones(ROWS), MOVED[::-1])}),
        ({"age": Column(X, MOVED), "sex": Column(X, MOVED[::-1])}, {}),
        (X, {"y": Column(IDS, MOVED), "sample_weight": Column(np.ones(ROWS), MOVED[::-1])}),
        (X, {"y": Column(IDS, MOVED), "unit_ids": Column(IDS)}),  # ids as they stood before the table was shuffled
        (X, {"y": Column(IDS), "unit_ids": Column(IDS, MOVED)}),
        (X, {"y": {"ill": IDS, "old": Column(IDS, MOVED)}, "unit_ids": Column(IDS)}),
        (X, {"sample_weight": Column(np.ones(ROWS), MOVED), "unit_ids": Column(IDS)}),
        (X, {"y": IDS, "sample_weight": Column(np.ones(ROWS), MOVED), "owners": Column(np.arange(ROWS))}),
        (X, {"y": Column(IDS, MOVED), "owners": Column(objects([[n] for n in range(ROWS)]))}),
        (({"age": X}, Column(X, MOVED)), {"unit_ids": Column(IDS)}),
        (Column(X, MOVED), {"y": Column(IDS), "unit_ids": Column(IDS, MOVED)}),
    ],
    ids=[
        *("ids", "shuffled ids", "owners", "dict", "labels", "one of two labels", "weights", "inputs", "array"),
        *("ids of labels", "shuffled ids of labels", "ids of one of two", "ids of weights", "owners of weights"),
        *("lists of owners", "behind a dict", "labels anew"),
    ],
)
def test_rows_of_another_order_are_refused(x, beside):
    with pytest.raises(ValueError, match=SAYS) as refusal:
        drawn(x, **beside)
    assert ("protected as somebody else's" in str(refusal.value)) == bool(beside.keys() & {"unit_ids", "owners"})
    assert ".to_numpy()" in str(refusal.value)


@pytest.mark.parametrize(
    ("x", "beside"),
    [
        (Column(X, MOVED), {"y": Column(IDS, MOVED), "unit_ids": Column(IDS, MOVED)}),
        (Column(X), {"y": Column(IDS), "unit_ids": Column(IDS)}),
        (Column(X, MOVED), {"y": Column(IDS)}),  # labels that were made anew, in the records' order
        (Column(X), {"y": Column(IDS, MOVED)}),  # records that were made anew, by a scaler say
        (Column(X, MOVED), {"y": IDS, "unit_ids": IDS, "sample_weight": [1.0] * ROWS}),
        (X, {"unit_ids": Column(IDS, MOVED)}),
        (X, {"y": Column(IDS, MOVED), "unit_ids": Column(IDS, MOVED)}),
        (X, {"y": Column(IDS, MOVED), "unit_ids": IDS}),
        (Column(X, MOVED), {"unit_ids": IDS.tolist()}),
    ],
)
def test_equal_indexes_new_ones_and_none_are_let_in(x, beside):
    beside = {name: np.asarray(given) if isinstance(given, list) else given for name, given in beside.items()}
    assert len(drawn(x, **beside)) in (2, 3)


def test_the_same_rows_in_two_orders_are_asked_about():
    """A scaler may have made the records anew, behind a shuffle; or the labels alone were shuffled."""
    with pytest.warns(UserWarning, match=r"the same rows in two orders.*\.to_numpy\(\)"):
        drawn(Column(X), y=Column(IDS, list(range(ROWS))[::-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(Column(X), y=Column(IDS, [10 + n for n in range(ROWS)]))


class Shelf:
    """A source that reads rows by their labels."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return X[index], np.float32(0)


@pytest.mark.parametrize("given", ["array", "source", "records", "owners"])
def test_ids_of_a_shuffled_table_beside_what_has_no_index_are_asked_about(given):
    """Ids of a table that was shuffled, beside rows read by their labels: 4 of 4 records had somebody else's id."""
    ids, name = Column(IDS, MOVED), "owners" if given == "owners" else "unit_ids"
    x = X if given in ("array", "owners") else Shelf()
    says = rf"^{name} and (x|source) are matched by place.*sort_values.*{name}\.to_numpy\(\).*{name}\.sort_index\(\)"
    with pytest.warns(UserWarning, match=says):
        tfdp.records(x, unit_ids=ids) if given == "records" else refuse_other_rows("x", x, **{name: ids})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for calm in (IDS, Column(IDS), Column(IDS, [9, 2, 3, 11, 4, 5]), Column(IDS, [f"p{n}" for n in MOVED])):
            refuse_other_rows("x", x, **{name: calm})
        refuse_other_rows("x", Column(X, MOVED), **{name: ids})
        refuse_other_rows("x", X, y=Column(IDS, MOVED), **{name: ids})


VISITS = np.random.default_rng(0).integers(0, 40, 200)
BY_PERSON = np.argsort(VISITS, kind="stable")
SHUFFLED = np.random.default_rng(1).permutation(200)


@pytest.mark.parametrize(
    "kind", [np.asarray, lambda ids: objects([f"p{one}" for one in ids])], ids=["numbers", "texts"]
)
def test_ids_of_a_table_that_was_sorted_by_person_are_taken(kind):
    """As `t = t.sort_values(["patient", "day"])` leaves them: what is cut from such a table stands right."""
    ids = kind(VISITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_other_rows("x", X, unit_ids=Column(ids[BY_PERSON], BY_PERSON))
    for order, of in ((SHUFFLED, ids), (BY_PERSON, kind(np.arange(200))), (SHUFFLED, ids[BY_PERSON])):
        with pytest.warns(UserWarning, match="in another order, as a shuffle or sort_values leaves it"):
            refuse_other_rows("x", X, unit_ids=Column(of[order], order))
    turned = BY_PERSON[::-1]  # they stood together before: by the index nothing was sorted
    with pytest.warns(UserWarning, match="in another order"):
        refuse_other_rows("x", X, unit_ids=Column(np.sort(VISITS)[::-1], np.arange(200)[::-1]))
    with pytest.warns(UserWarning, match="in another order"):
        refuse_other_rows("x", X, owners=Column(np.stack([VISITS[turned]] * 2, 1), turned))
    with pytest.warns(UserWarning, match="in another order"):
        refuse_other_rows("x", X, owners=Column(objects([[one] for one in VISITS[turned]]), turned))


def test_all_that_takes_ids_looks():
    """`whose_of` reads them for each release of records."""
    ids, values = Column(IDS), Column(X[:, 0], MOVED)
    settings: dict[str, Any] = {"noise_multiplier": 9.0, "unit_ids": ids}
    with pytest.raises(ValueError, match=f"^values and unit_ids are {SAYS}"):
        tfdp.release_metric(values, Ledger(), stddev=1.0, unit_ids=ids)
    with pytest.raises(ValueError, match=f"^values and unit_ids are {SAYS}"):
        tfdp.preprocessing.quantiles(values, Ledger(), [0.5], lower=0.0, upper=2.0, **settings)
    words = Column(["a", "b"] * 3, MOVED)
    words.__class__ = type("Words", (Column,), {"__iter__": lambda self: iter(self.values.tolist())})
    with pytest.raises(ValueError, match=f"^records and unit_ids are {SAYS}"):
        tfdp.preprocessing.vocabulary(words, Ledger(), failure=1e-6, **settings)
    layer = tfdp.layers.PrivateNormalization(noise_multiplier=9.0, lower=0.0, upper=2.0)
    with pytest.raises(ValueError, match=f"^data and unit_ids are {SAYS}"):
        layer.adapt(Column(X, MOVED), unit_ids=ids)


@pytest.mark.parametrize("entry", ["fit", "private_run"])
def test_a_training_looks_at_labels_and_weights_too(entry):
    """The table was shuffled behind the ids, and x is an array by then: the labels still tell."""
    model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    model.compile(tfdp.optimizers.ClippedOptimizer("sgd", 1.0), "mse")
    for given in ({"y": Column(IDS, MOVED)}, {"y": IDS, "sample_weight": Column(np.ones(ROWS), MOVED)}):
        with pytest.raises(ValueError, match=f"(y|sample_weight) and unit_ids are {SAYS}"):  # noqa: PT012
            with_ids = getattr(model, entry)(X, **given, unit_ids=Column(IDS), batch_size=2, epochs=1)
            with_ids.__enter__()
    assert model.ledger.steps == 0


def test_the_advice_is_taken_by_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": np.arange(8.0), "patient": np.arange(8) // 2})
    train = table.sample(frac=0.5, random_state=1)
    with pytest.raises(ValueError, match=SAYS):
        PrivateBatches(train[["age"]], None, Poisson(2), unit_ids=table.patient[: len(train)])
    for ids in (table.patient.loc[train.index], train.patient, train.patient.to_numpy()):
        assert PrivateBatches(train[["age"]], None, Poisson(2), unit_ids=ids).unit == "unit"
    with pytest.raises(ValueError, match=SAYS):
        PrivateBatches(train[["age"]].to_numpy(), train.age, Poisson(2), unit_ids=table.patient[: len(train)])


def test_no_label_of_an_index_is_shown():
    """An index may hold names of people."""
    with pytest.raises(ValueError, match=SAYS) as refusal:
        refuse_other_rows("x", Column(X, [f"secret{i}" for i in MOVED]), unit_ids=Column(IDS))
    assert "secret" not in str(refusal.value)
