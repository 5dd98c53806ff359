"""Measure the host time of FusedResNet: of loading it, and of a call.

The time of loading is from `import torch` to the first result, in new
processes. For a captured model it is from the model in torch to the first
result, once by FusedResNet.from_model, and once by torch.compile with the
backend "autotune", with the part before torch calls the backend. A call returns
while the GPU works. On a CPU the kernels run within the call, so there only the
check of the state and the allocation of the output are host time.

Example:
  autotune bench-host --db tuning_db/se_resnet9_fixup_h200.db
"""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_cli.command_line import add_device, add_model, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the tuning database")
    add_model(parser, "se_resnet9_fixup", in_channels=False)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="batch size (default 1)")
    parser.add_argument(
        "--calls", type=positive, default=5000, metavar="N", help="calls for each measurement (default 5000)"
    )
    parser.add_argument(
        "--loads", type=int, default=5, metavar="N", help="loads, each in a new process (default 5; 0: none)"
    )
    add_device(parser)
