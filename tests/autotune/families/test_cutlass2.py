"""The CUTLASS 2.x families: what is legal against configs that were really compiled, and what they serve."""

import csv

import pytest
from repository import DATA

from autotune.core import architecture
from autotune.families import family
from autotune.ir import Epilogue, parse


def compiled_rows(name="compiled_fprop"):
    with (DATA / f"{name}.csv").open() as file:
        yield from csv.DictReader(file)


def config_of(row):
    config = {"generation": int(row.get("arch") or row["generation"])}
    for column, name in (("threadblock", "tile"), ("warp", "warp")):
        m, n, k = map(int, row[column].split("x"))
        config |= {f"{name}_m": m, f"{name}_n": n, f"{name}_k": k}
    return {**config, "stages": int(row["stages"])}


@pytest.mark.parametrize(("operator", "least"), [("dgrad", 50), ("wgrad", 30)])
def test_what_is_legal_of_gradients_compiled_with_cutlass(operator, least):
    arch, chosen = architecture("sm80"), family(f"cutlass2_conv2d_{operator}")
    rows = [row for row in compiled_rows("compiled_gradients_f16") if row["operator"] == operator]
    shared = {"alignment": 8, "strided": 0}
    legal = [row for row in rows if chosen.why_illegal({**config_of(row), **shared}, arch, "f16", Epilogue()) is None]
    assert [row for row in legal if row["compiles"] != "1"] == []
    assert len(legal) >= least, f"only {len(legal)} of {len(rows)} rows are legal"
    assert any(row["compiles"] == "0" for row in rows), "rows that fail are what makes this a test"


@pytest.mark.parametrize("name", ["sm70", "sm75", "sm80"])
def test_what_is_legal_of_gemms_compiled_with_cutlass(name):
    """A product's operands lie like those of the forward pass, so a warp tile that compiles there does so here."""
    arch, chosen = architecture(name), family("cutlass2_gemm")
    warps = next(parameter.values for parameter in chosen.parameters if parameter.name == "warp_n")
    rows = [row for row in compiled_rows() if (row["generation"], row["dtype"]) == (name.removeprefix("sm"), "f16")]
    rows = [row for row in rows if config_of(row)["warp_n"] in warps]
    shared = {"alignment": 8, "vector": 8}
    legal = [row for row in rows if chosen.why_illegal({**config_of(row), **shared}, arch, "f16", Epilogue()) is None]
    assert [row for row in legal if row["compiles"] != "1"] == []
    assert len(legal) >= 10


def test_accesses_are_the_widest_that_divide_the_channels():
    sm80 = architecture("sm80")
    for text, name, wanted in [
        ("gemm m=64 n=1000 k=516 dtype=f16", "cutlass2_gemm", {"alignment": 4, "vector": 8}),
        ("gemm m=64 n=10 k=63 dtype=f16", "cutlass2_gemm", {"alignment": 1, "vector": 2}),
        ("conv2d n=2 h=8 w=8 c=64 k=40 dtype=f16", "cutlass2_gemm", {"alignment": 8, "vector": 8}),
        (
            "conv2d_dgrad n=2 h=8 w=8 c=3 k=64 r=3 s=3 dtype=f16",
            "cutlass2_conv2d_dgrad",
            {"alignment": 1, "strided": 0},
        ),
        (
            "conv2d_dgrad n=2 h=8 w=8 c=6 k=64 stride=2 dtype=f16",
            "cutlass2_conv2d_dgrad",
            {"alignment": 2, "strided": 1},
        ),
        ("conv2d_wgrad n=2 h=8 w=8 c=48 k=64 stride=2 dtype=f16", "cutlass2_conv2d_wgrad", {"alignment": 8}),
    ]:
        problem, chosen = parse(text), family(name)
        assert chosen.why_not_served(problem, sm80) is None
        configs = chosen.configs(sm80, "f16", problem.epilogue)
        usable = [config for config in configs if not chosen.why_unfit(problem, config, sm80)]
        assert usable
        for config in usable:
            assert {key: config[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cutlass2_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 r=3 s=3 pad=1 dtype=f16"),
        ("cutlass2_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 stride=2 dtype=f16"),
        ("cutlass2_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 pad=1 dtype=f16"),
        ("cutlass2_gemm", "conv2d n=1 h=8 w=8 c=16 k=16 groups=2 dtype=f16"),
        ("cutlass2_gemm", "gemm m=65536 n=32768 k=8 dtype=f16"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=8 w=8 c=16 k=16 groups=2 dtype=f16"),
        ("cutlass2_conv2d_dgrad", "conv2d_dgrad n=1 h=9 w=9 c=16 k=16 r=3 s=3 stride=2 dilation=2 dtype=f16"),
        ("cutlass2_conv2d_wgrad", "conv2d_wgrad n=1 h=8 w=8 c=16 k=16 groups=4 dtype=f16"),
        ("cutlass2_conv2d_wgrad", "conv2d_wgrad n=256 h=112 w=112 c=64 k=64 dtype=f16"),
        ("cutlass2_conv2d_wgrad", "conv2d n=1 h=8 w=8 c=16 k=16 dtype=f16"),
    ],
)
def test_other_products_are_refused(name, text):
    found = family(name)
    assert found.why_not_served(parse(text), architecture(found.architectures[-1]))
