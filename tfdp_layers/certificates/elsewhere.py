"""Numbers that the sums of a step take from elsewhere than records and weights, or leave there."""

from typing import Any

from tfdp_layers.proof.outside import PYTHON, nodes_of, outside, refuse_by_name

_GENERATORS = frozenset(
    {
        "RngReadAndSkip",
        "RngSkip",
        "StatefulRandomBinomial",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
    }
)
"""What draws from a `tf.random.Generator`."""


def refuse_elsewhere(model: Any, function: Any) -> None:
    """Raises ValueError where the traced sums run Python, keep numbers outside of variables, or draw random numbers
    whose seeds are known: see `guarantee.md`.

    Args:
        function: of `traced_sums`.
    """
    nodes = nodes_of(function.graph)
    found = next((node for node in nodes if node.op in PYTHON), None)
    if found is not None:
        raise ValueError(
            f"{named(found, model)} runs Python code on the records in every step (tf.py_function or"
            " tf.numpy_function), which may mix or keep them: nothing can be proved or measured of it. Write it with"
            " TensorFlow or keras.ops, or apply it to the data before fit."
        )
    found = next((node for node in nodes if "seed2" in node.attr or node.op in _GENERATORS), None)
    if found is not None:
        raise ValueError(
            f"{named(found, model)} draws random numbers of TensorFlow's own: tf.random.set_seed and"
            " keras.utils.set_random_seed set their seeds, and XLA starts them alike in every process. To whoever knows"
            " them, what a record adds depends on its place in the batch. Draw by keras.random, from a generator of the"
            " layer, which gets seeds that nobody knows: self.generator = keras.random.SeedGenerator() in __init__, and"
            " keras.random.dropout(x, rate, seed=self.generator) in call."
        )
    found = next((node for node in nodes if node.op.startswith("Write") and node.op.endswith("Summary")), None)
    kind = outside(function.graph.get_operations()) if found is None else found.op
    refuse_by_name(kind)
    if kind is not None:
        name = next((f", {node.name!r}" for node in nodes if node.op == kind), "")
        raise ValueError(
            f"A layer or loss of model {model.name!r} takes or keeps numbers outside of variables in every step, or"
            f" may (operation {kind}{name}): summaries, queues, files, clocks and changes in place show numbers of"
            " records without noise, or bring those of others in. Leave it out, or take an operation that gives a new"
            " tensor (tf.tensor_scatter_nd_add for InplaceAdd; there is none for Keras' CTC loss, which cannot be"
            " trained); metrics given to compile go to Keras' logs."
        )


def named(node: Any, model: Any) -> str:
    return f"Operation {node.name!r} of type {node.op} in model {model.name!r}"
