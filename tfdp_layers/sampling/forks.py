"""What a forked process may not go on with: random numbers that its parent draws as well."""

import os

__all__ = ["refuse_fork"]


def refuse_fork(process: int, what: str, fix: str) -> None:
    """Raises RuntimeError in any process but the one with this number, that of the random numbers' state.

    A fork copies keys and counters. Parent and child would draw the same numbers for two releases, which are accounted
    as independent: of equal noise on two sums their difference is free of noise.

    Args:
        process: `os.getpid()` where the state was made.
        what: who draws, and what.
    """
    if os.getpid() != process:
        raise RuntimeError(
            f"{what} in a forked process: every fork would replay the same ones, which are accounted as independent."
            f" {fix}"
        )
