"""Jobs that share one folder `cache=`: each trains what it wrote, or what was whole before, with the ids of that."""

import errno
import json
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdp_layers as tfdp

X = np.arange(1200, dtype="float32").reshape(600, 2)
IDS = np.arange(600) // 10
LATER = "was there before, or another job wrote it meanwhile: it holds what that reading gave.*another folder"


def table(rows, meanwhile=None):
    """A pipeline of the rows; `meanwhile` is called once when half of them are read."""
    waits = [meanwhile] if meanwhile else []

    def read():
        for place, row in enumerate(rows):
            if place == 400 and waits:
                waits.pop()()
            yield row, row[:1]

    return tf.data.Dataset.from_generator(read, output_signature=(tf.TensorSpec((2,)), tf.TensorSpec((1,))))


def rows_of(records):
    return np.array(records._leaves[0])


def draws(records, **options):
    return tfdp.PrivateBatches(records, sampling=tfdp.sampling.Poisson(4), **options)


def two_jobs(folder, order, ids_of_both=True):
    """The records of a job that finished while another, in another order, was still reading; how the other ended."""
    first = []

    def job():
        own = {"unit_ids": IDS[order]} if ids_of_both else {}
        first.append(tfdp.records(table(X[order]), cache=folder, **own))

    given = {"unit_ids": IDS} if ids_of_both else {}
    try:
        return first, tfdp.records(table(X, job), cache=folder, **given)
    except ValueError as error:
        return first, error


def test_a_job_that_was_slower_gets_no_others_records_beside_its_own_ids(tmp_path):
    """Both wrote into the same names: one trained the other's records under its own ids, 9.9 bounds of one person."""
    order = np.random.default_rng(0).permutation(600)
    (first,), second = two_jobs(tmp_path, order)
    np.testing.assert_array_equal(rows_of(first), X[order])
    with pytest.raises(ValueError, match=LATER):
        raise second
    again = tfdp.records(table(X[order]), cache=tmp_path, unit_ids=IDS[order])
    np.testing.assert_array_equal(rows_of(again), X[order])
    with pytest.raises(ValueError, match=LATER):
        tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)


def test_ids_that_are_given_to_what_draws_are_refused_for_the_slower_job_alone(tmp_path):
    order = np.arange(600)[::-1]
    (first,), second = two_jobs(tmp_path, order, ids_of_both=False)
    draws(first, unit_ids=IDS[order])
    np.testing.assert_array_equal(rows_of(second), rows_of(first))
    with pytest.raises(ValueError, match=LATER):
        draws(second, unit_ids=IDS)
    draws(second)


@pytest.mark.parametrize("links", [True, False])
def test_jobs_of_one_order_share_what_the_first_wrote(links, tmp_path, monkeypatch, recwarn):
    """One of two equally fast jobs said that a file was cut off."""
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    tmp_path.chmod(0o755)  # made beforehand
    (first,), second = two_jobs(tmp_path, np.arange(600))
    for records in (first, second, tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)):
        np.testing.assert_array_equal(rows_of(records), X)
        assert draws(records).unit == "unit"
    assert len(list(tmp_path.iterdir())) == 2
    assert all(one.stat().st_mode & 0o077 == 0 for one in tmp_path.rglob("*"))
    assert not [one for one in recwarn if "cache" in str(one.message)]


def test_a_reading_that_broke_off_leaves_nothing_and_a_killed_one_goes_an_hour_later(tmp_path):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, tf.errors.OpError)):
        tfdp.records(table(X, stop), cache=tmp_path)
    assert not list(tmp_path.iterdir())
    tfdp.records(table(X), cache=tmp_path)
    whole = {one.name for one in tmp_path.iterdir()}
    for number, hours in enumerate((2, 2, 0)):
        left = tmp_path / f"records.{number:016x}"
        left.mkdir()
        (left / "0.raw").write_bytes(b"half")
        os.utime(left / "0.raw", (time.time() - 3600 * (number == 0) * 2,) * 2)
        os.utime(left, (time.time() - 3600 * hours,) * 2)
    (tmp_path / "records.mine").mkdir()
    listed = tmp_path / f".partial.{'a' * 16}.records.json"
    listed.write_text("{")
    os.utime(listed, (0, 0))
    tfdp.records(table(X), cache=tmp_path)
    kept = {"records.mine", *(f"records.{number:016x}" for number in (1, 2))}  # their writers are at it
    assert {one.name for one in tmp_path.iterdir()} == whole | kept


