"""Operators that fit only the blocks of SE-ResNet9; importing this package registers them in this order."""

# The order of registration is the order in listings and in docs/reference/problems.md.
# isort: off
from autotune.ir.problem.se_resnet9.se_block import SeBlock
from autotune.ir.problem.se_resnet9.stem_block import StemBlock
from autotune.ir.problem.se_resnet9.stem_se_block import StemSeBlock
from autotune.ir.problem.se_resnet9.stem_se_block_pool import StemSeBlockPool
from autotune.ir.problem.se_resnet9.se_down_block import SeDownBlock
# isort: on

__all__ = ["SeBlock", "SeDownBlock", "StemBlock", "StemSeBlock", "StemSeBlockPool"]
