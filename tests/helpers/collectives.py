"""Two workers in two threads of this process: what they say to each other goes through memory.

As in the real ones, whoever calls a collective that the other does not call waits; here some seconds, then it fails.
"""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tfdp_layers.models.workers import Workers

_PATIENCE = 20.0


class Line:
    """Between the chief, 0, and the other, 1."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=_PATIENCE)
        self._said: list[Any] = [None, None]

    def exchange(self, name: str, number: int, value: Any) -> Any:
        """What the chief said, and what both said; both must call the same collective."""
        self._said[number] = name, value
        self._barrier.wait()
        (chiefs, first), (others, second) = self._said
        self._barrier.wait()
        assert chiefs == others, f"the chief calls {chiefs}, the other {others}"
        return first, second

    def hang_up(self) -> None:
        self._barrier.abort()


class FakeWorkers(Workers):
    """One side of the line: `tfdp_layers.models.workers.Workers` with another line below."""

    def __init__(self, line: Line, chief: bool) -> None:
        super().__init__(SimpleNamespace(num_replicas_in_sync=2), chief)
        self._line, self.aborted, self.sizes = line, False, []

    def _all(self, chiefs: Any, own: Any) -> list[int]:
        first, second = self._said("message", (list(chiefs), list(own)))
        return [*first[0], *(one + other for one, other in zip(first[1], second[1], strict=True))]

    def _bytes(self, data: bytes, length: int) -> bytes:
        assert not data or self.chief
        self.sizes.append(length)
        return self._said("bytes", data)[0]

    def _said(self, name: str, value: Any) -> Any:
        return self._line.exchange(name, int(not self.chief), value)

    def abort(self) -> None:
        self.aborted = True
        super().abort()

    def hold(self, variables: Any, read: Any = ()) -> None:
        self.share(variables)

    def level(self) -> bool:
        return True

    def share(self, variables: Any) -> None:
        self.number(name="share")
        values = [variable.numpy() for variable in variables]
        for variable, value in zip(variables, self._said("share", values)[0], strict=True):
            variable.assign(value)


def on_both(work: Callable[[FakeWorkers], Any]) -> list[Any]:
    """What `work` returned or raised on the chief, and on the other. Fails where one waits for the other in vain."""
    line, found = Line(), [None, None]

    def side(number: int) -> None:
        try:
            found[number] = work(FakeWorkers(line, number == 0))
        except threading.BrokenBarrierError:
            found[number] = AssertionError("it waited for the other worker in vain")
        except BaseException as error:
            found[number] = error
            if isinstance(error, AssertionError):
                line.hang_up()

    threads = [threading.Thread(target=side, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, AssertionError):
            raise one
    return found
