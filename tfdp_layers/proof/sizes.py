"""Whole numbers in which the number of records is a symbol: sizes of axes, and integers computed from them.

A number is a Python int, or a `Size`: a polynomial of atoms with integer coefficients. Two numbers are equal for every
number of records if they are equal as polynomials; nothing else counts as equal. So B, the number of records, is told
apart from every other number, and 3 B from B + 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Atom", "Number", "Size", "at_least", "divided", "floor_divide", "is_below", "larger", "smaller", "varies"]


@dataclass(frozen=True)
class Atom:
    """An unknown whole number.

    Attributes:
        name: two atoms are the same number if their names (and operands) are equal, and only then.
        varies: whether it depends on the number of records, or on their places in the batch.
        least: what it is at least.
        most: what it is at most, None if that is not known; may depend on other atoms.
        operands: of a result such as a rounded quotient, what it was computed from.
    """

    name: str
    varies: bool = False
    least: int | None = None
    most: Number | None = None
    operands: tuple[Number, ...] = ()


Monomial: TypeAlias = tuple[Atom, ...]


def _order(monomial: Monomial) -> tuple[Any, ...]:
    return (len(monomial), *[(atom.name, str(atom.operands)) for atom in monomial])


@dataclass(frozen=True)
class Size:
    """A sum of integer multiples of products of atoms; never a plain integer (see `_number`)."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Number) -> Number:
        return _number([*self.terms, *_terms(other)])

    def __mul__(self, other: Number) -> Number:
        if isinstance(other, int):
            return self if other == 1 else Size(tuple((m, n * other) for m, n in self.terms)) if other else 0
        products = [
            (tuple(sorted((*a, *b), key=lambda atom: (atom.name, str(atom.operands)))), m * n)
            for a, m in self.terms
            for b, n in _terms(other)
        ]
        return _number(products)

    def __neg__(self) -> Number:
        return self * -1

    def __sub__(self, other: Number) -> Number:
        return self + other * -1

    def __rsub__(self, other: Number) -> Number:
        return self * -1 + other

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        return " + ".join("*".join([str(n), *[a.name for a in m]]) for m, n in self.terms)


Number: TypeAlias = "int | Size"


def _terms(number: Number) -> Iterable[tuple[Monomial, int]]:
    return number.terms if isinstance(number, Size) else [((), number)]


def _number(terms: Iterable[tuple[Monomial, int]]) -> Number:
    """The sum of the terms, as an int where no atom is left."""
    found: dict[Monomial, int] = {}
    for monomial, count in terms:
        found[monomial] = found.get(monomial, 0) + int(count)
    kept = [(m, n) for m, n in found.items() if n]
    if len(kept) > 1:
        kept.sort(key=lambda term: _order(term[0]))
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and not kept[0][0] else Size(tuple(kept))


def symbol(name: str, **facts: Any) -> Size:
    """A new atom as a number."""
    return Size((((Atom(name, **facts),), 1),))


def atoms(number: Number) -> set[Atom]:
    """The atoms of a number."""
    return {atom for monomial, _ in _terms(number) for atom in monomial}


def varies(number: Number) -> bool:
    """Whether the number depends on the number of records or on their places."""
    return isinstance(number, Size) and any(atom.varies for atom in atoms(number))


def at_least(number: Number) -> int | None:
    """A lower bound, None if none is known."""
    if not isinstance(number, Size):
        return number
    for monomial, count in number.terms:
        if count < 0 and len(monomial) == 1 and monomial[0].most is not None:
            return at_least(number + (monomial[0].most - Size(((monomial, 1),))) * count)
    total = 0
    for monomial, count in number.terms:
        lows = [atom.least for atom in monomial]
        if any(low is None or low < 0 for low in lows) or (count < 0 and monomial):
            return None
        total += count * math.prod(low for low in lows if low is not None)
    return total


def is_below(a: Number, b: Number) -> bool | None:
    """Whether a < b for every number of records; None if that is not known or depends on it."""
    if (gap := at_least(b - a)) is not None and gap >= 1:
        return True
    if (gap := at_least(a - b)) is not None and gap >= 0:
        return False
    return None


def smaller(a: Number, b: Number) -> Number:
    """min(a, b)."""
    if (below := is_below(a, b)) is not None:
        return a if below else b
    if is_below(b, a) is False:
        return a
    low = [at_least(a), at_least(b)]
    least = None if None in low else min(n for n in low if n is not None)
    return _derived("min", sorted([a, b], key=str), least, a if isinstance(a, int) else b)


def larger(a: Number, b: Number) -> Number:
    """max(a, b)."""
    if (below := is_below(a, b)) is not None:
        return b if below else a
    if is_below(b, a) is False:
        return b
    low = [n for n in (at_least(a), at_least(b)) if n is not None]
    return _derived("max", sorted([a, b], key=str), max(low, default=None), None)


def floor_divide(a: Number, b: Number) -> Number:
    """a // b, rounded down. Exact where b divides every term; otherwise an atom. Raises ArithmeticError for b = 0."""
    if b == 0:
        raise ArithmeticError("division by zero")
    if a == 0:
        return 0
    if isinstance(b, int):
        return _by_integer(a, b)
    if len(b.terms) == 1:
        (divisor, count), quotient = b.terms[0], []
        for monomial, n in _terms(a):
            rest = _without(monomial, divisor)
            if rest is None or n % count:
                break
            quotient.append((rest, n // count))
        else:
            return _number(quotient)
    return 1 if a == b else _derived("quotient", [a, b], None, None)


def divided(a: Number, b: Number) -> Number | None:
    """a / b where that is a whole number, else None."""
    quotient = floor_divide(a, b)
    return quotient if quotient * b == a else None


def _by_integer(a: Number, b: int) -> Number:
    if isinstance(a, int):
        return a // b
    whole = _number([(m, n // b) for m, n in a.terms if n % b == 0])
    rest = _number([(m, n) for m, n in a.terms if n % b])
    if isinstance(rest, int):
        return whole + rest // b
    constant = sum(n for m, n in rest.terms if not m)
    whole, rest = whole + constant // b, rest - constant // b * b
    if isinstance(rest, Size) and rest.terms[-1][1] < 0:  # floor(-n / b) = -ceil(n / b): one name for one number
        return whole - _rounded_up(-rest, b)
    low = at_least(rest)
    return whole + _derived("floor", [rest, b], None if low is None else low // b, None)


def _rounded_up(a: Number, b: int) -> Number:
    low = at_least(a)
    return _derived("ceiling", [a, b], None if low is None else -(-low // b), None)


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another, None if that leaves a remainder."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _derived(name: str, operands: list[Number], least: int | None, most: Number | None) -> Number:
    return symbol(name, varies=any(map(varies, operands)), least=least, most=most, operands=tuple(operands))
