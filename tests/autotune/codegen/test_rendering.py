"""Source text: units of several kernels, and digests that change with the code."""

import os
import random
import re
import shutil
import subprocess
from functools import cache

import pytest
from daily import DAY
from kernels import some_kernel

from autotune.codegen import rendering
from autotune.codegen.rendering import included_headers, strip_comments, text_digest
from autotune.core import paths
from autotune.families import SHARED_LIBRARY, Kernel, families
from autotune.ir import Epilogue

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


HEADER_SUFFIXES = (".h", ".cuh")


def kernels():
    return {name: some_kernel(name, "" if "space" in name else "relu") for name in families()}


@pytest.fixture
def templates(tmp_path, monkeypatch):
    """A copy of templates/ that a test may change."""
    copy = tmp_path / "templates"
    shutil.copytree(paths.templates(), copy)
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "autotune")
    rendering._environment.cache_clear()
    yield copy
    forget()
    rendering._environment.cache_clear()


def forget():
    rendering.clear_cache()
    rendering._rendered.cache_clear()


def digests(those):
    forget()
    return {name: rendering.source_digest(kernel) for name, kernel in those.items()}


def headers_by_the_preprocessor(kernel, templates, folder):
    """The headers below `templates` that g++'s preprocessor finds for a kernel's unit."""
    unit = folder / "unit.cpp"
    unit.write_text(rendering.unit([kernel]))
    command = ["g++", "-x", "c++", "-MM", "-MG", f"-I{templates}", str(unit)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = rule.replace("\\\n", " ").split()
    return {word for word in words if word.startswith(f"{templates}/")}


def test_a_comment_in_a_hopper_header_changes_no_digest(templates):
    those = kernels()
    before = digests(those)
    headers = [path for path in (templates / "sm90").rglob("*") if path.suffix in HEADER_SUFFIXES]
    assert len(headers) > 10
    for path in headers:
        lines = path.read_text().splitlines()
        path.write_text("\n\n".join(["/* a title\n   of two lines */", *lines, "// the end"]) + "\n")
    assert digests(those) == before


@pytest.mark.compile
def test_a_changed_line_of_a_header_changes_the_digests_of_the_kernels_that_include_it(
    templates, tmp_path, monkeypatch
):
    monkeypatch.setattr(rendering, "strip_comments", cache(strip_comments))  # most texts stay as they are
    those = kernels()
    before = digests(those)
    included = {name: headers_by_the_preprocessor(kernel, templates, tmp_path) for name, kernel in those.items()}
    headers = [path for path in sorted(templates.rglob("*")) if path.suffix in HEADER_SUFFIXES]
    assert len(headers) > 30
    for path in random.Random(os.environ[DAY]).sample(headers, len(headers) // 3):
        text = path.read_text()
        path.write_text(f"{text}\nstatic_assert(true);\n")
        after = digests(those)
        changed = {name for name in those if after[name] != before[name]}
        assert changed == {name for name in those if str(path) in included[name]}, path
        path.write_text(text)
    assert digests(those) == before


def test_a_changed_template_changes_the_digests_of_its_family(templates):
    those = kernels()
    before = digests(those)
    for path in sorted(templates.rglob("*.j2")):
        text = path.read_text()
        changed = text.replace("at::", "at ::").replace("asm", "asm ").replace("constexpr int", "constexpr  int")
        own = {name: kernel for name, kernel in those.items() if (templates / families()[name].template) == path}
        if own and changed != text:
            path.write_text(changed)
            after = digests(own)
            assert all(after[name] != before[name] for name in own), path
            path.write_text(text)


def test_a_headers_place_does_not_count(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "inner.h").write_text("int inner;\n")
    (tmp_path / "a" / "outer.h").write_text('#include "deep/inner.h"\nint outer;\n')
    (tmp_path / "b" / "deep" / "moved.h").write_text('#include "inner.h"\n\nint outer;  // moved\n')
    first = text_digest('#include "outer.h"\nint x;', [tmp_path / "a"])
    assert first == text_digest('#include "deep/moved.h"\nint x;', [tmp_path / "b"])
    assert [path.name for path in included_headers('#include "outer.h"', [tmp_path / "a"])] == ["outer.h", "inner.h"]


def test_headers_from_elsewhere_count_by_their_name(tmp_path):
    assert text_digest("#include <cmath>\n", [tmp_path]) != text_digest("#include <cfenv>\n", [tmp_path])


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("int a; // b\n\n  int c;", "int a;\nint c;"),
        ("int /* x\n y */ a;", "int   a;"),
        ('auto s = "// no comment"; // one', 'auto s = "// no comment";'),
        (r"""auto s = "\"/*"; char c = '"'; /* " */ int b;""", r"""auto s = "\"/*"; char c = '"';   int b;"""),
        ('auto s = R"x(// ) " /*)x"; // gone', 'auto s = R"x(// ) " /*)x";'),
    ],
)
def test_comments_go_and_literals_stay(text, stripped):
    assert strip_comments(text) == stripped
