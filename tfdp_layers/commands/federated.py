"""`tfdp federated simulate`: parties that do not share their data train one model, on this machine."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from tfdp_layers.accounting import LedgerError
from tfdp_layers.accounting.wording import cost_text
from tfdp_layers.commands.command import Command, Refusal, definers, fraction, positive, print_json, whole
from tfdp_layers.commands.quiet_import import quiet_import
from tfdp_layers.federated.party import Budget
from tfdp_layers.federated.rounds import ORDERS
from tfdp_layers.zoo import datasets

if TYPE_CHECKING:
    from tfdp_layers.federated.simulation import Federation, Outcome

__all__ = ["COMMAND"]

_DESCRIPTION = """
`tfdp federated simulate` splits a data set among parties and trains one model by distributed
selective SGD: each party downloads the global weights, trains on its own records, and uploads a
few of its changes. With --epsilon-per-epoch the uploads are private: they reveal little about a
party's whole data set, and --epsilon bounds what each party spends in all.

Examples:
  tfdp federated simulate --dataset mnist --model mlp --parties 30 --upload 0.1 --json
  tfdp federated simulate --dataset digits --records 40 --selection random --threshold 0.001
  tfdp federated simulate --dataset digits --records 40 --upload 0.01 --bound 0.01 \\
    --threshold 0.001 --epsilon-per-epoch 100 --epsilon 500 --folder federation

