"""Files of records that an earlier reading wrote, beside ids that say by place whose each record is."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
IDS = np.arange(40) // 2
OLD = "was there before, and holds what an earlier reading gave.* delete it"


def table(rows=X):
    return tf.data.Dataset.from_tensor_slices((rows, rows[:, 0]))


def draws(records, **options):
    return tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(4), **options)


@pytest.mark.parametrize("end", [lambda kept: kept, lambda kept: kept.map(lambda x, y: (x, y)).prefetch(1)])
def test_an_old_file_of_cache_has_no_order_that_ids_by_place_know(end, tmp_path):
    file = str(tmp_path / "records")
    assert len(tfdp.records(end(table().cache(file)), unit_ids=IDS)) == 40  # written by this reading
    with pytest.raises(ValueError, match=OLD):
        tfdp.records(end(table(X[::-1]).cache(file)), unit_ids=IDS)
    old = tfdp.records(end(table().cache(file)))
    for ids in ({"unit_ids": IDS}, {"owners": IDS, "records_per_owner": 2}):
        with pytest.raises(ValueError, match=OLD):
            draws(old, **ids)
    draws(old)


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
