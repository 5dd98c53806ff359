"""The built-in operators, one in each file; importing this package registers them in this order."""

# The order of registration is the order in listings and in docs/reference/problems.md.
# isort: off
from autotune.ir.problem.operators.convolution import Convolution
from autotune.ir.problem.operators.conv2d import Conv2d
from autotune.ir.problem.operators.conv2d_se import Conv2dSe
from autotune.ir.problem.operators.folded_se import FoldedSe
from autotune.ir.problem.operators.conv2d_folded_se import Conv2dFoldedSe
from autotune.ir.problem.operators.conv2d_se_skip import Conv2dSeSkip
from autotune.ir.problem.operators.conv2d_skip import Conv2dSkip
from autotune.ir.problem.operators.conv2d_statistics import Conv2dStatistics
from autotune.ir.problem.operators.patch_conv2d import PatchConv2d
from autotune.ir.problem.operators.pointwise_pair import PointwisePair
from autotune.ir.problem.operators.conv2d_dgrad import Conv2dDgrad
from autotune.ir.problem.operators.conv2d_wgrad import Conv2dWgrad
from autotune.ir.problem.operators.gemm import Gemm
from autotune.ir.problem.operators.pool2d import Pool2d
from autotune.ir.problem.operators.avg_pool2d import AvgPool2d
from autotune.ir.problem.operators.clipped_avg_pool2d import ClippedAvgPool2d
from autotune.ir.problem.operators.adaptive_avg_pool2d import AdaptiveAvgPool2d
from autotune.ir.problem.operators.max_pool2d import MaxPool2d
from autotune.ir.problem.operators.max_pool2d_places import MOST_PLACES, MaxPool2dPlaces
from autotune.ir.problem.operators.max_pool2d_places_gradient import MaxPool2dPlacesGradient
from autotune.ir.problem.operators.relu_gradient_sums import (
    SUMS_OF_FACTOR,
    SUMS_OF_GRADIENT,
    SUMS_OF_MASKED,
    SUMS_OF_PRODUCT,
    ReluGradientSums,
)
from autotune.ir.problem.operators.global_avg_pool2d import GlobalAvgPool2d
from autotune.ir.problem.operators.layer_norm import LayerNorm
from autotune.ir.problem.operators.group_norm import GroupNorm
from autotune.ir.problem.operators.batch_norm_statistics import NORM_SCALE, NORM_SHIFT, BatchNormStatistics
from autotune.ir.problem.operators.batch_norm_gradient import (
    JOINED_RELU,
    NO_RELU,
    OWN_RELU,
    BatchNormGradient,
    BatchNormGradientSums,
)
from autotune.ir.problem.operators.conv2d_gradient_sums import Conv2dGradientSums
from autotune.ir.problem.operators.softmax import Softmax
from autotune.ir.problem.operators.upsample import Upsample
from autotune.ir.problem.operators.elementwise import Elementwise
from autotune.ir.problem.operators.cast import Cast
from autotune.ir.problem.operators.concat import Concat
from autotune.ir.problem.operators.concat_conv2d import ConcatConv2d
from autotune.ir.problem.operators.concatenation import MAX_PIECES, Piece
from autotune.ir.problem.operators.to_channels_last import ToChannelsLast
from autotune.ir.problem.operators.space_to_depth import SpaceToDepth
from autotune.ir.problem.operators.depth_to_space import DepthToSpace
from autotune.ir.problem.operators.first_layers import FirstLayers
from autotune.ir.problem.operators.stem import Stem
from autotune.ir.problem.operators.stem_cast import StemCast
from autotune.ir.problem.operators.expand_depthwise import ExpandDepthwise
from autotune.ir.problem.operators.inverted_residual import InvertedResidual
from autotune.ir.problem.operators.conv2d_pair import Conv2dPair
from autotune.ir.problem.operators.se_tail import SeTail
from autotune.ir.problem.operators.squeeze_excite import (
    GATE_ACTIVATIONS,
    HIDDEN_ACTIVATIONS,
    SeGates,
    SqueezeExcite,
)
from autotune.ir.problem.operators.torch_call import CallDevice, OperatorCall, TorchCall, ValueRef, stored_shape
# isort: on

__all__ = [
    "GATE_ACTIVATIONS",
    "HIDDEN_ACTIVATIONS",
    "JOINED_RELU",
    "MAX_PIECES",
    "MOST_PLACES",
    "NORM_SCALE",
    "NORM_SHIFT",
    "NO_RELU",
    "OWN_RELU",
    "SUMS_OF_FACTOR",
    "SUMS_OF_GRADIENT",
    "SUMS_OF_MASKED",
    "SUMS_OF_PRODUCT",
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BatchNormGradient",
    "BatchNormGradientSums",
    "BatchNormStatistics",
    "CallDevice",
    "Cast",
    "ClippedAvgPool2d",
    "Concat",
    "ConcatConv2d",
    "Conv2d",
    "Conv2dDgrad",
    "Conv2dFoldedSe",
    "Conv2dGradientSums",
    "Conv2dPair",
    "Conv2dSe",
    "Conv2dSeSkip",
    "Conv2dSkip",
    "Conv2dStatistics",
    "Conv2dWgrad",
    "Convolution",
    "DepthToSpace",
    "Elementwise",
    "ExpandDepthwise",
    "FirstLayers",
    "FoldedSe",
    "Gemm",
    "GlobalAvgPool2d",
    "GroupNorm",
    "InvertedResidual",
    "LayerNorm",
    "MaxPool2d",
    "MaxPool2dPlaces",
    "MaxPool2dPlacesGradient",
    "OperatorCall",
    "PatchConv2d",
    "Piece",
    "PointwisePair",
    "Pool2d",
    "ReluGradientSums",
    "SeGates",
    "SeTail",
    "Softmax",
    "SpaceToDepth",
    "SqueezeExcite",
    "Stem",
    "StemCast",
    "ToChannelsLast",
    "TorchCall",
    "Upsample",
    "ValueRef",
    "stored_shape",
]
