"""Files of records that an earlier reading wrote, beside ids that say by place whose each record is."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
IDS = np.arange(40) // 2
OLD = "was there before, or another job wrote it meanwhile: it holds .* give another folder"
FILE = r"a file of \.cache, which holds .*cache=FOLDER\), which checks the ids, or \.cache\(\) without a name"


def table(rows=X):
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, 0]))


def draws(records, **options):
    return tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(4), **options)


def within(kept):
    return tf.data.Dataset.range(1).flat_map(lambda _: kept())


def named(kept):
    one = kept()
    return tf.data.Dataset.range(1).flat_map(lambda _: one)


def held(kept):
    return tf.data.Dataset.range(1).flat_map(functools.partial(lambda one, _: one, kept()))


ENDS = {
    "last": lambda kept: kept(),
    "below other steps": lambda kept: kept().map(lambda x, y: (x, y)).prefetch(1),
    "a zip": lambda kept: tf.data.Dataset.zip((kept().map(lambda x, _: x), table().map(lambda _, y: y))),
    "in a function": within,
    "two functions deep": lambda kept: within(lambda: within(kept)),
    "held": held,
    "held, by a name": named,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_file_of_cache_has_no_order_that_ids_by_place_know(end, tmp_path):
    """It was looked whether the file is there; another job wrote it before TensorFlow looked again."""
    end, file = ENDS[end], str(tmp_path / "records")
    with pytest.raises(ValueError, match=FILE):
        tfdp.records(end(lambda: table().cache(file)), unit_ids=IDS)
    assert not list(tmp_path.iterdir())  # nothing was read
    kept = tfdp.records(end(lambda: table().cache(file)))
    with pytest.raises(ValueError, match=FILE):
        draws(kept, unit_ids=IDS)
    with pytest.raises(ValueError, match=r"`owners`.*a file of \.cache, which holds .*Or \.cache\(\) without a name"):
        draws(kept, owners=IDS, records_per_owner=2)
    draws(kept)
    in_memory = tfdp.records(end(lambda: table().cache()), unit_ids=IDS)
    assert draws(in_memory).unit == "unit"
    assert draws(tfdp.records(end(table), unit_ids=IDS, cache=tmp_path / "folder")).unit == "unit"


def test_a_file_whose_name_a_function_makes_counts_too(tmp_path):
    def kept(number):
        return table().cache(tf.strings.join([str(tmp_path / "records"), tf.strings.as_string(number)]))

    with pytest.raises(ValueError, match=FILE):
        tfdp.records(tf.data.Dataset.range(1).flat_map(kept), unit_ids=IDS)


def test_a_folder_is_read_again_beside_the_ids_that_it_was_written_with(tmp_path):
    folder = tmp_path / "records"
    for ids in (IDS, IDS.tolist()):
        again = tfdp.records(table(), unit_ids=ids, cache=folder)
        assert draws(again).unit == "unit"
    with pytest.raises(ValueError, match=OLD):
        tfdp.records(table(X[::-1]), unit_ids=IDS[::-1], cache=folder)
    with pytest.raises(ValueError, match=OLD):
        draws(tfdp.records(table(), cache=folder), unit_ids=IDS)
    listed = json.loads((folder / "records.json").read_text())
    del listed["ids"]  # as earlier versions wrote it
    (folder / "records.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=OLD):
        tfdp.records(table(), unit_ids=IDS, cache=folder)


def test_files_without_ids_by_place_are_read_again_without_a_word(tmp_path, recwarn):
    named = tf.data.Dataset.from_tensor_slices(({"x": X, "patient": IDS}, X[:, 0]))
    for _ in range(2):
        draws(tfdp.records(table(), cache=tmp_path / "plain"))
        draws(tfdp.records(table().cache(str(tmp_path / "file"))))
        draws(tfdp.records(named, unit_ids="patient", cache=tmp_path / "named"))
        draws(tfdp.records(table().cache(), unit_ids=IDS))
    assert not [one for one in recwarn if "before" in str(one.message)]
