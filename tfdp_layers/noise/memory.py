"""What a stream of correlated noise keeps from one step to the next."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdp_layers.sampling.correlated import Correlated


class NoiseMemory:
    """The last standard normal numbers z of a stream, one for each weight: who knows them subtracts noise.

    A plain object: Keras and tf.train never save or restore it, and a copy or a pickle starts a stream of its own.
    """

    def __init__(self) -> None:
        self._streams = 0
        self._last: dict[tuple[Any, Any], tf.Variable] = {}  # by shape and type: what was traced keeps its own

    @property
    def streams(self) -> int:
        """How many were started; a new number whenever the last numbers were forgotten."""
        return self._streams

    def restart(self) -> None:
        """Starts a new stream, whichever weights it is for: z_{-1} = 0."""
        self._streams += 1
        for last in self._last.values():
            last.assign(tf.zeros_like(last))

    def correlated(self, fresh: tf.Tensor, noise: Correlated) -> tf.Tensor:
        """z_t - decay z_{t-1}, for fresh independent numbers z_t (numbers,), which are kept for the next step."""
        key = (tuple(fresh.shape), fresh.dtype)
        with tf.init_scope():
            if key not in self._last:
                self._streams += 1
                self._last[key] = tf.Variable(tf.zeros(fresh.shape, fresh.dtype), trainable=False, name="last_noise")
        kept = self._last[key]
        last = tf.identity(kept.value())
        with tf.control_dependencies([last]):
            kept.assign(fresh, read_value=False)
        return fresh - noise.number * last  # a number of float32, so what is added is what is accounted

    def __deepcopy__(self, memo: dict[int, Any]) -> NoiseMemory:
        return NoiseMemory()

    def __reduce__(self) -> Any:
        return (NoiseMemory, ())
