"""Slips with the data of a first training, refused in words of our own, with the fix, before anything is spent."""

import warnings

import keras
import numpy as np
import pytest

import tfdp_layers as tfdp
from helpers.slips import X, Y, assert_refused, made
from tfdp_layers.batches.sources import as_store
from tfdp_layers.models.fit_arguments import unwrap


class Missing:
    """As pandas' NA: neither true nor false."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def test_cells_that_are_missing_are_said_to_be():
    holes = np.where(X > 0, X, np.nan).astype(object)
    holes[np.isnan(holes.astype(float))] = Missing()
    assert_refused(made(), "x has dtype object, which layers cannot compute with", x=holes)
    assert_refused(made(), "20 of the 40 `unit_ids` are missing", unit_ids=np.array([Missing(), 1] * 20, object))


def test_errors_show_no_records():
    """An array in the place of a number: of validation data after x and y, say, where fit takes the batch size."""
    with pytest.raises(ValueError, match=r"batch_size must be an integer. Received: ndarray of shape \(40, 3\)"):
        made().fit(X, Y, X + 1)
    with pytest.raises(ValueError, match=r"examples must be an integer. Received: ndarray of shape \(40, 3\)"):
        tfdp.plan(X, epsilon=3.0, delta=1e-5)
    with pytest.raises(
        ValueError, match=r"examples must be an integer. Received: list \[\[.*\.\.\. of type list"
    ) as refusal:
        tfdp.plan(X.tolist(), epsilon=3.0, delta=1e-5)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("words", [["yes", "no"] * 20, [0, 1] * 20, [0.5] * 40])
def test_a_list_in_the_place_of_an_array(words):
    assert_refused(made(), rf"x is a list of 40 {type(words[0]).__name__}s.*numpy.asarray\(x\)", x=words)
    fix = "Number the classes.* Then numpy" if isinstance(words[0], str) else "Make an array of it: numpy"
    assert_refused(made(), rf"y is a list of 40 {type(words[0]).__name__}s.*{fix}.asarray\(y\)", y=words)


def test_what_preprocessing_takes():
    for given in (0.5, [50]):
        with pytest.raises(ValueError, match=r"a list of numbers strictly between 0 and 1, \[0.05, 0.5, 0.95\]"):
            tfdp.preprocessing.quantiles(X, tfdp.accounting.Ledger(), given, lower=0.0, upper=1.0, noise_multiplier=9.0)
    layer = tfdp.layers.PrivateNormalization(noise_multiplier=9.0, lower=0.0, upper=1.0)
    with pytest.raises(ValueError, match="It holds strings: turn words into numbers first"):
        layer.adapt(X.astype(str))


def test_a_list_of_records_is_named_in_one_line():
    with pytest.raises(ValueError, match=r"and 72 other arrays.*tfdp.records\(the_list\)") as refusal:
        tfdp.PrivateBatches(list(zip(X, Y, strict=True)), None, tfdp.sampling.Poisson(8))
    assert len(str(refusal.value)) < 400
    for pairs in (list(zip(X, Y, strict=True)), [(X[:20], Y[:20]), (X[20:], Y[20:])]):  # records, and batches
        assert_refused(
            made(), r"x is a list of \d+ tuples.*tfdp.records\(the_list\).*numpy.concatenate", x=pairs, y=None
        )
    assert len(as_store(tfdp.records(list(zip(X, Y, strict=True))))) == 40  # as it says


def test_numbers_as_objects_and_complex_numbers_and_sparse_matrices():
    class Sparse:
        nnz, shape = 3, (40, 3)

        def toarray(self):
            return X

        def __len__(self):
            return 40

        def __getitem__(self, index):
            return X[index]

    assert_refused(made(), r"entries are numbers: encode them by x.astype\('float32'\)", x=X.astype(object))
    assert_refused(made(), r"entries are numbers: encode them by y.astype", y=Y.astype(object))
    assert_refused(made(), "Encode complex numbers by two columns", x=X.astype("complex64"))
    assert_refused(made(), r"x is a Sparse, a sparse matrix. Make it dense: x.toarray\(\)", x=Sparse())
    with pytest.raises(ValueError, match=r"source is a Sparse, a sparse matrix. Make it dense: source.toarray\(\)"):
        tfdp.records(Sparse(), lambda row: row)


def test_a_metric_of_one_column():
    with pytest.raises(ValueError, match=r"give the column, values\[:, 0\]"):
        tfdp.release_metric(np.ones((40, 1)), tfdp.accounting.Ledger(), stddev=0.1)


def test_a_list_of_one_array_is_that_array():
    given = {"x": [X], "y": (Y,)}
    unwrap(given, made())
    assert given["x"] is X
    assert given["y"] is Y
    inputs = keras.Input((3,))
    of_lists = tfdp.make_private(keras.Model([inputs], [keras.layers.Dense(1)(inputs)]))
    given = {"x": [X], "y": [Y]}
    unwrap(given, of_lists)
    assert given == {"x": [X], "y": [Y]}


@pytest.mark.slow
def test_a_list_of_one_array_trains_without_the_warnings_of_keras():
    """It warns of the structure once for each trace of a training."""
    model = made()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The structure of `inputs`")
        model.fit([X], [Y], batch_size=20, verbose=0)
    assert model.ledger.steps == 2


class Squares(keras.losses.Loss):
    """A loss of one's own: Keras does not bring labels and predictions to one shape for it."""

    def call(self, y, p):
        return keras.ops.mean(keras.ops.square(y - p), axis=-1)


def test_labels_that_a_loss_of_ones_own_compares_with_all_records():
    assert_refused(made(loss=Squares()), r"Records are not independent.*Give y\[:, None\]", y=Y[:, 0])
    mixing = made(loss=lambda y, p: keras.ops.mean((y - p) ** 2, -1) / keras.ops.max(p))
    with pytest.raises(ValueError, match="not independent") as refusal:
        mixing.fit(X, Y, batch_size=8, verbose=0)
    assert "y[:, None]" not in str(refusal.value)


@pytest.mark.slow
def test_the_labels_that_are_named_in_their_place_train():
    model = made(loss=Squares())
    model.fit(X, Y[:, 0][:, None], batch_size=20, verbose=0)
    assert model.ledger.steps == 2


def test_a_generator_is_told_how_to_become_a_pipeline():
    def rows():
        yield from zip(X, Y, strict=True)

    for given in (rows, rows()):
        with pytest.raises(ValueError, match=r"tf.data.Dataset.from_generator\(function, output_signature"):
            tfdp.records(given)
