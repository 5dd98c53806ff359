"""Resizing on the CPU: rows in parallel, blocks of channels in registers."""

from dataclasses import replace

from autotune.families.cpu.common import BLOCK_C, over_channels
from autotune.families.upsample_rules import LINEAR, require_mode
from autotune.ir import Upsample

FAMILY = replace(over_channels(Upsample), parameters=(BLOCK_C, LINEAR), why_unfit=require_mode)
