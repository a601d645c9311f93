"""A whitelist says which operations are functions of their inputs: that TensorFlow marks none as stateful does not."""

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from tfdp_layers.proof.arithmetic import OPERATIONS
from tfdp_layers.proof.elementwise import MAY_NOT_FIT
from tfdp_layers.proof.functional import CALLS, FUNCTIONAL, is_functional
from tfdp_layers.proof.outside import PYTHON, outside
from tfdp_layers.proof.rules import RULES

OF_LIBRARIES = {"CaseFoldUTF8", "NormalizeUTF8"}  # tensorflow-text


def registered():
    found = op_def_pb2.OpList()
    found.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {one.name: one for one in found.op}


def test_what_tensorflow_itself_says_is_none_is_not_in_the_list():
    operations = registered()
    assert {name for name in FUNCTIONAL if name not in operations} <= OF_LIBRARIES | {
        "FFTND",
        "IFFTND",
        "RFFTND",
        "IRFFTND",
    }
    for name in FUNCTIONAL & operations.keys():
        one = operations[name]
        assert not one.is_stateful, name
        assert not one.is_distributed_communication, name
        assert not any(argument.is_ref for argument in (*one.input_arg, *one.output_arg)), name
        assert not any(attribute.type in ("func", "list(func)") for attribute in one.attr), name


def test_what_has_a_rule_and_keeps_nothing_is_in_the_list():
    operations = registered()
    with_rules = {name for name in (*RULES, *OPERATIONS) if name in operations and not operations[name].is_stateful}
    assert with_rules - {"RefSwitch", "RefMerge"} <= FUNCTIONAL | CALLS | PYTHON


@pytest.mark.parametrize(
    "name",
    [
        *("InplaceAdd", "InplaceSub", "InplaceUpdate", "ParallelConcat", "Batch", "Unbatch", "BatchFunction"),
        *("MapDefun", "For", "SymbolicGradient", "Copy", "DebugIdentity", "ReadFile", "ImmutableConst"),
        *("CustomAggregator", "MlirPassthroughOp", "XlaCustomCall", "TensorArrayReadV2", "GetDeadline", "Assign"),
    ],
)
def test_what_changes_or_brings_in_something_is_not_in_the_list(name):
    one = registered()[name]
    assert not one.is_stateful  # so TensorFlow's own mark let it through
    assert name not in FUNCTIONAL | CALLS


def operations_of(function):
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec((None, 3))).graph
    return graph.get_operations()


def test_an_operation_is_asked_by_its_type_and_its_own_mark():
    (plain,) = [one for one in operations_of(lambda x: x + 1.0) if one.type == "AddV2"]
    assert is_functional(plain)
    (random,) = [one for one in operations_of(lambda x: tf.random.normal((3,)) + x) if "Random" in one.type]
    assert not is_functional(random)


def test_calls_are_looked_into():
    def adds_in_place(x):
        return tf.raw_ops.InplaceAdd(x=x, i=[0], v=x[:1])

    inner = tf.function(adds_in_place, autograph=False)
    assert outside(operations_of(adds_in_place)) == outside(operations_of(lambda x: inner(x) + 1.0)) == "InplaceAdd"
    assert outside(operations_of(lambda x: tf.map_fn(adds_in_place, x[:, None]))) == "InplaceAdd"
    assert outside(operations_of(lambda x: tf.map_fn(lambda r: r + 1.0, x))) is None


def test_a_function_that_may_be_exchanged_is_none_that_is_known():
    given = {"api_implements": "scale", "api_preferred_device": "CPU"}
    one = tf.function(lambda x: x * 2.0, experimental_attributes=given, autograph=False)
    assert "api_implements" in outside(operations_of(lambda x: one(x)))


def test_what_may_give_one_number_where_shapes_do_not_fit_is_all_that_has_the_attribute():
    having = {name for name, one in registered().items() if any(a.name == "incompatible_shape_error" for a in one.attr)}
    assert having & RULES.keys() <= MAY_NOT_FIT
