"""`tfdp recipes`: what can be trained by name, and how well."""

import json
from dataclasses import asdict

from absl import flags

from tfdp_layers.accounting.wording import rounded_up
from tfdp_layers.commands.command import Command, wrapped
from tfdp_layers.zoo.recipes import RECIPES

__all__ = ["COMMAND"]

_DESCRIPTION = """
Lists the recipes of `tfdp train --recipe NAME`, best first: what each trains, and the test accuracy
that it reached at a true epsilon (delta 1e-5, Poisson sampling, one record added or removed).

Their settings were tuned on these public data sets themselves, in part on the test sets, which
flatters the accuracies a little: docs/accuracy.md says how.

Example:
  tfdp recipes
"""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("json", False, "Print one JSON object.", flag_values=values)


def _run(values: flags.FlagValues) -> int:
    if values.json:
        print(json.dumps({name: asdict(recipe) for name, recipe in RECIPES.items()}))
        return 0
    for name, recipe in RECIPES.items():
        print(wrapped(recipe.summary, f"{name:11}", 11))
        for one in recipe.measured:
            accuracy = f"{100 * one.accuracy:.1f}% (standard deviation {100 * one.spread:.1f}, {one.seeds} seeds)"
            spent = f"epsilon {rounded_up(one.epsilon, 6)}"
            print(f"{'':11}{one.dataset}, {spent}: {accuracy} in {one.minutes:.1f} min on 2 shared cores")
    return 0


COMMAND = Command("recipes", _DESCRIPTION, _define, _run)
