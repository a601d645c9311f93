"""What a function says in a forked process."""

import os
import signal
from collections.abc import Callable
from typing import Any


def in_fork(function: Callable[[], Any], seconds: int = 20) -> str:
    """The text of what the function returns in a fork of this process, or of the error that it raises; "" if it hangs.

    TensorFlow's threads are not copied by a fork: what waits for them there hangs.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            said = repr(function())
        except BaseException as error:  # whatever it is, the fork must not go on with the tests
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as received:
        said = received.read()
    os.waitpid(child, 0)
    return said
