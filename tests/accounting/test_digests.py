"""To look at a variable changes nothing for those who read it."""

import numpy as np
import pytest

from tfdp_layers.accounting.digests import begin_alike, digest, digest_of_noisy, first_of

tf = pytest.importorskip("tensorflow")


def place_of(variable):
    read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return np.asarray(memoryview(read)).__array_interface__["data"][0], read


@pytest.mark.parametrize("look", [first_of, digest])
def test_a_look_leaves_reads_without_copies(look):
    """A gather would have TensorFlow copy the whole variable at each read from then on: 40% of a step of an MLP."""
    variable = tf.Variable(tf.random.normal((500, 20)))
    look(variable)
    (first, kept), (second, _) = place_of(variable), place_of(variable)
    assert first == second
    np.testing.assert_array_equal(kept, variable)


def test_a_gather_would_be_seen():
    variable = tf.Variable(tf.random.normal((500, 20)))
    variable.sparse_read([0])
    (first, _kept), (second, _) = place_of(variable), place_of(variable)
    assert first != second


def test_what_is_at_the_first_place_tells_arrays_apart():
    variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    assert first_of(variable) == first_of(np.asarray([[1.0, 2.0], [5.0, 6.0]], np.float32))
    assert first_of(variable) != first_of(np.asarray([[7.0, 2.0], [3.0, 4.0]], np.float32))


def test_numbers_are_known_in_every_shape():
    kernel = np.random.default_rng(0).normal(size=(48, 16)).astype(np.float32)
    for shape in [(4, 4, 3, 16), (1, 48, 16), (768,), (16, 48)]:
        copy = tf.Variable(kernel.reshape(shape))
        assert digest_of_noisy(copy) == digest_of_noisy(kernel)
        assert begin_alike(first_of(copy), first_of(kernel))
        assert begin_alike(first_of(kernel), first_of(copy))
    assert digest(kernel.T) != digest(kernel) != digest(kernel.astype(np.float64))
    assert not begin_alike(first_of(kernel + 1.0), first_of(kernel.reshape(4, 4, 3, 16)))


@pytest.mark.parametrize("value", [np.zeros((4, 3, 3)), np.ones((2, 8)), np.eye(4), np.eye(4).reshape(1, 1, 4, 4)])
def test_what_weights_begin_with_is_nobodys_in_any_shape(value):
    assert digest_of_noisy(value.astype(np.float32)) is None
