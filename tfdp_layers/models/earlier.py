"""Whether weights were trained without privacy before: then what they tell of those records is in no statement."""

from collections.abc import Iterable
from typing import Any

from tfdp_layers.caller import warn
from tfdp_layers.certificates.constants import undeclared_steps
from tfdp_layers.optimizers.base import PrivateOptimizer

__all__ = ["warn_of_earlier"]


def warn_of_earlier(models: Iterable[Any]) -> None:
    """Warns of the first of these layers that is a model which took steps of an ordinary optimizer.

    A training on public data is fine, and nobody can see which it was. One on the private records, to begin from good
    weights, leaves in them whatever it learned of these.
    """
    for one in models:
        steps = undeclared_steps(one)
        if steps and not isinstance(one.optimizer, PrivateOptimizer):
            warn(
                f"Model {one.name!r} took {steps:,} steps of an ordinary optimizer ({type(one.optimizer).__name__}),"
                " and the private training begins from its weights. What they tell of the records that they saw is in"
                " no statement: if those were private ones, begin from other weights (a new model, or a public one)"
                " and train on them privately alone. If they were public, nothing is lost; to declare that, and see"
                " this line no more: tfdp.public(that model), before make_private and compile."
            )
            return
