"""Which operations of TensorFlow are functions of their inputs.

A whitelist: that an operation is not marked as stateful does not say so. Some add into what they are given, in place,
so that a variable or a constant changes (`InplaceAdd`, `ParallelConcat`); some work off calls of several steps or
records together (`Batch`, `BatchFunction`); some read files, or keep what they are given (`ReadFile`, `DebugIdentity`,
`CustomAggregator`); some run code that no graph shows (`MlirPassthroughOp`, `XlaCustomCall`); some leave a part of
their results as they find the memory (`unwritten`: functions as far as nothing reads that part). What TensorFlow or a
library of operations of its own adds is none of these until somebody has looked at it.
"""

from __future__ import annotations

from typing import Any

from tfdp_layers.proof.unwritten import reads_unwritten

__all__ = ["CALLS", "FUNCTIONAL", "READS", "is_functional"]

READS = frozenset(
    {"Identity", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
)
"""They take a variable, and merely read it."""

CALLS = frozenset({"PartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile"})
"""They do what the functions do that they call: those are looked at by themselves."""

_NAMES = """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 AdjustContrast AdjustContrastv2 AdjustHue AdjustSaturation All Angle
    Any ApproxTopK ApproximateEqual ArgMax ArgMin AsString Asin Asinh Atan Atan2 Atanh AudioSpectrogram AvgPool
    AvgPool3D AvgPool3DGrad AvgPoolGrad BandedTriangularSolve BatchCholesky BatchCholeskyGrad BatchFFT BatchFFT2D
    BatchFFT3D BatchIFFT BatchIFFT2D BatchIFFT3D BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchMatrixBandPart
    BatchMatrixDeterminant BatchMatrixDiag BatchMatrixDiagPart BatchMatrixInverse BatchMatrixSetDiag
    BatchMatrixSolve BatchMatrixSolveLs BatchMatrixTriangularSolve BatchNormWithGlobalNormalization
    BatchNormWithGlobalNormalizationGrad BatchSelfAdjointEig BatchSelfAdjointEigV2 BatchSvd BatchToSpace
    BatchToSpaceND BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
    BesselY0 BesselY1 Betainc BiasAdd BiasAddGrad BiasAddV1 Bincount Bitcast BitwiseAnd BitwiseOr BitwiseXor
    BlockLSTM BlockLSTMGrad BlockLSTMGradV2 BlockLSTMV2 BroadcastArgs BroadcastGradientArgs BroadcastTo Bucketize
    CSRSparseMatrixComponents CSRSparseMatrixToDense CSRSparseMatrixToSparseTensor CTCBeamSearchDecoder
    CTCGreedyDecoder CTCLoss CTCLossV2 CaseFoldUTF8 Cast Ceil Cholesky CholeskyGrad ClipByValue
    CombinedNonMaxSuppression Complex ComplexAbs Concat ConcatOffset ConcatV2 Conj ConjugateTranspose Const
    ControlTrigger Conv Conv2D Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv2DBackpropInput Conv2DBackpropInputV2
    Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2 Conv3DBackpropInput Conv3DBackpropInputV2 Cos Cosh
    CropAndResize CropAndResizeGradBoxes CropAndResizeGradImage Cross CudnnRNNCanonicalToParams
    CudnnRNNCanonicalToParamsV2 CudnnRNNParamsSize CudnnRNNParamsToCanonical CudnnRNNParamsToCanonicalV2 Cumprod
    Cumsum CumulativeLogsumexp DataFormatDimMap DataFormatVecPermute Dawsn DecodeAndCropJpeg DecodeBase64 DecodeBmp
    DecodeCSV DecodeCompressed DecodeGif DecodeImage DecodeJpeg DecodeJxl DecodePaddedRaw DecodePng DecodeRaw
    DecodeWav DecodeWebP DenseBincount DenseCountSparseOutput DenseToCSRSparseMatrix DenseToDenseSetOperation
    DenseToSparseSetOperation DepthToSpace DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Dequantize DeserializeManySparse DeserializeSparse Diag DiagPart Digamma
    Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput Div DivNoNan DrawBoundingBoxes DrawBoundingBoxesV2
    DynamicPartition DynamicStitch EditDistance Eig Einsum Elu EluGrad EmptyTensorList EmptyTensorMap EncodeBase64
    EncodeJpeg EncodeJpegVariableQuality EncodePng EncodeWav EnsureShape Enter Equal Erf Erfc Erfinv EuclideanNorm
    Exit Exp ExpandDims Expint Expm1 ExtractGlimpse ExtractGlimpseV2 ExtractImagePatches ExtractJpegShape
    ExtractVolumePatches FFT FFT2D FFT3D FFTND Fact FakeParam FakeQuantWithMinMaxArgs
    FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient
    FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxVarsPerChannelGradient Fill Fingerprint Floor FloorDiv
    FloorMod FractionalAvgPool FractionalAvgPoolGrad FractionalMaxPool FractionalMaxPoolGrad FresnelCos FresnelSin
    FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3
    GRUBlockCell GRUBlockCellGrad Gather GatherNd GatherV2 GenerateBoundingBoxProposals Greater GreaterEqual
    HSVToRGB HistogramFixedWidth IFFT IFFT2D IFFT3D IFFTND IRFFT IRFFT2D IRFFT3D IRFFTND Identity IdentityN Igamma
    IgammaGradA Igammac Imag ImageProjectiveTransformV2 ImageProjectiveTransformV3 InTopK InTopKV2 Inv InvGrad
    Invert InvertPermutation IsFinite IsInf IsNan IsotonicRegression KthOrderStatistic L2Loss LRN LRNGrad
    LSTMBlockCell LSTMBlockCellGrad LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace ListDiff Log
    Log1p LogMatrixDeterminant LogSoftmax LogicalAnd LogicalNot LogicalOr LoopCond LowerBound Lu MakeUnique MatMul
    MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
    MatrixDiagV3 MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Max MaxPool MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPoolGradGradWithArgmax MaxPoolGradV2
    MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax Maximum Mean Merge Mfcc Min Minimum MirrorPad MirrorPadGrad
    Mod Mul MulNoNan Ndtri Neg NextAfter NextIteration NoOp NonMaxSuppression NonMaxSuppressionV2
    NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 NonMaxSuppressionWithOverlaps NormalizeUTF8 NotEqual
    NthElement OneHot OnesLike OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone Pack Pad PadV2
    ParseExample ParseExampleV2 ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample
    ParseSingleSequenceExample ParseTensor Placeholder PlaceholderWithDefault Polygamma PopulationCount Pow
    PreventGradient Prod Qr QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3
    QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad QuantizeV2 RFFT RFFT2D RFFT3D RFFTND RGBToHSV RaggedBincount
    RaggedCountSparseOutput RaggedCross RaggedFillEmptyRows RaggedFillEmptyRowsGrad RaggedGather RaggedRange
    RaggedTensorFromVariant RaggedTensorToSparse RaggedTensorToTensor RaggedTensorToVariant
    RaggedTensorToVariantGradient RandomGammaGrad RandomIndexShuffle Range Rank Real RealDiv Reciprocal
    ReciprocalGrad ReduceJoin RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad Reshape ResizeArea
    ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor
    ResizeNearestNeighborGrad Reverse ReverseSequence ReverseV2 RightShift Rint Roll Round Rsqrt RsqrtGrad
    ScaleAndTranslate ScaleAndTranslateGrad ScatterNd ScatterNdNonAliasingAdd SegmentMax SegmentMaxV2 SegmentMean
    SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Select SelectV2 SelfAdjointEig
    SelfAdjointEigV2 Selu SeluGrad SerializeManySparse SerializeSparse SerializeTensor SetSize Shape ShapeN Sigmoid
    SigmoidGrad Sign Sin Sinh Size Slice Snapshot SobolSample Softmax SoftmaxCrossEntropyWithLogits Softplus
    SoftplusGrad Softsign SoftsignGrad SpaceToBatch SpaceToBatchND SpaceToDepth SparseAdd SparseAddGrad
    SparseBincount SparseConcat SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2
    SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseFillEmptyRowsGrad
    SparseMatMul SparseMatrixAdd SparseMatrixMatMul SparseMatrixMul SparseMatrixNNZ SparseMatrixOrderingAMD
    SparseMatrixSoftmax SparseMatrixSoftmaxGrad SparseMatrixSparseCholesky SparseMatrixSparseMatMul
    SparseMatrixTranspose SparseMatrixZeros SparseReduceMax SparseReduceMaxSparse SparseReduceSum
    SparseReduceSumSparse SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad
    SparseSegmentMeanGradV2 SparseSegmentMeanWithNumSegments SparseSegmentSqrtN SparseSegmentSqrtNGrad
    SparseSegmentSqrtNGradV2 SparseSegmentSqrtNWithNumSegments SparseSegmentSum SparseSegmentSumGrad
    SparseSegmentSumGradV2 SparseSegmentSumWithNumSegments SparseSlice SparseSliceGrad SparseSoftmax
    SparseSoftmaxCrossEntropyWithLogits SparseSparseMaximum SparseSparseMinimum SparseSplit SparseTensorDenseAdd
    SparseTensorDenseMatMul SparseTensorToCSRSparseMatrix SparseToDense SparseToSparseSetOperation Spence Split
    SplitV Sqrt SqrtGrad Square SquaredDifference Squeeze StatelessMultinomial StatelessParameterizedTruncatedNormal
    StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetKeyCounter
    StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
    StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessSampleDistortedBoundingBox StatelessShuffle
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StaticRegexFullMatch StaticRegexReplace StochasticCastToInt
    StopGradient StridedSlice StridedSliceGrad StringFormat StringJoin StringLength StringLower StringNGrams
    StringSplit StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Sub Substr Sum Svd Switch Tan Tanh TanhGrad TensorListConcat TensorListConcatLists
    TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem
    TensorListLength TensorListPopBack TensorListPushBack TensorListPushBackBatch TensorListReserve TensorListResize
    TensorListScatter TensorListScatterIntoExistingList TensorListScatterV2 TensorListSetItem TensorListSplit
    TensorListStack TensorMapErase TensorMapHasKey TensorMapInsert TensorMapLookup TensorMapSize TensorMapStackKeys
    TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate
    Tile TileGrad TopK TopKUnique TopKV2 TopKWithUnique Transpose TridiagonalMatMul TridiagonalSolve TruncateDiv
    TruncateMod UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode UnicodeScript UnicodeTranscode Unique UniqueV2
    UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex UnsortedSegmentJoin UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum UpperBound Where Xdivy Xlog1py Xlogy ZerosLike Zeta
"""
FUNCTIONAL = frozenset(_NAMES.split())
"""Random operations among them draw of the seeds that they are given, or afresh (`FractionalMaxPool`)."""
_LOOKED_AT = FUNCTIONAL | CALLS


def is_functional(operation: Any) -> bool:
    """Whether an operation (`tf.Operation`) gives what its inputs and attributes say, as far as it is read, and changes
    nothing.

    Of `CALLS` it says nothing of the functions that they call, and of a `FakeParam` not who reads it: see `untaken`.
    """
    listed = operation.type in _LOOKED_AT and not operation.op_def.is_stateful
    return listed and not reads_unwritten(operation)
