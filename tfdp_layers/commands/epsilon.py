"""`tfdp epsilon`: what a training run costs."""

import json
from pathlib import Path

from absl import flags

from tfdp_layers.accounting import Epsilon, Ledger, LedgerError, Statement, epsilon
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.stored import is_model_file, ledger_of_model_file, notes_of_model_file
from tfdp_layers.accounting.wording import cost_text, rounded_up
from tfdp_layers.commands.command import Command, Refusal, fraction, needed, positive, print_json, wrapped
from tfdp_layers.commands.sampled_run import SampledRun, define_sampled_run

__all__ = ["COMMAND"]

_DESCRIPTION = """
Prints the epsilon of a training run: of one that you describe, or of one that was made and
counted in a ledger file. Nothing is trained, and nothing is written.

Examples:
  tfdp epsilon --examples 60000 --batch-size 2048 --noise-multiplier 1.3 --epochs 40 --delta 1e-5
  tfdp epsilon --ledger logs/ledger.json --delta 1e-5
  tfdp epsilon --ledger model.keras --delta 1e-5

The noise multiplier is the noise's standard deviation over the bound on what one record adds to the
summed gradient. Epsilon counts the whole run; the smaller, the more private. It is the smallest
that a valid accountant (PLD, RDP, ...) proves.
"""

_WHAT = (
    "Give the file that tfdp.accounting.Ledger('ledger.json') or `tfdp train --log-dir DIR` (DIR/ledger.json) wrote, or"
    " a model saved by a private model's save (model.keras)."
)


def _define(values: flags.FlagValues) -> None:
    define_sampled_run(values)
    flags.DEFINE_float("noise_multiplier", None, "Noise over the bound on one record.", flag_values=values)
    flags.DEFINE_string(
        "ledger",
        None,
        "A ledger file, or a saved private model: prints what was spent there, in place of a described run.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "unit_name", None, "With --ledger: what a unit is, such as patient, where fit got unit_ids.", flag_values=values
    )
    flags.DEFINE_bool("json", False, "Print one JSON object (an infinite epsilon is null).", flag_values=values)


def _run(values: flags.FlagValues) -> int:
    if values.ledger is not None:
        return _run_ledger(values)
    if values.unit_name is not None:
        raise Refusal("--unit-name goes with --ledger.")
    run = SampledRun.from_options(values)
    noise = positive("noise_multiplier", values.noise_multiplier, "the noise over the bound on one record")
    needed("noise_multiplier", noise, "the noise over the bound on one record, for example --noise-multiplier 1.3.")
    ledger = Ledger()
    charge(ledger, run.release(noise), run.steps)
    spent = _epsilon(ledger, run.delta)
    if values.json:
        print_json(
            {"epsilon": float(spent), "accountant": spent.accountant, **run.to_json(), "noise_multiplier": noise}
        )
        return 0
    statement = Statement.from_ledger(ledger, run.delta)
    print(f"{cost_text(spent, run.delta, 6)} (by {spent.accountant})")
    print(wrapped(f"Run: {run.steps} steps at noise multiplier {rounded_up(noise, 6)}", "", 4))
    print(wrapped(f"Sampling: {run.describe()}", "", 4))
    print(wrapped(f"Protects {statement.privacy_unit}; {statement.relation}", "", 4))
    for note in statement.notes:
        print(wrapped(f"Note: {note}", "", 4))
    return 0


def _run_ledger(values: flags.FlagValues) -> int:
    given = ["examples", "batch_size", "noise_multiplier", "steps", "epochs", "records_per_owner"]
    given = [name for name in given if values[name].present]
    if given or any(values[name].present for name in ("sampling", "noise", "decay")):
        raise Refusal(
            "--ledger says all about its run: leave out all other options but --delta, --unit-name and --json."
        )
    delta = fraction("delta", values.delta, "the probability with which the guarantee may fail")
    ledger, notes = _read(Path(values.ledger))
    spent = _epsilon(ledger, delta)
    try:
        statement = Statement.from_ledger(ledger, delta, values.unit_name, notes)
    except ValueError as error:
        raise Refusal(str(error)) from error
    if not values.json:
        print(statement)
        return 0
    relation = None if spent.relation is None else spent.relation.name.lower()
    print_json(
        {
            "epsilon": float(spent),
            "accountant": spent.accountant,
            "delta": delta,
            "relation": relation,
            "sampling": spent.sampling,
            "steps": ledger.steps,
            "statement": json.loads(statement.to_json()),
        }
    )
    return 0


def _read(path: Path) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger of a file, of a folder with a ledger.json, or of a saved model, and what that says beside it.

    Looking locks and writes nothing.
    """
    path = path / "ledger.json" if (path / "ledger.json").is_file() else path
    try:
        if path.is_file() and is_model_file(path):
            return ledger_of_model_file(path), notes_of_model_file(path)
        if path.is_file() and not _begins_as_one(path):
            raise Refusal(f"{path} is not a ledger, or its beginning is damaged. {_WHAT}")
        return Ledger.read(path), ()
    except (LedgerError, OSError) as error:
        hint = "" if path.is_file() else f" {_WHAT}"
        raise Refusal(f"the ledger cannot be read: {error}{hint}") from error


def _begins_as_one(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"format"')


def _epsilon(ledger: Ledger, delta: float) -> Epsilon:
    try:
        return epsilon(ledger, delta)
    except (ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error


COMMAND = Command("epsilon", _DESCRIPTION, _define, _run)
