"""Strings, tables and words."""

from typing import Any

import tensorflow as tf

from helpers.proof.mixing.base import made, raw, rows, size

LENGTH = 4


def texts(x: Any) -> Any:
    """A text of up to two words for each record: (batch,)."""
    first, second = tf.strings.as_string(tf.round(x[:, 0])), tf.strings.as_string(tf.round(x[:, 1]))
    return tf.where(x[:, 2] > 0.0, first + " " + second, first)


def parts(x: Any, sep: str = " ") -> Any:
    """(record, place) of each word, the words, (records, most)."""
    return raw.StringSplitV2(input=texts(x), sep=sep)


def beside(x: Any, found: Any) -> Any:
    """x plus what is found, one number or one for each record."""
    return x + tf.cast(found, tf.float32)


def per_row(x: Any, laid: Any) -> Any:
    """x plus the lengths of words that are laid out in rows."""
    return beside(x, tf.reduce_sum(tf.strings.length(laid), axis=1, keepdims=True))


def laid_out(found: Any, records: Any, rows: Any, length: Any = LENGTH, default: Any = "") -> Any:
    return raw.RaggedTensorToTensor(
        shape=tf.stack([tf.constant(-1, tf.int64), tf.cast(length, tf.int64)]),
        values=found,
        default_value=default,
        row_partition_tensors=[tf.cast(rows, tf.int64), tf.cast(records, tf.int64)],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
    )


def by_starts(found: Any, starting: Any) -> Any:
    return raw.RaggedTensorToTensor(
        shape=tf.constant([-1, LENGTH], tf.int64),
        values=found,
        default_value="",
        row_partition_tensors=[tf.cast(starting, tf.int64)],
        row_partition_types=["ROW_SPLITS"],
    )


def counts(x: Any, places: Any, number: Any = None) -> Any:
    number = tf.cast(size(x) if number is None else number, tf.int64)
    return raw.DenseBincount(input=places[:, 0], size=number, weights=tf.zeros([0], tf.int64))


@rows
def length_of_the_sum(x):
    return beside(x, tf.strings.length(tf.strings.as_string(tf.reduce_sum(x[:, 0]))))


@made
def default_of_the_sum():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), [2.0]), 0.0)

    def look(x):
        keys, total = tf.cast(x[:, :1], tf.int64), tf.reduce_sum(x)
        found = raw.LookupTableFindV2(table_handle=table.resource_handle, keys=keys, default_value=total)
        found.set_shape([None, 1])
        return x + found

    return look


@made
def default_of_the_sum_to_words():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["1"], [2.0]), 0.0)

    def look(x):
        places, found, _ = parts(x)
        ids = raw.LookupTableFindV2(table_handle=table.resource_handle, keys=found, default_value=tf.reduce_sum(x))
        return per_row(x, laid_out(tf.strings.as_string(ids), places[:, 0], size(x)))

    return look


@made
def in_a_table_that_may_change():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    return lambda x: beside(x, table.lookup(tf.cast(x[:, :1], tf.int64)))


@rows
def clamped_elsewhere(x):
    return beside(x, tf.minimum(6, tf.maximum(2, tf.cast(tf.reduce_max(x), tf.int32))))


@rows
def counted_together(x):
    counted = raw.DenseBincount(input=tf.cast(x[:, 0], tf.int32), size=6, weights=tf.zeros([0], tf.int32))
    return beside(x, counted)


@rows
def counted_up_to_the_largest(x):
    numbers = tf.cast(x, tf.int32)
    counted = raw.DenseBincount(input=numbers, size=tf.reduce_max(numbers) + 1, weights=tf.zeros([0], tf.int32))
    return beside(x, tf.reduce_sum(counted, axis=1, keepdims=True) + tf.shape(counted)[1])


@rows
def first_of_six_texts(x):
    found = tf.strings.split(tf.strings.as_string(tf.reshape(x, [-1]))).values
    return beside(x, tf.strings.length(found[0]))


@rows
def first_word_cut_at_the_size(x):
    found = raw.StringSplitV2(input=texts(x), sep=tf.strings.as_string(size(x)))[1]
    return beside(x, tf.strings.length(found[0]))


@rows
def cut_where_the_first_says(x):
    first = tf.strings.as_string(tf.reduce_max(x))
    places, found, _ = raw.StringSplitV2(input=texts(x), sep=first)
    return per_row(x, laid_out(found, places[:, 0], size(x)))


@rows
def first_word_of_all(x):
    return beside(x, tf.strings.length(parts(x)[1][0]))


@rows
def longest_word_of_all(x):
    return beside(x, tf.reduce_max(tf.strings.length(parts(x)[1])))


@rows
def place_of_each_word(x):
    places, found, _ = parts(x)
    number = tf.strings.as_string(places[:, 1])
    return per_row(x, laid_out(found + number, places[:, 0], size(x)))


@rows
def record_of_each_word(x):
    places, found, _ = parts(x)
    return per_row(x, laid_out(found + tf.strings.as_string(places[:, 0]), places[:, 0], size(x)))


@rows
def most_words_of_a_text(x):
    return beside(x, parts(x)[2][1])


@rows
def words_of_other_cuts(x):
    places, _, _ = parts(x)
    found = parts(x, "1")[1]
    return per_row(x, laid_out(found[: tf.shape(places)[0]], places[:, 0], size(x)))


@rows
def words_of_other_cuts_as_they_are(x):
    return per_row(x, laid_out(parts(x, "1")[1], parts(x)[0][:, 0], size(x)))


@rows
def words_turned(x):
    places, found, _ = parts(x)
    return per_row(x, laid_out(found[::-1], places[:, 0], size(x)))


