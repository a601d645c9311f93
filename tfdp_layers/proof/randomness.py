"""Random numbers: noise of each record's own, or shared by all.

Guarantee: rows of noise are independent of each other, and drawn afresh in every step, so they are alike wherever a
record stands. Stateful generators do so. Stateless ones do if their seed is never used again: that is shown of seeds
that are what a variable holds plus less than the step adds to it, of random numbers themselves, and of nothing else. A
seed that serves several operations must serve rows of one shape, or a record would share its noise with another.

Assumes that generators with different seeds are independent, that nobody sets a variable of seeds back, and that it
counts fewer than 2^30 draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdp_layers.proof.frames import LOOP, RECORDS, Frame, Segment
from tfdp_layers.proof.rules import Node, entries_of, require_constants, rule, types, unknown_numbers
from tfdp_layers.proof.shapes import filled_with
from tfdp_layers.proof.sizes import Number, Size, symbol
from tfdp_layers.proof.values import Constant, Counted, MixedError, Refused, Rows, Single, UnknownError, Value

_STATEFUL = types("RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal")
_SEEDED = types("""
    StatelessRandomNormal StatelessRandomUniform StatelessRandomUniformInt StatelessTruncatedNormal
    StatelessRandomUniformFullInt
""")
_KEYED = [f"{name}V2" for name in _SEEDED]
SEEDS = ("seed", "key", "counter", "alg")
"""What TensorFlow calls the inputs of its operations that serve as a seed."""
KEY = "key"
_MANY = 2**24
"""Numbers that a random integer is one of, if it serves as a seed."""
_MOST_DRAWS = 2**20
"""In a step, of one seed: so that it does not come round within its type."""
_SHARED = "one seed for random numbers of several shapes, which then share numbers across records"


@dataclass(frozen=True)
class Draw:
    """Random numbers drawn from a seed.

    Attributes:
        operation, type, key: which operation.
        frame: where.
        seed: the seed's entries, None if not known.
        rows: whether there is noise of each record's own.
        what: what is drawn: two draws of one seed must agree in it.
    """

    operation: str
    type: str
    frame: Frame
    seed: tuple[Number, ...] | None
    rows: bool
    what: tuple[Any, ...]


@rule(*_STATEFUL)
def stateful(node: Node, inputs: Sequence[Any]) -> Value:
    """Drawn afresh at every run."""
    require_constants(inputs[1:], "a parameter of random numbers")
    value = filled_with(node, entries_of(inputs[0], "the shape"), None)
    seed = (node.attribute("seed", 0), node.attribute("seed2", 0))
    if any(seed):
        what = (node.type, node.dtype(), value.shape)
        draw = Draw(node.operation.name, node.type, node.frame, seed, isinstance(value, Rows), what)
        node.prover.streams.setdefault(seed, {})[node.key] = draw
    return drawn(node, value, fresh=True)


def drawn(node: Node, value: Value, fresh: bool) -> Value:
    """The noise; in a loop over records, what is drawn in each round for all its records is of that round alone."""
    found = node.frame.walks()
    if fresh and isinstance(value, Constant):
        if found and found[0].single is None:
            return Counted(value.shape)
        if found:
            return Single(value.shape, batch=found[0].single, place=found[0].place, loop=found[0].key)
        if node.dtype().is_integer and many_numbers(node):
            return numbered(node, value)
    return value


def many_numbers(node: Node) -> bool:
    """Whether an integer is drawn from so many, alike, that it may be taken for another one each time."""
    if "UniformInt" not in node.type:
        return "UniformFullInt" in node.type
    bounds = [node.frame.values[tensor.name] for tensor in node.operation.inputs[-2:]]
    low, high = (getattr(value, "entries", None) or (None,) for value in bounds)
    return isinstance(low[0], int) and isinstance(high[0], int) and high[0] - low[0] >= _MANY


def numbered(node: Node, value: Constant) -> Constant:
    """Random integers with names, by which seeds that are made of them are recognised."""
    entries = unknown_numbers(f"{node.key} drawn", value.shape, Constant).entries
    node.prover.fresh.update(dict.fromkeys(entries or (), (node.frame.home, node.key)))
    return Constant(value.shape, entries=entries)


@rule(*_SEEDED, *_KEYED, own=True)
def stateless(node: Node, inputs: Sequence[Any]) -> Value:
    """Drawn from a seed: see above."""
    require_numbers(inputs)
    seeds, (shape, *parameters) = apart(node, inputs)
    require_constants(parameters, "a parameter of random numbers")
    return seeded(node, seeds, filled_with(node, entries_of(shape, "the shape"), None))


def apart(node: Node, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The inputs of a random operation that serve as its seed, and the others: its shape and its parameters."""
    seeds: list[Any] = []
    others: list[Any] = []
    for argument, value in zip(node.operation.op_def.input_arg, inputs, strict=True):
        (seeds if argument.name in SEEDS else others).append(value)
    return seeds, others