def test_records_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    synced, seen, fsync, link = set(), [], os.fsync, os.link

    def linked(partial, file):
        wanted = [partial, *tmp_path.glob("records.*/*.raw")]
        seen.append((len(wanted), {os.stat(one).st_ino for one in wanted} - synced))
        link(partial, file)

    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), synced.add(os.fstat(descriptor).st_ino)))
    monkeypatch.setattr(os, "link", linked)
    tfdp.records(table(X), cache=tmp_path)
    assert seen == [(3, set())]


@pytest.mark.parametrize("error", [OSError(errno.ETIMEDOUT, "timed out"), FileExistsError(), KeyboardInterrupt()])
def test_what_was_put_in_place_is_never_removed_whatever_the_answer(error, tmp_path, monkeypatch):
    """The winner removed its own records where a network's answer was lost, and each later job said so."""
    link = os.link

    def lost(partial, file):
        link(partial, file)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lost)
        if isinstance(error, OSError):
            np.testing.assert_array_equal(rows_of(tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)), X)
        else:
            with pytest.raises(KeyboardInterrupt):
                tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)
    again = tfdp.records(table(X[::-1]), cache=tmp_path, unit_ids=IDS)
    np.testing.assert_array_equal(rows_of(again), X)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("others", [False, True])
def test_a_half_file_that_others_removed_is_told(others, tmp_path, monkeypatch):
    """Of a job that was suspended for an hour."""

    def gone(partial, file):
        if others:
            other.append(tfdp.records(table(X), cache=tmp_path / "aside"))
            os.rename(tmp_path / "aside" / "records.json", file)
        os.unlink(partial)
        raise FileExistsError if others else FileNotFoundError(errno.ENOENT, "none", str(partial))

    other, link = [], os.link
    monkeypatch.setattr(os, "link", lambda *given: link(*given) if "aside" in str(given[0]) else gone(*given))
    with pytest.raises((FileNotFoundError, ValueError)) as refusal:
        tfdp.records(table(X), cache=tmp_path)
    assert ("Remove the folder" if others else "half file was removed by another job") in str(refusal.value)


def test_a_part_of_no_columns_is_refused_as_it_is_in_memory(tmp_path):
    none = tf.data.Dataset.from_tensor_slices(({"a": X, "b": X[:, :0]}, X[:, :1]))
    for cache in (None, tmp_path, tmp_path):
        with pytest.raises(ValueError, match=r"has the shape \(0,\), with no entry in it"):
            tfdp.records(none, cache=cache)


def test_a_folder_of_an_earlier_version_is_read(tmp_path):
    tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)
    listed = json.loads((tmp_path / "records.json").read_text())
    within = tmp_path / listed.pop("folder")
    for file in within.iterdir():
        file.rename(tmp_path / file.name)
    within.rmdir()
    (tmp_path / "records.json").write_text(json.dumps(listed))
    np.testing.assert_array_equal(rows_of(tfdp.records(table(X), cache=tmp_path, unit_ids=IDS)), X)
    with pytest.raises(ValueError, match=LATER):
        tfdp.records(table(X), cache=tmp_path, unit_ids=IDS[::-1])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"spec": "s", "arrays": [["float32", [-1]]]}', "folder"])
def test_a_list_of_records_that_is_not_whole_is_refused_with_the_fix(text, tmp_path):
    tfdp.records(table(X), cache=tmp_path)
    file = tmp_path / "records.json"
    if text == "folder":
        text = json.dumps(json.loads(file.read_text()) | {"folder": "../elsewhere"})
    file.write_text(text)
    with pytest.raises(ValueError, match=r"records\.json is not what tfdp.records writes.*Remove the folder"):
        tfdp.records(table(X), cache=tmp_path)


def test_records_that_are_gone_are_said_to_be(tmp_path):
    tfdp.records(table(X), cache=tmp_path)
    shutil.rmtree(next(one for one in tmp_path.iterdir() if one.is_dir()))
    with pytest.raises(ValueError, match=r"0\.raw has 0 bytes.*Remove the folder"):
        tfdp.records(table(X), cache=tmp_path)