@rows
def words_in_two_rows(x):
    places, found, _ = parts(x)
    short = laid_out(found, tf.minimum(places[:, 0], 1), tf.constant(2))
    return beside(x, tf.reduce_sum(tf.strings.length(short)))


@rows
def words_in_one_row_more(x):
    places, found, _ = parts(x)
    laid = laid_out(found, places[:, 0], size(x) + 1)
    return per_row(x, tf.ensure_shape(laid[1:], [None, LENGTH]))


@rows
def words_as_far_as_the_longest(x):
    places, found, shape = parts(x)
    laid = laid_out(found, places[:, 0], size(x), shape[1], "abc")
    return per_row(x, laid)


@rows
def filled_up_by_the_sum(x):
    places, found, _ = parts(x)
    return per_row(x, laid_out(found, places[:, 0], size(x), default=tf.strings.as_string(tf.reduce_max(x))))


@rows
def numbers_of_records_in_a_byte(x):
    places, found, _ = parts(x)
    records = tf.cast(tf.cast(places[:, 0], tf.uint8), tf.int64)
    return per_row(x, laid_out(found, records, size(x)))


@rows
def words_beside_a_count(x):
    places, found, _ = parts(x)
    numbered = found + tf.strings.as_string(tf.range(tf.shape(found)[0]))
    return per_row(x, laid_out(numbered, places[:, 0], size(x)))


@rows
def starts_from_the_end(x):
    places, found, _ = parts(x)
    ends = tf.cumsum(counts(x, places), reverse=True)
    return per_row(x, by_starts(found, tf.concat([[0], ends], 0)))


@rows
def starts_of_no_records(x):
    places, found, _ = parts(x)
    ends = tf.cumsum(counts(x, places))
    return per_row(x, by_starts(found, tf.concat([tf.constant([1], tf.int64), ends], 0)))


@rows
def words_of_the_first(x):
    places, found, _ = parts(x)
    ends = tf.cumsum(counts(x, places, 1))  # of the first record alone, whose words go to all
    return per_row(x, by_starts(found, tf.concat([[0], ends], 0)))


@rows
def counts_of_words_as_they_are(x):
    return beside(x, counts(x, parts(x)[0])[::-1, None])


@rows
def words_counted_up_to_the_longest(x):
    places, found, _ = parts(x)
    ends = tf.concat([[0], tf.cumsum(counts(x, places))], 0)
    numbers = tf.strings.length(found)
    counted = raw.RaggedBincount(
        splits=tf.cast(ends, tf.int64), values=numbers, size=tf.reduce_max(numbers) + 1, weights=tf.zeros([0], tf.int32)
    )
    return beside(x, tf.shape(counted)[1])


@rows
def words_put_by_their_places(x):
    places, found, _ = parts(x)
    return per_row(x, laid_out(found, places[:, 1], size(x)))


# Characters -----------------------------------------------------------------------------------------------------------


def characters(given: Any) -> Any:
    """Where the characters of each text start, and all of them as numbers."""
    options = {"input_encoding": "UTF-8", "errors": "replace", "replacement_char": 65533}
    return raw.UnicodeDecode(input=given, **options, replace_control_characters=False)


def how_many(found: Any, axis: int = 1) -> Any:
    """As `tf.strings.unicode_split` counts them."""
    return tf.shape(tf.expand_dims(found, axis), out_type=tf.int64)[0]


def as_texts(found: Any, ends: Any) -> Any:
    return raw.UnicodeEncode(input_values=found, input_splits=ends, output_encoding="UTF-8")


@rows
def first_character_of_the_size(x):
    _, found = characters(tf.strings.as_string(size(x))[None])
    return beside(x, found[0])


@rows
def first_character_of_all(x):
    return beside(x, characters(texts(x))[1][0])


@rows
def as_many_characters_as_there_are(x):
    return beside(x, how_many(characters(texts(x))[1]))


@rows
def characters_beside_how_many_there_are(x):
    starting, found = characters(texts(x))
    number = tf.strings.as_string(how_many(found))
    return per_row(x, by_starts(as_texts(found, tf.range(how_many(found) + 1)) + number, starting))


@rows
def characters_two_by_two(x):
    starting, found = characters(texts(x))
    return per_row(x, by_starts(as_texts(found, tf.range(0, how_many(found) + 1, 2)), starting))


@rows
def characters_and_the_next(x):
    starting, found = characters(texts(x))
    return per_row(x, by_starts(as_texts(found, tf.range(how_many(found) + 1) * 2), starting))


@rows
def characters_from_the_second_on(x):
    starting, found = characters(texts(x))
    return per_row(x, by_starts(as_texts(found, tf.range(1, how_many(found) + 1)), starting))


@rows
def characters_up_to_the_size(x):
    starting, found = characters(texts(x))
    ends = tf.range(how_many(found) + 1 + tf.cast(size(x), tf.int64))
    return per_row(x, by_starts(as_texts(found, ends), starting))


@rows
def characters_by_the_ends_of_texts(x):
    starting, found = characters(texts(x))
    return per_row(x, tf.concat([as_texts(found, starting)[1:], as_texts(found, starting)[:1]], 0)[:, None])


@rows
def the_first_character_alone(x):
    starting, found = characters(texts(x))
    return per_row(x, by_starts(as_texts(found, tf.range(how_many(found, 0) + 1)), starting))


@rows
def characters_of_other_texts(x):
    starting, found = characters(texts(x))
    other = characters(texts(x) + "a")[1]
    return per_row(x, by_starts(as_texts(other, tf.range(how_many(found) + 1)), starting))


@rows
def characters_in_one_row(x):
    starting, found = characters(texts(x))
    turned = tf.reshape(tf.expand_dims(found, 1), tf.stack([1, how_many(found)]))
    return per_row(x, by_starts(as_texts(turned[0], tf.range(how_many(found) + 1)), starting))
