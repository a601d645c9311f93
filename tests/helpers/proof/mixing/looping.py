"""Loops over pieces that are not all of the batch, or more."""

import tensorflow as tf

from helpers.proof.mixing.base import loop, made_sums, pieces, raw, rows, size, sums, total

# Loops over pieces that are not all of the batch, or more


@sums
def pieces_that_overlap(x):
    return pieces(x, total, step=2)


@sums
def pieces_with_gaps(x):
    return pieces(x, total, step=4)


@sums
def pieces_from_the_second(x):
    return pieces(x, total, first=1)


@sums
def pieces_without_the_last(x):
    return pieces(x, total, limit=size(x) - 1)


@sums
def pieces_of_the_first(x):
    return pieces(x, total, start=lambda i: 0)


@sums
def pieces_weighted_by_place(x):
    return pieces(x, lambda rows, i: total(rows) * tf.cast(i + 1, tf.float32))


@sums
def pieces_over_their_length(x):
    return pieces(x, lambda rows, i: tf.reduce_mean(rows, axis=0))


@sums
def pieces_decayed(x):
    return pieces(x, total, add=lambda before, i, found: 0.5 * before + found)


@sums
def last_piece(x):
    return pieces(x, total, add=lambda before, i, found: found)


@sums
def every_second_piece(x):
    return pieces(x, total, add=lambda before, i, found: tf.where(i % 2 == 0, before + found, before))


@sums
def pieces_and_all(x):
    return pieces(x, lambda rows, i: total(x))


@sums
def largest_of_pieces(x):
    return pieces(x, total, add=lambda before, i, found: tf.maximum(before, found))


@sums
def pieces_less_their_first(x):
    return pieces(x, lambda rows, i: total(rows - rows[:1]))


@sums
def pieces_with_noise_of_their_own(x):
    return pieces(x, lambda rows, i: total(rows * tf.random.normal((6,))))


@sums
def pieces_with_one_noise_for_their_rows(x):
    return pieces(x, lambda rows, i: total(rows + tf.random.stateless_normal(tf.shape(rows), [1, 2])))


@made_sums
def pieces_with_one_seed():
    seed = tf.Variable([1, 2])

    def run(x):
        own = seed.read_value()
        seed.assign_add([0, 1])
        return pieces(x, lambda rows, i: total(rows + tf.random.stateless_normal(tf.shape(rows), own)))

    return run


@made_sums
def pieces_counted_in_state():
    count = tf.Variable(0.0)

    def run(x):
        found = pieces(x, lambda rows, i: total(rows) * count.assign_add(1.0))
        count.assign(0.0)
        return found

    return run


@sums
def pieces_by_a_step_of_records(x):
    return pieces(x, total, step=tf.maximum(1, tf.cast(x[0, 0], tf.int32)))


# Loops


@sums
def pieces_from_ones(x):
    def body(i, found):
        return i + 3, found + total(x[i : i + tf.minimum(3, size(x) - i)])

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.ones(6)])[1]


@sums
def pieces_swapped(x):
    def body(i, a, b):
        return i + 3, b, a + total(x[i : i + tf.minimum(3, size(x) - i)])

    return tf.while_loop(lambda i, *_: i < size(x), body, [tf.constant(0), tf.zeros(6), tf.zeros(6)])[1]


@sums
def pieces_joined_with_all(x):
    return pieces(x, lambda rows, i: tf.concat([total(rows)[:3], total(x)[:3]], 0))


@sums
def pieces_less_what_was_before(x):
    return pieces(x, total, add=lambda before, i, found: found - before)


@sums
def pieces_doubled(x):
    return pieces(x, total, add=lambda before, i, found: tf.add_n([before, before, found]))


@sums
def rows_of_next_place(x):
    turn = lambda i: (i + 1) % tf.maximum(size(x) - 1, 1)  # noqa: E731
    return loop(lambda i, y: [y + tf.tanh(x[turn(i)])], tf.zeros(6), x=x)[0]


@rows
def rounds_up_to_size(x):
    return tf.while_loop(lambda i, y: i <= size(x), lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def rounds_by_records(x):
    most = tf.cast(tf.reduce_sum(tf.abs(x)), tf.int32)
    return tf.while_loop(lambda i, y: i < most, lambda i, y: (i + 1, y * 0.9), [0, x])[1]


@rows
def case_on_size(x):
    return tf.switch_case(tf.cast(size(x) > 3, tf.int32), [lambda: x, lambda: 2.0 * x])


@rows
def put_back_one_off(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places = index - i - 1
        mine = (places >= 0) & (places < length)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(places, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def put_back_elsewhere(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places, others = index - i, index - i - 1
        mine = (places >= 0) & (places < length)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(others, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def put_back_in_part(x):
    index = tf.range(size(x))

    def body(i, found):
        length = tf.minimum(3, size(x) - i)
        own = tf.tanh(tf.slice(x, [i, 0], [length, 6]))[:, 0]
        places = index - i
        mine = (places >= 0) & (places < length - 1)
        return i + 3, tf.where(mine, tf.gather(own, tf.clip_by_value(places, 0, length - 1)), found)

    return tf.while_loop(lambda i, _: i < size(x), body, [tf.constant(0), tf.zeros_like(x[:, 0])])[1]


@rows
def branch_of_another_record(x):
    last = size(x) - 1

    def one(i):
        return tf.cond(x[tf.minimum(i + 1, last), 0] > 0.0, lambda: x[i], lambda: -x[i])

    return tf.map_fn(one, tf.range(size(x)), fn_output_signature=tf.float32)


@sums
def branch_of_the_next_record(x):
    last = size(x) - 1

    def body(i, y):
        own, other = tf.tanh(x[i]), x[tf.minimum(i + 1, last)]
        return [tf.cond(other[0] > 0.0, lambda: y + own, lambda: y)]

    return loop(body, tf.zeros(6), x=x)[0]


@made_sums
def pieces_weighted_by_state():
    weight = tf.Variable(1.0)

    def run(x):
        def part(rows, i):
            found = total(rows) * weight
            raw.ResourceApplyGradientDescent(var=weight.handle, alpha=1.0, delta=1.0)
            return found

        return pieces(x, part)

    return run


@made_sums
def pieces_weighted_by_count():
    weight = tf.Variable(1.0)

    def run(x):
        def part(rows, i):
            found = total(rows) * weight.read_value()
            weight.assign_add(1.0)
            return found

        found = pieces(x, part)
        weight.assign(1.0)
        return found

    return run