--folder keeps the server's state and each party's ledger: a run that was killed goes on from
there, and what a party spent is not forgotten.
"""
_ADDS_UP = "what they spent adds up for a record that several parties hold"
_DATASETS = ("mnist", "fashion_mnist", "digits")
_FLOWER_HINT = (
    "--engine flower needs Flower: pip install '.[federated]' (flwr 1.41 with its simulation engine). The"
    " default --engine local runs the same parties and server without it."
)


class _FederatedCommand(Command):
    """A command with one subcommand so far."""

    def parse(self, arguments: Sequence[str]) -> flags.FlagValues:
        if not arguments or arguments[0] != "simulate":
            given = repr(arguments[0]) if arguments else "nothing"
            raise Refusal(f"tfdp federated needs what to do: `tfdp federated simulate ...`. Received: {given}.")
        return super().parse(arguments[1:])


def _define(values: flags.FlagValues) -> None:
    define, choose = definers(values)
    choose("dataset", _DATASETS, "Images that are split among the parties.", "digits")
    choose("model", ("mlp", "cnn"), "Network.", "mlp")
    define("integer", "parties", "How many parties.", 30)
    define("integer", "records", "Records of each party; 600 if left out, and an even share of smaller data.")
    define("integer", "rounds", "Turns of every party.", 20)
    choose("order", ORDERS, "In which order parties take their turns in a round.", "round_robin")
    define("float", "upload", "Largest part of the weights in one upload.", 0.1)
    define("float", "download", "Part of the weights, most updated first, that a party downloads.", 1.0)
    choose("selection", ("largest", "random"), "Changes to upload; private ones are random above a threshold.", None)
    define("float", "bound", "Uploaded changes are clipped to this size; 1 if left out, and 0.001 with privacy.")
    define("float", "threshold", "Size that a change must have to be chosen at random.", 1e-4)
    define("float", "epsilon_per_epoch", "Privacy cost of one full upload, for one party; no privacy if left out.")
    define("float", "epsilon", "Budget of each party for all its uploads; counted without limit if left out.")
    define("float", "delta", "Probability with which the guarantee may fail.", 1e-5)
    define("integer", "epochs", "Epochs of local training in a turn.", 1)
    define("integer", "batch_size", "Records in a local step.", 32)
    define("float", "learning_rate", "Of the local SGD.", 0.05)
    define("integer", "seed", "Of weights, data split and order. Noise and selection never take one.", 0)
    choose("engine", ("local", "flower"), "One process, or Flower's simulation engine.", "local")
    define("string", "folder", "Keeps the server's state and the parties' ledgers, and goes on from them.")
    define("string", "data_dir", "Folder with the data set (DATASET.npz, or its idx files).")
    define("bool", "json", "End with one JSON object on the last line.", False)


def _run(values: flags.FlagValues) -> int:
    private = _check(values)
    try:
        data = datasets.load(values.dataset, values.data_dir)
    except (ValueError, datasets.DatasetNotFound) as error:
        raise Refusal(str(error)) from error
    with quiet_import():
        import tensorflow  # noqa: F401
    from tfdp_layers.federated.simulation import make_selection, simulate

    plan = _plan(values, private, data)
    try:
        make_selection(plan)
        plan = dataclasses.replace(plan, folder=_folder(values.folder))
        outcome = (simulate if values.engine == "local" else _flower(values.data_dir))(
            plan, data, lambda text: print(text, flush=True)
        )
    except (ValueError, LedgerError) as error:
        raise Refusal(str(error)) from error
    for fault in outcome.faults:
        print(f"NOTE: {fault}")
    spent = ""
    if outcome.epsilon_per_party is not None:
        spent = (
            f" Each party spent at most {cost_text(outcome.epsilon_per_party, values.delta)}"
            f" for its whole data set ({_ADDS_UP}); {outcome.halted} of {plan.parties} have spent their budget."
        )
    print(f"Test accuracy {outcome.test_accuracy:.4f} after {outcome.rounds} rounds in {outcome.seconds:.0f} s.{spent}")
    if values.json:
        print_json(_result(values, plan, outcome))
    return 0


def _check(values: flags.FlagValues) -> bool:
    """Raises Refusal for the first option that is not valid; returns whether uploads are private."""
    for name in ("parties", "records", "rounds", "epochs", "batch_size"):
        whole(name, getattr(values, name), f"the number of {name.replace('_', ' ')}")
    whole("seed", values.seed, "the seed", least=0, most=2**32 - 1)
    for name in ("upload", "download"):
        if getattr(values, name) != 1.0:
            fraction(name, getattr(values, name), "a part of the weights (1 for all)")
    for name in ("bound", "epsilon_per_epoch", "epsilon", "learning_rate"):
        positive(name, getattr(values, name), "a size")
    if not 0.0 <= values.threshold < math.inf:
        raise Refusal(f"--threshold must be a finite number of at least 0. Received: {values.threshold}.")
    fraction("delta", values.delta, "the probability with which the guarantee may fail")
    private = values.epsilon_per_epoch is not None
    if values.epsilon is not None and not private:
        raise Refusal("--epsilon is a budget for private uploads: give --epsilon-per-epoch, the cost of one, as well.")
    if private and values.selection == "largest":
        raise Refusal(
            "--selection largest is not private: with --epsilon-per-epoch changes are chosen at random above a noisy"
            " threshold. Leave --selection out."
        )
    return private


def _plan(values: flags.FlagValues, private: bool, data: datasets.Dataset) -> "Federation":
    """What the options ask for; those that were left out depend on the data and on whether uploads are private."""
    from tfdp_layers.federated.simulation import Federation

    return Federation(
        **{name: getattr(values, name) for name in ("model", "parties", "upload", "download", "order", "rounds")},
        **{name: getattr(values, name) for name in ("threshold", "epsilon_per_epoch", "epochs", "batch_size")},
        selection=values.selection or ("random" if private else "largest"),
        records=values.records or min(600, max(1, len(data.y_train) // values.parties)),
        bound=values.bound or (1e-3 if private else 1.0),
        budget=Budget(math.inf if values.epsilon is None else values.epsilon, values.delta),
        learning_rate=values.learning_rate,
        seed=values.seed,
    )


def _folder(name: str | None) -> Path | None:
    if name is None:
        return None
    folder = Path(name).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--folder {folder} cannot be made: {error.strerror}.") from error
    return folder


def _flower(data_dir: str | None) -> Any:
    """The simulation on Flower's engine; the only place from which Flower is reached."""
    try:
        from tfdp_layers.federated.app import simulate_on_flower
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "ray"):
            raise
        raise Refusal(_FLOWER_HINT) from error
    return functools.partial(simulate_on_flower, data_dir=data_dir)


def _result(values: flags.FlagValues, plan: "Federation", outcome: "Outcome") -> dict[str, Any]:
    return {
        "test_accuracy": outcome.test_accuracy,
        "rounds": outcome.rounds,
        "parties": plan.parties,
        "epsilon_per_party": outcome.epsilon_per_party,
        "delta": None if outcome.epsilon_per_party is None else values.delta,
        "seconds": round(outcome.seconds, 3),
        "halted": outcome.halted,
        "faults": list(outcome.faults),
        "dataset": values.dataset,
        "engine": values.engine,
        **{name: getattr(plan, name) for name in ("model", "upload", "download", "selection", "order", "records")},
        **{name: getattr(plan, name) for name in ("bound", "threshold", "epsilon_per_epoch", "seed")},
        "history": [list(point) for point in outcome.history],
    }


COMMAND = _FederatedCommand("federated simulate", _DESCRIPTION, _define, _run)
