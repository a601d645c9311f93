"""A vocabulary of private text: tokens that many records share, found with noise."""

import math
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp_layers.accounting import Ledger, TokenSelection
from tfdp_layers.accounting.charging import charge
from tfdp_layers.accounting.footprint import footprint_of
from tfdp_layers.batches.units import Units
from tfdp_layers.batches.whose import whose_of
from tfdp_layers.metrics import whole_draw
from tfdp_layers.noise import NoiseSource, add_noise, as_noise_source

_PUNCTUATION: dict[int, Any] = dict.fromkeys(map(ord, string.punctuation))
_LOWER: dict[int, Any] = dict(zip(map(ord, string.ascii_uppercase), string.ascii_lowercase, strict=True))
_STANDARDIZED: dict[str, dict[int, Any]] = {
    "lower_and_strip_punctuation": _LOWER | _PUNCTUATION,
    "lower": _LOWER,
    "strip_punctuation": _PUNCTUATION,
}
"""What Keras' `TextVectorization` puts in the place of characters: those of ASCII alone."""

_GRID = 1 << 30
"""Weights are whole multiples of its inverse, rounded down: sums of them are exact."""


def vocabulary(
    records: Iterable[Any],
    ledger: Ledger,
    *,
    noise_multiplier: float,
    failure: float,
    most_tokens: int = 100,
    tokens_of: Callable[[str], Iterable[str]] = str.split,
    examples: int | None = None,
    unit_ids: Any = None,
    owners: Any = None,
    records_per_owner: int | None = None,
    noise_source: str | NoiseSource = "secure",
    standardize: str | Callable[[str], str] | None = None,
) -> list[str]:
    """Releases the tokens that enough records have, the heaviest first, and charges the ledger before it does.

    Each record counts with its first `most_tokens` distinct tokens: each of its t tokens gets the weight 1 / sqrt(t).
    A token is released if its weight over all records, with Gaussian noise, passes a threshold that a token of one
    record alone passes with probability at most `failure`.

    Formal guarantee: one Gaussian mechanism of this noise multiplier, and a failure of at most `failure`, which adds to
    delta; both are composed with all else in the ledger, under its neighbouring relation (add-or-remove for an empty
    one) and for its unit. The proof is in `tfdp.accounting.TokenSelection`. It holds whatever a record holds: the
    weights are rounded down to a grid on which sums are exact, so a record's weights have L2 norm at most 1, attained
    (to 2^-29) by every record that has a token. What follows from the list, a lookup table say, costs nothing.

    A record counts about 1 / sqrt(its tokens); a token that passes is in about threshold * sqrt(tokens) records or
    more, where `threshold` is about 1 + 4.8 noise_multiplier at failure 1e-6 and one token each.

    Args:
        records: the private records: strings (bytes are read as UTF-8), or collections of tokens, which are strings.
            A tensor of texts, or a pipeline of tf.data that gives them one by one, is read once.
        ledger: `model.ledger`, or the data set's own.
        noise_multiplier: the noise's standard deviation on each weight; above 0. A large one costs little, and finds
            frequent tokens alone.
        failure: in (0, 1); far below the delta that you will state, a tenth of it say: no epsilon holds at or below it.
        most_tokens: of one record. Fewer make each count more.
        tokens_of: a string's tokens, computed from it alone.
        examples: the declared, public number of records, or of units; as many as there are if left out.
        unit_ids: (records,), for a ledger that protects units: the tokens of a unit are those of its records.
        owners, records_per_owner: as `fit` takes them, for a ledger that protects owners: each record counts, and with
            k of one owner the weights move by up to k, and the threshold lies about k times as high.
        noise_source: as in `tfdp.optimizers`.
        standardize: what is done to each text before it is split: None (the default: nothing), what
            `keras.layers.TextVectorization` calls "lower_and_strip_punctuation", "lower" or "strip_punctuation", or a
            function of one text, computed from it alone. It costs nothing. Make the layer that looks the words up with
            the same one: `TextVectorization` lowers and strips by default, and then meets no "Fever!" of a vocabulary
            that was made without, so that such words are all unknown to it, and nothing says so.

    Returns: tokens, by falling noisy weight; none, if none passes. Their number is covered, too.
    Raises:
        ValueError: records that are no text or tokens (where there is `standardize`, no text), settings out of range,
            an owner of more records than stated, or a unit that the ledger does not protect; nothing is charged.
        BudgetExhausted, LedgerError: the ledger cannot take the charge; nothing is released.

    Example:
        words = tfdp.preprocessing.vocabulary(texts, model.ledger, noise_multiplier=8.0, failure=1e-6)
        lookup = tfdp.public(keras.layers.StringLookup(vocabulary=words))
    """
    texts = _listed(records)
    if not texts:
        raise ValueError("vocabulary got no records.")
    tokens_of = _standardized(standardize, tokens_of, texts)
    whose = whose_of(len(texts), unit_ids, owners, records_per_owner, ("records", records))
    rows = len(texts) if whose.units is None else len(whose.units)
    declared, source = rows if examples is None else examples, as_noise_source(noise_source)
    release = TokenSelection(
        most_tokens,
        noise_multiplier,
        failure,
        whole_draw(ledger, declared, rows),
        declared,
        seeded=source.seeded,
        generator=source.generator,
        **whose.stated(ledger.secret),
    )
    weights = summed_weights(_by_unit(texts, whose.units, tokens_of), release.tokens)
    token = charge(ledger, release, records=footprint_of([records], [_as_array(texts)], people=whose.people))
    source.rekey()
    found = passing(weights, release, source)
    ledger.settle(token, 1)
    return found


