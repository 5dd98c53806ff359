"""The ctypes structs and constants of autotune.ir.abi against what a C++ compiler makes of templates/abi.h."""

import ctypes
import dataclasses
import json
import re
import subprocess

import pytest

from autotune.core import ProblemError, paths
from autotune.ir import OPERATORS, abi, epilogue, operators, parse, problem
from autotune.ir.operators import Pool2d
from autotune.runtime import engine

CONSTANTS = {
    "AT_ABI_VERSION": abi.ABI_VERSION,
    "AT_MAX_SCALARS": epilogue.MAX_SCALARS,
    "AT_MAX_LAUNCH": abi.MAX_LAUNCH,
    "AT_MAX_POINTERS": abi.MAX_POINTERS,
    "AT_WORKSPACE": problem.MAX_OPERANDS,
    "AT_MAX_PIECES": operators.MAX_PIECES,
}


STRUCTS = tuple(dict.fromkeys(map(abi.struct, OPERATORS.values())))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What g++ says of every struct and constant."""
    lines = [f'printf("\\"{name}\\": %lld,", (long long){name});' for name in CONSTANTS]
    for struct in STRUCTS:
        c = struct.__name__
        lines.append(f'printf("\\"{c}\\": [%zu], ", sizeof({c}));')
        for field, *_ in struct._fields_:
            member = re.sub(r"(\d+)$", r"[\1]", field)  # pitch3 is pitch[3] of at_concat
            place = f"offsetof({c}, {member}), sizeof((({c}*)0)->{member})"
            lines.append(f'printf("\\"{c}.{field}\\": [%zu, %zu], ", {place});')
    declared = "\n".join(filter(None, map(abi.declaration, OPERATORS.values())))
    included = "".join(f"#include {name}\n" for name in ("<stddef.h>", "<stdio.h>", '"abi.h"', '"concat.h"'))
    source = f'{included}{declared}\nint main() {{\nprintf("{{");\n'
    folder = tmp_path_factory.mktemp("abi")
    folder.joinpath("abi.cpp").write_text(source + "\n".join(lines) + '\nprintf("\\"\\": 0}");\n}\n')
    command = ["g++", "-std=c++17", f"-I{paths.templates()}", "abi.cpp", "-o", "abi"]
    subprocess.run(command, cwd=folder, check=True)
    return json.loads(subprocess.run(["./abi"], cwd=folder, check=True, capture_output=True).stdout)


def test_every_operator_has_a_struct():
    shared = dict.fromkeys(
        ("conv2d_dgrad", "conv2d_wgrad", "conv2d_broadcast", "conv2d_statistics", "gemm", "patch_conv2d"), "conv2d"
    )
    shared |= {"se_down_block": "conv2d_se", "conv2d_folded_se": "conv2d_se", "cast": "pixels"}
    shared |= {"stem_se_block_pool": "stem_se_block", "stem_cast": "stem"}
    shared |= {"layer_norm": "pixels", "softmax": "pixels"}
    shared |= dict.fromkeys(("clipped_avg_pool2d", "adaptive_avg_pool2d"), "pool2d")
    shared |= {"avg_pool2d": "pool2d", "max_pool2d": "pool2d", "global_avg_pool2d": "pixels", "elementwise": "pixels"}
    shared |= {"batch_norm_statistics": "pixels", "normalize": "pixels"}
    shared |= dict.fromkeys(("max_pool2d_places", "max_pool2d_places_gradient"), "pool2d")
    shared |= {"expand_depthwise": "conv2d", "squeeze_excite": "se_tail", "se_gates": "se_tail"}
    shared |= {"inverted_residual": "conv2d_se"}
    for name, operator in OPERATORS.items():
        assert abi.struct(operator).__name__ == f"at_{shared.get(name, name)}"


@pytest.mark.compile
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_agree(compiled, name):
    assert compiled[name] == CONSTANTS[name]


def test_engine_was_built_for_this_version():
    assert engine.ABI_VERSION == abi.ABI_VERSION


@pytest.mark.compile
@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_lies_where_the_compiler_puts_it(compiled, struct):
    name = struct.__name__
    assert compiled[name] == [ctypes.sizeof(struct)]
    for field, *_ in struct._fields_:
        descriptor = getattr(struct, field)
        assert compiled[f"{name}.{field}"] == [descriptor.offset, descriptor.size], field


@pytest.mark.compile
def test_c_compilers_read_the_header_too(tmp_path):
    tmp_path.joinpath("plain.c").write_text('#include "abi.h"\nint sizes[sizeof(at_prepared) > 0 ? 1 : -1];\n')
    command = ["gcc", "-std=c99", "-Wall", "-Werror", f"-I{paths.templates()}", "-c", "plain.c"]
    subprocess.run(command, cwd=tmp_path, check=True)


SIZES = "n=2 h=13 w=9 c=24 k=40 r=5 s=3 stride=2,1 pad=2,4 dilation=1,3 groups=4 dtype=f32 epilogue=add_scalar"
PACKED = {
    **dict.fromkeys(
        [f"{name} {SIZES}" for name in ("conv2d", "conv2d_dgrad", "conv2d_wgrad")],
        "2 13 9 24 40 5 3 7 11 2 1 2 4 1 3 4",
    ),
    "gemm m=5 n=7 k=6 dtype=f32 epilogue=mul_scalar": "5 1 1 6 7 1 1 1 1 1 1 0 0 1 1 1",
}


@pytest.mark.compile
@pytest.mark.parametrize("text", PACKED)
def test_a_packed_problem_is_read_in_c(text, tmp_path):
    problem = parse(text)
    source = """
      #include <stdio.h>
      #include "abi.h"
      int main() {
        at_conv2d a;
        fread(&a, sizeof a, 1, stdin);
        printf("%d %d %d %d %d %d %d %d %d ", a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.p, a.q);
        printf("%d %d %d %d ", a.stride_h, a.stride_w, a.pad_h, a.pad_w);
        printf("%d %d %d %g %g ", a.dilation_h, a.dilation_w, a.groups, a.scalars[0], a.scalars[1]);
        printf("%d %d %d", a.launch[0], a.launch[1], a.launch[2]);
      }"""
    tmp_path.joinpath("read.cpp").write_text(source)
    subprocess.run(["g++", f"-I{paths.templates()}", "read.cpp", "-o", "read"], cwd=tmp_path, check=True)
    packed = abi.pack_problem(problem, (0.5,), {"b": 9, "a": 7}, ("a", "b"))
    said = subprocess.run(["./read"], cwd=tmp_path, input=packed, capture_output=True, check=True).stdout.decode()
    assert said == f"{PACKED[text]} 0.5 0 7 9 0"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "stem n=2 h=13 w=11 c=3 k=40 r=5 s=4 stride=2,1 pad=2,3 pool=3 pool_stride=2 pool_pad=1 dtype=f32",
            [2, 13, 11, 3, 40, 5, 4, 4, 7, 2, 1, 2, 3, 3, 2, 1],
        ),
        ("max_pool2d n=2 h=8 w=5 c=3 r=3 s=2 stride=2,1 ceil=1 dtype=f32", [2, 8, 5, 3, 3, 2, 4, 4, 2, 1, 0, 0]),
    ],
)
def test_a_packed_pool_holds_its_output_sizes(text, values):
    problem = parse(text)
    packed = abi.struct(type(problem)).from_buffer_copy(abi.pack_problem(problem, (), {"walk": 6}, ("walk",)))
    assert [getattr(packed, name) for name, *_ in packed._fields_[:-2]] == values
    assert list(packed.launch) == [6, *[0] * 7]


def test_every_operator_can_be_packed():
    sizes = {
        "n": 2,
        "h": 8,
        "w": 6,
        "c": 4,
        "k": 8,
        "r": 3,
        "s": 2,
        "block": 2,
        "hidden": 3,
        "skip_c": 6,
        "skip_h": 6,
        "skip_w": 5,
        "skip_groups": 2,
        "m": 5,
        "p": 3,
        "q": 4,
        "to": 4,
        "result": "s8",
        "rows": "8,5",
        "columns": 1,
        "mode": "bilinear",
        "pieces": "4,1:3/8",
        "interleave": 2,
        "act": "silu",
        "gate": "sigmoid",
    }
    for operator, cls in OPERATORS.items():
        names = [field.name for field in dataclasses.fields(cls) if field.name in sizes]
        words = [f"{name}={sizes[name]}" for name in names] + ["stride=2"] * issubclass(cls, Pool2d)
        words += ["groups=2"] * (operator in ("group_norm", "group_statistics"))
        packed = abi.pack_problem(parse(f"{operator} {' '.join(words)} dtype=f32"))
        assert len(packed) == ctypes.sizeof(abi.struct(cls))


def test_more_values_than_there_is_room_for_are_refused():
    problem = parse("space_to_depth n=1 h=4 w=4 c=1 block=2 dtype=f32")
    with pytest.raises((ValueError, IndexError)):
        names = [f"v{i}" for i in range(abi.MAX_LAUNCH + 1)]
        abi.pack_problem(problem, (), dict.fromkeys(names, 0), names)


@pytest.mark.parametrize(
    ("launch", "given"),
    [({"grid": 1}, "grid"), ({"grid": 1, "raster": 0, "walk": 2}, "grid, raster, walk"), ({}, "none")],
)
def test_launch_values_must_be_those_that_the_kernel_takes(launch, given):
    problem = parse("space_to_depth n=1 h=4 w=4 c=1 block=2 dtype=f32")
    said = f"the kernel takes the launch values grid, raster; given are {given}"
    with pytest.raises(ProblemError, match=said):
        abi.pack_problem(problem, (), launch, ("grid", "raster"))
