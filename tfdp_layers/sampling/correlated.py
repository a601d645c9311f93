"""Correlated noise: what a stream of releases costs whose noise takes back a part of the noise of the last one."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from scipy import optimize

__all__ = ["Correlated"]

_UNIT_BITS = 32  # a charge is 2^-32 of a Gaussian mechanism: costs are whole numbers, and add up exactly
_MOST_DECAY = 0.9999
_DIGITS = 4


@dataclass(frozen=True)
class Correlated:
    """Noise z_t - decay z_{t-1} in step t = 0, 1, ..., of independent z_t ~ N(0, (noise multiplier)^2) and z_{-1} = 0.

    The wrapped optimizer adds gradients up over the steps, and of their noise only z_t + (1 - decay) (z_0 + ... +
    z_{t-1}) is left. A step alone is protected less, so z is larger; where a record comes back only once in a pass
    over the data, the sum gains more than that costs.

    Attributes:
        decay: at least 0 (independent noise) and below 1. None: `fit` takes the one with the least error of the sums
            of gradients, over its steps. Give a number where several calls of `fit` make one training.

    Formal guarantee: a *stream* is t consecutive releases, each of S^-1 G_s + (that noise), where one record moves the
    sum G_s by at most S, and by 0 in steps that do not draw it. Its release reveals of a record what ONE Gaussian
    mechanism of noise multiplier sigma / Delta_t reveals, Delta_t^2 = `squared_sensitivity`, however each G_s depends
    on what was released before. (Zero-out: in the neighbouring data set the record's contributions are 0 and all else
    is the same. Where removing it moves others to other steps, this proves NOTHING.)

    Proof. Let B be lower triangular with 1 on its diagonal and -decay below it, so that the stream is Y = G + B Z. Its
    inverse C has entries c_{s-r} = decay^(s-r), s >= r. C is lower triangular and invertible, so the released rows of
    Y and those of C Y = C G + Z say the same, prefix by prefix: Gaussian mechanisms one after the other, of noise sigma
    and of shifts h_s = sum_{r <= s, r in P} c_{s-r} g_r, with P the steps that draw the record and |g_r| <= 1. With X =
    C^T C, cut at t rows, the squared shifts sum to sum_{r, r' in P} X_{rr'} <g_r, g_r'> <= sum_{r, r' in P} X_{rr'} =:
    Delta_t(P)^2, with equality for aligned g. That holds whatever was released, so adaptive composition of Gaussians
    gives one of multiplier sigma / Delta_t(P). Clipping thresholds that move multiply a whole row of Y after the noise,
    which costs nothing; S_t z_t - decay S_{t-1} z_{t-1} has another, larger sensitivity.

    Several streams: each starts with z_{-1} = 0, so C is block diagonal and the Delta^2 of streams add up.

    Source: Denisov et al. 2022, arXiv:2202.08312, Theorem 2.1; Choquette-Choo et al. 2023, arXiv:2211.06530, Theorem 1;
    Kalinin and Lampert 2024, arXiv:2405.13763, Theorem 2 (separated visits); this decay: Kalinin, McKenna, Pagh,
    Lampert 2026, arXiv:2601.22334.
    Raises: ValueError for a decay out of its range.
    """

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is None:
            return
        try:
            decay = math.nan if isinstance(self.decay, bool | str) else float(np.float32(self.decay))
        except (TypeError, ValueError, OverflowError):
            decay = math.nan
        if not 0.0 <= decay < 1.0:
            raise ValueError(
                f"decay is the part of a step's noise that the next one takes back: at least 0 and below 1. Received:"
                f" decay={self.decay!r}. Leave it out, and fit chooses it."
            )
        object.__setattr__(self, "decay", float(self.decay))

    @property
    def number(self) -> float:
        """The decay as steps in float32 use it, and as it is accounted. Raises ValueError where none is chosen yet."""
        if self.decay is None:
            raise ValueError(
                "Correlated() has no decay yet: fit chooses it from its steps. Give one, such as Correlated(0.93), or"
                " take sampling.settled(noise, steps, examples)."
            )
        return float(np.float32(self.decay))

    def coefficients(self, steps: int) -> np.ndarray:
        """The first column of C, (steps,): what of a contribution to step 0 shows in each step."""
        return np.asarray(self.number ** np.arange(steps, dtype=np.float64))

    def squared_sensitivity(self, visits: int, gap: int, steps: int) -> float:
        """Delta_steps^2 of a record that comes at most `visits` times, at least `gap` steps apart.

        It is attained by visits in the steps 0, gap, 2 gap, ... Proof: c is >= 0 and does not increase, so for visits
        p_0 < p_1 < ..., which have p_i >= i gap and p_j - p_i >= (j - i) gap, each X_{p_i p_j} =
        sum_{w < steps - p_j} c_w c_{w + p_j - p_i} is at most X_{i gap, j gap}: no fewer terms, none smaller. (Of
        visits exactly `gap` apart the first in step 0 is the worst for every c >= 0: a later start only cuts off the
        end of the same sums.)

        Args:
            visits: at most those that fit, (visits - 1) gap < steps; 0 for none.
        """
        if visits <= 0:
            return 0.0
        decay, last = self.number, (visits - 1) * gap
        sizes, squares = _sizes_after_visits(decay**gap, 1 << (visits - 1).bit_length())
        before = squares[visits - 2] * _geometric(decay, gap) if visits > 1 else 0.0
        return float(before + sizes[visits - 1] ** 2 * _geometric(decay, steps - last))

    def event(self, noise_multiplier: float) -> DpEvent:
        """What one charge costs: Delta^2 of them make a Gaussian mechanism of noise multiplier / Delta."""
        return GaussianDpEvent(noise_multiplier * 2.0 ** (_UNIT_BITS / 2))

    def charges(self, squared_sensitivity: float, visits: int) -> int:
        """How many events a stream costs, rounded up by more than the sums over `visits` may be rounded down."""
        above = 1.0 + 4.0 * 2.0**-53 * (visits + 16)
        return math.ceil(squared_sensitivity * above * 2.0**_UNIT_BITS)

    def error(self, steps: int) -> float:
        """The mean variance of the noise in the sums of gradients up to each of the steps, in units of that of z."""
        return 1.0 + (1.0 - self.number) ** 2 * (steps - 1) / 2.0

    def settled(self, squared_sensitivity: Callable[["Correlated"], float], steps: int) -> "Correlated":
        """This noise; without a decay the one of the least `error` over `steps` at equal cost, to four digits."""
        if self.decay is not None:
            return self

        def logarithm(position: float) -> float:
            noise = Correlated(1.0 - math.exp(position))
            return math.log(squared_sensitivity(noise) * noise.error(steps))

        ends = (math.log1p(-_MOST_DECAY), -1e-9)
        found = optimize.minimize_scalar(logarithm, bounds=ends, method="bounded", options={"xatol": 1e-6})
        return replace(self, decay=round(1.0 - math.exp(float(found.x)), _DIGITS))


def _geometric(decay: float, count: int) -> float:
    """sum_{i < count} decay^(2 i), exact to rounding for a decay near 1 too."""
    if decay == 0.0:
        return float(count > 0)
    return math.expm1(2.0 * count * math.log(decay)) / math.expm1(2.0 * math.log(decay))


@functools.lru_cache(maxsize=32)
def _sizes_after_visits(ratio: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """sum_{j <= i} ratio^j for i < count, and the sums of their squares: terms are positive, so nothing cancels."""
    sizes = np.cumsum(ratio ** np.arange(count, dtype=np.float64))
    return sizes, np.cumsum(sizes**2)
