"""The built-in operators, one in each file; importing this package registers them in this order."""

# The order of registration is the order in listings and in docs/reference/problems.md.
# isort: off
from autotune.ir.operators.conv2d import Conv2d, Convolution
from autotune.ir.operators.conv2d_broadcast import Conv2dBroadcast
from autotune.ir.operators.conv2d_se import Conv2dSe
from autotune.ir.operators.folded_se import FoldedSe
from autotune.ir.operators.conv2d_folded_se import Conv2dFoldedSe
from autotune.ir.operators.conv2d_se_skip import Conv2dSeSkip
from autotune.ir.operators.conv2d_skip import Conv2dSkip
from autotune.ir.operators.conv2d_statistics import Conv2dStatistics
from autotune.ir.operators.patch_conv2d import PatchConv2d
from autotune.ir.operators.pointwise_pair import PointwisePair
from autotune.ir.operators.conv2d_dgrad import Conv2dDgrad
from autotune.ir.operators.conv2d_wgrad import Conv2dWgrad
from autotune.ir.operators.gemm import Gemm
from autotune.ir.operators.pool2d import Pool2d
from autotune.ir.operators.avg_pool2d import AvgPool2d
from autotune.ir.operators.clipped_avg_pool2d import ClippedAvgPool2d
from autotune.ir.operators.adaptive_avg_pool2d import AdaptiveAvgPool2d
from autotune.ir.operators.max_pool2d import MaxPool2d
from autotune.ir.operators.max_pool2d_places import MOST_PLACES, MaxPool2dPlaces
from autotune.ir.operators.max_pool2d_places_gradient import MaxPool2dPlacesGradient
from autotune.ir.operators.relu_gradient_sums import (
    SUMS_OF_FACTOR,
    SUMS_OF_GRADIENT,
    SUMS_OF_MASKED,
    SUMS_OF_PRODUCT,
    ReluGradientSums,
)
from autotune.ir.operators.global_avg_pool2d import GlobalAvgPool2d
from autotune.ir.operators.layer_norm import LayerNorm
from autotune.ir.operators.group_norm import GroupNorm
from autotune.ir.operators.group_statistics import GroupStatistics
from autotune.ir.operators.normalize import Normalize
from autotune.ir.operators.batch_norm_statistics import NORM_SCALE, NORM_SHIFT, BatchNormStatistics
from autotune.ir.operators.batch_norm_gradient import (
    JOINED_RELU,
    NO_RELU,
    OWN_RELU,
    BatchNormGradient,
    BatchNormGradientSums,
)
from autotune.ir.operators.conv2d_gradient_sums import Conv2dGradientSums
from autotune.ir.operators.softmax import Softmax
from autotune.ir.operators.upsample import Upsample
from autotune.ir.operators.elementwise import Elementwise
from autotune.ir.operators.cast import Cast
from autotune.ir.operators.concat import Concat
from autotune.ir.operators.concat_conv2d import ConcatConv2d
from autotune.ir.operators.concatenation import MAX_PIECES, Piece
from autotune.ir.operators.to_channels_last import ToChannelsLast
from autotune.ir.operators.space_to_depth import SpaceToDepth
from autotune.ir.operators.depth_to_space import DepthToSpace
from autotune.ir.operators.first_layers import FirstLayers
from autotune.ir.operators.stem import Stem
from autotune.ir.operators.stem_cast import StemCast
from autotune.ir.operators.expand_depthwise import ExpandDepthwise
from autotune.ir.operators.inverted_residual import InvertedResidual
from autotune.ir.operators.conv2d_pair import Conv2dPair
from autotune.ir.operators.se_tail import SeTail
from autotune.ir.operators.squeeze_excite import GATE_ACTIVATIONS, HIDDEN_ACTIVATIONS, SeGates, SqueezeExcite
from autotune.ir.operators.torch_call import CallDevice, OperatorCall, TorchCall, ValueRef, stored_shape
from autotune.ir.operators.se_resnet9.se_block import SeBlock
from autotune.ir.operators.se_resnet9.stem_block import StemBlock
from autotune.ir.operators.se_resnet9.stem_se_block import StemSeBlock
from autotune.ir.operators.se_resnet9.stem_se_block_pool import StemSeBlockPool
from autotune.ir.operators.se_resnet9.se_down_block import SeDownBlock
# isort: on
