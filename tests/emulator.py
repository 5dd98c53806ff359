"""Runs kernels for Hopper without a GPU: their own text, with functions of kernels/emulator.h in the place of PTX."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import nvidia
import torch

from autotune import abi, emit, paths
from autotune.families import family
from autotune.families.base import Kernel, Launch
from autotune.problem import DTYPES, Problem
from fused_resnet.layout import pack_weight

_PTX = {
    "cvta": "",
    "mbarrier.init": "emu::init_barrier(barrier, arrivals);",
    "fence": "",
    "griddepcontrol": "",
    "prefetch": "",
    "mbarrier.arrive.expect_tx": "emu::expect_bytes(barrier, bytes);",
    "mbarrier.arrive.shared::cta": "emu::arrive(barrier);",
    "mbarrier.arrive.shared::cluster": "emu::arrive_at(barrier, block);",
    "mbarrier.try_wait": "emu::wait(barrier, parity);",
    "cp.async.bulk.tensor.2d.shared": "emu::load(to, map, barrier, {x, y}, kShared ? blocks : 0);",
    "cp.async.bulk.tensor.3d.shared": "emu::load(to, map, barrier, {x, y, z}, kShared ? blocks : 0);",
    "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier": (
        "emu::load(to, map, barrier, {x, y, z, w}, kShared ? blocks : 0);"
    ),
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col": (
        "emu::load_im2col(to, map, barrier, {c, w, h, n}, offset_w, offset_h, kShared ? blocks : 0);"
    ),
    "cp.async.bulk.tensor.2d.global": "emu::store(map, from, {x, y});",
    "cp.async.bulk.tensor.4d.global": "emu::store(map, from, {c, w, h, n});",
    "cp.async.bulk.commit_group": "emu::commit_stores();",
    "cp.async.bulk.wait_group.read": "emu::wait_for_stores(pending);",
    "cp.async.bulk.shared::cluster": "emu::send_bytes(address, bytes, barrier, block);",
    "st.async": "emu::send(address, barrier, block, v);",
    "ld.shared.v4": "std::memcpy(&v, emu::generic(address), 16);",
    "st.shared.v4": "std::memcpy(emu::generic(address), &v, 16);",
    "ld.global.nc": "unused = 0;",
    "elect": "chosen = emu::lane() == 0;",
    "mov.u32 %0, %%cluster_ctarank": "rank = emu::own().rank;",
    "barrier.cluster": "emu::sync_cluster(EMULATED_THREADS);",
    "bar.sync": "emu::sync_of(1, kThreads);",
    "cp.async.ca": "std::memcpy(emu::generic(to), from, kBytes);",
    "cp.async.wait_all": "",
    "setmaxnreg": "",
    "wgmma.fence": "emu::exchange(0xffffffffu, 0, 0);",
    "wgmma.commit_group": "emu::commit_products();",
    "wgmma.wait_group": "emu::wait_for_products(pending);",
    "wgmma.mma_async": "emu::multiply<Element>(d, a, b, accumulate);",
}
"""A piece of PTX that tells an instruction from the others -> what stands for it; none: it orders, but computes nothing."""


def _emulated(text: str) -> str:
    """The text with every asm statement replaced."""

    def replaced(statement: re.Match[str]) -> str:
        ptx = statement[0]
        if '""' in ptx:  # only pins registers
            return ";"
        found = [name for name in _PTX if name in ptx]
        if not found:
            return "std::abort();"
        return _PTX[max(found, key=len)] or ";"

    return re.sub(r"asm volatile\(.*?\);", replaced, text, flags=re.DOTALL)


class Emulated:
    """A kernel compiled for this machine. cluster: blocks of one."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        chosen = family(kernel.family)
        threads = chosen.context(kernel.values, emit.architecture_of(kernel), kernel.dtype)["threads"]
        for header in ("sm90/hopper.cuh", "sm90/gate.cuh", "cuda/kernel.cuh"):
            (folder / header).parent.mkdir(parents=True, exist_ok=True)
            (folder / header).write_text(_emulated((paths.templates() / header).read_text()))
        symbol, struct = emit.symbol(kernel), abi.struct(chosen.operators[0]).__name__
        source = folder / "kernel.cpp"
        source.write_text(
            f'#define EMULATED_THREADS {threads}\n#include "emulator.h"\n#include "cuda/kernel.cuh"\n'
            f"char at_shared[1];\n{_emulated(emit.unit([kernel]))}\n"
            f'extern "C" int emulate(const {struct}& problem, void* const* pointers, int cluster, unsigned seed, char* text) {{\n'
            f"  return emu::run<in_{symbol}::Kernel>(problem, in_{symbol}::{symbol}_prepare, pointers, cluster, seed, text, 4096);\n}}\n"
        )
        includes = [folder, Path(__file__).parent / "kernels", paths.templates(), _cuda_headers()]
        library = folder / "kernel.so"
        command = ["g++", "-std=c++20", "-O2", "-fno-strict-aliasing", "-fPIC", "-shared", "-w", str(source), "-o", str(library)]
        done = subprocess.run([*command, *(f"-I{path}" for path in includes)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        self._library = ctypes.CDLL(str(library))

    def run(
        self, problem: Problem, tensors: Mapping[str, torch.Tensor], scalars: Sequence[float], launch: Launch,
        cluster: int, seed: int = 0,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        """Every output of a problem, from operands in the shapes and dtypes of problem.operands()."""
        chosen = family(self.kernel.family)
        layouts = chosen.weight_layouts(self.kernel.values)
        operands: list[torch.Tensor] = []
        for operand in problem.operands():
            if operand.role == "output":
                operands.append(torch.full(operand.shape, float("nan"), dtype=DTYPES[operand.dtype]))
            elif operand.name in layouts:
                operands.append(pack_weight(tensors[operand.name], layouts[operand.name]))
            else:
                operands.append(tensors[operand.name].contiguous())
        pointers = (ctypes.c_void_p * abi.MAX_POINTERS)(*(operand.data_ptr() for operand in operands))
        packed = abi.pack(problem, scalars, [launch[parameter.name] for parameter in chosen.launch_parameters])
        text = ctypes.create_string_buffer(4096)
        status = self._library.emulate(packed, pointers, cluster, ctypes.c_uint(seed), text)
        assert status == 0, f"status {status}: {text.value.decode()}"
        named = zip(problem.operands(), operands, strict=True)
        return {operand.name: tensor for operand, tensor in named if operand.role == "output"}


def _cuda_headers() -> Path:
    """Those of the pip package that has the compilers."""
    return next(path for root in nvidia.__path__ for path in Path(root).glob("cu13/include"))