def summed_weights(holders: Iterable[Iterable[str]], most: int) -> dict[str, int]:
    """The weight of each token over all holders of tokens (records, or units), in units of 2^-30: NOT private.

    Adding a holder moves it by a vector of L2 norm at most 2^30: t tokens, each floor(2^30 / sqrt(t)).
    """
    total: dict[str, int] = {}
    for tokens in holders:
        own: dict[str, None] = {}
        for token in tokens:
            own.setdefault(token)
            if len(own) == most:
                break
        weight = math.isqrt(_GRID**2 // max(1, len(own)))
        for token in own:
            total[token] = total.get(token, 0) + weight
    return total


def passing(weights: dict[str, int], release: TokenSelection, source: NoiseSource) -> list[str]:
    """The tokens whose noisy weight passes the threshold, heaviest first."""
    if not weights:
        return []
    names = list(weights)
    exact = tf.constant([weights[name] / _GRID for name in names], tf.float64)
    multiplier = release.noise_multiplier
    # Rounding moves only what a record holds, so many tokens at most, which is public; how many there are, is not.
    (drawn,) = source.widened([multiplier], multiplier, release.tokens * release.records_per_owner)
    noisy = np.asarray(add_noise(source, [exact], [drawn])[0])
    # What one record alone holds passes no oftener than with the noise that the threshold was made for, and what
    # `perturbed` of the secure source adds to it.
    threshold = release.threshold * max(1.0, drawn / multiplier) * (1.0 + 2.0**-12)
    kept = [(-weight, name) for weight, name in zip(noisy, names, strict=True) if weight > threshold]
    return [name for _, name in sorted(kept)]


def _listed(records: Any) -> list[Any]:
    """The records, one by one, scalar tensors as what they hold. Raises ValueError for what gives other things."""
    if isinstance(records, Mapping) or hasattr(records, "columns"):
        raise ValueError(
            f"A {type(records).__name__} gives the names of its columns, or its columns, and no records. Give its one"
            " column of texts: frame['text'], or a list of the values."
        )
    spec = records.element_spec if isinstance(records, tf.data.Dataset) else tf.TensorSpec(())
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 0:
        raise ValueError(
            f"vocabulary takes a pipeline that gives one text at a time. Its elements are {spec}. Take the texts alone,"
            " dataset.map(lambda text, label: text), and leave .batch out, or put .unbatch() behind it."
        )
    if isinstance(records, tf.data.Dataset) and records.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The pipeline of texts is endless. Leave .repeat out: it is read once.")
    records = records.numpy() if isinstance(records, tf.Tensor) else records
    if isinstance(records, str | bytes) or (isinstance(records, np.ndarray) and not records.ndim):
        raise ValueError("vocabulary got one text. Give a list of records, each a string or a collection of tokens.")
    read = (one.numpy() if isinstance(one, tf.Tensor) else one for one in records)
    return [one.item() if isinstance(one, np.ndarray) and not one.ndim else one for one in read]


def _standardized(
    standardize: Any, tokens_of: Callable[[str], Iterable[str]], records: Iterable[Any]
) -> Callable[[str], Iterable[str]]:
    """`tokens_of` a text that was standardized before. Raises ValueError for an unknown way, and tokens as records."""
    if standardize is None:
        return tokens_of
    if not callable(standardize) and (not isinstance(standardize, str) or standardize not in _STANDARDIZED):
        raise ValueError(
            f"standardize must be None, one of {[*_STANDARDIZED]}, or a function of one text. Received:"
            f" {standardize!r}."
        )
    for number, one in enumerate(records):
        if isinstance(one, Iterable) and not isinstance(one, str | bytes):
            raise ValueError(
                f"standardize changes texts before they are split, and record {number} is a collection of tokens. Give"
                " texts, or standardize the tokens yourself, each from its own record alone, and leave it out."
            )

    def tokens(text: str) -> Iterable[str]:
        changed = standardize(text) if callable(standardize) else text.translate(_STANDARDIZED[standardize])
        if not isinstance(changed, str):
            raise ValueError(
                f"standardize must give a text of one text. It gave: {type(changed).__name__}. TensorFlow's functions"
                " give tensors: call .numpy().decode() on them, or take Python's own, str.lower say."
            )
        return tokens_of(changed)

    return tokens


def _as_array(texts: list[Any]) -> np.ndarray:
    """(records,) texts, or tuples of tokens, whatever the order of a set."""
    found = np.empty(len(texts), object)
    for place, one in enumerate(texts):
        found[place] = (
            one if isinstance(one, str | bytes) else tuple(sorted(one) if isinstance(one, set | frozenset) else one)
        )
    return found


def _by_unit(texts: list[Any], units: Units | None, tokens_of: Callable[[str], Iterable[str]]) -> list[list[str]]:
    """The tokens of each record, or of each unit's records one after the other."""
    split = [list(_tokens(text, number, tokens_of)) for number, text in enumerate(texts)]
    if units is None:
        return split
    holders: list[list[str]] = [[] for _ in range(len(units))]
    for position, tokens in zip(units.positions, split, strict=True):
        holders[position] += tokens
    return holders


def _tokens(text: Any, number: int, tokens_of: Callable[[str], Iterable[str]]) -> Iterator[str]:
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    tokens = tokens_of(text) if isinstance(text, str) else text
    if text is None or (isinstance(text, float) and text != text):  # NaN, as pandas reads an empty cell
        raise ValueError(f"Record {number} is missing. Put an empty text there, records.fillna('') of pandas say.")
    if not isinstance(tokens, Iterable):
        raise ValueError(f"Record {number} is no text: {type(text).__name__}. Give strings, or collections of strings.")
    for token in tokens:
        if not isinstance(token, str):
            raise ValueError(
                f"Record {number} has a token of type {type(token).__name__}. Tokens are strings: of bytes,"
                " token.decode(). Of a batch of texts give each text as a record."
            )
        yield str(token)
