"""Runs one faulty kernel on a GPU: a program for compute-sanitizer to watch.

compute-sanitizer python tests/support/faulty_kernel.py KERNEL [--unwritten]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from faults import PROBLEM, on_gpu

from autotune.measure import CandidateBench, stream_of, synchronize


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kernel")
    parser.add_argument("--unwritten", action="store_true", help="give it an input that nobody wrote")
    options = parser.parse_args()
    device = torch.device("cuda:0")
    case = CandidateBench(PROBLEM, device)
    case.fill_nan()
    tensors = case.tensors | ({"x": torch.empty_like(case.tensors["x"])} if options.unwritten else {})
    with TemporaryDirectory() as folder:
        step = case.bind(on_gpu(Path(folder))(options.kernel), tensors)
    step.run(stream_of(device))
    synchronize(device)


if __name__ == "__main__":
    main()
