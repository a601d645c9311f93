"""Results of operations that TensorFlow's kernels leave as they find the memory, for some inputs.

Only kernels that write every entry of their results, whatever they are given, compute functions of their inputs. These
do not, on a CPU: what was not written holds numbers of earlier tensors, those of other records among them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["STRIPPER", "UNWRITTEN", "checks_stay", "reads_unwritten", "unwritten"]

STRIPPER = "debug_stripper"
"""An option of TensorFlow (tf.config.optimizer): graphs are run without their checks."""

UNWRITTEN = ": something reads what TensorFlow's kernel may leave as it finds the memory"
"""Says so behind the type of an operation."""

_OF_FACTORS = (
    "of a Cholesky factor the upper triangle, which tf.linalg.band_part(factor, -1, 0) makes zero; keras.ops.cholesky"
    " checks its numbers"
)
_OF_VECTORS = "vectors that were not asked for. Ask for them (compute_uv=True, compute_v=True), or leave them unread"
_OF_SIZES = (
    "its result, where an axis is empty. Give the axes sizes that TensorFlow sees (keras.Input, tf.ensure_shape), none"
    " of them 0"
)
_OF_STEPS = "gates of steps past seq_len_max. Use `cs` and `h`, which are zeros there, or a layer of Keras"

_FACTORS = frozenset({"Cholesky", "BatchCholesky"})
"""Of a matrix that is not positive definite the lower triangle of the result is NaN, and the upper one unwritten."""

_SWITCHES = {
    **dict.fromkeys(("Svd", "BatchSvd"), "compute_uv"),
    **dict.fromkeys(("Eig", "SelfAdjointEigV2", "BatchSelfAdjointEigV2"), "compute_v"),
}
"""All results but the first are unwritten where this attribute is False."""

_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
"""Each entry sums along a whole row or column of the factor, where one entry at least, that of the diagonal, is NaN: so
all of them are, whatever the others hold."""

_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_DIAGONALS = frozenset({"MatrixDiagPart", "BatchMatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3"})
_BANDS = frozenset({"MatrixBandPart", "BatchMatrixBandPart"})
_SOLVERS = frozenset({"MatrixTriangularSolve", "BatchMatrixTriangularSolve"})


_KEPT_APART = frozenset({"Add", "AddV2", "Cast", "Div", "Identity", "Mul", "Neg", "RealDiv", "StopGradient", "Sub"})
"""Each entry of the result goes by the one in its place, and is NaN where that is."""

_STEPS = dict.fromkeys(("BlockLSTM", "BlockLSTMV2"), ((0, 2, 3, 4, 5), ("BlockLSTMGrad", "BlockLSTMGradV2")))
"""Results that are unwritten past the last step that is asked for, and who reads them up to there alone."""

_SIZES = {
    **dict.fromkeys(("MatrixSolveLs", "BatchMatrixSolveLs"), 2),
    **dict.fromkeys(("RFFT3D", "IRFFT3D", "RFFTND", "IRFFTND"), 3),
}
"""How many of the last axes must not be empty. Rules for transforms of fewer axes look at sizes themselves."""


def reads_unwritten(operation: Any) -> bool:
    """Whether something may read what an operation (`tf.Operation`) leaves unwritten.

    Of a Cholesky factor these read the lower triangle, or fail: `band_part(l, -1, 0)`, the diagonal, a triangular
    solver, matrix products, and `check_numerics` where checks stay in graphs; also behind arithmetic that is done entry
    by entry. A function that is called, or gives the factor back, may read all of it.
    """
    return unwritten(operation) != ""


def unwritten(operation: Any) -> str:
    """What of an operation's results something may read that its kernel leaves unwritten, and the fix; "" for nothing.

    It is made to stand behind the type of the operation.
    """
    kind = operation.type
    if kind in _FACTORS:
        found = "" if below_alone(operation.outputs[0]) else _OF_FACTORS
    elif kind in _SWITCHES:
        read = not operation.get_attr(_SWITCHES[kind]) and any(map(is_read, operation.outputs[1:]))
        found = _OF_VECTORS if read else ""
    elif kind in _STEPS:
        numbers, readers = _STEPS[kind]
        found = _OF_STEPS if any(is_read(operation.outputs[number], readers) for number in numbers) else ""
    elif kind in _SIZES:
        shape = operation.inputs[0].shape
        sizes = shape[-_SIZES[kind] :].as_list() if shape.rank is not None else [None]
        found = "" if all(sizes) else _OF_SIZES
    else:
        return ""
    return f"{UNWRITTEN}: {found}" if found else ""


def is_read(tensor: Any, left_out: Any = ()) -> bool:
    """Whether an operation, but for those of these types, takes a tensor, or a function gives it back."""
    return given_back(tensor) or any(one.type not in left_out for one in tensor.consumers())


def checks_stay() -> bool:
    """Whether TensorFlow runs the checks (CheckNumerics, Assert) that graphs have."""
    return not tf.config.optimizer.get_experimental_options().get(STRIPPER)


def below_alone(factor: Any) -> bool:
    """Whether all that read a Cholesky factor depend on its lower triangle alone."""
    waiting, seen = [factor], {factor.name}
    while waiting:
        tensor = waiting.pop()
        if given_back(tensor):
            return False
        for reader in tensor.consumers():
            if not keeps_apart(reader):
                if not reads_below(reader, tensor):
                    return False
            elif reader.outputs[0].name not in seen:
                seen.add(reader.outputs[0].name)
                waiting.append(reader.outputs[0])
    return True


def keeps_apart(reader: Any) -> bool:
    """Whether what an operation gives is to its readers as the factor that it takes."""
    if reader.type == "CheckNumerics":
        return not checks_stay()
    real = bool(reader.outputs) and (reader.outputs[0].dtype.is_floating or reader.outputs[0].dtype.is_complex)
    return reader.type in _KEPT_APART and real


def reads_below(reader: Any, factor: Any) -> bool:
    """Whether an operation that reads a factor depends on its lower triangle alone, or fails."""
    kind = reader.type
    if kind in _PRODUCTS or kind in _SHAPES or kind == "CheckNumerics":
        return True
    if reader.inputs[0] is not factor or any(one is factor for one in reader.inputs[1:]):
        return False
    if kind in _SOLVERS:
        return bool(reader.get_attr("lower"))
    if kind in _BANDS:
        return constant_number(reader.inputs[2]) == 0
    # The later types have another diagonal than the main one among their inputs.
    return kind in _DIAGONALS and (len(reader.inputs) == 1 or constant_number(reader.inputs[1]) == 0)


def given_back(tensor: Any) -> bool:
    """Whether a function gives this tensor back."""
    return any(tensor is one for one in getattr(tensor.graph, "outputs", ()))


def constant_number(tensor: Any) -> int | None:
    """The whole number that a constant holds; None of anything else."""
    if tensor.op.type != "Const":
        return None
    proto = tensor.op.get_attr("value")
    held = [*proto.int_val, *proto.int64_val]
    if proto.tensor_content or len(held) != 1 or proto.tensor_shape.dim:
        return None
    return int(held[0])
