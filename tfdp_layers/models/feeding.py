"""Models that a loop feeds: what their weights held before it, and what it leaves in them."""

import weakref
from typing import Any

from tfdp_layers.accounting.digests import digest
from tfdp_layers.accounting.left import CHANGED_ELSEWHERE, change_of, leave_fed
from tfdp_layers.accounting.owing import owe
from tfdp_layers.certificates.ordinary import keep_steps, optimizers_on, steps_kept, undeclared
from tfdp_layers.models.beside import CHANGED_BETWEEN
from tfdp_layers.models.earlier import begin_from, warn_of_ordinary
from tfdp_layers.structure import held_by

__all__ = ["begin_feeding", "end_feeding"]

_USE = "the private training may take what it makes as public rows (run.feeds named it)"
_INSTEAD = "begin with a new model, or one that was trained on public data alone"

_ENDED, _TOOK = "_tfdp_loop_ended", "_tfdp_loop_took"
"""Of a variable: by its digest, what it held as a loop ended that fed it; and how many steps which optimizers had taken
on the weights of the model by then."""


def begin_feeding(critic: Any, run: Any, model: Any) -> None:
    """Says that a loop feeds a model from now on, once what it holds was asked about. See `PrivateLoop.feeds`."""
    held = list(map(held_by, model.weights))
    owe(held, ())
    if not any(one is model for one in run.fed):
        _warn_of_before(critic, model, held)
        leave_fed(held, ends=False)
        run.fed.append(model)


def end_feeding(run: Any) -> None:
    """Says that a loop has ended, and what the models hold that it fed."""
    held = [held_by(one) for model in run.fed for one in model.weights]
    leave_fed(held, ends=True)
    took = weakref.WeakKeyDictionary({one: undeclared(one) for one in optimizers_on(held)} if held else {})
    for one in held:
        setattr(one, _ENDED, digest(one))
        setattr(one, _TOOK, took)


def _warn_of_before(critic: Any, model: Any, held: list[Any]) -> None:
    """Asks of a model what `fit` asks of whatever its steps read: who trained it, and on what.

    Not where it holds what a loop left that fed it, and of no optimizer that took no more steps than as that loop
    ended: whatever trained it before was asked about as that loop began, and what the loop's own optimizer did is no
    news, though somebody clipped, averaged or restored the weights since.
    """
    steps = steps_kept(held)
    if any(getattr(one, _ENDED, None) != digest(one) for one in held):
        steps |= warn_of_ordinary(
            model.name, held, _USE, _INSTEAD, "run.feeds", lambda optimizer: _taken_in_loops(optimizer, held)
        )
    if change_of(held) == CHANGED_ELSEWHERE:
        critic._privacy.remark(CHANGED_BETWEEN)
    begin_from(critic, steps)
    keep_steps(held, critic._privacy.earlier)  # it is trained through the critic, and another critic may read it


def _taken_in_loops(optimizer: Any, held: list[Any]) -> int:
    """How many steps an optimizer had taken as the last loop ended that fed these weights."""
    return min(int(getattr(one, _TOOK, {}).get(optimizer, 0)) for one in held)
