"""What of a party's failure leaves it: that it failed."""

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["TurnFailedError", "kept_here"]


class TurnFailedError(RuntimeError):
    """A party's turn failed; its own log says why."""


@contextlib.contextmanager
def kept_here() -> Iterator[None]:
    """Inside, an error goes into this process' log, and another one, without its text, goes on.

    Flower sends the text of whatever a client app raises to the server, and errors of a training name what they fail
    at: a label that is out of range stands in the error with the other labels of its batch.

    Raises: TurnFailedError for any `Exception` inside.
    """
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("A party's turn failed; the server is told no more than that.")
        raise TurnFailedError(
            "The party's turn failed. Why, is in the party's own log alone: an error may name records."
        ) from None
