"""One person whose id is written in several ways: several people to the library, each protected by itself."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from tfdp_layers.batches.units import each_as
from tfdp_layers.caller import warn

__all__ = ["warn_of_spellings"]


def _form(one: str) -> str:
    return one if one.isascii() else unicodedata.normalize("NFKC", one)


def _blanks(one: str) -> str:
    return " ".join(one.split())


def _whole(one: str) -> str:
    return one[:-2] if one.endswith(".0") and one[:-2].isdigit() else one


def _zeros(one: str) -> str:
    return one.lstrip("0")


_WAYS: tuple[tuple[Callable[[str], str], Callable[[str], bool], str, str], ...] = (
    (
        _form,
        lambda texts: not texts.isascii(),
        "Unicode's forms of a character",
        "unicodedata.normalize('NFKC', {})",
    ),
    (_blanks, lambda texts: len(texts.split()) > 1, "blanks", "' '.join({}.split())"),
    (
        str.casefold,
        lambda texts: not texts.isascii() or texts.lower() != texts,
        "upper and lower case",
        "{}.casefold()",
    ),
    (_whole, lambda texts: ".0\0" in texts, ".0 at the end", "{}.removesuffix('.0')"),
    (_zeros, lambda texts: "\x000" in texts, "leading zeros", "{}.zfill(40)"),
)
"""What people write differently: how it is overlooked; whether any text may be written so, of all with zero
characters around them, asked at once; its name; and how the user writes it alike."""


_OBJECTS = re.compile(
    r"""\0(?:b'[^\0]*'|b"[^\0]*"|(?:np|numpy)\.\w+\([^\0]*\)|<?tf\.Tensor\b[^\0]*|<[^\0]* at 0x[0-9a-fA-F]+>)(?=\0)"""
)
"""What `str` and `repr` write of bytes, of NumPy's numbers and texts, of tensors and of other objects."""


def warn_of_spellings(names: Sequence[int | str | bytes], argument: str) -> None:
    """Warns where ids of text differ in nothing but what `_WAYS` lists; integers are told apart as they are.

    So it does where they say what an object is that held them, as `str(b"p7")` does: elsewhere the person is "p7".

    Not noticed: other ways to write one id (hyphens, initials, typing errors), and zeros within ("p07" and "p7"). It
    takes up to a second for a million different ids. They are private: the warning quotes none.

    Args:
        names: the ids, all integers, all strings or all bytes; equal ones count once.
        argument: how the caller gave them.
    """
    if not len(names) or not isinstance(names[0], str | bytes):
        return
    encoded = isinstance(names[0], bytes)
    try:
        given = [one.decode() if isinstance(one, bytes) else str(one) for one in names]
    except UnicodeDecodeError:  # no text: digests
        return
    if objects := sum(1 for _ in _OBJECTS.finditer("\0".join(["", *given, ""]))):
        _warn_of_objects(objects, argument)
        return
    overlooked = _alike(given)
    if overlooked is given or len(set(overlooked)) == len(texts := set(given)):
        return
    left, seen, fix = texts, [], "one.decode()" if encoded else "one"
    for alike, _, what, way in _WAYS:
        fewer = {alike(one) for one in left}
        if len(fewer) < len(left):
            seen.append(what)
            fix = way.format(fix)
        left = fewer
    listed = " and ".join(filter(None, [", ".join(seen[:-1]), seen[-1]]))
    warn(
        f"The {len(texts):,} different ids in `{argument}` become {len(left):,} if one overlooks {listed}, so some"
        " people's ids seem to be written in several ways. Each way passes for a person of its own: whoever has several"
        " is protected less than stated, and may be on both sides of a split. Before anything else write them in one"
        f" way: {each_as(fix, argument)}. Where these are different people, nothing is lost."
    )


def _warn_of_objects(count: int, argument: str) -> None:
    warn(
        f"{count:,} of the ids in `{argument}` are what str(...) makes of bytes, a tensor or another object,"
        " \"b'...'\" or 'tf.Tensor(...)'. Whoever is named elsewhere by the text alone passes for two people, is"
        " protected less than stated, and may be on both sides of a split. Make the text of what the ids were before:"
        f" {each_as('one.decode()', argument)} of bytes, of tensors one.numpy().decode(). Where these are names, as"
        " they stand, nothing is lost."
    )


def _alike(texts: list[str]) -> list[str]:
    """The texts, all that people write differently left out: the very list where there is no such thing."""
    for alike, any_so, _, _ in _WAYS:
        if any_so("\0".join(["", *texts, ""])):
            texts = [alike(one) for one in texts]
    return texts
