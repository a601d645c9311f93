"""Records that meet in a pipeline, before they are drawn, are refused; what works record by record is not."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers.mixed_pipelines import (
    FINE,
    IMAGES,
    MIXED,
    OTHER,
    ROWS,
    TEXTS,
    Data,
    X,
    Y,
    centred,
    cut,
    doubled,
    fixed,
    flat,
    own_of_twenty,
    slices,
)
from helpers.variants import slow_but
from tfdp_layers.batches.mixing import meetings, refuse_mixing

QUICK = [
    "mean",
    "of a fixed size",
    "of a known size",
    "of one size",
    "MixUp",
    "a variable",
    "a table",
    "a table of a filter",
    "two orders",
    "scan",
    "neighbours",
    "a generator",
]


QUICK_FINE = [name for name in FINE if name.startswith(("of a fixed", "windows"))]
QUICK_FINE += [
    "a table that nobody writes",
    "counts beside",
    "doubled",
    "words",
    "mapped twice",
    "cropped",
    "parsed",
    "fields",
    "between edges",
]


@pytest.mark.parametrize("name", slow_but(QUICK, [*MIXED]))
def test_records_that_meet_are_refused(name):
    with pytest.raises(ValueError, match=r"Records meet in this pipeline: .*no epsilon is stated"):
        tfdp.records(MIXED[name]())


@pytest.mark.parametrize("name", slow_but(QUICK_FINE, [*FINE]))
def test_what_works_record_by_record_is_taken_without_a_word(name):
    assert list(meetings(FINE[name](), batched=False)) == []


UNKNOWN = {
    "an iterator": lambda: ROWS.map(lambda x, y: (x - next(OTHER)[0], y)),
    "a file that is written": lambda: ROWS.map(
        lambda x, y: (tf.io.write_file("/dev/null", tf.as_string(x[0])), (x, y))[1]
    ),
    "another data set": lambda: ROWS.map(
        lambda x, y: (x - ROWS.reduce(tf.zeros(8), lambda all_of, one: all_of + one[0]), y)
    ),
    "a group": lambda: ROWS.group_by_window(
        lambda x, y: tf.constant(0, tf.int64), lambda _, group: group.batch(8).map(centred), window_size=8
    ).unbatch(),
    "a flat map": lambda: ROWS.batch(8).flat_map(lambda x, y: Data.from_tensors(centred(x, y)).unbatch()),
    "unique": lambda: Data.from_tensor_slices(np.arange(60) // 2).unique(),
    "of a known size, by a constant": lambda: fixed(own_of_twenty),
    "a shape that says the number": lambda: IMAGES.batch(20).map(flat).unbatch(),
    "windows": lambda: cut(5, shift=1),
    "windows with gaps": lambda: cut(4, shift=2, stride=2),
    "lists of several lengths": lambda: (
        TEXTS.batch(5)
        .map(lambda text, y: (tf.io.parse_example(text, {"x": tf.io.VarLenFeature(tf.float32)})["x"].values, y))
        .unbatch()
    ),
}


@pytest.mark.parametrize("name", slow_but([name for name in UNKNOWN if name != "a group"], [*UNKNOWN]))
def test_what_cannot_be_followed_is_said(name):
    found = list(meetings(UNKNOWN[name](), batched=False))
    assert found
    assert not any(one.certain for one in found)


def test_what_is_not_known_is_said():
    def odd(x, y):
        return tf.linalg.sqrtm(tf.linalg.diag(x)), y

    with pytest.warns(
        UserWarning, match="Whether records meet in this pipeline is not known: .* no rule for operation"
    ):
        refuse_mixing(ROWS.batch(20).map(odd).unbatch())


def told(pipeline):
    with pytest.warns(UserWarning, match="Whether records meet in this pipeline is not known") as caught:
        refuse_mixing(pipeline)
    return str(caught[0].message)


def test_what_helps_is_what_it_says():
    """Nothing of MixUp, or of layers, where it is not known whether records meet."""
    said = told(UNKNOWN["a shape that says the number"]())
    assert "dataset.map before .batch" in said
    assert "write -1 for the number of records" in said
    assert "MixUp" not in said
    assert "a layer of the model" not in said
    fixed_size = told(UNKNOWN["of a known size, by a constant"]())
    assert "a fixed size does what may depend on that size" in fixed_size
    windows = told(UNKNOWN["windows"]())
    assert ".window(5, shift=1) puts one record of its source into several windows, up to 5" in windows
    assert "unit_ids" in windows
    assert "up to 4" in told(UNKNOWN["windows with gaps"]())


@pytest.mark.parametrize("labels", [Y[:, 0], Y[:, :1], Y])
def test_a_flat_map_of_whole_elements_is_no_function_on_batches(labels):
    """Two records of one person are said to be that, whatever the labels' shape: it has been a ValueError's name."""
    rows = Data.from_tensor_slices((X, labels))
    for two in (
        rows.flat_map(lambda x, y: Data.from_tensor_slices(([x, -x], [y, y]))),
        rows.flat_map(lambda x, y: Data.from_tensor_slices((tf.tile(x[None], [2, 1]), tf.stack([y, y])))),
    ):
        with pytest.warns(
            UserWarning, match=r"Several records may be one person's: .* makes 2 records of each"
        ) as said:
            tfdp.records(two)
        assert "unit_ids" in str(said[0].message)
        assert not any("Whether records meet" in str(one.message) for one in said)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tfdp.records(two, unit_ids=np.arange(120) // 2)


def given(*shapes):
    """Elements that a generator gives: batches, or what people gave."""
    return Data.from_generator(lambda: iter([]), output_signature=tuple(map(tf.TensorSpec, shapes)))


def rolled(x, *others):
    return Data.from_tensor_slices((x + tf.roll(x, 1, 0), others[0]))


def in_twos(x, *others):
    return Data.from_tensor_slices((tf.stack([x[0] + x[1], x[2] + x[3]]), tf.stack([others[0][0], others[0][2]])))


def both(x, y):
    return Data.from_tensor_slices((tf.tile(x[None], [2, 1]), tf.tile(y[None], [2, 1])))


PERHAPS_BATCHES = {
    "beside a vector": lambda: given((8, 3), (8, 1), (5,)).flat_map(rolled),
    "beside a number": lambda: given((8, 3), (8, 1), ()).flat_map(rolled),
    "of a size that is not known": lambda: given((None, 3), (None, 1), (5,)).flat_map(rolled),
    "within a function": lambda: given((8, 3), (8, 1), (5,)).flat_map(tf.function(rolled)),
    "batches, within a function": lambda: ROWS.batch(20).flat_map(tf.function(rolled)),
    "a mean": lambda: given((8, 3), (5,)).flat_map(lambda x, _: Data.from_tensor_slices(centred(x, x)[0])),
    "a vector of all": lambda: given((8, 3), (5,)).flat_map(lambda *one: slices(one[0], tf.repeat(one[1][None], 8, 0))),
    "fewer rows": lambda: given((4, 3), (4,)).flat_map(in_twos),
    "fewer rows, beside a vector": lambda: given((4, 3), (4,), (5,)).flat_map(in_twos),
    "fewer rows, one component": lambda: given((4, 3)).flat_map(lambda x: in_twos(x, x)),
}
ONE_EACH = {
    "a row each": lambda: given((8, 3), (8, 1), (5,)).flat_map(lambda x, y, _: slices(2.0 * x, y)),
    "a row each, of a size that is not known": lambda: given((None, 3), (None,), (5,)).flat_map(
        lambda *one: slices(*one[:2])
    ),
    "several windows of one label": lambda: given((8, 3), (8, 2), ()).flat_map(
        lambda x, t, y: Data.from_tensor_slices(({"x": x, "t": t}, tf.repeat(y, 8)))
    ),
}


@pytest.mark.parametrize("name", PERHAPS_BATCHES)
@pytest.mark.parametrize("whose", [False, True])
def test_elements_that_may_be_batches_are_followed(name, whose):
    """Also where components differ in their number of rows, and whatever ids say: they say nothing of mixed rows."""
    with pytest.warns(UserWarning, match="Whether records meet in this pipeline is not known"):
        refuse_mixing(PERHAPS_BATCHES[name](), whose)


@pytest.mark.parametrize("name", ONE_EACH)
def test_rows_that_stay_apart_are_taken_without_a_word(name):
    assert list(meetings(ONE_EACH[name](), batched=False)) == []


@pytest.mark.parametrize(
    "two",
    [
        lambda: given((8,), (2,)).flat_map(both),
        lambda: given((8,), (8,)).flat_map(both),
        lambda: given((8, 8, 3), (2,)).flat_map(lambda x, y: slices(tf.stack([x[:4], x[4:]]), tf.stack([y, y]))),
        lambda: given((8, 8, 3), (8, 8)).flat_map(lambda x, y: slices([x, x[::-1]], [y, y[::-1]])),
        lambda: given((2, 3), ()).flat_map(lambda x, y: slices(tf.tile(x[None], [2, 1, 1]), tf.repeat(y, 2))),
    ],
)
def test_copies_of_whole_elements_are_of_one_person(two):
    found = list(meetings(two(), batched=False))
    assert ["makes 2 records of each element" in one.reason for one in found] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refuse_mixing(two(), whose=True)


def test_one_record_a_batch_meets_no_other():
    for drop in (False, True):
        found = list(meetings(ROWS.batch(1, drop_remainder=drop).map(doubled).unbatch(), batched=False))
        assert found == []


def test_windows_whose_persons_are_given_may_overlap():
    windows = cut(5, shift=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_place = tfdp.records(windows, unit_ids=np.arange(56) // 14)
        windows = windows.enumerate().map(lambda i, one: ({"x": one[0], "who": i // 14}, one[1]))
        by_name = tfdp.records(windows, unit_ids="who")
    assert list(by_place.unit_ids) == list(by_name.unit_ids)


def test_windows_are_told_where_a_sampling_is_declared():
    windows = cut(5, shift=1).batch(20).apply(tf.data.experimental.assert_cardinality(3))
    sampling = tfdp.sampling.Partition(20)
    with pytest.warns(UserWarning, match=r"Records may meet in this pipeline: \.window\(5, shift=1\)"):
        tfdp.declare_sampling(windows, sampling, examples=56)


def test_functions_within_functions_that_write_are_said():
    total = tf.Variable(tf.zeros(8))
    within = tf.function(lambda x: x - total.assign_add(x))
    branches = ROWS.map(lambda x, y: (tf.cond(y[0] > 0.0, lambda: total.assign_add(x), lambda: x), y))
    for pipeline in (ROWS.map(lambda x, y: (within(x), y)), branches):
        with pytest.warns(UserWarning, match="a function within one of its functions writes a variable or a table"):
            refuse_mixing(pipeline)


def test_python_code_on_batches_is_refused_and_on_records_it_is_not():
    def code(x, y):
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape), y

    with pytest.raises(ValueError, match="Python code in the graph"):
        refuse_mixing(ROWS.batch(20).map(code).unbatch())
    assert list(meetings(ROWS.map(code), batched=False)) == []


def test_batches_of_declared_pipelines_are_looked_at_as_well():
    sampling, batches = tfdp.sampling.Partition(20), ROWS.shuffle(60).batch(20)
    for pipeline in (batches, batches.map(lambda x, y: (2.0 * x, y)), ROWS.shuffle(60).map(centred).batch(20)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tfdp.declare_sampling(pipeline, sampling, examples=60)
    with pytest.warns(UserWarning, match="Records may meet in this pipeline: a function on batches"):
        tfdp.declare_sampling(batches.map(centred), sampling, examples=60)
