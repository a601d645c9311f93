"""Distributed selective SGD on Flower: a strategy that passes sparse updates, and the records that hold them.

Flower carries the messages; the weights and the rules are those of `Server`.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Flower is not to report to its makers from a party's machine, unless its owner says so.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from tfdp_layers.federated.rounds import ORDERS
from tfdp_layers.federated.selection import Update
from tfdp_layers.federated.server import RefusedUpload, Server

__all__ = ["DOWNLOAD", "UPLOAD", "SelectiveSGD", "record_of", "update_in"]

DOWNLOAD, UPLOAD = "download", "upload"
"""The names of the records in a message: from the server, and from a party."""


class SelectiveSGD(Strategy):
    """Flower strategy of selective SGD: sparse arrays, one message for each node, added where they belong and counted.

    A node's first message holds all weights, later ones the most updated fraction. An upload counts for the node that
    the connection came from, whatever the message says, and is refused by the rules of `Server.receive`; a node that
    fails or does not answer in time costs its own upload and nothing else. `faults` collects the messages about them.
    In the order "asynchronous" no node waits for another: each answer is added as it comes, and its node asked again at
    once, for as many turns as there are rounds; a node that does not answer in time is not asked again.

    Args:
        server: the global weights.
        order: see `rounds.ORDERS`.
        download: the fraction of weights that a node downloads.
        timeout: seconds that nodes have for their turn; later answers are never read.
        seed: of the random order, which is public.
        state: file that the server is saved to after each round.
    Raises:
        ValueError: an unknown order.
    """

    def __init__(
        self,
        server: Server,
        order: str = "round_robin",
        download: float = 1.0,
        timeout: float = 600.0,
        seed: int = 0,
        state: Path | None = None,
    ) -> None:
        if order not in ORDERS:
            raise ValueError(f"Unknown order {order!r}. Choose one of: {', '.join(ORDERS)}.")
        self.server, self.order, self.download, self.timeout, self.state = server, order, download, timeout, state
        self.faults: list[str] = []
        self.pause = 0.1  # seconds between two looks for answers, where nobody waits for anybody
        self._rng = np.random.default_rng([seed, server.round])
        self._asked: list[int] = []
        self._known: set[int] = set()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message of its own for each node whose turn it is (all nodes, outside of `start`)."""
        nodes = self._asked or sorted(grid.get_node_ids())
        return [self._message(node, server_round, config) for node in nodes]

    def _message(self, node: int, number: int, config: ConfigRecord) -> Message:
        received = self.server.download(self.download if node in self._known else 1.0)
        record = RecordDict({DOWNLOAD: record_of(received), "config": config})
        return Message(content=record, message_type="train", dst_node_id=node, group_id=str(number))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Adds each upload to the weights, or notes why not."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self.faults.append(f"Party {_name(node)!r} failed in round {server_round}: {reply.error.reason}")
                continue
            self._known.add(node)
            try:
                update = update_in(reply.content, UPLOAD)
                if update is None or len(update.indices):
                    self.server.receive(_name(node), server_round, update)  # type: ignore[arg-type]
            except RefusedUpload as refusal:
                self.faults.append(str(refusal))
        return self.arrays(), None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Makes rounds until the server has made `num_rounds` in all. The weights are the server's own."""
        del initial_arrays, evaluate_config
        result, config = Result(), train_config or ConfigRecord()

        def finished(number: int) -> None:
            if self.state is not None:
                self.server.save(self.state)
            metrics = evaluate_fn(number, self.arrays()) if evaluate_fn else None
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        if self.order == "asynchronous":
            self._asynchronous(grid, num_rounds, timeout or self.timeout, config, finished)
        while self.server.round < num_rounds and self.order != "asynchronous":
            number = self.server.start_round()
            for group in self._groups(sorted(grid.get_node_ids())):
                self._asked = group
                messages = self.configure_train(number, self.arrays(), config, grid)
                replies = list(grid.send_and_receive(messages, timeout=timeout or self.timeout))
                silent = set(group) - {reply.metadata.src_node_id for reply in replies}
                self.faults += [f"Party {_name(node)!r} did not answer in round {number}." for node in sorted(silent)]
                self.aggregate_train(number, replies)
            self._asked = []
            finished(number)
        result.arrays = self.arrays()
        return result

    def arrays(self) -> ArrayRecord:
        """The global weights, (size,)."""
        return ArrayRecord({"weights": Array(self.server.weights.copy())})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: what a model scores on a party's own records is not covered by its guarantee."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None: see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Nothing to say."""

    def _asynchronous(
        self, grid: Grid, turns: int, timeout: float, config: ConfigRecord, finished: Callable[[int], None]
    ) -> None:
        """Pushes each node its next message when its answer was pulled. `finished` is called once every node's worth of
        answers, and at the end."""
        first, nodes = self.server.round + 1, sorted(grid.get_node_ids())
        waiting: dict[str, tuple[int, int, float]] = {}  # message: node, turn, deadline

        def ask(node: int, turn: int) -> None:
            message = self._message(node, self.server.start_turn(_name(node), turn), config)
            pushed = [identifier for identifier in grid.push_messages([message]) if identifier]
            if not pushed:
                self.faults.append(f"Party {_name(node)!r} could not be asked in turn {turn}, and is not asked again.")
            waiting.update(dict.fromkeys(pushed, (node, turn, time.monotonic() + timeout)))

        for node in nodes if first <= turns else ():
            ask(node, first)
        answers = 0
        while waiting:
            replies = list(grid.pull_messages(list(waiting)))
            for reply in replies:
                if reply.metadata.reply_to_message_id not in waiting:
                    continue
                node, turn, _ = waiting.pop(reply.metadata.reply_to_message_id)
                self.aggregate_train(turn, [reply])
                answers += 1
                if turn < turns:
                    ask(node, turn + 1)
                if answers % len(nodes) == 0 and waiting:
                    finished(first - 1 + answers // len(nodes))
            late = [identifier for identifier, (_, _, deadline) in waiting.items() if time.monotonic() > deadline]
            for identifier in late:
                node, turn, _ = waiting.pop(identifier)
                self.faults.append(f"Party {_name(node)!r} did not answer in turn {turn}, and is not asked again.")
            if not replies:
                time.sleep(self.pause)
        if first <= turns:
            finished(self.server.round)

    def _groups(self, nodes: list[int]) -> list[list[int]]:
        """Nodes that are asked at the same time."""
        if self.order == "synchronous":
            return [nodes]
        order = self._rng.permutation(len(nodes)) if self.order == "random" else range(len(nodes))
        return [[nodes[i]] for i in order]


def record_of(update: Update) -> ArrayRecord:
    """The indices and values of an update, as Flower's record of two arrays."""
    return ArrayRecord({"indices": Array(update.indices), "values": Array(update.values)})


def update_in(content: RecordDict, key: str) -> Update | None:
    """What a message holds, or None where it holds no two arrays."""
    try:
        record: Any = content[key]
        return Update(record["indices"].numpy(), record["values"].numpy())
    except Exception:  # Its bytes come from elsewhere: whatever is wrong with them, it is no upload.
        return None


def _name(node: int) -> str:
    return f"node {node}"
