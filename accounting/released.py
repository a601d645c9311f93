"""Numbers that were released, recognised by their values wherever they are copied to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from tfdp_layers.accounting.account import Account, account_of
from tfdp_layers.accounting.begun import has_begun, moment, was_begun_since
from tfdp_layers.accounting.digests import digest_of_noisy, unchanged
from tfdp_layers.accounting.ledger import Ledger
from tfdp_layers.accounting.loads import Load, is_loading, loading
from tfdp_layers.accounting.owing import adds_to, costs_owed, forgive, holders_of, owe, owes, payer_of, settle
from tfdp_layers.accounting.passing import Passing

__all__ = [
    "begin_with",
    "costs_of",
    "disown",
    "forget",
    "is_changed_value",
    "is_copy",
    "is_known_value",
    "is_loading",
    "is_paid_for",
    "known_values",
    "loading",
    "remember",
    "remember_copies",
    "remember_held",
    "remember_later",
    "remember_now",
    "remember_owed",
    "remember_passing",
    "remember_public",
    "unpaid_by",
]

_released: dict[bytes, tuple[Ledger, ...]] = {}
"""What released values cost, by their digests: such numbers, full of noise, arise nowhere else. Ledgers that don't add
up (of records and of units, say) stand beside each other: trainings without noise, or seeded, end with equal values."""

_disowned: set[bytes] = set()
"""By their digests, released values that nobody paid for by themselves, and whose ledger says less than they cost."""

_passing = Passing()
"""Values that a training passed through and may have handed out: what its account holds pays for them."""

_public: set[bytes] = set()
"""By their digests, values that were declared public: they cost nothing, whichever variable is set to them."""

_seen: dict[bytes, bool] = {}
"""By their digests, values that cost nothing when they were seen first: whether a training had begun before that."""

_changed: dict[bytes, int] = {}
"""By their digests, those released values that something else than a training made of what it had released: when that
was known first. They are made of nothing that was released later. See `begun`."""

_later: list[Load] = []
"""What is remembered once somebody asks, and they are there: weights that are being loaded."""


def remember(ledger: Ledger, arrays: Iterable[Any], changed: bool | None = False) -> None:
    """Remembers what these values cost, to recognise copies of them.

    For values with noise in them: initial ones are full of none, and equal ones arise elsewhere, too. Variables among
    them pay from then on for whatever they hold, see `owing`: averages, say, or what another training made of it.

    Args:
        ledger: what it holds now; what it counts later is not theirs.
        arrays: objects that NumPy reads, variables of TensorFlow among them.
        changed: says that something else may have made them of what a training released: then they may be made of
            more than this ledger counts, and whoever else holds them pays, too. Not of what is known otherwise. False:
            a training ended with them, also with what it left as it was: whether it did tells of the records. None:
            neither.
    """
    cost, arrays = ledger.copy(), list(arrays)
    for digest in map(digest_of_noisy, arrays):
        if digest is not None:
            if changed is False:
                _changed.pop(digest, None)
            elif changed and digest not in _released:
                _changed[digest] = moment()
            _released[digest] = _together(cost, _released.get(digest, ()))
    owe(arrays, (cost,))


def remember_public(arrays: Iterable[Any]) -> None:
    """Says that these values cost nothing, in whichever variable: on somebody's word, but for what trainings released.

    What something else made of released numbers is somebody's word, too.
    """
    for digest in known_values(arrays):
        if _changed.pop(digest, None) is not None:
            _released.pop(digest, None)
        if digest and not _is_paid(digest):
            _public.add(digest)


def begin_with(variables: Iterable[Any], loaded: bool = False, but: Collection[bytes] = ()) -> None:
    """Remembers what these variables hold that cost nothing: as they are reset to it, they have nothing to pay for it.

    Of other variables, into which something was released when it was seen here first, that says nothing: it may be
    made of what these hold. To be asked after `costs_of`, which says what is known of it.

    Args:
        loaded: says that a file brought it, and says that it cost nothing. Then it is so also in variables into which
            something was released; not of what was seen in this process first, and after a release.
        but: not of these values, by their digests.
    """
    for one in variables:
        digest = digest_of_noisy(one)
        if digest is None or digest in but or _is_paid(digest) or not (loaded or not owes(one)):
            continue
        late = _seen.setdefault(digest, (bool(_released) or has_begun()) and not loaded)
        if not (late and owes(one)):
            settle(one, digest)


def _is_paid(digest: bytes) -> bool:
    return digest in _released or _passing.account_of(digest) is not None


def remember_held(arrays: Iterable[Any]) -> None:
    """Remembers what those among these that pay for what they hold, hold now: a copy of it may outlive them."""
    for _ in costs_of([array for array in arrays if owes(array)]):
        pass  # each look remembers


def remember_passing(account: Account, arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Remembers values of a training that goes on: a copy costs what the account holds when it is found.

    Args:
        but: what `known_values` gave of those that are not its own.
    """
    digests = map(digest_of_noisy, arrays)
    _passing.remember((digest for digest in digests if digest is not None and digest not in but), account)


