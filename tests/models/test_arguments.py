# ruff: noqa: SIM115
"""How files are opened is told by what the code gives to `open`, and by nothing else that it names."""

import os
import pathlib

import pytest

from tfdp_layers.models.arguments import opened_in, places_in

PATH, MODE, NEW = "file", "w", True

WRITING = {
    "a mode": lambda: open(PATH, "w"),
    "more behind it": lambda: open(os.path.join(PATH, "a"), "a", encoding="utf-8", newline=""),
    "by name": lambda: open(f"{PATH}/{NEW}.txt", mode="x"),
    "one of two": lambda: open(PATH, "w" if NEW else "a"),
    "a method": lambda: pathlib.Path(PATH).open("a"),
    "a module's": lambda: open(PATH, "wb"),
    "twice": lambda: (open(PATH, "w"), open(PATH, "a")),
}
READING = {
    "no mode": lambda: open(PATH),
    "another": lambda: open(PATH),
    "a name like a mode": lambda: open("w"),
    "a variable": lambda: open(PATH, MODE),
    "one of two": lambda: open(PATH, "r" if NEW else "w"),
    "the other of two": lambda: open(PATH, "w" if NEW else "r"),
    "a mode of something else": lambda: (open(PATH), print("a")),
    "one of several": lambda: (open(PATH, "w"), open(PATH)),
    "an argument's argument": lambda: open("w".replace("w", PATH)),
    "both ways": lambda: open(PATH, "r+"),
    "called elsewhere": lambda: map(open, [PATH, "w"]),
}


@pytest.mark.few(99)
@pytest.mark.parametrize("way", WRITING)
def test_what_only_writes_takes_nothing_in(way):
    assert opened_in(WRITING[way].__code__) == set()


@pytest.mark.few(99)
@pytest.mark.parametrize("way", READING)
def test_everything_else_may(way):
    assert opened_in(READING[way].__code__) == {"open"}


def test_texts_that_become_paths():
    joined = lambda logs: (pathlib.Path(PATH) / "stop", os.path.join(PATH, "over"), logs["loss"], f"{PATH}/m")  # noqa: E731
    assert places_in(joined.__code__) == {"stop", "over"}