def require_numbers(values: Sequence[Any]) -> None:
    if not all(isinstance(value, Constant | Counted) for value in values):
        raise MixedError("a seed or a parameter of random numbers depends on records")


def seeded(node: Node, seeds: Sequence[Any], value: Value, parameters: tuple[Any, ...] = ()) -> Value:
    """What is drawn from a seed, or from a key, a counter (and an algorithm); noted, so that `stale` sees it.

    Args:
        parameters: their shapes, by which kernels share numbers out: two draws of one seed must agree in them.
    """
    seed = seeds[0].entries
    if len(seeds) > 1:
        seed = seed_of_key(seeds[0].entries, seeds[1].entries)
    shape = value.shape if value.shape is not None else ()
    rows = isinstance(value, Rows)
    if rows and looped(node.frame) and not all(isinstance(n, int) for i, n in enumerate(shape) if i != value.axis):  # type: ignore[attr-defined]
        raise UnknownError("random numbers of a seed in rounds of a loop, perhaps as many as the round says")
    node.prover.draws[node.key] = Draw(
        node.operation.name, node.type, node.frame, seed, rows, (node.type, node.dtype(), shape, *parameters)
    )
    if isinstance(seeds[0], Constant):
        if isinstance(value, Constant) and node.dtype().is_integer and many_numbers(node):
            return numbered(node, value)
        return value
    if not node.frame.walks():
        return value if rows else Counted(value.shape)
    return drawn(node, value, fresh=True)


def looped(frame: Frame) -> bool:
    return any(outer.kind == LOOP for outer in frame.outwards())


def seed_of_key(key: Any, counter: Any) -> tuple[Number, ...] | None:
    """The seed that a key and a counter were made from together."""
    found = {tuple(only_atom(number)) for part in (key, counter) for number in part or (0,)}
    atoms = found.pop() if len(found) == 1 else ()
    return atoms[0].operands if atoms and atoms[0].name == KEY else None


def only_atom(number: Number) -> list[Any]:
    """The atom that a number is, if it is one."""
    if isinstance(number, Size) and len(number.terms) == 1 and number.terms[0][1] == 1 and len(number.terms[0][0]) == 1:
        return [number.terms[0][0][0]]
    return []


