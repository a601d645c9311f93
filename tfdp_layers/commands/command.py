"""What the subcommands share: options on their own absl FlagValues, help for people, checks, and JSON."""

import contextlib
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from absl import flags

__all__ = [
    "HELP_ARGUMENTS",
    "MOST",
    "Command",
    "Missing",
    "Refusal",
    "WholeNumber",
    "fraction",
    "needed",
    "positive",
    "print_json",
    "say_at_once",
    "whole",
    "wrapped",
]

HELP_ARGUMENTS = ("--help", "-h", "-help", "help")
MOST = 10**12
"""Of whole numbers: no data set holds more records, and no training has more epochs."""
_WIDTH = 96
_TYPES = {"float": "NUMBER", "int": "INTEGER", "string": "TEXT", "multi string": "TEXT"}


class Refusal(Exception):  # noqa: N818 (not an error of the program)
    """Arguments or data that the command will not work with. The message is all that the user sees."""


class Missing(Refusal):
    """An option that was not given: the user sees a whole call beside it, not one missing option after the other."""


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        name: as typed.
        description: what it does, with examples; printed as it is.
        define: defines the options on the FlagValues it is given.
        run: does the work with the parsed options; returns the exit status.
    """

    name: str
    description: str
    define: Callable[[flags.FlagValues], None]
    run: Callable[[flags.FlagValues], int]

    def options(self) -> flags.FlagValues:
        """The options of this command alone, not those of every imported module."""
        values = flags.FlagValues()
        self.define(values)
        for name in values:
            values[name].allow_overwrite = False  # given twice, the last value would count alone, without a word
            if isinstance(values[name].parser, flags.IntegerParser):
                values[name].parser = WholeNumber()
        return values

    def parse(self, arguments: Sequence[str]) -> flags.FlagValues:
        """Parses the arguments after the command's name; `--batch-size` and `--batch_size` are the same.

        Raises:
            Refusal: unknown options, values of the wrong type, missing values, stray arguments, an option given twice
                that takes one value.
        """
        values = self.options()
        try:
            rest = values([f"tfdp {self.name}", *map(_with_underscores, arguments)])
        except (flags.Error, ValueError) as error:
            raise Refusal(
                f"{_with_dashes(str(error))}{_meant(str(error), values)}\n`tfdp {self.name} --help` lists the options."
            ) from error
        if len(rest) > 1:
            raise Refusal(
                f"unexpected argument {rest[1]!r}. Options start with --, and several values of one are joined by"
                f" commas; see `tfdp {self.name} --help`."
            )
        return values

    @property
    def example(self) -> str:
        """A call with all that is needed: the first one of the description."""
        found = re.search(rf"^  (tfdp {self.name} --.*)$", self.description, re.MULTILINE)
        return found.group(1) if found else f"tfdp {self.name} --help"

    def help(self) -> str:
        """The description and the options with their defaults."""
        options = self.options()
        lines = [f"usage: tfdp {self.name} [OPTIONS]", "", self.description.strip(), "", "Options:"]
        for name in options:
            flag = options[name]
            choices = getattr(flag.parser, "enum_values", None)
            value = "" if flag.boolean else f" {'|'.join(choices) if choices else _TYPES[flag.flag_type()]}"
            default = "" if flag.boolean or flag.default is None else f" (default: {flag.default})"
            # absl repeats the choices in front of the text.
            text = flag.help.partition(">: ")[2] if choices else flag.help
            lines += [f"  {_option(name)}{value}", wrapped(text + default, " " * 6, 6)]
        return "\n".join(lines)


def _meant(error: str, values: flags.FlagValues) -> str:
    """The fix: of a value that an option with a longer name takes, that one: `--noise 1` is `--noise-multiplier 1`."""
    if ": already defined as" in error:
        merge = " Two ledgers are added up in Python first: ledger.merge(tfdp.accounting.Ledger(other_file))."
        return f". Give it once.{merge if error.startswith('flag --ledger=') else ''}"
    found = re.match(r"flag --(\w+)=(.*?): ", error)
    name, value = found.groups() if found else ("", "")
    for longer in [one for one in values if found and one.startswith(f"{name}_")]:
        with contextlib.suppress(ValueError):
            values[longer].parser.parse(value)
            return f". Did you mean {_option(longer)} {value}?"
    if name == "dataset":
        return ". The command knows these alone; records of your own train in Python: docs/first_model.md"
    return ""


class WholeNumber(flags.IntegerParser):
    """An integer as people write it: 60000, 60_000, 60,000, 6e4."""

    def convert(self, argument: Any) -> int:
        text = str(argument).strip()
        if re.fullmatch(r"[+-]?(\d+|\d{1,3}([,_]\d{3})+)", text):
            return int(text.replace(",", "").replace("_", ""))
        if re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", text) and Decimal(text) == int(Decimal(text)):
            return int(Decimal(text))
        raise ValueError("give a whole number, for example 60000, 60,000 or 6e4")


def wrapped(text: str, first: str, indent: int) -> str:
    """Text in lines for a terminal, the first after `first`, the others indented."""
    return textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=first, subsequent_indent=" " * indent)


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object on a line of its own. Numbers that are not finite become null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    print(json.dumps(finite, allow_nan=False), flush=True)


def say_at_once(text: str) -> None:
    """Tells a person at a terminal what is going on, before it is done. Programs that read the output do not get it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def definers(values: flags.FlagValues) -> tuple[Callable[..., None], Callable[..., None]]:
    """`define(kind, name, text, default)` and `choose(name, choices, text, default)`, which add options to `values`."""

    def define(kind: str, name: str, text: str, default: Any = None) -> None:
        getattr(flags, f"DEFINE_{kind}")(name, default, text, flag_values=values)

    def choose(name: str, choices: Sequence[str], text: str, default: str | None = None) -> None:
        flags.DEFINE_enum(name, default, list(choices), text, flag_values=values)

    return define, choose


def needed(name: str, value: Any, why: str) -> Any:
    """Returns an option's value. Raises Missing where it was not given."""
    if value is None:
        raise Missing(f"{_option(name)} is needed: {why}")
    return value


def positive(name: str, value: Any, meaning: str) -> Any:
    """Returns a number above 0, or None where none was given. Raises Refusal for any other."""
    if value is not None and not 0.0 < value < math.inf:
        raise Refusal(f"{_option(name)} is {meaning}: it must be a finite number above 0. Received: {value}.")
    return value


def whole(name: str, value: Any, meaning: str, least: int = 1, most: int = MOST) -> Any:
    """Returns an integer from `least` to `most`, or None where none was given. Raises Refusal for any other."""
    if value is not None and not least <= value <= most:
        must = f"{least} or more" if value < least else f"{most:,} or less"
        raise Refusal(f"{_option(name)} is {meaning}: it must be {must}. Received: {value}.")
    return value


def fraction(name: str, value: float, meaning: str) -> float:
    """Returns a number strictly between 0 and 1. Raises Refusal for any other."""
    if not 0.0 < value < 1.0:
        raise Refusal(f"{_option(name)} is {meaning}: it must lie strictly between 0 and 1. Received: {value}.")
    return value


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_underscores(argument: str) -> str:
    """absl names options with underscores; people type dashes."""
    if not argument.startswith("--"):
        return argument
    name, separator, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{separator}{value}"


def _with_dashes(message: str) -> str:
    return re.sub(r"--\w+", lambda match: match.group().replace("_", "-"), message)
