"""Keeps the warnings of dp-accounting from users."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import logging as absl_logging

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps dp-accounting's convergence warnings from the user: an order that fails is left out, which is sound."""
    logger = absl_logging.get_absl_logger()
    hide = _FromDpAccounting()
    logger.addFilter(hide)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.removeFilter(hide)


class _FromDpAccounting(logging.Filter):
    def filter(self, record: Any) -> bool:
        return "dp_accounting" not in record.pathname