def remember_later(remembering: Callable[[], None]) -> None:
    """Calls a function before the first look at released values, in any thread, after what this one loads is loaded.

    Of weights that have no numbers before then. It may be called several times.
    """
    _later.append(Load(remembering))
    _later[-1].when_over(remember_now)


def costs_of(arrays: Iterable[Any], known: Ledger | None = None, *, later: bool = True) -> Iterator[Ledger]:
    """What those among these values cost that are copies of released ones.

    Args:
        known: what is counted already. Where equal values were released by two trainings whose ledgers don't add up,
            and this holds one of them, the values are of that one. Of values that something else made it has to hold
            what they cost first: who got them later may have the numbers of both.
        later: whether what `remember_later` got is remembered first. False for a look that Keras may cause while it
            loads a file, when weights have no numbers yet.
    """
    if later:
        remember_now()
    found: list[Ledger] = []
    if _released or _passing:
        with unchanged():
            for array in arrays:
                found += _costs_of_one(array, known)
    yield from found


def _costs_of_one(array: Any, known: Ledger | None) -> tuple[Ledger, ...]:
    """See `costs_of`. A value that a training ended with cost what that did; of others all pay who hold them."""
    digest = digest_of_noisy(array) or b""
    costs, passing = _released.get(digest, ()), _passing.account_of(digest)
    held: tuple[Ledger, ...] = ()
    if passing is not None and (not costs or digest in _changed):  # what a look found may be a part of it
        held = (passing.ledger,)
    if digest and (digest in _changed or not (costs or held)):
        held += _held_now(array, digest)
    if (costs or held) and not owes(array):
        owe([array], (*costs, *held))
    own = costs[:1] if digest in _changed else costs
    told = len(costs) > 1 and known is not None and any(map(known.counts, own))
    return held if told else (*costs, *held)


def _held_now(array: Any, digest: bytes) -> tuple[Ledger, ...]:
    """What a value costs that no training ended with, and that variables hold which owe for it; it is remembered.

    But for those that held it at an earlier look, of which that is known, and those that it cannot be made of. Of a
    training that goes on it is its own, and nothing else is looked for.
    """
    if digest in _public or digest in _disowned:
        return ()
    found: list[Ledger] = []
    own = payer_of(array) if owes(array) else None
    for holder in [array] if own is not None and own.trains else holders_of(array):
        if not adds_to(holder, digest):
            continue
        account, costs = payer_of(holder), costs_owed(holder)
        if costs and (account is None or not (account.trains or account.unpaid)):
            costs = tuple(cost for cost in costs if _may_be_made_of(cost, digest))
            for cost in costs:
                _released[digest] = _together(cost.copy(), _released.get(digest, ()))
            _changed.setdefault(digest, moment())
            settle(holder, digest)
        elif account is not None and holder is not array:
            _passing.remember([digest], account)
        found += costs
    return tuple(found)


def _may_be_made_of(cost: Ledger, digest: bytes) -> bool:
    """Whether something of a ledger, that what a value cost does not count, was released before that value was known.

    Else whoever holds it, and pays by that ledger, got it from elsewhere.
    """
    then = _changed.get(digest)
    known = {entry.uid: entry.steps for one in _released.get(digest, ()) for entry in one.entries}
    earlier = (entry for entry in cost.entries if then is None or not was_begun_since(entry.uid, then))
    return any(known.get(entry.uid, 0) < entry.steps for entry in earlier)


def is_changed_value(array: Any) -> bool:
    """Whether it holds a copy of what something else than a training wrote where something had been released."""
    return digest_of_noisy(array) in _changed


def is_known_value(array: Any) -> bool:
    """Whether it holds numbers that some training ended with, or a copy: what they cost is known, or refused."""
    digest = digest_of_noisy(array)
    return digest in _released or digest in _disowned


