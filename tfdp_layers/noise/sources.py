"""Where the randomness of the noise comes from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.instances import refuse_class
from tfdp_layers.noise.grid import OffGrid, OnGrid, added_on_grid, on_grid, spread
from tfdp_layers.noise.normals import PER_COUNTER, counted_normals

_BLOCK = 256
"""Values of the counter by which `tf.random.Generator.skip(1)` moves it on."""


class NoiseSource:
    """Standard normal tensors from a counter-based generator (Philox), keyed from the operating system's entropy.

    What it is: 64 random bits of key and 128 of counter, drawn anew from `os.urandom` by every object and every
    `rekey`; the counter advances with each number, so no two draws share one. What it isn't: a cryptographic
    generator, nor a defence against attacks on floating-point noise (Mironov 2012); `SecureNoise` is both.

    The state lives in memory only: it is never saved, copied or pickled, since a copied state would replay its noise.
    For the same reason a forked process draws a key of its own; what was compiled before does not, and no training
    goes on in one.
    """

    seeded = False
    compiles = True
    """Whether XLA can compile a step that draws from it."""

    def __init__(self) -> None:
        self._generator: tf.random.Generator | None = None
        self._process = os.getpid()

    @property
    def generator(self) -> str:
        """What the privacy statement calls it: one of `tfdp_layers.accounting.events.GENERATORS`."""
        # By exact type: a subclass may draw from anything, and so may an object with a method or flag of its own.
        if any(hasattr(type(self), name) for name in vars(self)):
            return "custom"
        return {NoiseSource: "default", SeededNoise: "default", SecureNoise: "secure"}.get(type(self), "custom")

    def _fresh_state(self) -> np.ndarray:
        return np.frombuffer(os.urandom(24), np.int64)

    def rekey(self) -> None:
        """Draws a fresh key; compiled steps that use this source go on with it."""
        self._process = os.getpid()
        with tf.init_scope():
            if self._generator is None:
                self._generator = tf.random.Generator.from_state(self._fresh_state(), alg="philox")
            else:
                self._generator.state.assign(self._fresh_state())

    def normal(self, shape: Sequence[int | tf.Tensor]) -> tf.Tensor:
        """Independent standard normal float32 numbers of this shape, fresh at every execution.

        A size may be an int64 scalar that is known only when it runs, but not under XLA.
        """
        if self._generator is None or self._process != os.getpid():
            self.rekey()
        assert self._generator is not None
        count = math.prod(shape)
        # The generator's own counter, moved on by whole blocks: what was skipped is this draw's alone.
        state = self._generator.skip(-(-count // (PER_COUNTER * _BLOCK)))
        return tf.reshape(counted_normals(state, count), shape)

    def perturbed(self, total: tf.Tensor, stddev: float, noise: tf.Tensor) -> tf.Tensor:
        """`total` with noise of this standard deviation, above 0; `noise`: numbers of `normal`, of the same shape."""
        if isinstance(stddev, OnGrid):
            return added_on_grid(total, stddev, noise)
        if isinstance(stddev, OffGrid):
            size = math.prod(noise.shape) if noise.shape.is_fully_defined() else tf.size(noise, tf.int64)
            noise = spread(noise, tf.reshape(self.normal([size]), tf.shape(noise)))
        return total + tf.cast(stddev * noise, total.dtype)

    def widened(self, stddevs: Sequence[float], noise_multiplier: float, count: int) -> list[float]:
        """The standard deviations to draw with, so that what the source rounds costs nothing: here those of `on_grid`.

        Args:
            noise_multiplier: of all that is released together, the deviations over what one record contributes.
            count: how many numbers that are.
        """
        return on_grid(stddevs, noise_multiplier, count)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoiseSource:
        return type(self)()

    def __reduce__(self) -> Any:
        return (type(self), ())


class SeededNoise(NoiseSource):
    """A repeatable source, FOR TESTS ONLY: whoever knows the seed subtracts the noise. It voids the privacy statement.

    Args:
        seed: non-negative integer. The generator is keyed from it once, when the object is made; it goes on from there.
    """

    seeded = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._keyed = False

    def _fresh_state(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(-(2**62), 2**62, 3, dtype=np.int64)

    def rekey(self) -> None:
        """Keys the source the first time; later calls leave it where it is, so that a second `fit` does not replay
        the first.
        """
        if self._generator is None:
            super().rekey()

    def __deepcopy__(self, memo: dict[int, Any]) -> SeededNoise:
        return type(self)(self.seed)

    def __reduce__(self) -> Any:
        return (type(self), (self.seed,))


class SecureNoise(NoiseSource):
    """Noise from a cryptographic generator, with a defence against floating-point attacks.

    Random bits are AES-256 in counter mode under a fresh key of `os.urandom` for every step, or, where the package
    `cryptography` is not installed (extra `[secure]`), `os.urandom` itself, several times slower. No key outlives its
    step, so there is none that a copy, a fork or a saved model could replay. Two defences (Mironov 2012: the lowest
    bits of a noisy floating-point sum can give away the sum):

    - A number is the sum of two Gaussians in double precision, of two points of Marsaglia's polar method: it cannot be
      searched back to the 256 uniform bits that it came from (Holohan and Braghin 2021).
    - Sum and noise are rounded to one grid, of spacing at most 2^-30 of the standard deviation sigma, and added
      exactly: that equals rounding (sum on the grid + noise), so all that follows is post-processing, and no bit of
      the result tells which sums are possible. Rounding d sums lengthens a record's contribution by at most
      2^-30 sigma sqrt(d); for that the deviation is made 1 + 2^-12 times the stated one, which is enough while
      z sqrt(d) <= 2^18 (d weights, noise multiplier z), and beyond that as much larger as it takes (`widened`). The
      cast to float32 comes after. Noise that is correlated over the steps is rounded the same: on the rounded sums it
      is the same stream, and rounding is post-processing.

    What it isn't: a proof for the rounding inside of NumPy's log and sqrt, nor a defence against attacks on the time a
    step takes. It draws outside of the compiled graph (`tf.numpy_function`), so XLA (`jit_compile=True`) is refused.

    Source: Holohan and Braghin 2021, Secure random sampling in differential privacy, arXiv:2107.10138; Mironov 2012, On
    significance of the least significant bits for differential privacy; Marsaglia and Bray 1964, A convenient method
    for generating normal variables.
    """

    compiles = False

    def rekey(self) -> None:
        """Does nothing: every step has a key of its own."""

    def normal(self, shape: Sequence[int | tf.Tensor]) -> tf.Tensor:
        """Independent standard normal float64 numbers of this shape, fresh at every execution."""
        drawn = tf.numpy_function(secure_normal, [tf.cast(math.prod(shape), tf.int64)], tf.float64)
        return tf.reshape(drawn, shape)

    def perturbed(self, total: tf.Tensor, stddev: float, noise: tf.Tensor) -> tf.Tensor:
        spacing = 2.0 ** (math.floor(math.log2(stddev)) - _GRID_BITS)
        # Half up, so that it is never -0.0, which added to a sum of -0.0 would tell that from 0.0.
        on_grid = tf.floor(noise * (stddev / spacing * (1.0 + _MARGIN)) + 0.5)
        # A power of two divides and multiplies exactly; whole numbers below 2^53 add exactly.
        return tf.cast((tf.round(tf.cast(total, tf.float64) / spacing) + on_grid) * spacing, total.dtype)

    def widened(self, stddevs: Sequence[float], noise_multiplier: float, count: int) -> list[float]:
        """The standard deviations k sigma to draw with, so that rounding adds to no record's share of the noise.

        With C what a record contributes and t = 2^-30 z sqrt(d), rounding on a grid of 2^-30 k sigma makes that
        C (1 + k t) at most, and the noise is (1 + m) k sigma, m being the margin of `perturbed`: it is enough where
        (1 + m) k >= 1 + k t, so k = 1 / (1 + m - t), and 1 while t <= m.

        Raises: ValueError for a t of 1 or more.
        """
        rounded = 2.0**-_GRID_BITS * noise_multiplier * math.sqrt(count)
        if not rounded < 1.0:
            raise ValueError(
                f"SecureNoise rounds {count} sums to a grid that is too coarse for a noise multiplier of"
                f" {noise_multiplier:g}: rounding would move them by as much as a record does. Use a smaller"
                " noise_multiplier, fewer weights, or noise_source='default'."
            )
        return [stddev * max(1.0, 1.0 / (1.0 + _MARGIN - rounded)) for stddev in stddevs]


_GRID_BITS = 30
_MARGIN = 2.0**-12
_DRAWN_TOGETHER = 1 << 14  # numbers: what they need at once stays in the cache


def secure_normal(count: int) -> np.ndarray:
    """Standard normal numbers, float64 (count,), from a cryptographic generator; see `SecureNoise`."""
    random_bytes = secure_bytes()
    numbers = np.empty(count)
    for start in range(0, count, _DRAWN_TOGETHER):
        part = numbers[start : start + _DRAWN_TOGETHER]
        half = -(-len(part) // 2)
        pairs, found = [], 0
        while found < 2 * half:
            points = int(1.3 * (2 * half - found)) + 64  # 4 / pi of what is missing, and some
            pairs.append(polar_pairs(np.frombuffer(random_bytes(16 * points), np.int64).reshape(2, points)))
            found += pairs[-1].shape[1]
        normal = np.concatenate(pairs, axis=1)
        part[:] = (normal[:, :half] + normal[:, half : 2 * half]).reshape(-1)[: len(part)] * math.sqrt(0.5)
    return numbers


def polar_pairs(bits: np.ndarray) -> np.ndarray:
    """Pairs of independent standard normal numbers, float64 (2, accepted), of random int64 (2, points).

    A point of the square is accepted inside of the circle, pi / 4 of them.
    """
    x, y = bits * 2.0**-63
    squared = x * x + y * y
    inside = (squared < 1.0) & (squared > 0.0)
    squared = squared[inside]
    scale = np.sqrt(-2.0 * np.log(squared) / squared)
    return np.stack([x[inside] * scale, y[inside] * scale])


def secure_bytes() -> Callable[[int], bytes]:
    """A function of a number of bytes: that many fresh ones, of AES-256 under a new key or of the operating system."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        return os.urandom
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
    return lambda count: bytes(stream.update(bytes(count)))


def as_noise_source(source: str | NoiseSource) -> NoiseSource:
    """A source by its name, "default" or "secure", or a source itself. Raises ValueError for anything else."""
    if isinstance(source, NoiseSource):
        return source
    refuse_class(source, "`noise_source`")
    if source == "default":
        return NoiseSource()
    if source == "secure":
        return SecureNoise()
    raise ValueError(
        f"`noise_source` must be 'default', 'secure' or a tfdp.noise.NoiseSource. Received: noise_source={source!r}."
    )
