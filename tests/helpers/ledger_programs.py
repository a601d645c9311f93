"""Random programs on the files of ledgers, and what they truly released: does anything ever tell of less?

A program opens two files, several times each; charges them, in one act or as trainings that count ahead, are broken
off, or go on while others charge; closes, copies, pickles, writes and merges ledgers; and forks, by the hook that a
fork calls. Beside it each ledger has the set of charges that it must tell of: of a file those of all that write it.
"""

import contextlib
import pickle
import random
from collections.abc import Callable
from pathlib import Path

from helpers.accounting_tools import release_of
from tfdp_layers.accounting import Ledger, LedgerError
from tfdp_layers.accounting.accountant import events_of, together
from tfdp_layers.sampling import Partition, Poisson

RELEASES = [release_of(Poisson(600), 1.0), release_of(Poisson(600), 2.0), release_of(Poisson(60), 1.0)]
IN_PASSES = [release_of(Partition(600), 1.0), release_of(Partition(60), 2.0)]

TELLS: dict[str, Callable[[Ledger], int]] = {
    "steps": lambda ledger: ledger.steps,
    "entries": lambda ledger: sum(entry.steps for entry in ledger.entries),
    "updates": lambda ledger: ledger.updates,
    "its text": lambda ledger: Ledger.from_json(ledger.to_json()).steps,
    "a copy": lambda ledger: ledger.copy().steps,
    "a pickle": lambda ledger: pickle.loads(pickle.dumps(ledger)).steps,
    "another that takes it over": lambda ledger: merged(ledger).steps,
    "together": lambda ledger: together(ledger).steps,
    "its repr": lambda ledger: int(repr(ledger).split("steps=")[1].split(",")[0]),
}


def merged(*ledgers: Ledger) -> Ledger:
    found = Ledger()
    for ledger in ledgers:
        found.merge(ledger)
    return found


class LedgerWorld:
    """The ledgers of one program, and the charges that each must tell of: their numbers, and how many releases."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.paths = [folder / f"{seed}-{name}.json" for name in ("one", "other")]
        self.named = self.random.random() < 0.5
        self.releases = self.random.choice([RELEASES, IN_PASSES])
        self.charges: list[int] = []
        self.of_files: dict[Path, set[int]] = {path.resolve(): set() for path in self.paths}
        self.ledgers: list[tuple[Ledger, set[int]]] = []
        self.running: list[tuple[Ledger, set[int], str]] = []
        self.done: list[str] = []
        self.open()

    def run(self, length: int) -> None:
        for _ in range(length):
            call = self.random.choice(CALLS)
            self.done.append(call)
            with contextlib.suppress(LedgerError, ValueError):
                getattr(self, call)()
            self.check()

    def check(self) -> None:
        looked_at = [*self.ledgers, *((Ledger.read(p), held) for p, held in self.of_files.items() if p.exists())]
        for ledger, held in looked_at:
            truth = sum(self.charges[number] for number in held)
            for name, tell in TELLS.items():
                told = tell(ledger)
                assert told >= truth, f"{name} tells of {told} releases, and there were {truth}, after {self.done}"
            assert sum(events_of(ledger).values()) > 0 or not truth

    def add(self, ledger: Ledger, held: set[int]) -> None:
        shared = self.of_files.get(ledger.path, held) if ledger.path else held
        shared |= held
        self.ledgers.append((ledger, shared))

    def any(self) -> tuple[Ledger, set[int]]:
        return self.random.choice(self.ledgers)

    def note(self, held: set[int], made: int) -> None:
        self.charges.append(made)
        held.add(len(self.charges) - 1)

    # What a program is made of ----------------------------------------------------------------------------------------

    def open(self) -> None:
        number = self.random.randrange(2)
        self.add(Ledger(self.paths[number], dataset=f"data {number}" if self.named else None), set())

    def in_memory(self) -> None:
        self.add(Ledger(), set())

    def charge(self) -> None:
        (ledger, held), reserved = self.any(), self.random.randint(1, 5)
        token = ledger.begin(self.random.choice(self.releases))
        ledger.reserve(token, reserved)
        made = self.random.randint(0, reserved)
        self.note(held, made)
        ledger.settle(token, made)

    def reserve_and_stop(self) -> None:
        (ledger, held), reserved = self.any(), self.random.randint(1, 5)
        ledger.reserve(ledger.begin(self.random.choice(self.releases)), reserved)
        self.note(held, reserved)

    def train(self) -> None:
        ledger, held = self.any()
        token = ledger.begin(self.random.choice(self.releases))
        ledger.require(token)
        self.running.append((ledger, held, token))

    def step(self) -> None:
        if self.running:
            ledger, held, token = self.random.choice(self.running)
            ledger.reserve(token, 2, self.random.choice([0, 8]))
            made = self.random.randint(0, 2)
            self.note(held, made)
            ledger.settle(token, made)

    def end(self) -> None:
        if self.running:
            ledger, _, token = self.running.pop(self.random.randrange(len(self.running)))
            ledger.end(token)

    def close(self) -> None:
        self.any()[0].close()

    def copy(self) -> None:
        ledger, held = self.any()
        way = self.random.choice([Ledger.copy, lambda one: Ledger.from_json(one.to_json()), merged])
        self.add(way(ledger), set(held))

    def read(self) -> None:
        path = self.random.choice(self.paths)
        if path.exists():
            self.add(Ledger.read(path), set(self.of_files[path.resolve()]))

    def merge(self) -> None:
        (one, mine), (other, theirs) = self.any(), self.any()
        one.merge(other)
        mine |= theirs

    def fork(self) -> None:
        """This process is the fork from here on; the other one was killed."""
        for ledger, _ in self.ledgers:
            ledger._after_fork()
        self.running.clear()


CALLS = [
    *["open", "merge", "train", "end"] * 2,
    *["charge", "step"] * 3,
    *("in_memory", "reserve_and_stop", "close", "copy", "read", "fork"),
]


def run_ledger_program(seed: int, folder: Path, length: int = 12) -> LedgerWorld:
    """One random program. Raises AssertionError where something tells of less than was released."""
    world = LedgerWorld(seed, folder)
    world.run(length)
    return world
