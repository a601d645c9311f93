"""Variables of which it may be taken that they hold what they held before a write."""

import tensorflow as tf

from helpers.proof.mixing.base import made, raw


def along(x, axis):
    """With the sum along an axis: of each record's own numbers along 1, over all records along 0."""
    return x + tf.reduce_sum(x, axis=axis, keepdims=True)


def written(write):
    """The axis is 1 less what a variable changed by."""

    def make():
        place, other = tf.Variable([0]), tf.Variable([0])

        def function(x):
            before = place.read_value()
            write(place, other)
            return along(x, 1 - (place.read_value() - before)[0])

        return function

    make.__name__ = write.__name__
    return made(make)


@written
def axis_by_scatter_add(place, other):
    place.scatter_add(tf.IndexedSlices([1], [0]))


@written
def axis_by_scatter_nd_add(place, other):
    place.scatter_nd_add([[0]], [1])


@written
def axis_by_a_slice(place, other):
    place[0:1].assign(other + 1)


@written
def axis_by_an_optimizer(place, other):
    raw.ResourceApplyGradientDescent(var=place.handle, alpha=1, delta=[-1])


@written
def axis_by_a_known_branch(place, other):
    tf.cond(tf.constant(True), lambda: place.assign_add([1]), lambda: place.read_value())


@written
def axis_by_a_branch_in_a_branch(place, other):
    def inner():
        return tf.cond(other[0] < 6, lambda: place.assign_add([1]), lambda: place + 0)

    tf.cond(other[0] < 5, inner, lambda: place + 0)


@written
def axis_by_a_condition(place, other):
    def once(i):
        with tf.control_dependencies([place.assign_add([1])]):
            return i < 0

    tf.while_loop(once, lambda i: i + 1, [tf.constant(0)])


@written
def axis_by_less_in_a_branch(place, other):
    tf.cond(other[0] < 5, lambda: place.assign_sub([-1]), lambda: tf.zeros(1, tf.int32))


@written
def axis_by_a_branch_that_did_not_read(place, other):
    tf.cond(other[0] < 5, lambda: place.assign(other + 1), lambda: tf.zeros(1, tf.int32))


@written
def axis_by_a_case(place, other):
    tf.switch_case(other[0], [lambda: place.assign(other + 1), lambda: place + 0])


@written
def axis_by_a_loop_that_does_not_settle(place, other):
    unsettled(1, lambda: place.assign(other + 1))


def unsettled(rounds, write):
    """Numbers change places round by round, for more rounds than the prover goes."""

    def body(i, *rest):
        write()
        return i + 1, tf.random.uniform(()), *rest[:-1]

    start = [tf.zeros(()) for _ in range(60)]
    tf.while_loop(lambda i, *_: i < rounds, body, [tf.constant(0), *start])


@made
def state_written_by_a_loop_that_does_not_settle():
    kept = tf.Variable(0)

    def function(x):
        unsettled(tf.cast(tf.reduce_sum(x), tf.int32), lambda: kept.assign_add(1))
        return x

    return function


@written
def axis_by_a_copied_handle(place, other):
    copied = tf.function(lambda: tf.identity_n([place.handle])[0], autograph=False)()
    raw.ResourceScatterAdd(resource=copied, indices=[0], updates=[1])


@written
def axis_by_a_hidden_handle(place, other):
    hidden = raw.OptionalFromValue(components=[place.handle])
    found = raw.OptionalGetValue(optional=hidden, output_types=[tf.resource], output_shapes=[()])[0]
    raw.ResourceScatterAdd(resource=found, indices=[0], updates=[1])


def sown(write):
    """Noise of a seed that is written before each draw."""

    def make():
        seed = tf.Variable([1, 2])

        def function(x):
            write(seed)
            noise = tf.random.stateless_uniform(tf.shape(x), seed.read_value())
            seed.assign_add([0, 1])
            return x * noise

        return function

    make.__name__ = write.__name__
    return made(make)


@sown
def seed_set_back_by_a_slice(seed):
    seed[0:2].assign([7, 7])


@sown
def seed_set_back_in_a_known_branch(seed):
    tf.cond(tf.constant(True), lambda: seed[0:2].assign([7, 7]), lambda: seed.read_value())


@sown
def seed_set_back_by_an_optimizer(seed):
    raw.ResourceApplyGradientDescent(var=seed.handle, alpha=1, delta=[0, 1])
