"""Calls the command `tfdp` in this process, and arguments that several tests complete."""

import json
from collections.abc import Sequence

from tfdp_layers.commands import cli

RUN = ["--examples", "60000", "--batch-size", "2048", "--epochs", "10", "--delta", "1e-5"]
TRAIN = ["train", "--epsilon", "2", "--dataset", "digits"]


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def run_json(capsys, *arguments: object) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def but(given: Sequence[object], *options: object) -> list[object]:
    """The arguments, each option followed by its value, with these in the place of options of the same names."""
    names = [str(one).partition("=")[0].replace("_", "-") for one in options if str(one).startswith("--")]
    places = [place for place, one in enumerate(given) if one in names]
    return [one for place, one in enumerate(given) if place not in places and place - 1 not in places] + [*options]
