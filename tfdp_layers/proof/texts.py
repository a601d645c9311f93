"""Strings, tables that are looked up, and texts cut into words: ragged pieces, those of a record after another's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp_layers.proof.elementwise import NONLINEAR, of_rows
from tfdp_layers.proof.narrowing import require_within
from tfdp_layers.proof.rules import Node, dims_of, numbers, only_rows, refused_kind, rule, types
from tfdp_layers.proof.values import Constant, Counted, Handle, MixedError, Pieces, Rows, UnknownError, Value

_STRINGS = types("""
    AsString CaseFoldUTF8 DecodeBase64 EncodeBase64 NormalizeUTF8 RegexFullMatch RegexReplace StaticRegexFullMatch
    StaticRegexReplace StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeScript UnicodeTranscode
""")


@rule(*_STRINGS)
def of_strings(node: Node, inputs: Sequence[Any]) -> Value:
    """An entry of the result depends on the entries at its place alone, or on strings without an axis."""
    other = next((value for value in inputs if not isinstance(value, Rows | Constant)), None)
    if other is not None:
        raise refused_kind(other, node.type)
    return of_rows(node, inputs)


@rule("LookupTableFindV2")
def found_in_table(node: Node, inputs: Sequence[Any]) -> Value:
    """An entry of the result depends on the key at its place, on the default, and on the table.

    Assumes that a captured table which refuses to be written to keeps what it holds: Keras' lookups have such ones.
    """
    handle, keys, default = inputs
    require_fixed(node, handle)
    if not isinstance(default, Constant):
        raise MixedError("a default that depends on records")
    if isinstance(keys, Constant):
        return Constant(keys.shape)
    rows = only_rows(keys, node.type)
    if dims_of(default) != ():
        raise UnknownError("several values for a key")
    return dataclasses.replace(rows, within=None, runs=None, fill=None)


def require_fixed(node: Node, handle: Any) -> None:
    """Raises UnknownError unless the table is captured, and can be written to by nothing."""
    outer = node.prover.captured.get(handle.key) if isinstance(handle, Handle) else None
    if outer is None or not never_written(outer, node.operation.inputs[1].dtype, node.dtype()):
        raise UnknownError("a table that may be written to, by this function or by another")


def never_written(handle: Any, keys: tf.DType, values: tf.DType) -> bool:
    """Whether the table refuses to take anything in, asked with nothing to take."""
    try:
        with tf.init_scope():
            empty = tf.zeros([0], keys), tf.zeros([0], values)
            tf.raw_ops.LookupTableInsertV2(table_handle=handle, keys=empty[0], values=empty[1])
    except tf.errors.UnimplementedError:
        return True
    except (tf.errors.OpError, TypeError, ValueError):
        return False
    return False


@rule("DenseBincount")
def counted(node: Node, inputs: Sequence[Any]) -> Value:
    """How often each number below a size is in each row: of records along the first of two axes."""
    rows = only_rows(inputs[0], node.type)
    size = require_plain_counts(inputs[1], inputs[2])
    if rows.axis != 0 or len(dims_of(rows)) != 2:
        raise MixedError("records counted together")
    return Rows((rows.length, size), batch=rows.batch, outer=rows.outer, inner=rows.inner)


def require_plain_counts(size: Any, weights: Any) -> Any:
    """The size. Raises unless it is a constant, and nothing is weighted."""
    if not isinstance(weights, Constant) or dims_of(weights) != (0,):
        raise UnknownError("a count with weights")
    if not isinstance(size, Constant) or size.entries is None or len(size.entries) != 1:
        raise MixedError("as many counts as records say")
    return size.entries[0]


def clamped(node: Node, inputs: Sequence[Any]) -> Value | None:
    """What min(a, max(a, x)) is, for integers without axes: a, whatever x is. None for anything else."""
    if node.type != "Minimum" or not node.dtype().is_integer or node.static() != ():
        return None
    for place in (0, 1):
        known, other = inputs[place], node.operation.inputs[1 - place].op
        if other.type != "Maximum" or not isinstance(known, Constant | Counted) or known.entries is None:
            continue
        for tensor in other.inputs:
            value = node.frame.values.get(tensor.name)
            same = isinstance(value, Constant | Counted) and value.entries == known.entries
            if same and dims_of(value) == dims_of(known) == ():
                return known
    return None


# Texts cut into words -------------------------------------------------------------------------------------------------

OF_PIECES: dict[str, Callable[[Node, Sequence[Any]], Any]] = {}


def of_pieces(node: Node, inputs: Sequence[Any]) -> Any:
    """What an operation makes of pieces. Raises MixedError for one that is not known to keep each record's together."""
    if all(not isinstance(value, Pieces) or value.what == "numbers" for value in inputs):
        return OF_PIECES["numbers"](node, inputs)
    function = OF_PIECES.get(node.type)
    if function is None and node.type in (*NONLINEAR, *_STRINGS):
        function = piece_by_piece
    if function is None:
        raise MixedError(f"{node.type} of words of all records")
    return function(node, inputs)


