"""Functions that were traced for a fixed number of records: what is proved of this number alone."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from helpers.proof import mixing, mutants
from helpers.proof.mixing.base import Function
from helpers.variants import slow_but
from tfdp_layers.proof import proving

RECORDS = WIDTH = 6
EYE = tf.eye(RECORDS)


def traced(function: Function) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((RECORDS, WIDTH)))


def is_proved(graph: Any) -> bool:
    return proving.examined(graph, None, None, (), (), proving.row_by_row, fixed=RECORDS).proved


def first(graph: Any, x: Any) -> Any:
    return np.asarray(tf.nest.flatten(graph(tf.constant(x)))[0], np.float64)


def apart(graph: Any) -> bool:
    """Whether each row stays what it is when all other records are others, and moves with its record."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, WIDTH)).astype(np.float32)
    found = first(graph, x)
    for _ in range(6):
        other, order, own = 3.0 * rng.normal(size=x.shape), rng.permutation(RECORDS), rng.integers(RECORDS)
        other[own] = x[own]
        near = first(graph, other.astype(np.float32))[own] - found[own], first(graph, x[order]) - found[order]
        if max(np.abs(one).max() for one in near) > 1e-4:
            return False
    return True


@pytest.mark.parametrize("name", slow_but(list(mixing.ROWS)[::6], mixing.ROWS))
def test_what_is_proved_of_functions_in_which_records_meet_is_so(name: str) -> None:
    """Some of them count the records, which is a constant here; as wide as there are records, so that sizes agree."""
    try:
        graph = traced(mixing.ROWS[name]())
    except (ValueError, TypeError):
        pytest.skip("it does not fit so many records")
    if is_proved(graph):
        drawn = name in ("as_random_as_the_batch_is_large", "as_many_features")
        assert drawn or apart(graph)


FINE = {
    "as it is": lambda x: 2.0 * x,
    "a shape with the number": lambda x: tf.reshape(x, (RECORDS, 2, 3)),
    "a shape with the number and -1": lambda x: tf.reshape(x, (RECORDS, -1)),
    "flat and back": lambda x: tf.reshape(tf.reshape(x, (-1,)), (RECORDS, -1)),
    "a slice of all": lambda x: x[:RECORDS, 1:],
    "a constant product": lambda x: x @ EYE,
    "ones for each": lambda x: x + tf.ones((RECORDS, 1)),
    "ones alone": lambda x: tf.ones((RECORDS,)),
    "one axis less": lambda x: tf.squeeze(x[:, None]),
    "a crop": lambda x: tf.image.random_crop(x, (RECORDS, 3)),
    "a map": lambda x: tf.vectorized_map(lambda row: row / tf.norm(row), x),
}
MIXED = {
    "a mean": lambda x: x - tf.reduce_mean(x, 0),
    "the next row": lambda x: tf.roll(x, 1, 0),
    "turned": tf.transpose,
    "turned and added": lambda x: x + tf.transpose(x),
    "turned by a shape": lambda x: tf.reshape(tf.transpose(x), (RECORDS, WIDTH)),
    "blocks of rows": lambda x: tf.reshape(tf.transpose(tf.reshape(x, (RECORDS, 2, 3)), (1, 0, 2)), (RECORDS, WIDTH)),
    "half and half": lambda x: tf.concat([x[3:], x[:3]], 0),
    "ones from the left": lambda x: tf.ones((RECORDS, RECORDS)) @ x,
    "a constant from the left": lambda x: EYE[::-1] @ x,
    "a number for each place": lambda x: x * tf.range(float(RECORDS))[:, None],
    "places alone": lambda x: tf.range(float(RECORDS)),
    "in another order": lambda x: tf.gather(x, [1, 0, 2, 3, 4, 5]),
    "the largest of a column": lambda x: tf.reshape(tf.sort(tf.reshape(x, (-1,))), (RECORDS, -1)),
    "the first for all": lambda x: tf.tile(x[:1], (RECORDS, 1)),
    "shorter by what is left": lambda x: tf.reshape(x[:, :3], (3, -1))[:, :1] + tf.zeros((3, 1)),
}


@pytest.mark.parametrize("name", FINE)
def test_what_keeps_records_apart_is_proved(name: str) -> None:
    assert is_proved(traced(FINE[name]))


@pytest.mark.parametrize("name", MIXED)
def test_what_does_not_is_not(name: str) -> None:
    assert not is_proved(traced(MIXED[name]))


@pytest.mark.parametrize(
    ("module", "old", "new", "name"),
    [
        ("proving", "value.fill is not None and as_many", "as_many", "places alone"),
        ("elementwise", "value.fill is not None and size is not None", "size is not None", "a number for each place"),
    ],
)
def test_an_edit_is_seen(module: str, old: str, new: str, name: str) -> None:
    graph = traced(MIXED[name])
    with mutants.mutant(module, mutants.edited(module, old, new)):
        assert is_proved(graph)
    assert not is_proved(graph)


def test_other_numbers_than_that_are_not_taken_for_it() -> None:
    graph = traced(FINE["as it is"])
    report = proving.examined(graph, None, None, (), (), proving.row_by_row, fixed=RECORDS + 1)
    assert report.status == "unknown"
    assert "a batch of a fixed size" in report.reason
