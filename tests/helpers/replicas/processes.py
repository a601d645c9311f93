"""Two workers as processes of their own, what they count in common, and how one of them dies."""

import json
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdp_layers as tfdp

FOLDER = Path(sys.argv[1])


class Count:
    """A number in memory that processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def add(self) -> None:
        self._memory[:] = struct.pack("q", self.value + 1)

    @property
    def value(self) -> int:
        return int(struct.unpack("q", self._memory[:])[0])


COUNTS = [Count(), Count()]


class Observed(tfdp.optimizers.NoisyOptimizer):
    """Counts each noisy sum on its worker when it comes into existence, before the weights change."""

    count: Any = None

    def after_noise(self, means: Any, statistics: Any, variables: Any, groups: Any) -> Any:
        def seen(mean: np.ndarray) -> np.ndarray:
            self.count.add()
            return mean

        first = tf.ensure_shape(tf.numpy_function(seen, [means[0]], tf.float32), means[0].shape)
        return super().after_noise([first, *means[1:]], statistics, variables, groups)


class Die(keras.callbacks.Callback):
    """Kills its own process after so many updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self._left = updates

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def workers(job: Callable[[int], Any]) -> list[Any]:
    """What `job(number)` returned on two workers: arrays, by file; None for one that was killed."""
    free = [socket.socket() for _ in range(2)]
    for one in free:
        one.bind(("127.0.0.1", 0))
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in free]}
    for one in free:
        one.close()
    files = [FOLDER / f"worker_{i}.json" for i in range(2)]
    processes = []
    for i, file in enumerate(files):
        file.unlink(missing_ok=True)
        processes.append(os.fork())
        if processes[-1] == 0:
            try:
                os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
                found = job(i)
            except BaseException:
                found = traceback.format_exc()
            file.write_text(json.dumps(found))
            os._exit(0)
    for process in processes:
        os.waitpid(process, 0)
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    assert not any(isinstance(one, str) for one in found), "\n".join(map(str, found))
    return found
