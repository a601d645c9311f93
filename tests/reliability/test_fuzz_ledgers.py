"""Ledgers of any content: read as what they are, or refused by our own error; nothing is executed.

FUZZ=20000 pytest tests/reliability/test_fuzz_ledgers.py runs the long version.
"""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.ledgers import LEDGERS, sealed, whole_file
from helpers.mutations import damaged_bytes, damaged_trees, examples
from helpers.watching import Watched
from tfdp_layers.accounting import Ledger, LedgerError

texts = st.sampled_from(LEDGERS).flatmap(
    lambda text: (
        damaged_trees(json.loads(text)).map(sealed).map(json.dumps)
        | damaged_trees(json.loads(text)).map(json.dumps)
        | damaged_bytes(text.encode()).map(lambda data: data.decode(errors="replace"))
        | st.text()
    )
)


def test_the_watch_sees_what_it_is_there_for():
    with pytest.raises(AssertionError, match="find_class"), Watched():
        pickle.loads(pickle.dumps(Path))


@examples(200)
@given(texts)
def test_a_ledger_of_any_text_is_whole_or_refused(text):
    with Watched():
        try:
            ledger = Ledger.from_json(text)
        except LedgerError:
            return
    assert Ledger.from_json(ledger.to_json()).entries == ledger.entries
    assert all(entry.charges >= 0 and entry.release.event() for entry in ledger.entries)


@pytest.mark.parametrize("text", LEDGERS, ids=["records", "party", "epochs", "search"])
def test_no_single_changed_character_is_read_as_another_count(text):
    whole = Ledger.from_json(text)
    digits = [i for i, character in enumerate(text) if character.isdigit()]
    for i in digits[:: max(1, len(digits) // 60)]:
        with pytest.raises(LedgerError):
            Ledger.from_json(text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :])
    changed = json.loads(text)
    changed["entries"][0][2] -= 1
    for digest in ({}, {"digest": None}, {"digest": changed["digest"]}):
        with pytest.raises(LedgerError, match="digest"):
            Ledger.from_json(json.dumps({key: item for key, item in changed.items() if key != "digest"} | digest))
    # The witness: the digest is no signature. Who writes one anew is believed.
    assert Ledger.from_json(json.dumps(sealed(changed))).steps == whole.steps - 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The bytes of a ledger's two files, and the folder for damaged ones."""
    return (*whole_file(tmp_path_factory.mktemp("whole")), tmp_path_factory.mktemp("damaged") / "ledger.json")


@examples(300)
@given(st.data())
def test_a_damaged_file_counts_all_that_its_mark_tells_of_or_is_refused(files, data):
    """Chance damages one of the two files: nothing that was acknowledged is lost from view."""
    text, mark, path = files
    damaged = data.draw(damaged_bytes(text))
    path.write_bytes(damaged)
    path.with_name("ledger.json.mark").write_bytes(mark)
    with Watched():
        try:
            ledger = Ledger(path)
        except LedgerError:
            return
    assert ledger.steps == 6
    assert len(ledger.releases) == 2


@examples(300)
@given(st.data())
def test_a_damaged_mark_makes_no_good_ledger_wrong(files, data):
    text, mark, path = files
    path.write_bytes(text)
    path.with_name("ledger.json.mark").write_bytes(data.draw(damaged_bytes(mark)))
    with Watched():
        try:
            ledger = Ledger(path)
        except LedgerError:
            return
    assert ledger.steps == 6
