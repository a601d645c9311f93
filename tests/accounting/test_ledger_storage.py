"""The files of a ledger in a folder that others write to: rights, links, planted names, and what a crash leaves."""

import os
import stat
import tempfile

import pytest

from helpers.accounting_tools import ledger_of, release_of
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.locked_file import LockedFile
from tfdp_layers.sampling import Poisson

STEP = release_of(Poisson(600), 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.json"


def spend(path, steps=1):
    ledger = Ledger(path)
    ledger.reserve(ledger.begin(STEP), steps)
    ledger.close()


def rewrite(path):
    """Counts two entries at once: the whole file is written anew."""
    ledger, other = Ledger(path), ledger_of(STEP, 1)
    other.merge(ledger_of(STEP, 1))
    before = path.stat().st_ino
    ledger.merge(other)
    ledger.close()
    assert path.stat().st_ino != before


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_ledger_is_its_owners_alone(path, mask):
    before = os.umask(mask)
    try:
        spend(path)
    finally:
        os.umask(before)
    assert [mode(file) for file in path.parent.iterdir()] == [0o600, 0o600]


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o660, 0o644])
def test_rewriting_keeps_rights(path, rights):
    spend(path)
    path.chmod(rights)
    for change in (spend, rewrite, spend):
        change(path)
        assert mode(path) == rights


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_rewriting_keeps_owner_and_group(path):
    spend(path)
    os.chown(path, 65534, 65533)
    rewrite(path)
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (65534, 65533, 0o600)


def test_rights_of_a_group_that_the_file_cannot_have_go_to_no_other(path, monkeypatch):
    spend(path)
    path.chmod(0o664)

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    real = os.fstat

    def of_another_group(descriptor):
        found = real(descriptor)
        own = os.path.samestat(found, os.lstat(path))
        return found if not own else os.stat_result([*found[:5], found[5] + 1, *found[6:]])

    monkeypatch.setattr(os, "fstat", of_another_group)
    rewrite(path)
    monkeypatch.undo()
    assert mode(path) == 0o604


def test_a_planted_temporary_name_is_not_written_through(path, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("ledger.json.tmp", ".ledger.json.tmp", "ledger.json~"):
        (tmp_path / name).symlink_to(victim)
    spend(path)
    rewrite(path)
    assert victim.read_text() == "precious"
    assert Ledger(path).steps == 3


def test_temporary_names_are_new_and_cannot_be_foreseen(path, monkeypatch):
    seen, made = set(), tempfile.mkstemp

    def watched(*args, **kwargs):
        descriptor, name = made(*args, **kwargs)  # opens with O_EXCL and O_NOFOLLOW
        seen.add(name)
        return descriptor, name

    monkeypatch.setattr(tempfile, "mkstemp", watched)
    spend(path)
    for _ in range(4):
        rewrite(path)
    assert len(seen) == 5
    assert {os.path.dirname(name) for name in seen} == {str(path.parent)}


def test_what_killed_writers_left_is_removed_and_nothing_else(path, tmp_path):
    spend(path)
    ours = [tmp_path / ".ledger.json.abcdefgh.tmp", tmp_path / ".ledger.json.a1_2b3c4.tmp"]
    others = [
        tmp_path / ".ledger.json.other.abcdefgh.tmp",  # of the ledger `ledger.json.other`
        tmp_path / "ledger.json.tmp",
        tmp_path / ".ledger.json.notes",
        tmp_path / "victim",
    ]
    for file in (ours[0], *others):
        file.write_text("half")
    ours[1].symlink_to(tmp_path / "victim")
    Ledger(path)
    assert all(file.exists() for file in ours)  # Reading removes nothing: a writer may be at it.
    spend(path)
    assert not any(os.path.lexists(file) for file in ours)
    assert all(file.read_text() == "half" for file in others)


@pytest.mark.parametrize("name", ["ledger.json", "ledger.json.mark"])
def test_a_hard_link_is_refused(path, tmp_path, name):
    spend(path)
    os.link(tmp_path / name, tmp_path / "second")
    with pytest.raises(LedgerError, match=r"second name \(a hard link\).*Remove one"):
        spend(path)
    with pytest.raises(LedgerError, match=r"hard link"):
        Ledger(path)
    (tmp_path / "second").unlink()
    spend(path)
    assert Ledger(path).steps == 2


def test_a_hard_link_made_while_it_is_open_is_refused(path, tmp_path):
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    ledger.reserve(token, 1)
    os.link(path, tmp_path / "second")
    with pytest.raises(LedgerError, match="hard link"):
        ledger.reserve(token, 1)
    (tmp_path / "second").unlink()
    ledger.reserve(token, 1)
    assert Ledger(path).steps == ledger.steps == 2


def test_a_full_disk_at_the_first_mark_leaves_a_ledger_that_opens(path, monkeypatch):
    write = LockedFile.write

    def full(self, start, data):
        write(self, start, data[:100] if self._path.suffix == ".mark" else data)
        if self._path.suffix == ".mark":
            raise OSError(28, "No space left on device")

    ledger = Ledger(path)
    token = ledger.begin(STEP)
    with monkeypatch.context() as patch:
        patch.setattr(LockedFile, "write", full)
        with pytest.raises(LedgerError, match="No space left"):
            ledger.reserve(token, 1)
    ledger.close()
    assert Ledger(path).steps == 1
    ledger.reserve(token, 1)
    assert Ledger(path).steps == ledger.steps == 2


def test_a_folder_that_is_gone_is_our_own_error(path):
    (path.parent / "folder").mkdir()
    ledger = Ledger(path.parent / "folder" / "ledger.json")
    token = ledger.begin(STEP)
    (path.parent / "folder").rmdir()
    with pytest.raises(LedgerError, match="cannot be created"):
        ledger.reserve(token, 1)


def test_a_symbolic_link_is_another_name_of_one_ledger(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    real = tmp_path / "elsewhere" / "real.json"
    path.symlink_to(real)
    first = Ledger(path)
    first.reserve(first.begin(STEP), 2)
    assert path.is_symlink()
    assert first.path == real
    second = Ledger(real)
    with pytest.raises(LedgerError, match="Another ledger"):
        second.reserve(second.begin(STEP), 1)
    first.close()
    second.reserve(second.begin(STEP), 1)
    second.close()
    rewrite(path.resolve())
    assert path.is_symlink()
    assert Ledger(path).steps == Ledger(real).steps == 5
    assert sorted(file.name for file in tmp_path.rglob("*.mark")) == ["real.json.mark"]


def test_a_link_put_in_its_place_is_not_followed(path, tmp_path):
    ledger = Ledger(path)
    token = ledger.begin(STEP)
    ledger.reserve(token, 1)
    victim = tmp_path / "victim"
    path.rename(victim)
    path.symlink_to(victim)
    with pytest.raises(LedgerError, match=r"symbolic links|opened|read"):
        ledger.reserve(token, 1)
    assert Ledger.read(victim).steps == 1


def test_a_link_planted_as_mark_is_refused(path, tmp_path):
    (tmp_path / "ledger.json.mark").symlink_to(tmp_path / "victim")
    with pytest.raises(LedgerError, match="mark"):
        spend(path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["ledger.json", "ledger.json.mark"])
def test_what_is_no_plain_file_is_refused(path, tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(LedgerError, match=r"is a named pipe .*, and no file"):
        spend(path)
