"""Ledgers of any content: read as what they are, or refused by our own error; nothing is executed.

FUZZ=20000 pytest tests/reliability/test_fuzz_ledgers.py runs the long version.
"""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.ledgers import LEDGERS, without_digest
from helpers.mutations import damaged_bytes, damaged_trees, examples
from helpers.watching import Watched
from tfdp_layers.accounting import Ledger, LedgerError

texts = st.sampled_from(LEDGERS).flatmap(
    lambda text: (
        damaged_trees(without_digest(text)).map(json.dumps)
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


@pytest.mark.parametrize("text", LEDGERS, ids=["records", "party"])
def test_no_single_changed_character_is_read_as_another_count(text):
    whole = Ledger.from_json(text)
    digits = [i for i, character in enumerate(text) if character.isdigit()]
    for i in digits[:: max(1, len(digits) // 60)]:
        with pytest.raises(LedgerError):
            Ledger.from_json(text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :])
    bare = json.dumps(without_digest(text))
    assert Ledger.from_json(bare).entries == whole.entries
    changed = json.loads(bare)
    changed["entries"][0]["steps"] -= 1  # The witness: without a digest it is believed.
    assert Ledger.from_json(json.dumps(changed)).steps == whole.steps - 1
