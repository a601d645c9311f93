"""Arguments that were given to one of `make_private` and `fit`, and belong to another, or are called otherwise."""

import difflib
from collections.abc import Iterable

__all__ = ["OPTIONS", "unexpected"]

OPTIONS = (
    *("sampling", "examples", "physical_batch_size"),
    *("unit_ids", "records_per_unit", "views", "owners", "records_per_owner"),
)
"""What `fit` of a private model takes beside Keras' arguments, for data of its own."""
_FIT = (*OPTIONS, "x", "y", "batch_size", "epochs", "callbacks", "validation_data", "sample_weight", "class_weight")
_COMPILE = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "run_eagerly", "jit_compile")
_OPTIMIZER = ("noise_multiplier", "l2_norm_clip", "clipping", "noise_source", "noise", "learning_rate")
_MEANT = (
    (
        ("budget", "epsilon", "delta", "target_epsilon", "target_delta"),
        "A budget is a callback: callbacks=[tfdp.callbacks.PrivacyBudget(epsilon=2.7, delta=1e-5)], of fit.",
    ),
    (("ledger",), "A ledger is the model's: model.ledger = ledger, before it trains."),
    (_COMPILE, "It goes to compile: model.compile(tfdp.optimizers.ClippedOptimizer('adam'), loss=...)."),
    (_OPTIMIZER, "It is the optimizer's: model.compile(tfdp.optimizers.ClippedOptimizer(...), loss=...)."),
    (_FIT, "It goes to fit: model.fit(x, y, ...)."),
)


def unexpected(function: str, name: str, known: Iterable[str]) -> TypeError:
    """The error of an argument that a function does not take, with where it goes, or the one that may be meant."""
    meant = next((where for names, where in _MEANT if name in names), None)
    close = difflib.get_close_matches(name, list(known), 1, 0.7)
    said = f" {meant}" if meant else f" Did you mean {close[0]!r}?" if close else ""
    return TypeError(f"{function} got an unexpected argument {name!r}.{said}")
