"""Calls the command `tfdp` in this process, and arguments that several tests complete."""

import json

from tfdp_layers.commands import cli

RUN = ["--examples", "60000", "--batch-size", "2048", "--epochs", "10", "--delta", "1e-5"]
TRAIN = ["train", "--epsilon", "2", "--dataset", "digits"]


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def run_json(capsys, *arguments: object) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])
