"""Rounds of selective SGD in one process: the same parties and server that Flower connects, called in turn."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from tfdp_layers.federated.selection import Update
from tfdp_layers.federated.server import RefusedUpload, Server

__all__ = ["ORDERS", "run_round"]

ORDERS = ("round_robin", "random", "synchronous", "asynchronous")


class TakesTurns(Protocol):
    """What a round needs of a party."""

    name: str

    def turn(self, download: Update) -> Update | None:
        """See `Party.turn`."""


def run_round(
    server: Server, parties: Sequence[TakesTurns], order: str, download: float, rng: np.random.Generator
) -> list[str]:
    """Gives every party one turn. A party that fails or breaks the rules costs its own upload and nothing else.

    Args:
        server, parties: names must differ.
        order: "round_robin": one after the other, each sees what those before it uploaded. "random": in a fresh random
            order. "synchronous": all download first, then all upload; their changes add up. "asynchronous": each
            downloads and uploads at random times of its own, so what it learned from may be older than what it adds to.
        download: the fraction of weights that a party downloads.
        rng: for the random orders, which are public.

    Returns:
        A message for each party that failed or was refused, in the order of their turns.
    Raises:
        ValueError: an unknown order, or two parties of one name.
    """
    names = [party.name for party in parties]
    if order not in ORDERS:
        raise ValueError(f"Unknown order {order!r}. Choose one of: {', '.join(ORDERS)}.")
    if len(set(names)) < len(names):
        raise ValueError(f"Two parties share a name: {names}. Give each its own.")
    number = server.start_round()
    if order == "asynchronous":
        return _asynchronous(server, parties, number, download, rng)
    queue = [parties[i] for i in rng.permutation(len(parties))] if order == "random" else list(parties)
    once = server.download(download) if order == "synchronous" else None
    faults: list[str] = []
    for party in queue:
        received = server.download(download) if once is None else once
        faults += _deliver(server, number, *_turn(party, received))
    return faults


def _asynchronous(
    server: Server, parties: Sequence[TakesTurns], number: int, download: float, rng: np.random.Generator
) -> list[str]:
    """A round in which each party's download and upload come at two random times, in that order."""
    events = rng.permutation(np.repeat(np.arange(len(parties)), 2))
    training: dict[int, tuple[str, Update | Exception | None]] = {}
    faults: list[str] = []
    for i in map(int, events):
        if i in training:
            faults += _deliver(server, number, *training.pop(i))
        else:
            training[i] = _turn(parties[i], server.download(download))
    return faults


def _turn(party: TakesTurns, received: Update) -> tuple[str, Update | Exception | None]:
    try:
        return party.name, party.turn(received)
    except Exception as error:  # Whatever happens to a party, the others go on.
        return party.name, error


def _deliver(server: Server, number: int, name: str, result: Update | Exception | None) -> Iterable[str]:
    if isinstance(result, Exception):
        return [f"Party {name!r} failed in round {number} and uploads nothing: {type(result).__name__}: {result}"]
    if result is None or not len(result):
        return []
    try:
        server.receive(name, number, result)
    except RefusedUpload as refusal:
        return [str(refusal)]
    return []
