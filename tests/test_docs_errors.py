"""The page of errors quotes what each mistake really says."""

import warnings
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.slow
def test_every_mistake_is_on_the_page_and_says_what_it_quotes():
    pytest.importorskip("keras")
    from helpers.mistakes import MISTAKES

    assert sorted(name for name, _, _ in ROWS) == sorted(MISTAKES)
    assert len(ROWS) >= 25
    wrong = []
    for name, quote, _ in ROWS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                MISTAKES[name]()
            except Exception as error:
                said = " ".join(str(error).split())
            else:
                said = " ".join(str(one.message) for one in caught)
        if not said or quote.strip("`") not in said:
            wrong.append(f"{name}: {said}")
    assert not wrong, "\n".join(wrong)
