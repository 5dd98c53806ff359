"""Source text: units of several kernels, and digests that change with the code."""

import re
import subprocess

import pytest
from kernels import some_kernel

from autotune.codegen import rendering
from autotune.core import paths
from autotune.families import SHARED_LIBRARY, Kernel, families
from autotune.ir import (
    Epilogue,
)

CONV = {"block_k": 16, "block_pixels": 4, "unroll_c": 1}


@pytest.mark.parametrize("name", families())
def test_every_family_renders_and_names_its_symbol(name):
    text = rendering.render(some_kernel(name, "" if "space" in name else "bias,relu"))
    assert rendering.symbol(some_kernel(name, "" if "space" in name else "bias,relu")) in text
    assert not re.search(r"\{\{|\{%|\{#", text)


def test_a_chain_calls_its_steps_in_order(cpu_kernel):
    text = rendering.render(cpu_kernel("cpu_conv2d", CONV, "mul_scalar,bias,relu,store,bent,sigmoid"))
    assert re.findall(r"at::(\w+)\(v", text) == ["mul_scalar", "bias", "relu", "store", "each", "sigmoid", "store"]


def test_arguments_are_given_in_the_order_of_the_step(cpu_kernel):
    flat = " ".join(rendering.render(cpu_kernel("cpu_conv2d", CONV, "bias,add_scalar,clamp,bent,add")).split())
    assert "at::bias(v, (const float*)p[3] + channel);" in flat
    assert "at::clamp(v, a.scalars[1], a.scalars[2]);" in flat
    assert "[](float x, float up, float slope, float shift, float jump)" in flat
    parameters = "a.scalars[3], (const float*)p[4] + channel, (const float*)p[5] + channel, a.scalars[4]"
    assert f"}}, {parameters});" in flat
    assert "at::add(v, (const float*)p[6] + offset);" in flat


def test_headers_come_once_and_every_kernel_is_in_the_table(cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV, chain) for chain in ("", "relu", "bias")]
    text = rendering.unit(kernels)
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    assert len(includes) == len(set(includes))
    for kernel in kernels:
        assert f'{{"{rendering.symbol(kernel)}",' in text


def test_same_kernel_same_text(cpu_kernel):
    kernel, again = (cpu_kernel("cpu_conv2d", dict(CONV), "relu") for _ in range(2))
    assert kernel == again and hash(kernel) == hash(again)
    assert rendering.render(kernel) == rendering.render(again)
    assert rendering.source_digest(kernel) == rendering.source_digest(again)


def test_digest_changes_with_config_and_epilogue(cpu_kernel):
    kernels = [cpu_kernel("cpu_conv2d", CONV), cpu_kernel("cpu_conv2d", {**CONV, "unroll_c": 2})]
    kernels += [cpu_kernel("cpu_conv2d", CONV, "relu"), cpu_kernel("cpu_avg_pool2d", {"block_c": 8})]
    assert len({rendering.source_digest(kernel) for kernel in kernels}) == len(kernels)


@pytest.mark.compile
@pytest.mark.parametrize("name", [name for name, found in families().items() if found.kind == SHARED_LIBRARY])
def test_cpu_units_compile_without_a_warning(name, tmp_path):
    source = tmp_path / "unit.cpp"
    source.write_text(rendering.unit([some_kernel(name, "" if "space" in name else "bias,silu,clamp,bent,gelu,tanh")]))
    flags = ["-std=c++17", "-O1", "-fopenmp", "-Wall", "-Wextra", "-Wno-ignored-attributes", "-Wno-psabi"]
    command = ["g++", *flags, f"-I{paths.templates()}", "-c", str(source), "-o", str(tmp_path / "unit.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr, done.stderr


def test_symbols_tell_kernels_apart(cpu_target):
    base = ("cpu_conv2d", {"block_k": 16, "block_pixels": 4, "unroll_c": 1}, "f32", Epilogue.parse("relu"), cpu_target)
    other = [
        (*base[:1], {**base[1], "unroll_c": 2}, *base[2:]),
        (*base[:3], Epilogue.parse("relu,relu"), base[4]),
        (*base[:4], "x86-64"),
    ]
    symbols = {rendering.symbol(Kernel.of(*values)) for values in [base, *other]}
    assert len(symbols) == 4 and all(symbol.isidentifier() for symbol in symbols)