@rule("StatelessRandomGetKeyCounter", own=True)
def key_and_counter(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """A key and a counter for each seed, different ones for different seeds."""
    kind = type(inputs[0])
    if kind not in (Constant, Counted):
        raise MixedError("a seed depends on records")
    seed = inputs[0].entries
    if seed is None:
        raise UnknownError("a seed is not known")
    number = symbol(KEY, varies=kind is Counted, operands=tuple(seed))
    return [kind((1,), entries=(number,)), kind((2,), entries=(number, number))]


@rule("StatelessRandomGetAlg")
def algorithm(node: Node, inputs: Sequence[Any]) -> Value:
    """Which generator it is."""
    return Constant(())


@rule("RandomShuffle")
def shuffle(node: Node, inputs: Sequence[Any]) -> Value:
    """One permutation along axis 0 for all: only where that is not the axis of the records."""
    value = inputs[0]
    if isinstance(value, Constant):
        return drawn(node, Constant(value.shape, fill=value.fill), fresh=value.fill is None)
    if isinstance(value, Rows) and value.axis != 0 and not node.frame.walks():
        return Rows(value.shape, batch=value.batch, axis=value.axis, outer=value.outer, inner=value.inner)
    raise MixedError("records shuffled")


def stale(prover: Any) -> list[Refused]:
    """The draws of noise for each record of which it is not shown that their seed is never used again."""
    found = []
    groups: dict[Any, list[Draw]] = {}
    for draw in prover.draws.values():
        groups.setdefault(draw.seed, []).append(draw)
    for draw in prover.draws.values():
        fault = fault_of(prover, draw, groups[draw.seed]) if draw.rows else None
        if fault is not None:
            mixed, reason = fault
            found.append(Refused(None, mixed=mixed, reason=reason, operation=draw.operation, type=draw.type))
    for stream in prover.streams.values():
        draws = list(stream.values())
        if len({draw.what for draw in draws}) > 1 and any(draw.rows for draw in draws):
            found.append(Refused(None, mixed=False, reason=_SHARED, operation=draws[-1].operation, type=draws[-1].type))
    return found


def fault_of(prover: Any, draw: Draw, same: list[Draw]) -> tuple[bool, str] | None:
    """(whether it is mixing, why) if the seed of a draw may be used again; None if it is not."""
    if draw.seed is None:
        return False, "the seed of noise for each record is not known to change"
    if all(isinstance(n, int) for n in draw.seed):
        return True, "a seed that never changes: the same noise at a place of the batch in every step"
    if len({other.what for other in same}) > 1:
        return False, _SHARED
    if fresh_numbers(prover, draw) or counted_up(prover, draw):
        return None
    if counted_up(prover, draw, secret=False):
        return (
            True,
            "noise for each record of a seed that a variable holds for everyone to read, not a layer's generator",
        )
    return False, "the seed of noise for each record is not shown to change from step to step"


def fresh_numbers(prover: Any, draw: Draw) -> bool:
    """Whether an entry of the seed is a random number itself, of this step (and this round of a loop over records)."""
    for number in draw.seed or ():
        home, key = prover.fresh.get(number, (None, ""))
        source = prover.draws.get(key)
        if home is not None and reaches(home, draw.frame):
            return source is None or fresh_numbers(prover, source) or counted_up(prover, source)
    return False


def reaches(outer: Frame, inner: Frame) -> bool:
    """Whether what is computed in a frame is computed anew in every round of loops over records around another."""
    for frame in inner.outwards():
        if frame is outer:
            return True
        if frame.kind == RECORDS:
            return False
    return False


def counted_up(prover: Any, draw: Draw, secret: bool = True) -> bool:
    """Whether the seed is what a variable held plus less than is added to it before it is used the next time.

    Args:
        secret: whether the variable must be one of `prover.secret`, where these are known.
    """
    assert draw.seed is not None
    for key, segment in segments(prover):
        if secret and prover.secret is not None and key not in prover.secret:
            continue
        if key in prover.resets or len(segment.base) != len(draw.seed) or not reaches(segment.frame, draw.frame):
            continue
        for place, total in enumerate(segment.offset):
            if isinstance(total, int) and 0 < total <= _MOST_DRAWS and every_draw(prover, draw, segment, place):
                return True
    return False


def every_draw(prover: Any, draw: Draw, segment: Segment, place: int) -> bool:
    """Whether all draws from what a variable held have, at this entry, numbers below what is added to it apart.

    But for those whose seed is another one by an entry that stays as it is: they never meet.
    """
    atoms = set().union(*[base_atoms(b) for b in segment.base])
    own = offsets_of(draw, segment)
    found = [own[place]]
    for other in prover.draws.values():
        if not any(base_atoms(without_remainder(n)) & atoms for n in other.seed or ()):
            continue
        if len(other.seed) != len(segment.base):
            return False
        offsets = offsets_of(other, segment)
        fixed = [(a, b) for a, b, more in zip(own, offsets, segment.offset, strict=True) if more == 0]
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in fixed):
            continue
        found.append(offsets[place])
    plain = [n for n in found if isinstance(n, int)]
    return len(plain) == len(found) and max(plain) - min(plain) < segment.offset[place]


def offsets_of(draw: Draw, segment: Segment) -> list[Number]:
    """What is added to what the variable held, to get the seed."""
    return [without_remainder(n) - b for n, b in zip(draw.seed or (), segment.base, strict=True)]


def base_atoms(number: Number) -> set[Any]:
    """The atoms of a number, and of what they were computed from."""
    if not isinstance(number, Size):
        return set()
    own = {atom for monomial, _ in number.terms for atom in monomial}
    return own | {inner for atom in own for operand in atom.operands for inner in base_atoms(operand)}


def without_remainder(number: Number) -> Number:
    """The number, with what it is a remainder of in place of that, by a modulus that it does not reach."""
    for monomial, times in number.terms if isinstance(number, Size) else ():
        if times == 1 and len(monomial) == 1 and monomial[0].name == "remainder":
            return number - Size(((monomial, 1),)) + monomial[0].operands[0]
    return number


def segments(prover: Any) -> list[tuple[int, Segment]]:
    return [
        (key, one)
        for frame in prover.frames.values()
        for key, segment in frame.segments.items()
        for one in [*frame.ended.get(key, []), segment]
    ]
