"""What is no array of numbers: data frames are made one where nothing is lost, all else is told what it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp_layers.batches.records import arrays

COLUMNS = {"age": np.arange(4) * 1.5, "visits": np.arange(4), "ill": np.array([True, False, True, False])}


class Column:
    """As a pandas column: of a nullable type where `dtype` is none of NumPy's."""

    def __init__(self, values, nullable):
        self.values, self.dtype = values, type("Nullable", (), {"kind": "f"})() if nullable else values.dtype

    def isna(self):
        return np.array([one is None for one in self.values])

    def to_numpy(self, dtype):
        return np.array(self.values).astype(dtype)


class Table:
    """As a pandas data frame of columns of several types."""

    def __init__(self, columns, nullable=False):
        self.columns = [Column(values, nullable) for values in columns.values()]
        self.dtypes = {name: one.dtype for name, one in zip(columns, self.columns, strict=True)}
        self.shape = (4, len(columns))
        self.iloc = self

    def __getitem__(self, place):
        return self.columns[place[1]]

    def __array__(self, dtype=None, copy=None):
        return np.array([list(row) for row in zip(*(one.values for one in self.columns), strict=True)], object)


EXPECTED = np.stack([column.astype("float32") for column in COLUMNS.values()], axis=1)


@pytest.mark.parametrize("nullable", [False, True])
def test_a_table_of_numbers_and_booleans_is_an_array(nullable):
    found = arrays("x", {"table": Table(COLUMNS, nullable)})["table"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, EXPECTED)


def test_tables_with_missing_numbers_or_words_are_refused():
    with pytest.raises(ValueError, match="Its columns are numbers that may be missing"):
        arrays("x", Table(COLUMNS | {"visits": np.array([1, None, 2, 3])}, nullable=True))
    with pytest.raises(ValueError, match=r"several types \(no numbers: ward\)"):
        arrays("x", Table(COLUMNS | {"ward": np.array(["a", "b", "c", "a"], object)}))


def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(COLUMNS)
    for one in (table, table.convert_dtypes()):
        np.testing.assert_array_equal(arrays("x", one), EXPECTED)
    missing = table.convert_dtypes()
    missing.loc[1, "visits"] = pandas.NA
    with pytest.raises(ValueError, match="Its columns are numbers that may be missing"):
        arrays("x", missing)


FIELDS = np.array([(1.0, 2.0), (3.0, 4.0)], [("a", "f4"), ("b", "f8")])


def test_fields_are_put_together_as_the_error_says():
    with pytest.raises(ValueError, match=r"Its fields are a, b\..*: (numpy.stack.*)\.$") as refusal:
        arrays("x", FIELDS)
    shown = str(refusal.value).split("or of all: ")[1].removesuffix(".")
    np.testing.assert_array_equal(eval(shown, {"numpy": np, "x": FIELDS}), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[1, 2, 3], [4, 5]], r"(keras.utils.pad_sequences\(x, maxlen=N\))\. N is"),
        ([[1.5, 2.0, 3.0], [4.0, 5.0]], r"(keras.utils.pad_sequences\(x, maxlen=N, dtype='float32'\))\. N is"),
        ([["a", "b"], ["c"]], r"(numpy.array\(\[' '.join\(row\) for row in x\]\))\.$"),
        ([[1, 2], [3, 4]], r"(numpy.asarray\(x\))\.$"),
        ([[], [3, 4]], r"(keras.utils.pad_sequences\(x, maxlen=N\))\. N is"),
    ],
    ids=str,
)
def test_lists_of_lists_are_made_arrays_as_the_error_says(rows, says):
    with pytest.raises(ValueError, match="x is a list of 2 lists, and must be an array.*" + says) as refusal:
        arrays("x", rows)
    shown = str(refusal.value).split(": ", 1)[1] if "N is" not in str(refusal.value) else None
    if shown is None:
        shown = "keras.utils" + str(refusal.value).split("keras.utils")[1].split(". N is")[0]
    made = eval(
        shown.removesuffix(".").removeprefix("make a text of each, "), {"numpy": np, "keras": keras, "x": rows, "N": 3}
    )
    assert len(arrays("x", made)) == 2


def test_lists_that_are_taken_stay_so():
    assert len(arrays("x", [np.zeros((2, 3)), np.ones(2)])) == 2
    assert len(arrays("x", [[np.zeros((2, 3))], [np.ones(2)]])) == 2


def test_other_arrays_say_what_they_are():
    for one, says in [
        (tf.sparse.eye(3), r"x is a SparseTensor. Make it dense: tf.sparse.to_dense\(x\)\.$"),
        (
            np.ma.masked_array([1.0, 2.0], [True, False]),
            r"masked entries hold no numbers; put a constant there: x.fill",
        ),
        (tf.ragged.constant([[1], [2, 3]]), r"no common shape.*\.to_tensor\(shape=\(None, N\)\)"),
    ]:
        with pytest.raises(ValueError, match=says):
            arrays("x", one)
    with pytest.raises(ValueError, match="a label for each"):
        arrays("y", np.ma.masked_array([1.0, 2.0], [True, False]))
