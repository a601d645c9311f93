"""Operations on inputs that kernels may give up on, and whether what was in the memory before changes their results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

raw = tf.raw_ops
FILLED = (0x11, 0x77, 0xC3)
"""What each byte of the memory is before a call, one after the other."""
_HELD = 16
"""Tensors that fill it; freed together, some of them are given to the next call."""


def bits(tensor: Any) -> Any:
    array = np.asarray(tensor)
    return array.tolist() if array.dtype == object else array.tobytes()


def changed_by_memory(call: Callable[[], Any]) -> list[int]:
    """Which results of a call, by number, are others when other numbers were in the memory that they are put in.

    A lower bound: TensorFlow may take other memory. Raises: what the call raises.
    """
    seen: list[list[Any]] = []
    for byte in FILLED:
        outputs = tensors(call())
        sizes = {max(1, one.shape.num_elements() * one.dtype.size) for one in outputs if one.dtype != tf.string}
        del outputs
        for size in sizes:
            held = [tf.fill([size], tf.constant(byte, tf.uint8)) for _ in range(_HELD)]
            del held
        seen.append([bits(one) for one in tensors(call())])
    return [i for i, first in enumerate(seen[0]) if any(one[i] != first for one in seen[1:])]


def tensors(results: Any) -> list[Any]:
    """The tensors of results, but for those of no numbers (lists)."""
    flat = tf.nest.flatten(results)
    return [one for one in flat if isinstance(one, tf.Tensor) and one.dtype not in (tf.variant, tf.resource)]


def square(kind: str, size: int = 6, count: int = 8) -> np.ndarray:
    """Matrices of a kind: (count, size, size), float32."""
    half = np.random.default_rng(0).normal(size=(count, size, size))
    found = half @ half.transpose(0, 2, 1) + np.eye(size)
    if kind == "indefinite":
        found[:, 0, 1] = found[:, 1, 0] = -99.0
    elif kind == "singular":
        found[:] = 1.0
    elif kind == "NaN":
        found[:, 1, 1] = np.nan
    elif kind == "infinite":
        found[:, 0, 0] = np.inf
    elif kind == "some of each":
        found[::2, 0, 1] = found[::2, 1, 0] = -99.0
        found[1] = np.nan
    elif kind == "empty":
        found = found[:, :0, :0]
    return found.astype(np.float32)


KINDS = ("definite", "indefinite", "singular", "NaN", "infinite", "some of each", "empty")
_LEAST = {"l2_regularizer": tf.constant(0.1, tf.float64)}
MATRICES: dict[str, Callable[[Any], Any]] = {
    "MatrixBandPart": lambda a: raw.MatrixBandPart(input=raw.Cholesky(input=a), num_lower=-1, num_upper=0),
    "CholeskyGrad": lambda a: raw.CholeskyGrad(l=a, grad=a),
    "Qr": lambda a: [raw.Qr(input=a), raw.Qr(input=a[..., :3], full_matrices=True)],
    "Svd": lambda a: [raw.Svd(input=a), raw.Svd(input=a[..., :3], full_matrices=True)],
    "Svd alone": lambda a: raw.Svd(input=a, compute_uv=False).s,
    "SelfAdjointEigV2": lambda a: [raw.SelfAdjointEigV2(input=a), raw.SelfAdjointEigV2(input=a, compute_v=False).e],
    "Eig": lambda a: [raw.Eig(input=a, Tout=tf.complex64), raw.Eig(input=a, compute_v=False, Tout=tf.complex64).e],
    "Lu": lambda a: raw.Lu(input=a),
    "MatrixSolve": lambda a: raw.MatrixSolve(matrix=a, rhs=a),
    "MatrixSolveLs": lambda a: raw.MatrixSolveLs(matrix=a, rhs=a, **_LEAST),
    "MatrixSolveLs slow": lambda a: raw.MatrixSolveLs(matrix=a, rhs=a, fast=False, **_LEAST),
    "MatrixTriangularSolve": lambda a: raw.MatrixTriangularSolve(matrix=a, rhs=a),
    "MatrixInverse": lambda a: raw.MatrixInverse(input=a),
    "MatrixDeterminant": lambda a: raw.MatrixDeterminant(input=a),
    "LogMatrixDeterminant": lambda a: raw.LogMatrixDeterminant(input=a),
    "TridiagonalSolve": lambda a: raw.TridiagonalSolve(diagonals=a[:, :3], rhs=a),
    "TridiagonalMatMul": lambda a: raw.TridiagonalMatMul(
        superdiag=a[:, :1], maindiag=a[:, :1], subdiag=a[:, :1], rhs=a
    ),
    "BandedTriangularSolve": lambda a: raw.BandedTriangularSolve(matrix=a[:, :3], rhs=a),
    "FFT": lambda a: raw.FFT(input=tf.cast(a, tf.complex64)),
    "RFFT2D": lambda a: raw.RFFT2D(input=a[..., :4, :4], fft_length=[min(4, n) for n in a.shape[1:]]),
    "IRFFT": lambda a: raw.IRFFT(input=tf.cast(a, tf.complex64), fft_length=[min(10, 2 * a.shape[-1])]),
    "TopKV2": lambda a: raw.TopKV2(input=a, k=2),
    "MatrixDiagPartV3": lambda a: raw.MatrixDiagPartV3(input=a, k=[-2, 3], padding_value=0.5),
    "MatrixDiagV3": lambda a: raw.MatrixDiagV3(diagonal=a, k=[-3, 2], num_rows=-1, num_cols=-1, padding_value=0.5),
    "MatrixSetDiagV3": lambda a: raw.MatrixSetDiagV3(input=a, diagonal=a[..., 0], k=0),
    "Where": lambda a: raw.Where(condition=a > 1.0),
    "Cumsum": lambda a: raw.Cumsum(x=a, axis=1, exclusive=True),
    "Unique": lambda a: raw.Unique(x=tf.reshape(a, [-1])),
    "Bincount": lambda a: raw.Bincount(arr=[1, 1, 7], size=5, weights=a[0, 0, :3]),
    "SparseTensorDenseMatMul": lambda a: raw.SparseTensorDenseMatMul(
        a_indices=[[1, 2]], a_values=a[0, 0, :1], a_shape=[5, 6], b=a[0]
    ),
    "ScatterNd": lambda a: raw.ScatterNd(indices=[[1], [1], [5]], updates=a[:3], shape=[9, 6, 6]),
    "DynamicStitch": lambda a: raw.DynamicStitch(indices=[[0, 4]], data=[a[:2]]),
    "StridedSliceGrad": lambda a: raw.StridedSliceGrad(
        shape=[9, 6, 6], begin=[0], end=[8], strides=[1], dy=a, begin_mask=0
    ),
    "TensorListStack": lambda a: raw.TensorListStack(
        input_handle=raw.TensorListSetItem(
            input_handle=raw.TensorListReserve(element_shape=[6, 6], num_elements=4, element_dtype=tf.float32),
            index=1,
            item=a[0],
        ),
        element_shape=[6, 6],
        element_dtype=tf.float32,
    ),
    "RaggedTensorToTensor": lambda a: raw.RaggedTensorToTensor(
        shape=tf.constant([4, 9], tf.int64),
        values=a[0, 0],
        default_value=0.5,
        row_partition_tensors=[tf.constant([0, 2, 2, 5], tf.int64)],
        row_partition_types=["ROW_SPLITS"],
    ),
}
"""By the type of an operation, and of those with several settings a word more: calls of it on matrices. Logarithms and
roots of matrices are left out: no rule proves them, and of NaN TensorFlow computes them for minutes."""
MATRICES |= {
    name: lambda a, name=name: getattr(raw, name)(data=a, segment_ids=[0, 0, 4, 4, 4, 7, -1, 7], num_segments=9)
    for name in ("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum")
}
MATRICES |= {
    name: lambda a, name=name: getattr(raw, name)(data=a, segment_ids=[0, 0, 4, 4, 4, 7, 7, 9])
    for name in ("SegmentMax", "SegmentMin", "SegmentProd", "SegmentSum", "SegmentMean")
}


def pictures() -> np.ndarray:
    found = np.random.default_rng(0).normal(size=(4, 6, 6, 3)).astype(np.float32)
    found[0], found[1, 0] = np.nan, np.inf
    return found


def pooled(padding: str, size: int, step: int) -> dict[str, Callable[[], Any]]:
    """Windows of a size, at steps, of pictures: what lies between windows, or beyond the picture, among them."""
    x, tall = pictures(), np.stack([pictures()] * 6, 1)
    one = {"ksize": [1, size, size, 1], "strides": [1, step, step, 1], "padding": padding}
    cube = {"ksize": [1, size, size, size, 1], "strides": [1, step, step, step, 1], "padding": padding}
    largest, means = raw.MaxPool(input=x, **one), raw.AvgPool(value=x, **one)
    of_cubes = raw.MaxPool3D(input=tall, **cube)
    ways = {"strides": [1, step, step, 1], "padding": padding}
    kernel = np.ones((size, size, 3, 2), np.float32)
    found = raw.Conv2D(input=x, filter=kernel, **ways)
    deep = raw.DepthwiseConv2dNative(input=x, filter=kernel, **ways)
    rates = ways | {"rates": [1, 1, 1, 1]}
    wide = raw.Dilation2D(input=x, filter=kernel[..., 0], **rates)
    return {
        "MaxPool": lambda: raw.MaxPool(input=x, **one),
        "MaxPoolGrad": lambda: raw.MaxPoolGrad(orig_input=x, orig_output=largest, grad=largest, **one),
        "MaxPoolGradGrad": lambda: raw.MaxPoolGradGrad(orig_input=x, orig_output=largest, grad=x, **one),
        "AvgPool": lambda: raw.AvgPool(value=x, **one),
        "AvgPoolGrad": lambda: raw.AvgPoolGrad(orig_input_shape=x.shape, grad=means, **one),
        "MaxPool3D": lambda: raw.MaxPool3D(input=tall, **cube),
        "MaxPool3DGrad": lambda: raw.MaxPool3DGrad(orig_input=tall, orig_output=of_cubes, grad=of_cubes, **cube),
        "AvgPool3DGrad": lambda: raw.AvgPool3DGrad(orig_input_shape=tall.shape, grad=of_cubes, **cube),
        "ExtractImagePatches": lambda: raw.ExtractImagePatches(
            images=x, ksizes=one["ksize"], strides=one["strides"], rates=[1, 1, 1, 1], padding=padding
        ),
        "Conv2DBackpropInput": lambda: raw.Conv2DBackpropInput(
            input_sizes=x.shape, filter=kernel, out_backprop=found, **ways
        ),
        "Conv2DBackpropFilter": lambda: raw.Conv2DBackpropFilter(
            input=x, filter_sizes=kernel.shape, out_backprop=found, **ways
        ),
        "DepthwiseConv2dNativeBackpropInput": lambda: raw.DepthwiseConv2dNativeBackpropInput(
            input_sizes=x.shape, filter=kernel, out_backprop=deep, **ways
        ),
        "Dilation2DBackpropInput": lambda: raw.Dilation2DBackpropInput(
            input=x, filter=kernel[..., 0], out_backprop=wide, **rates
        ),
    }


def resized(size: tuple[int, int], corners: bool) -> dict[str, Callable[[], Any]]:
    """Pictures of another size, and boxes of them that lie beyond the picture, or nowhere."""
    x, options = pictures(), {"align_corners": corners}
    grads = np.ones((4, *size, 3), np.float32)
    boxes = [[-1, -1, 2, 2], [3, 3, 4, 4], [0, 0, 0, 0], [0.5, 0.5, 0.2, 0.2], [1e30, 0, 1, 1]]
    cut = {"boxes": tf.constant(boxes, tf.float32), "box_ind": [0, 1, 2, 3, 3]}
    ones = tf.ones((5, *size, 3))
    away = {"scale": (0.01, 50.0), "translation": (1e3, -1e3), "kernel_type": "lanczos3"}
    moved = tf.constant(
        [[1, 0, 1e9, 0, 1, 0, 0, 0], [np.nan] * 8, [1, 0, 0, 0, 1, 0, 1e9, -1], [np.inf] * 8], tf.float32
    )
    found: dict[str, Callable[[], Any]] = {
        "CropAndResize": lambda: raw.CropAndResize(image=x, crop_size=size, **cut),
        "CropAndResizeGradImage": lambda: raw.CropAndResizeGradImage(
            grads=ones, image_size=[4, 6, 6, 3], T=tf.float32, **cut
        ),
        "ScaleAndTranslate": lambda: raw.ScaleAndTranslate(images=x, size=size, **away),
        "ScaleAndTranslateGrad": lambda: raw.ScaleAndTranslateGrad(grads=grads, original_image=x, **away),
        "ImageProjectiveTransformV3": lambda: raw.ImageProjectiveTransformV3(
            images=x, transforms=moved, output_shape=size, fill_value=0.5, interpolation="BILINEAR"
        ),
        "ResizeNearestNeighborGrad": lambda: raw.ResizeNearestNeighborGrad(grads=grads, size=(6, 6), **options),
    }
    for name in ("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"):
        found[name] = lambda name=name: getattr(raw, name)(images=x, size=size, **options)
    for name in ("ResizeBicubicGrad", "ResizeBilinearGrad"):
        found[name] = lambda name=name: getattr(raw, name)(grads=grads, original_image=x, **options)
    return found


def all_calls() -> dict[str, dict[str, Callable[[], Any]]]:
    """By the type of an operation, and perhaps a word more, calls of it by what they are given."""
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, kind in itertools.product(MATRICES, KINDS):
        found.setdefault(name, {})[kind] = lambda name=name, kind=kind: MATRICES[name](tf.constant(square(kind)))
    for padding, (size, step) in itertools.product(("SAME", "VALID"), ((2, 3), (3, 1), (5, 4), (1, 3))):
        for name in POOLED:
            found.setdefault(name, {})[f"{padding} {size} {step}"] = lambda name=name, ways=(padding, size, step): (
                pooled(*ways)[name]()
            )
    for size, corners in itertools.product(((1, 1), (2, 3), (13, 1), (40, 40)), (False, True)):
        for name in RESIZED:
            found.setdefault(name, {})[f"{size} {corners}"] = lambda name=name, ways=(size, corners): resized(*ways)[
                name
            ]()
    return found


def with_conditions() -> dict[str, dict[str, Callable[[], Any]]]:
    """Kernels that write all that is read where `proof.unwritten` has a condition on them: what that leaves."""
    nothing, x = np.zeros((3, 0, 6), np.float32), pictures()[1:, :5, :2, :].transpose(1, 0, 2, 3).reshape(5, 3, 6)
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, steps in itertools.product(("BlockLSTM", "BlockLSTMV2"), (0, 2, 5)):
        found.setdefault(name, {})[f"{steps} steps"] = lambda name=name, steps=steps: states(name, x, steps)
        found.setdefault(f"{name[:9]}Grad{name[9:]}", {})[f"{steps} steps"] = lambda name=name, steps=steps: slopes(
            name, x, steps
        )
    found["MatrixSolveLs of no columns"] = {
        "": lambda: raw.MatrixSolveLs(matrix=nothing.transpose(0, 2, 1), rhs=x[:3, :1].repeat(6, 1), **_LEAST)
    }
    cubes = np.stack([pictures()] * 4, 1)[..., 0]
    found["RFFT3D"] = {"": lambda: raw.RFFT3D(input=cubes, fft_length=[2, 2, 4])}
    found["IRFFT3D"] = {"": lambda: raw.IRFFT3D(input=tf.cast(cubes, tf.complex64), fft_length=[2, 2, 8])}
    return found


LEFT = {
    "BlockLSTM": lambda: block("BlockLSTM", np.ones((40, 30, 6), np.float32), 1).i,
    "BlockLSTMV2": lambda: block("BlockLSTMV2", np.ones((40, 30, 6), np.float32), 1).o,
    "MatrixSolveLs": lambda: raw.MatrixSolveLs(
        matrix=np.zeros((30, 0, 60), np.float32), rhs=np.zeros((30, 0, 20), np.float32), **_LEAST
    ),
    "RFFT3D": lambda: raw.RFFT3D(input=np.zeros((40, 2, 2, 0), np.float32), fft_length=[2, 2, 80]),
    "IRFFT3D": lambda: raw.IRFFT3D(input=tf.zeros((40, 0, 2, 50), tf.complex64), fft_length=[2, 2, 80]),
}
"""By the type of an operation, a call whose result shows what was in the memory before."""


def block(name: str, x: np.ndarray, steps: int) -> Any:
    """An LSTM that stops after some steps: x is (steps, records, 6), of 3 units."""
    state, peep = np.zeros((x.shape[1], 3), np.float32), np.zeros(3, np.float32)
    weights = {"w": np.ones((9, 12), np.float32), "wci": peep, "wcf": peep, "wco": peep, "b": np.ones(12, np.float32)}
    return getattr(raw, name)(seq_len_max=np.int64(steps), x=x, cs_prev=state, h_prev=state, **weights)


def states(name: str, x: np.ndarray, steps: int) -> list[Any]:
    found = block(name, x, steps)
    return [found.cs, found.h]


def slopes(name: str, x: np.ndarray, steps: int) -> Any:
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        loss = tf.reduce_sum(block(name, given, steps).h)
    return tape.gradient(loss, given)


POOLED = tuple(pooled("SAME", 2, 2))
RESIZED = tuple(resized((2, 2), False))
CALLS = all_calls() | with_conditions()