def is_copy(array: Any) -> bool | None:
    """Whether it holds what a training released, or passed through, as it was; None for what may be that by chance."""
    found = digest_of_noisy(array)
    return None if found is None else _is_paid(found) and found not in _changed


def unpaid_by(arrays: Iterable[Any]) -> set[Account | None]:
    """Who held first, and does not pay, what these are copies of; None for disowned values. See `costs_of` first."""
    if not (_disowned or _passing):
        return set()
    holders = map(_passing.account_of, (digests := known_values(arrays)).difference(_released))
    found: set[Account | None] = {one for one in {one.root for one in holders if one is not None} if one.unpaid}
    return found if digests.isdisjoint(_disowned) else {*found, None}


def _is_new(array: Any) -> bool:
    return adds_to(array, digest_of_noisy(array) or b"")  # else it held that before something was restored


def remember_owed(account: Account, arrays: Iterable[Any], but: Collection[bytes] = ()) -> None:
    """Remembers values that came without what they cost: not those held before, public ones, and what others pay."""
    free = known_values(filter(_is_new, arrays)).difference(_public, but, (b"",))
    _passing.remember((one for one in free if _passing.account_of(one) is None), account)


def remember_copies(arrays: Iterable[Any], copies: Iterable[Any]) -> None:
    """Remembers numbers that were computed from others: where something was released into these, it made those."""
    arrays, made = list(arrays), list(copies)
    changed = True if any(map(is_changed_value, arrays)) else None
    holders = [(account_of(array), *unpaid_by([array])) for array in arrays]
    owing = [next((one for one in found if one is not None and one.unpaid), None) for found in holders]
    pairs = list(zip(arrays, owing, strict=True))
    others = known_values(one for one, unpaid in pairs if unpaid is None or not _is_new(one)) if any(owing) else ()
    for array, unpaid in pairs:
        account = account_of(array)
        if unpaid is not None:
            remember_owed(unpaid, made, but=others)
            continue
        ledgers = [account.ledger] if account is not None and account.ledger.updates else []
        for ledger in (*ledgers, *costs_of([array])):
            remember(ledger, made, changed)


def is_paid_for(array: Any) -> bool:
    """Whether something was released into this object, or it holds a copy of released values."""
    account = account_of(array)
    paid = account is not None and account.ledger.updates > 0
    return paid or next(costs_of([array]), None) is not None or bool(unpaid_by([array]))


def known_values(arrays: Iterable[Any]) -> set[bytes]:
    """By what these values are remembered."""
    return {digest_of_noisy(array) or b"" for array in arrays}


def forget(values: Iterable[bytes]) -> None:
    """Forgets what `known_values` gave: nobody else may hold a copy of them that is not accounted for anew."""
    forgive(values := set(values))
    for value in values:
        _released.pop(value, None)
        _passing.forget(value)
        _disowned.discard(value)
        _changed.pop(value, None)


def disown(values: Iterable[bytes]) -> None:
    """Says of what `known_values` gave that no ledger states what it costs: whoever holds a copy states nothing."""
    for value in values:
        _released.pop(value, None)
        if value:
            _disowned.add(value)


def _together(cost: Ledger, known: tuple[Ledger, ...]) -> tuple[Ledger, ...]:
    """What holds both: the same numbers may be known from another model, or from several that they were made from."""
    for place, one in enumerate(known):
        both = _sum(cost, one)
        if both is not None:
            return (*known[:place], both, *known[place + 1 :])
    return (*known, cost)


def _sum(cost: Ledger, known: Ledger) -> Ledger | None:
    """One ledger that holds both; None where these don't add up: of records and of units, or of two data sets."""
    if cost.holds(known):
        return cost
    if known.holds(cost):
        return known
    both = cost.copy()
    try:
        both.merge(known)
    except ValueError:
        return None
    return both


def remember_now() -> None:
    """Calls what `remember_later` got, of weights that have their numbers.

    Raises: RuntimeError where they cannot be read here; they are looked at again the next time.
    """
    for load in list(_later):
        if not load.over:
            continue
        try:
            if not load.failed:
                load.then()
        except Exception as error:
            raise RuntimeError(
                f"Weights that were loaded cannot be read here, so what copies of them cost is not known: {error} Ask"
                " once more where they can be, outside of tf.Graph and tf.function: model.privacy_statement(delta)."
            ) from error
        with contextlib.suppress(ValueError):  # another thread may have done it, too
            _later.remove(load)
