"""Ids and owners by place are refused beside pipelines that put records at other places, wherever they come in."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp
from helpers import grain_like
from tfdp_layers.batches.mixing import meetings
from tfdp_layers.batches.places import moved_by, nodes_held

Data = tf.data.Dataset
X = np.arange(48, dtype="float32").reshape(24, 2)
PEOPLE = np.arange(24) // 3
ROWS = Data.from_tensor_slices((X, X[:, :1]))
GRAIN = grain_like.source([*zip(X, X[:, :1], strict=True)])


def double(x, y):
    return 2.0 * x, y


def shard(part):
    return ROWS.shard(4, part)


def loose(dataset, name="deterministic", value=False):
    options = tf.data.Options()
    setattr(options, name, value)
    return dataset.with_options(options)


def parallel(_=None, rows=ROWS, **settings):
    return rows.map(double, num_parallel_calls=2, **settings)


def twice(_, inner=parallel):
    """A flat map within a flat map."""
    return Data.range(1).flat_map(inner)


def ready(_):
    return parallel(deterministic=False)


def joined(_):
    return tuple(parallel().batch(24).get_single_element())


def holding(data_set):
    return Data.range(1).flat_map(lambda _: data_set)


def bound(data_set):
    """Held by a partial, in which no name tells it."""
    return Data.range(1).flat_map(functools.partial(lambda one, _: one, data_set))


def grouped():
    return ROWS.group_by_window(lambda x, y: tf.cast(y[0] % 2, tf.int64), lambda _, group: group.batch(4), 4).unbatch()


MOVED = {
    "shuffle": (ROWS.shuffle(24), r"\.shuffle"),
    "before other steps": (ROWS.shuffle(24).map(double).batch(4).unbatch().prefetch(1), r"\.shuffle"),
    "after a map": (ROWS.map(double).shuffle(24), r"\.shuffle"),
    "in one branch of a zip": (
        Data.zip((Data.from_tensor_slices(X).shuffle(9), Data.from_tensor_slices(X))),
        "shuffle",
    ),
    "files": (Data.range(4).shuffle(4).flat_map(shard), r"\.shuffle"),
    "within a flat map": (Data.range(1).flat_map(lambda _: ROWS.shuffle(24)), "Shuffle"),
    "interleave": (Data.range(4).interleave(shard, cycle_length=4), r"\.interleave"),
    "interleave in parallel": (Data.range(4).interleave(shard, num_parallel_calls=2), r"\.interleave"),
    "in turns": (Data.sample_from_datasets([ROWS.take(9), ROWS.skip(9)]), r"\.sample_from_datasets"),
    "grouped": (grouped(), r"\.group_by_window"),
    "no order": (ROWS.map(double, num_parallel_calls=2, deterministic=False), "deterministic=False"),
    "no order, by an option": (loose(ROWS.map(double, num_parallel_calls=2)), "deterministic=False"),
    "no order, within": (loose(Data.range(1).flat_map(parallel)), "Map with deterministic=False within"),
    "no order, two functions deep": (loose(Data.range(1).flat_map(twice)), "Map with deterministic=False within"),
    "no order, by itself, two deep": (Data.range(1).flat_map(lambda _: twice(_, ready)), "deterministic=False within"),
    "no order, in a map": (loose(Data.range(1).map(joined).unbatch()), "deterministic=False within"),
    "shuffled in a map": (Data.range(1).map(lambda _: ROWS.shuffle(9)).flat_map(lambda one: one), "Shuffle within"),
    "held": (holding(parallel(deterministic=False)), "deterministic=False within"),
    "held, and shuffled": (holding(ROWS.shuffle(24)), "Shuffle within"),
    "held, without a name": (bound(parallel(deterministic=False)), "Map with deterministic=False within"),
    "held, and shuffled, without a name": (bound(ROWS.shuffle(24)), "Shuffle within"),
    "held, whose function moves": (holding(Data.range(1).flat_map(ready)), "Map with deterministic=False within"),
    "held, whose function holds": (holding(holding(ROWS.shuffle(24))), "Shuffle within"),
    "snapshot": (ROWS.snapshot(tempfile.mkdtemp()), "Snapshot"),
    "Grain, shuffle": (grain_like.Shuffle(GRAIN), r"\.shuffle"),
    "Grain, before other steps": (grain_like.Map(grain_like.Shuffle(grain_like.WithSeed(GRAIN))), r"\.shuffle"),
    "Grain, shuffled in a window": (grain_like.WindowShuffle(GRAIN), r"\.window_shuffle"),
    "Grain, wrapped again": (grain_like.source(grain_like.Shuffle(GRAIN)), r"\.shuffle"),
    "Grain, a mix": (grain_like.Mixed(GRAIN, grain_like.source([*GRAIN._source])), "mix of several"),
    "Grain, backwards": (grain_like.cut(GRAIN, 23, -1, -1), "backwards"),
    "Grain, a class of one's own": (grain_like.Mine(GRAIN), "Mine"),
}
KEPT = {
    "plain": ROWS,
    "in place": ROWS.map(double, num_parallel_calls=2).batch(5).prefetch(1).unbatch().cache(),
    "a zip": Data.zip((Data.from_tensor_slices(X), Data.from_tensor_slices(X[:, 0]))),
    "counted": ROWS.enumerate().map(lambda _, row: row),
    "parts in their order": ROWS.take(9).concatenate(ROWS.skip(9)),
    "one source at a time": Data.range(1).interleave(lambda _: ROWS, cycle_length=1),
    "rows of batches": ROWS.batch(5).flat_map(lambda x, y: Data.from_tensor_slices((x, y))),
    "in parallel, within": Data.range(1).flat_map(parallel),
    "its own order": loose(Data.range(1).flat_map(lambda _: parallel(deterministic=True))),
    "options that are put right": loose(loose(Data.range(1).flat_map(parallel)), value=True),
    "not in parallel": loose(Data.range(1).flat_map(lambda _: ROWS.map(double).batch(5).unbatch())),
    "options within": Data.range(1).flat_map(lambda _: loose(parallel())),
    "options of what is held": holding(loose(parallel())),
    "held in order, without a name": bound(parallel().batch(5).unbatch().cache()),
    "options of what is held, without a name": bound(loose(parallel())),
    "held in order": holding(parallel().batch(5).unbatch().cache()),
    "a generator": Data.from_generator(lambda: iter(X), output_signature=tf.TensorSpec((2,))),
    "Grain": grain_like.Map(GRAIN),
    "Grain, parts": grain_like.Concatenate(grain_like.cut(GRAIN, 0, 9), grain_like.cut(GRAIN, 9, 24), length=24),
    "a list": [*X],
}


@pytest.mark.parametrize("name", MOVED)
def test_ids_by_place_are_refused_beside_what_moves_records(name):
    source, says = MOVED[name]
    says = rf"moves records to other places \([^)]*{says}.*Leave that operation out"
    with pytest.raises(ValueError, match=rf"`unit_ids`.*{says}.*unit_ids='patient'"):
        tfdp.records(source, unit_ids=PEOPLE)
    records = tfdp.records(source)
    sampling = tfdp.sampling.Poisson(4)
    for given in [records] if isinstance(source, Data) else [records, source]:
        with pytest.raises(ValueError, match=rf"`unit_ids`.*{says}"):
            tfdp.PrivateBatches(given, sampling=sampling, unit_ids=PEOPLE)
        with pytest.raises(ValueError, match=rf"`owners`.*{says}.*arrays"):
            tfdp.PrivateBatches(given, sampling=sampling, owners=PEOPLE, records_per_owner=3)
    tfdp.PrivateBatches(records, sampling=sampling)  # that protects records


@pytest.mark.parametrize("name", KEPT)
def test_and_taken_where_the_order_is_kept(name):
    assert moved_by(KEPT[name]) == ""
    for records, given in ((tfdp.records(KEPT[name], unit_ids=PEOPLE), {}), (tfdp.records(KEPT[name]), PEOPLE)):
        ids = {"unit_ids": given} if len(given) else {}
        assert tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(4), **ids).examples == 8
    owners = {"owners": PEOPLE, "records_per_owner": 3}
    assert tfdp.PrivateBatches(tfdp.records(KEPT[name]), sampling=tfdp.sampling.Poisson(4), **owners).owners == 8


def test_ids_within_the_records_go_where_they_go():
    named = Data.from_tensor_slices(({"x": X, "patient": PEOPLE}, X[:, 0])).shuffle(24)
    batches = tfdp.PrivateBatches(tfdp.records(named, unit_ids="patient"), sampling=tfdp.sampling.FixedSize(8))
    x, *_ = next(batches.stream())
    assert sorted(x[:, 0] // 6) == [*range(8)]


def test_files_are_read_one_behind_the_other_or_several_at_once(tmp_path):
    files = [str(tmp_path / f"{number}") for number in range(2)]
    for file in files:
        with tf.io.TFRecordWriter(file) as writer:
            writer.write(b"record")
    assert moved_by(tf.data.TFRecordDataset(files)) == ""
    assert "interleave" in moved_by(tf.data.TFRecordDataset(files, num_parallel_reads=2))


def test_lines_of_files_are_read_in_their_order(tmp_path):
    (tmp_path / "lines").write_text("1\n2\n")
    files = [str(tmp_path / "lines")] * 2
    assert moved_by(tf.data.TextLineDataset(files)) == ""
    assert moved_by(tf.data.FixedLengthRecordDataset(files, 2)) == ""
    assert "interleave" in moved_by(tf.data.TextLineDataset(files, num_parallel_reads=2))


def test_what_was_saved_in_several_shards_comes_back_in_another_order(tmp_path):
    """One shard keeps it, and `save` writes one where it is given no shard_func."""
    numbers, path = Data.range(24), str(tmp_path / "saved")
    numbers.save(path)
    assert [*Data.load(path).as_numpy_iterator()] == [*range(24)]
    assert moved_by(Data.load(path).map(lambda i: 2 * i)) == ""
    assert moved_by(Data.load(path, reader_func=lambda shards: shards.flat_map(lambda one: one))) == ""
    assert "Shuffle" in moved_by(Data.load(path, reader_func=lambda shards: shards.flat_map(lambda a: a.shuffle(9))))
    numbers.save(path, shard_func=lambda i: i // 12)
    loaded = Data.load(path)
    assert [*loaded.as_numpy_iterator()] != [*range(24)]
    assert ".load of 2 shards in turns" in moved_by(loaded)
    with pytest.raises(ValueError, match=r"moves records to other places \(\.load of 2 shards"):
        tfdp.records(loaded.map(lambda i: (tf.one_hot(i, 24), i)), unit_ids=PEOPLE)
    assert "Load within a function" in moved_by(Data.range(1).flat_map(lambda _: Data.load(path)))
    gone = Data.load(path)
    gone._path = str(tmp_path / "gone")
    assert "cannot be counted" in moved_by(gone)


def test_steps_in_flat_maps_that_are_not_known_to_keep_the_order_count_as_moving():
    def any_order(_):
        return Data.range(9).map(lambda i: 2 * i, num_parallel_calls=2, deterministic=False)

    assert "deterministic=False" in moved_by(Data.range(2).flat_map(any_order))
    with pytest.raises(ValueError, match="Or give it deterministic=True, if the options"):
        tfdp.records(loose(parallel()), unit_ids=PEOPLE)
    assert "within a function" in moved_by(Data.range(2).flat_map(lambda _: Data.range(9).snapshot("nowhere")))
    for kept in (lambda i: Data.range(i).map(lambda j: 2 * j, num_parallel_calls=2), lambda i: Data.range(i).cache()):
        assert moved_by(Data.range(3).flat_map(kept)) == ""


@pytest.mark.parametrize("options", ["deterministic", "experimental_deterministic"])
@pytest.mark.parametrize("made", [parallel, lambda: Data.range(1).flat_map(twice), lambda: Data.range(1).map(joined)])
def test_a_fixed_order_is_not_declared_of_what_comes_as_it_is_ready(made, options):
    """The whole order is compared by the first record of each batch alone, while it runs."""
    batches = made().batch(8).apply(tf.data.experimental.assert_cardinality(3))
    cyclic = {"sampling": tfdp.sampling.Cyclic(8), "examples": 24}
    with pytest.raises(ValueError, match=r"ready \(.*deterministic=False.*Give these steps deterministic=True"):
        tfdp.declare_sampling(loose(batches, options), **cyclic)
    with pytest.raises(ValueError, match=r"which may depend on what it holds, decides .*: below \.cache, too"):
        tfdp.declare_sampling(loose(batches.cache(), options), **cyclic)
    if batches.element_spec[0].shape.rank == 2:
        tfdp.declare_sampling(batches, **cyclic)


def test_branches_of_a_zip_in_a_function_come_in_their_order():
    def paired(_):
        return Data.zip((ROWS.map(lambda x, y: x, num_parallel_calls=2), ROWS.map(lambda x, y: y)))

    def of(dataset):
        return [one.reason for one in meetings(dataset, batched=False) if "one branch of a zip" in one.reason]

    pairs = Data.range(1).flat_map(paired)
    assert of(pairs) == []
    assert "deterministic=False" in of(loose(pairs))[0]


def test_a_data_set_that_cannot_be_written_down_counts_as_moving():
    @tf.function
    def within():
        found.append(moved_by(bound(Data.range(3))))

    found = []
    within()
    assert found == ["a data set that cannot be looked at within a function of it"]


def test_a_data_set_that_functions_hold_is_written_down_once_if_at_all(monkeypatch):
    """Writing down takes seconds of 200 MB of arrays."""
    written = []
    write = tf.raw_ops.DatasetToGraphV2
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **given: [written.append(1), write(**given)][1])
    assert moved_by(holding(Data.range(3))) == moved_by(holding(tf.function(lambda: Data.range(4))())) == ""
    assert written == []
    one = Data.range(5).map(lambda i: i + 7)
    both = bound(one).concatenate(bound(one))
    assert moved_by(both) == moved_by(both) == ""
    assert written == [1]
    kinds = {node.op for node in nodes_held(bound(one))}
    assert "RangeDataset" in kinds
    assert "Const" not in kinds
    assert written == [1]
