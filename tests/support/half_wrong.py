"""A user's family of ReLUs of which one config is wrong beyond 64 elements, and a database with plans that use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from databases import put_cpu, put_time
from kernels import built_paths

from autotune import families
from autotune.codegen import rendering
from autotune.core import cpu_targets
from autotune.families import Kernel
from autotune.ir import CallerTensor, Epilogue, Layer, Network, NetworkKey, digest, network_text, parse
from tuning_db import Store
from tuning_db.plan_choices import plan_choice

FAMILY = """
from autotune.families import SHARED_LIBRARY, Family, Parameter
from autotune.ir.operators import Elementwise
class HalfWrong(Family):
    name, operator, kind, template = "half_wrong", Elementwise, SHARED_LIBRARY, "half_wrong.cpp.j2"
    architectures = ("cpu",)
    parameters = (Parameter("skipped", (1, 0), "elements at the end that it does not write, beyond 64"),)
    def cost(self, problem, config, arch):
        return 0
FAMILIES = (HalfWrong(),)
"""
TEMPLATE = """
#include "cpu/channels.h"
namespace {{ symbol }} {
static void run(const at_pixels& a, void* const* p) {
  const int64_t size = (int64_t)a.n * a.h * a.w * a.c;
  const float* x = (const float*)p[0];
  for (int64_t i = 0; i < size - (size > 64 ? {{ skipped }} : 0); ++i) ((float*)p[1])[i] = x[i] > 0.f ? x[i] : 0.f;
}
using Kernel = at::Entry<at_pixels, run>;
}
"""
CHANNELS = {"small": 8, "large": 50}
"""Layer -> channels of its two images: 16 and 100 elements."""


def write_family(folder: Path) -> None:
    """Write the family to a folder."""
    folder.mkdir()
    (folder / "half_wrong.py").write_text(FAMILY)
    (folder / "half_wrong.cpp.j2").write_text(TEMPLATE)


def network(n: int = 2) -> Network:
    """Return two ReLUs, each with an input and a result of its own."""
    layers = tuple(
        Layer(
            name,
            parse(f"elementwise n={n} h=1 w=1 c={c} dtype=f32 epilogue=relu"),
            {"x": f"input{i or ''}", "y": f"output{i or ''}"},
        )
        for i, (name, c) in enumerate(CHANNELS.items())
    )
    tensors = tuple(CallerTensor((n, c), "f32") for c in CHANNELS.values())
    return Network(NetworkKey("relus", n, (("dtype", "f32"),), digest(layers)), layers, tensors, tensors)


def put_plan(path: Path, us: float = 1e9, keeps_network: bool = True, **details: Any) -> None:
    """Add a plan whose layers run on the wrong config; the right one is the next candidate of each.

    Args:
        path: The database.
        us: The time that is recorded for the plan.
        keeps_network: Whether the network is stored, too.
        details: Details of the plan.
    """
    family = families.family("half_wrong")
    kernels = [
        Kernel.of(family.name, {"skipped": skipped}, "f32", Epilogue.parse("relu"), cpu_targets()[0])
        for skipped in (1, 0)
    ]
    paths = built_paths(kernels)
    with Store.create(path) as store:
        device, choices, ids = put_cpu(store, cpu_targets()[0]), [], []
        for kernel in kernels:
            facts = {"kind": family.kind, "target": kernel.target, "compiler": "", "flags": "", "cutlass": ""}
            library = store.put_library(paths[kernel].read_bytes(), **facts, abi_version=1)
            known = {name: str(getattr(kernel, name)) for name in ("family", "config", "dtype", "epilogue", "target")}
            ids.append(
                store.put_kernel({**known, "source": ""}, symbol=rendering.symbol(kernel), library_id=library.id).id
            )
        for layer in network().layers:
            for number, kernel_id in enumerate(ids):
                put_time(store, device, layer.problem, kernel_id, 1.0 + number)
            choices.append(plan_choice(layer.name, ids[0], {}, 1.0))
        if keeps_network:
            store.put_network(network().key, network_text.write(network()))
        values = {"median_us": us, "spread_us": 0.1, "choices": choices, "details": {"alternatives": [], **details}}
        store.put_plan(device_id=device.id, network=network().key, **values)
