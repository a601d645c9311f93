"""Importing TensorFlow without what it logs meanwhile: commands import it late, once their options are checked."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from tfdp_layers.commands.command import say_at_once

__all__ = ["quiet_import"]


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keeps what TensorFlow's C++ code logs while it is imported from the user, unless the import fails.

    Some of it is written before any setting is read, so the file descriptor itself is turned away.
    """
    from absl import logging

    if "tensorflow" not in sys.modules:
        say_at_once("Loading TensorFlow; this takes some seconds.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.set_verbosity(logging.ERROR)
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
