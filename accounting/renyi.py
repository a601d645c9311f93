"""Renyi divergences of events, and the epsilon that they prove."""

import functools
import math

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation
from dp_accounting.rdp import rdp_privacy_accountant

from tfdp_layers.accounting.gaussian_events import Counts, exact_gaussian, of_draws
from tfdp_layers.accounting.owned_records import owner_rdp
from tfdp_layers.accounting.quiet import quiet
from tfdp_layers.accounting.selection import SelectionDpEvent, selected_rdp
from tfdp_layers.sampling.owners import OwnerDpEvent

__all__ = ["ZCDP_ORDERS", "convert_rdp", "estimated_epsilon", "rdp_curve", "rdp_epsilon", "rdp_of", "zcdp_epsilon"]

# Orders close to 1 serve little noise. Without replacement an order costs its square: fewer of them.
_ORDERS = (1.02, 1.05, *rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
_ORDERS_WITHOUT_REPLACEMENT = (
    *(1 + x / 10 for x in range(1, 100)),
    *range(11, 33),
    36,
    40,
    48,
    56,
    64,
    96,
    128,
    256,
    512,
    1024,
)
ZCDP_ORDERS = 1.0 + np.geomspace(0.02, 1e6, 2000)
"""Orders at which concentrated differential privacy is converted."""


def rdp_epsilon(counts: Counts, relation: NeighboringRelation, delta: float) -> float:
    """Epsilon by Renyi differential privacy; infinity where it cannot bound an event under `relation`."""
    return convert_rdp(*rdp_curve(counts, relation), delta)


def estimated_epsilon(counts: Counts, relation: NeighboringRelation, delta: float) -> float:
    """As `rdp_epsilon`, by whole orders alone where that is quicker: they cost a tenth, and prove a little more."""
    if any(isinstance(event, SelectionDpEvent) for event, _ in counts):
        return rdp_epsilon(counts, relation, delta)
    orders = tuple(order for order in _orders(relation) if order == int(order))
    total = sum((count * _rdp_at(event, relation, orders) for event, count in counts if count), np.zeros(len(orders)))
    return convert_rdp(np.asarray(orders, dtype=np.float64), total, delta)


def rdp_curve(counts: Counts, relation: NeighboringRelation) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the composition's Renyi divergence at each (infinity where it is not known)."""
    orders = _orders(relation)
    total = np.zeros(len(orders))
    for event, count in counts:
        if count:  # 0 * infinity is not a number.
            total = total + count * rdp_of(event, relation)
    return np.asarray(orders, dtype=np.float64), total


def rdp_of(event: DpEvent, relation: NeighboringRelation) -> np.ndarray:
    """The Renyi divergence of one event at the orders used for `relation`; infinity where it is not known."""
    if isinstance(event, SelectionDpEvent):
        return _rdp_of_selection(event, relation)
    return _rdp_at(event, relation, _orders(relation))


@functools.lru_cache(maxsize=4096)
def _rdp_at(event: DpEvent, relation: NeighboringRelation, orders: tuple[float, ...]) -> np.ndarray:
    gaussian = exact_gaussian(((event, 1),))
    if gaussian is not None:  # alpha / (2 z^2), whatever a version of dp-accounting means by the relation
        divergences = np.asarray(orders, dtype=np.float64) / (2.0 * gaussian**2)
        divergences.setflags(write=False)
        return divergences
    if isinstance(event, OwnerDpEvent):
        divergences = owner_rdp(event, orders)
        divergences.setflags(write=False)
        return divergences
    accountant = rdp_privacy_accountant.RdpAccountant(list(orders), neighboring_relation=of_draws(relation))
    if not accountant.supports(event):
        return np.full(len(orders), math.inf)
    with quiet():
        divergences = accountant.compose(event).rdp
    divergences.setflags(write=False)
    return divergences


@functools.lru_cache(maxsize=4096)
def _rdp_of_selection(event: SelectionDpEvent, relation: NeighboringRelation) -> np.ndarray:
    """That of the best trial, each trial at most as the worst candidate at each order: see `Selection`."""
    curves = [rdp_curve(candidate, relation) for candidate in event.candidates]
    with quiet():
        # numpy's maximum of a number and none is none: such an order counts as unknown.
        worst = np.max([curve for _, curve in curves], axis=0)
        divergences = selected_rdp(curves[0][0], worst, event.mean, event.shape)
    divergences.setflags(write=False)
    return divergences


def convert_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Smallest epsilon over the orders. Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12."""
    # A negative or undefined divergence is a numerical failure, which dp-accounting would read as epsilon 0.
    sound = np.isfinite(divergences) & (divergences >= 0)
    if not sound.any():
        return math.inf
    with quiet():
        return float(rdp_privacy_accountant.compute_epsilon(orders[sound], divergences[sound], delta)[0])


def zcdp_epsilon(multiplier: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism by concentrated differential privacy with rho = 1 / (2 multiplier^2).

    Source: Bun, Steinke 2016, arXiv:1605.02065, with the conversion of arXiv:2004.00010.
    """
    return convert_rdp(ZCDP_ORDERS, ZCDP_ORDERS / (2.0 * multiplier**2), delta)


def _orders(relation: NeighboringRelation) -> tuple[float, ...]:
    return _ORDERS_WITHOUT_REPLACEMENT if relation is NeighboringRelation.REPLACE_ONE else _ORDERS
