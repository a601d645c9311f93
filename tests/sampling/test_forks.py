"""Random numbers whose state a fork copied are not drawn in the fork."""

import os

import pytest

from helpers.forks import in_fork
from tfdp_layers.sampling.forks import refuse_fork


def test_what_a_fork_copied_is_refused_there_and_nowhere_else() -> None:
    process = os.getpid()
    refuse_fork(process, "Someone makes draws", "Do it here.")
    said = in_fork(lambda: refuse_fork(process, "Someone makes draws", "Do it here."))
    assert said.startswith("Someone makes draws in a forked process: every fork would replay")
    assert said.endswith("Do it here.")
    assert in_fork(lambda: refuse_fork(os.getpid(), "", "")) == "None"
    with pytest.raises(RuntimeError):
        refuse_fork(process + 1, "", "")
