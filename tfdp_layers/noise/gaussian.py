"""The Gaussian mechanism over groups of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfdp_layers.instances import refuse_class, refuse_own_code
from tfdp_layers.noise.memory import NoiseMemory
from tfdp_layers.noise.normals import PER_COUNTER, WHOLE
from tfdp_layers.noise.sources import NoiseSource
from tfdp_layers.sampling.correlated import Correlated

if TYPE_CHECKING:  # layers with noise of their own import this module
    from tfdp_layers.sensitivity import SensitivityGroup

_LINE = 16
"""Numbers of 64 bytes: TensorFlow shares the memory of a tensor with its parts where they begin at such a line."""

Allocation = str | Mapping[str, float]
"""How groups share the noise: see `allocated_stddevs`."""


def as_correlated(noise: Any) -> Correlated | None:
    """`Correlated`, None, or what `get_config` of an optimizer wrote of one. Raises ValueError for anything else."""
    if isinstance(noise, Mapping) and set(noise) == {"decay"}:
        return Correlated(noise["decay"])
    if noise is None:
        return noise
    if isinstance(noise, Correlated):
        refuse_own_code(noise, [Correlated], "`noise`")
        return noise
    refuse_class(noise, "`noise`", "")
    raise ValueError(
        "`noise` is None, for independent noise, or tfdp.noise.Correlated(), for epochs. How much noise there is, is"
        f" `noise_multiplier`, and where it comes from, `noise_source`. Received: noise={noise!r}."
    )


def check_allocation(allocation: Allocation) -> None:
    """Raises ValueError unless `allocation` is "uniform", "dimension", or a dict of positive finite shares."""
    if isinstance(allocation, Mapping):
        if allocation and all(
            isinstance(share, int | float | np.number) and 0 < share < math.inf for share in allocation.values()
        ):
            return
    elif allocation in ("uniform", "dimension"):
        return
    raise ValueError(
        "`noise_allocation` must be 'uniform', 'dimension', or a dict from the names of groups to positive shares."
        f" Received: noise_allocation={allocation!r}."
    )


def allocated_stddevs(
    groups: Sequence[SensitivityGroup], noise_multiplier: float, allocation: Allocation = "uniform"
) -> list[float]:
    """The noise of each group on the SUM of gradients: sigma_g = z S_g / sqrt(w_g), with shares w_g that add up to 1.

    Then (sum_g (S_g / sigma_g)^2)^(-1/2) = z whatever the shares: all groups together are one Gaussian mechanism of
    noise multiplier z, since scaling group g by 1 / sigma_g maps a record's contribution to a vector of norm at most
    (sum_g (S_g / sigma_g)^2)^(1/2).

    Args:
        allocation: "uniform": w_g = 1 / G, sigma_g = z sqrt(G) S_g. "dimension": w_g in proportion to the square root
            of the number of weights, which makes sum_g d_g (sigma_g / S_g)^2 least. Or shares by name.

    Raises:
        ValueError: for shares that do not name exactly the groups.
    """
    if allocation == "uniform":
        shares = [1.0] * len(groups)
    elif allocation == "dimension":
        shares = [math.sqrt(sum(math.prod(v.shape) for v in group.variables)) for group in groups]
    else:
        names = [group.name for group in groups]
        if isinstance(allocation, str) or set(names) != set(allocation):
            raise ValueError(
                f"`noise_allocation` must name exactly the groups {names}. Received: {sorted(allocation)}."
            )
        shares = [float(allocation[name]) for name in names]
    return [
        noise_multiplier * group.bound * math.sqrt(sum(shares) / w) for group, w in zip(groups, shares, strict=True)
    ]


STATISTIC_SHARE = 0.01
"""Of 1 / z^2: so the statistics of a step cost half a percent of its noise multiplier."""


def stddevs_beside_statistics(
    groups: Sequence[SensitivityGroup],
    noise_multiplier: float,
    allocation: Allocation = "uniform",
    counts_share: float = 0.0,
) -> list[float]:
    """As `allocated_stddevs` for the weights, which get what statistics leave of the precision 1 / z^2.

    Groups without variables share `STATISTIC_SHARE` of it, and those among them that count rows `counts_share`. A group
    that gets the share w of the precision has noise of z / sqrt(w) times its bound, so that together they make z.
    """
    counts = [group for group in groups if group.counts is not None]
    statistics = [group for group in groups if not group.variables and group.counts is None]
    weights = [group for group in groups if group.variables]
    beside = [(statistics, STATISTIC_SHARE), (counts, counts_share)]
    rest = 1.0 - sum(share for some, share in beside if some)
    found = dict(
        zip(map(id, weights), allocated_stddevs(weights, noise_multiplier / rest**0.5, allocation), strict=True)
    )
    for some, share in beside:
        if some:
            stddevs = allocated_stddevs(some, noise_multiplier / share**0.5)
            found |= zip(map(id, some), stddevs, strict=True)
    return [found[id(group)] for group in groups]


def add_noise(
    source: NoiseSource,
    sums: Sequence[tf.Tensor],
    stddevs: Sequence[float],
    correlation: tuple[NoiseMemory, Correlated] | None = None,
) -> list[tf.Tensor]:
    """Adds Gaussian noise of the given standard deviation to each tensor of sums; zero adds nothing.

    Args:
        sums: of sizes that may be known only when it runs.
        correlation: None for independent noise. With it the noise is stddev (z_t - decay z_{t-1}), of the numbers that
            the memory keeps. The standard deviations of a stream must stay what they are: see `Correlated`.
    """
    sizes = [entries(total) if stddev > 0 else 0 for total, stddev in zip(sums, stddevs, strict=True)]
    # One draw for all: many small ones cost as much again in calls. What rounds it up to whole counters is left over.
    if correlation is None and all(isinstance(size, int) for size in sizes):
        parts = in_lines(source, sizes)
    else:
        over = -sum(sizes) % PER_COUNTER
        drawn = source.normal([sum(sizes) + over])
        if correlation is not None:
            memory, noise = correlation
            drawn = memory.correlated(drawn, noise)
        parts = tf.split(drawn, [*sizes, over])[:-1]
    return [
        source.perturbed(total, stddev, like(part, total)) if stddev > 0 else tf.convert_to_tensor(total)
        for total, stddev, part in zip(sums, stddevs, parts, strict=True)
    ]


def in_lines(source: NoiseSource, sizes: Sequence[int]) -> list[tf.Tensor]:
    """So many numbers each, of one draw in lines of `_LINE`: whole lines are handed on without a copy."""
    lines = [-(-size // _LINE) for size in sizes]
    over = -sum(lines) % (WHOLE // _LINE)
    drawn = tf.split(source.normal([sum(lines) + over, _LINE]), [*lines, over])[:-1]
    flat = [tf.reshape(part, [-1]) for part in drawn]
    return [part if size % _LINE == 0 else part[:size] for part, size in zip(flat, sizes, strict=True)]


def like(numbers: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """The numbers in the shape of `total`."""
    return tf.reshape(numbers, total.shape if total.shape.is_fully_defined() else tf.shape(total))


def entries(total: tf.Tensor) -> int | tf.Tensor:
    """The number of entries: an int where it is known."""
    return math.prod(total.shape) if total.shape.is_fully_defined() else tf.size(total, tf.int64)
