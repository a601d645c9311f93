"""One person whose id is written in several ways: several people to the library, each protected by itself."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from tfdp_layers.batches.units import each_as
from tfdp_layers.caller import warn

__all__ = ["warn_of_spellings"]


_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58]")
_THOUSANDS = re.compile(r"^[0-9]{1,3}(,[0-9]{3})+(\.0+)?$")
_WHOLE = re.compile(r"^(-?[0-9]+)\.0+$")
_QUOTED = re.compile(r"^(['\"])(.*)\1$", re.DOTALL)
_EXPONENT = re.compile(r"^[0-9](\.[0-9]{1,14}[eE]\+?|[eE]\+)0?[0-9]{1,2}$")
"""With a point or a plus, as programs write them: "1e5" is hexadecimal, too. Such floats are exact."""


def _is_invisible(one: str) -> bool:
    return unicodedata.category(one) == "Cf"


def _visible(one: str) -> str:
    return one if one.isascii() else "".join(letter for letter in one if not _is_invisible(letter))


def _hyphens(one: str) -> str:
    return one if one.isascii() else _DASHES.sub("-", one)


def _thousands(one: str) -> str:
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), one)


def _exponent(one: str) -> str:
    return _EXPONENT.sub(lambda found: str(float(found[0])).removesuffix(".0"), one)


def _form(one: str) -> str:
    return one if one.isascii() else unicodedata.normalize("NFKC", one)


def _blanks(one: str) -> str:
    return " ".join(one.split())


def _whole(one: str) -> str:
    return _WHOLE.sub(r"\1", one)


def _unquoted(one: str) -> str:
    return _QUOTED.sub(r"\2", one)


def _zeros(one: str) -> str:
    return one.lstrip("0")


_Way = tuple[Callable[[str], str], Callable[[str], bool], str, str]
_WAYS: tuple[_Way, ...] = (
    (
        _visible,
        lambda texts: not texts.isascii() and any(map(_is_invisible, set(texts))),
        "invisible characters",
        "''.join(c for c in {} if unicodedata.category(c) != 'Cf')",
    ),
    (
        _hyphens,
        lambda texts: _DASHES.search(texts) is not None,
        "kinds of hyphens",
        r"re.sub('[\u2010-\u2015\u2212\ufe58]', '-', {})",
    ),
    (
        _form,
        lambda texts: not texts.isascii(),
        "Unicode's forms of a character",
        "unicodedata.normalize('NFKC', {})",
    ),
    (
        _unquoted,
        lambda texts: "\0'" in texts or '\0"' in texts,
        "quotes around",
        r"""re.sub(r'(?s)^([\'"])(.*)\1$', r'\2', {})""",
    ),
    (_blanks, lambda texts: len(texts.split()) > 1, "blanks", "' '.join({}.split())"),
    (
        str.casefold,
        lambda texts: not texts.isascii() or texts.lower() != texts,
        "upper and lower case",
        "{}.casefold()",
    ),
    (
        _thousands,
        lambda texts: re.search(r"\x00[0-9]{1,3},[0-9]{3}", texts) is not None,
        "commas between thousands",
        r"re.sub(r'^[0-9]{{1,3}}(,[0-9]{{3}})+(\.0+)?$', lambda found: found[0].replace(',', ''), {})",
    ),
    (
        _exponent,
        lambda texts: re.search(r"\x00[0-9][.eE][0-9+]", texts) is not None,
        "exponents of numbers",
        r"re.sub(r'^[0-9](\.[0-9]{{1,14}}[eE]\+?|[eE]\+)0?[0-9]{{1,2}}$',"
        " lambda found: str(float(found[0])).removesuffix('.0'), {})",
    ),
    (
        _whole,
        lambda texts: re.search(r"\.0+\x00", texts) is not None,
        ".0 at the end",
        r"re.sub(r'^(-?[0-9]+)\.0+$', r'\1', {})",
    ),
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

    Not noticed: other ways to write one id (left out hyphens, initials, typing errors, points between thousands), and
    zeros within ("p07" and "p7"). It takes up to a second for a million different ids, and some more where it warns.
    They are private: the warning quotes none.

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
    overlooked = _alike(given, _WAYS)
    if overlooked is given or (left := len(set(overlooked))) == len(texts := set(given)):
        return
    seen, fix = [], "one.decode()" if encoded else "one"
    for _, _, what, way in _needed(list(texts), left):
        seen.append(what)
        fix = way.format(fix)
    listed = " and ".join(filter(None, [", ".join(seen[:-1]), seen[-1]]))
    warn(
        f"The {len(texts):,} different ids in `{argument}` become {left:,} if one overlooks {listed}, so some"
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


def _needed(texts: list[str], left: int) -> list[_Way]:
    """The ways that leave so many different texts, without those that the others make superfluous.

    Mostly those that make some alike; but of "\uff21" and "a" the form makes none alike, and only lets the case do so.
    """
    needed, now = [], texts
    for way in _WAYS:
        alike = _alike(now, [way])
        fewer = now if alike is now else list(set(alike))
        if len(fewer) < len(now):
            needed.append(way)
        now = fewer
    if len(set(_alike(texts, needed))) == left:
        return needed
    needed = list(_WAYS)
    for way in reversed(_WAYS):
        others = [one for one in needed if one is not way]
        if len(set(_alike(texts, others))) == left:
            needed = others
    return needed


def _alike(texts: list[str], ways: Sequence[_Way]) -> list[str]:
    """The texts, all that people write differently left out: the very list where there is no such thing."""
    for alike, any_so, _, _ in ways:
        if any_so("\0".join(["", *texts, ""])):
            texts = [alike(one) for one in texts]
    return texts