def pieces(*names: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        OF_PIECES.update(dict.fromkeys(names, function))
        return function

    return register


def require(value: Any, what: str, like: Pieces | None = None) -> Pieces:
    """The value, which must be this of the pieces, and of the same cut. Raises MixedError for anything else."""
    if not isinstance(value, Pieces) or value.what != what:
        raise MixedError(f"words of all records where their {what} belong")
    if like is not None and value.origin != like.origin:
        raise MixedError("words of records cut in one way meet words of records cut in another")
    return value


@rule("StringSplitV2")
def split(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """The words of each text, after those of the text before: (record, place) of each, the words, (records, most)."""
    texts = only_rows(inputs[0], node.type)
    if not isinstance(inputs[1], Constant):
        raise MixedError("texts cut where records say")
    laid: dict[str, Any] = {"batch": texts.batch, "outer": texts.outer, "inner": texts.inner}
    return [Pieces(None, **laid, cut=node.key, what=what) for what in ("places", "words", "sizes")]


@pieces("StridedSlice")
def part(node: Node, inputs: Sequence[Any]) -> Value:
    """The record of each word, of their places; how many records there are, of the sizes."""
    whole, *bounds = inputs
    masks = tuple(node.attribute(f"{name}_mask") for name in ("begin", "end", "shrink_axis", "new_axis", "ellipsis"))
    given = tuple(value.entries if isinstance(value, Constant) else None for value in bounds)
    if whole.what == "places" and (given, masks) == (((0, 0), (0, 1), (1, 1)), (1, 1, 2, 0, 0)):
        return dataclasses.replace(whole, what="records")  # [:, 0]
    if whole.what == "sizes" and (given, masks) == (((0,), (1,), (1,)), (0, 0, 1, 0, 0)):
        return numbers([whole.texts], ())  # [0]
    raise MixedError("a part of the words of all records")


@pieces("Cast")
def cast(node: Node, inputs: Sequence[Any]) -> Value:
    """The same numbers in another type: of words into any, entry by entry."""
    if inputs[0].what != "words" and node.dtype() not in (tf.int32, tf.int64):
        raise MixedError("numbers of records, or of words, in a type that may not hold them")
    require_within(node)
    return inputs[0]  # type: ignore[no-any-return]


@pieces("Reshape")
def flattened(node: Node, inputs: Sequence[Any]) -> Value:
    """The same along one axis: of length -1, or of as many words as there are."""
    whole, length = inputs
    if not isinstance(whole, Pieces) or whole.what == "places" or not all_along_one_axis(whole, length):
        raise MixedError("words of all records in another shape")
    return dataclasses.replace(whole, what="words" if whole.what == "column" else whole.what)


def all_along_one_axis(whole: Pieces, length: Any) -> bool:
    """Whether a shape is one axis of all words."""
    if isinstance(length, Pieces):
        numbers = require(length, "numbers", whole).known
        return numbers is not None and numbers.entries == (whole.words,)
    return isinstance(length, Constant) and length.entries == (-1,)


@pieces("DenseBincount")
def words_of_each(node: Node, inputs: Sequence[Any]) -> Value:
    """How many words each record has."""
    records, size, weights = inputs
    whole = require(records, "records")
    if not isinstance(weights, Constant) or dims_of(weights) != (0,) or node.attribute("binary_output"):
        raise UnknownError("a count with weights, or of whether there are any")
    if not isinstance(size, Constant | Counted) or size.entries != (whole.texts,):
        raise MixedError("words counted for others than the records")
    return dataclasses.replace(whole, what="counts")


@pieces("Cumsum")
def ends(node: Node, inputs: Sequence[Any]) -> Value:
    """Where the words of each record end."""
    counts, axis = inputs
    if not isinstance(axis, Constant) or axis.entries != (0,):
        raise UnknownError("sums along an axis that is not known")
    if node.attribute("exclusive") or node.attribute("reverse"):
        raise MixedError("words counted from the end")
    return dataclasses.replace(require(counts, "counts"), what="ends")


@pieces("ConcatV2")
def starts(node: Node, inputs: Sequence[Any]) -> Value:
    """Where the words of each record start, and the last ones end."""
    zero, *rest = inputs
    if len(rest) != 2 or not isinstance(zero, Constant) or zero.entries != (0,) or dims_of(zero) != (1,):
        raise MixedError("words of all records beside others")
    return dataclasses.replace(require(rest[0], "ends"), what="starts")


@pieces("LookupTableFindV2")
def words_in_table(node: Node, inputs: Sequence[Any]) -> Value:
    handle, keys, default = inputs
    require_fixed(node, handle)
    if not isinstance(default, Constant) or dims_of(default) != ():
        raise MixedError("a default that depends on records")
    return require(keys, "words")


def piece_by_piece(node: Node, inputs: Sequence[Any]) -> Value:
    """Word by word, of words of one cut and of constants without an axis."""
    found = [value for value in inputs if isinstance(value, Pieces)]
    for value in inputs:
        if not isinstance(value, Pieces) and (not isinstance(value, Constant) or dims_of(value) != ()):
            raise MixedError("words of all records meet numbers with a place of their own")
    words = [require(value, "words", found[0]) for value in found]
    return words[0]


@pieces("StringNGrams")
def runs_of_words(node: Node, inputs: Sequence[Any]) -> list[Value]:
    """Runs of each record's words, and where those of each start."""
    words, starting = inputs
    whole = require(words, "words", require(starting, "starts"))
    cut = dataclasses.replace(whole, cut=node.key)
    return [cut, dataclasses.replace(cut, what="starts")]


@pieces("RaggedTensorToTensor")
def to_rows(node: Node, inputs: Sequence[Any]) -> Value:
    """The words of each record in a row of its own, cut off or filled up to one length, which is a constant."""
    shape, words, default, *partition = inputs
    kinds = [one.decode() for one in node.attribute("row_partition_types")]
    if kinds not in (["ROW_SPLITS"], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]):
        raise UnknownError(f"words laid out by {kinds}")
    whole = require(words, "words", require(partition[-1], "starts" if kinds == ["ROW_SPLITS"] else "records"))
    if len(kinds) == 2 and getattr(partition[0], "entries", None) != (whole.texts,):
        raise MixedError("words put into other rows than there are records")
    if not isinstance(default, Constant) or dims_of(default) != ():
        raise MixedError("a filling that depends on records")
    length = shape.entries if isinstance(shape, Constant) else None
    if length is None or len(length) != 2 or length[0] != -1 or not isinstance(length[1], int) or length[1] < 0:
        raise MixedError("rows as long as the longest record of the batch: give the number of words of a row")
    return of_each(whole, length[1])


@pieces("RaggedBincount")
def words_counted(node: Node, inputs: Sequence[Any]) -> Value:
    """How often each number below a size is among each record's words."""
    starting, words, size, weights = inputs
    whole = require(words, "words", require(starting, "starts"))
    return of_each(whole, require_plain_counts(size, weights))


def of_each(whole: Pieces, length: Any) -> Rows:
    """So many numbers of each text."""
    return Rows((whole.texts, length), batch=whole.batch, outer=whole.outer, inner=whole.inner)
