"""The command `tfdp`: chooses a subcommand by its first argument. Importing it loads no TensorFlow."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tfdp_layers._version import __version__
from tfdp_layers.commands.command import HELP_ARGUMENTS, Command, Missing, Refusal, wrapped

__all__ = ["main"]

_COMMANDS = {
    "train": "Train a model on images with a privacy budget, and print the privacy statement.",
    "recipes": "List what `tfdp train --recipe` trains, and what it reaches.",
    "epsilon": "Print the epsilon of a training run, described or made.",
    "calibrate": "Print the noise multiplier that keeps to a budget.",
    "plan": "Compare batch sizes and epochs by what a budget buys with them.",
    "tune": "On images: search settings by private trainings, for the price of one entry in the ledger.",
    "bench": "Time private steps of a network beside its ordinary ones.",
    "audit": "Attack a private training, and compare what is found with what it claims.",
    "federated": "Simulate parties that do not share their data (`tfdp federated simulate`).",
}
_EXAMPLE = (
    "Example: train a convolutional network with (2.7, 1e-5)-differential privacy, on Fashion-MNIST\n"
    "or, where that cannot be had, on scikit-learn's digits:\n\n"
    "  tfdp train --method backprop_clipping --epsilon 2.7 --delta 1e-5\n"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tfdp` and returns its exit status: 0, 1 where an audit refuted its claim, 2 for arguments or data that were
    refused, 130 when interrupted.

    Args:
        argv: the arguments after the program's name; those of the process if left out.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        return _dispatch(arguments)
    except Refusal as refusal:
        print(f"tfdp: error: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntfdp: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # The reader of our output (head, less) has gone: no fault of anybody.
        sys.stderr.close()
        return 1
    finally:
        warnings.showwarning = before


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in HELP_ARGUMENTS:
        if len(arguments) < 2:
            print(_overview())
            return 0
        arguments = [arguments[1], "--help"]
    name, rest = arguments[0], arguments[1:]
    if name in ("--version", "version"):
        print(f"tfdp-layers {__version__}")
        return 0
    if name not in _COMMANDS:
        raise Refusal(f"{name!r} is no command. Choose one of: {', '.join(_COMMANDS)}; `tfdp --help` explains them.")
    command = _command(name)
    if any(argument in HELP_ARGUMENTS for argument in rest):
        print(command.help())
        return 0
    try:
        return command.run(command.parse(rest))
    except Missing as missing:
        raise Refusal(f"{missing}\nA whole call: {command.example}") from missing


def _command(name: str) -> Command:
    module: ModuleType = importlib.import_module(f"tfdp_layers.commands.{name}")
    return module.COMMAND


def _overview() -> str:
    lines = [
        "tfdp: differentially private training for Keras on TensorFlow",
        "",
        "usage: tfdp COMMAND [OPTIONS]",
        "",
        "Commands:",
    ]
    lines += [wrapped(summary, f"  {name:<11}", 13) for name, summary in _COMMANDS.items()]
    lines += ["", "`tfdp COMMAND --help` explains a command and its options; `tfdp --version` prints the version.", ""]
    return "\n".join(lines) + "\n" + _EXAMPLE


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Our own warnings in one line, those of libraries about themselves not at all."""
    if issubclass(category, UserWarning):
        print(f"tfdp: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
