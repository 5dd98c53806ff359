"""Families outside the package: the document's example as a user would run it, and what is said of faulty ones."""

import json
import os
import shlex
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from databases import rows
from kernels import documented_family
from processes import process, python
from repository import ROOT

from autotune import families
from autotune.core import FamilyError, ProblemError
from autotune.ir import OPERATORS, Problem, is_built_in, parse
from autotune.ir.problem import register
from autotune.runtime.selection import choices
from tuning_db import Store

FAMILY = """
from autotune.families import SHARED_LIBRARY, Family, Parameter
from autotune.families.vector_add import VectorAdd
class Own(Family):
    name, operator, kind, template = "{name}", VectorAdd, SHARED_LIBRARY, "{name}.cpp.j2"
    architectures = ("cpu",)
    parameters = (Parameter("block", (16, 64), "numbers in registers"), Parameter("chunk", (4096,), "a thread's"))
    def cost(self, problem, config, arch):
        return 0
FAMILIES = (Own(),)
"""
BARE = """
from autotune.families import Family
class Bare(Family):
    def cost(self, problem, config, arch):
        return 0
FAMILIES = [Bare()]
"""
FAULTS = {
    "unclosed": ("{{ apply(", "{{ (apply("),
    "misspelt": ("{{ chunk }})", "{{ chink }})"),
    "asserting": (
        "at::for_channels",
        'static_assert({{ block }} < 64, "a block of 64 is too large"); at::for_channels',
    ),
    "doubling": ("problem.scalars[0]", "2 * problem.scalars[0]"),
    "with_header": ("problem.scalars[0]", "own_factor(problem)"),
}
SHIFT = {
    "shift2d.py": '''
import torch
from autotune.ir.problem import NonNegativePair, Operand, Problem, register

@register
class Shift2d(Problem):
    """y = x moved down and to the right by `shift`; zeros or what was moved out fills the border."""

    operator = "shift2d"
    sizes = "rows columns shift_h shift_w wraps"
    batch_field = "rows"
    rows: int
    columns: int
    shift: NonNegativePair = (0, 0)
    border: str = "zero"

    output_shape = property(lambda self: (self.rows, self.columns))
    flops = 0
    wraps = property(lambda self: self.border == "wrap")
    short_name = property(lambda self: f"shift {self.shift[0]},{self.shift[1]} {self.border}")

    def _inputs(self):
        return (Operand("x", "input", self.output_shape, self.dtype),)

    def reference(self, tensors, scalars):
        y = torch.roll(tensors["x"], self.shift, (0, 1))
        if not self.wraps:
            y[: self.shift[0]], y[:, : self.shift[1]] = 0, 0
        return y
''',
    "cpu_shift2d.py": """
from autotune.families import SHARED_LIBRARY, Family, Parameter
from autotune.families.shift2d import Shift2d
class CpuShift2d(Family):
    name, operator, kind, template = "cpu_shift2d", Shift2d, SHARED_LIBRARY, "cpu_shift2d.cpp.j2"
    architectures = ("cpu",)
    parameters = (Parameter("block", (1, 16), "numbers in registers"),)
    def cost(self, problem, config, arch):
        return 0
FAMILIES = (CpuShift2d(),)
""",
    "cpu_shift2d.cpp.j2": """
{% from "epilogue.j2" import apply %}
#include "cpu/channels.h"
namespace {{ symbol }} {
static void run(const at_shift2d& a, void* const* p) {
  for (int row = 0; row < a.rows; ++row)
    at::for_channels<{{ block }}>(a.columns, [&](auto& v, int column) __attribute__((always_inline)) {
      for (int i = 0; i < int(sizeof v / sizeof *v); ++i) {
        const int y = row - a.shift_h, x = column + i - a.shift_w;
        const int64_t from = int64_t((y + a.rows) % a.rows) * a.columns + (x + a.columns) % a.columns;
        v[i] = a.wraps || (y >= 0 && x >= 0) ? ((const float*)p[0])[from] : 0.f;
      }
      const int64_t offset = int64_t(row) * a.columns + column;
      {{ apply(epilogue, 2, element, scalars="a.scalars", channel="column") }}
      at::store(v, (float*)p[1] + offset);
    });
}
using Kernel = at::Entry<at_shift2d, run>;
}
""",
}
"""An operator with a pair and a word, its family and its kernel: three files."""
SHIFTED = "shift2d rows=37 columns=50 shift=3,5 border={} dtype=f32 epilogue=bias,relu"


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """The document's folder, one of faulty families beside it, and the command."""
    root = tmp_path_factory.mktemp("families")
    command = documented_family(root / "my_families")
    good, faulty = (root / "my_families" / "vector_add.cpp.j2").read_text(), root / "faulty"
    faulty.mkdir()
    for name, (old, new) in FAULTS.items():
        assert good.count(old)
        text = good.replace(old, new)
        if name == "with_header":
            text = text.replace("#include", '#include "own/factor.h"\n#include')
        faulty.joinpath(f"{name}.py").write_text(FAMILY.format(name=name))
        faulty.joinpath(f"{name}.cpp.j2").write_text(text)
    problem = (root / "my_families" / "vector_add.py").read_text()
    faulty.joinpath("orphan.py").write_text(problem.replace("vector_add", "orphan").replace("VectorAdd", "Orphan"))
    faulty.joinpath("own").mkdir()
    header = "#pragma once\ninline float own_factor(const at_vector_add& problem) { return problem.scalars[0]; }\n"
    faulty.joinpath("own", "factor.h").write_text(header)
    for name, text in SHIFT.items():
        faulty.joinpath(name).write_text(text)
    return SimpleNamespace(folder=root / "my_families", faulty=faulty, command=command)


@pytest.fixture(scope="module")
def tuned(documented, tmp_path_factory):
    """The document's command, searching all there is, with the faulty families and a problem that nobody serves."""
    path = tmp_path_factory.mktemp("tuned") / "vectors.db"
    program, name, *arguments = shlex.split(documented.command)
    assert (program, name) == ("autotune", "tune")
    arguments += ["--problem", "orphan count=999 dtype=f32 epilogue=add_scalar", "--db", str(path)]
    arguments += ["--problem", SHIFTED.format("wrap"), "--problem", SHIFTED.format("zero")]
    arguments += ["--gain", "0%", "--budget", "20m"]
    environment = {**os.environ, "AUTOTUNE_FAMILIES": str(documented.faulty), "COLUMNS": "200"}
    done = process("tune", *arguments, cwd=documented.folder.parent, env=environment)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(path=path, said=done.stdout)


def test_it_is_small(documented):
    lines = [line for path in documented.folder.iterdir() for line in path.read_text().splitlines() if line.strip()]
    assert len(list(documented.folder.iterdir())) == 5 and len(lines) < 90


@pytest.mark.process
def test_the_winner_is_in_the_database_with_its_binary(tuned):
    query = """
        SELECT kernel.family, library_id, final FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE operator = 'vector_add' AND status = 'ok'
        ORDER BY final DESC, median_us"""
    ranked = rows(tuned.path, query)
    assert ranked[0][0] in ("cpu_vector_add", "asserting", "with_header") and ranked[0][1] and ranked[0][2]
    assert {"cpu_vector_add", "asserting", "with_header", "aten"} == {family for family, *_ in ranked}
    assert ranked[0][0] in tuned.said and "vector_add count=1000003" in tuned.said


@pytest.mark.process
def test_a_config_that_is_not_legal_is_told_and_never_compiled(tuned):
    assert "cpu_vector_add: 8 of 9 configs are legal; block 256 chunk 128 is not: a block must" in tuned.said
    configs = {config for (config,) in rows(tuned.path, "SELECT config FROM kernel WHERE family = 'cpu_vector_add'")}
    legal = {json.dumps({"block": b, "chunk": c}) for b, c in product((16, 64, 256), (128, 4096, 32768)) if b <= c}
    assert len(legal) == 8 and configs == legal


@pytest.mark.process
@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("does not compile unclosed block 16 chunk 4096", "unclosed.cpp.j2, line 13: TemplateSyntaxError: "),
        (
            "does not compile misspelt block 16 chunk 4096",
            "misspelt.cpp.j2, line 6: UndefinedError: 'chink' is undefined",
        ),
        ("does not compile asserting block 64 chunk 4096", "a block of 64 is too large"),
        ("wrong doubling block", "y has a relative error of"),
    ],
)
def test_a_fault_is_told_with_family_config_and_the_tools_own_words(tuned, example, words):
    lines = tuned.said.splitlines()
    [place] = [i for i, line in enumerate(lines) if line.startswith(example)]
    assert any(words in line for line in lines[place + 1 : place + 8]), lines[place : place + 8]


@pytest.mark.process
def test_faulty_kernels_are_recorded_and_never_win(tuned):
    bad = "SELECT family, config FROM kernel WHERE error IS NOT NULL ORDER BY family, config"
    assert {family for family, _ in rows(tuned.path, bad)} == {"unclosed", "misspelt", "asserting"}
    assert [config for family, config in rows(tuned.path, bad) if family == "asserting"] == [
        '{"block": 64, "chunk": 4096}'
    ]
    measured = """
        SELECT DISTINCT status, final FROM measurement JOIN kernel ON kernel.id = kernel_id
        WHERE family IN ('unclosed', 'misspelt', 'doubling') OR kernel.error IS NOT NULL"""
    assert rows(tuned.path, measured) == [("wrong", 0)]


@pytest.mark.process
def test_what_nobody_serves_is_torchs_and_said(tuned):
    reason = "no family has a kernel for it (none implements orphan on cpu): only torch's operators run it"
    assert f"2: {reason}" in tuned.said
    query = """
        SELECT DISTINCT kernel.family FROM measurement JOIN kernel ON kernel.id = kernel_id
        JOIN problem ON problem.id = problem_id WHERE operator = 'orphan' AND status = 'ok' AND final"""
    assert rows(tuned.path, query) == [("aten",)]


@pytest.mark.process
def test_an_operator_with_a_pair_and_a_word_is_tuned_and_runs_from_the_database(tuned, documented):
    assert "shift 3,5 wrap" in tuned.said and "shift 3,5 zero" in tuned.said
    code = f"""
import torch
from autotune.families import families
from autotune.ir import parse
from autotune.runtime import bind
from autotune.runtime.selection import choices
from tuning_db import Store
families()
x, bias, device = torch.randn(37, 50), torch.randn(50), torch.device("cpu")
with Store.open({str(tuned.path)!r}) as store:
    for border in ("wrap", "zero"):
        problem = parse({SHIFTED!r}.format(border))
        assert [row.kernel.family for row in store.ranking(store.devices()[0], str(problem))].count("cpu_shift2d") == 2
        candidates = [choice for choice in choices(store, problem, device) if choice.candidate.family == "cpu_shift2d"]
        assert candidates and candidates[0].source == "tuned"
        tensors = {{"x": x, "bias0": bias, "y": torch.full((37, 50), float("nan"))}}
        bind(candidates[0].candidate, problem, tensors, (), device).run()
        for i in range(37):
            for j in range(50):
                inside = border == "wrap" or (i >= 3 and j >= 5)
                expected = max((x[(i - 3) % 37, (j - 5) % 50] if inside else 0) + bias[j], torch.tensor(0.0))
                assert tensors["y"][i, j] == expected, (border, i, j)
print("ok")
"""
    both = os.pathsep.join(map(str, (documented.folder, documented.faulty)))
    done = python(code, env={**os.environ, "AUTOTUNE_FAMILIES": both})
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.process
def test_what_compiling_cost_is_told(tuned):
    assert "a core-minute" in tuned.said and " trials in " in tuned.said.splitlines()[-1]


@pytest.mark.process
def test_the_runtime_passes_over_problems_of_families_that_are_not_here(tuned):
    assert "vector_add" not in OPERATORS
    problem = parse("conv2d n=1 h=4 w=4 c=8 k=8 dtype=f32")
    with Store.open(tuned.path) as store:
        assert [choice.source for choice in choices(store, problem, torch.device("cpu"))] == ["untuned"]


@pytest.mark.process
def test_db_py_reads_problems_of_the_families_that_the_environment_names(tuned, documented):
    both = os.pathsep.join(map(str, (documented.folder, documented.faulty)))
    listed = process("db", "best", tuned.path, env={**os.environ, "AUTOTUNE_FAMILIES": both, "COLUMNS": "160"})
    assert listed.returncode == 0 and "vector_add count=1000003" in listed.stdout, listed.stderr


@pytest.mark.process
def test_scalars_are_the_problems_own_then_the_epilogues_and_digests_cover_headers_and_problem(documented):
    both = os.pathsep.join(map(str, (documented.folder, documented.faulty)))
    code = f"""
import linecache
import torch
from pathlib import Path
from kernels import built_paths, candidate_of
from autotune.codegen import rendering, translation_units
from autotune.core import cpu_targets
from autotune.families import families
from autotune.families import Kernel
from autotune.ir import parse
from autotune.runtime import bind
families()
problem = parse("vector_add count=1237 dtype=f32 epilogue=mul_scalar,relu,add,add_scalar")
tensors = {{operand.name: torch.randn(operand.shape) for operand in problem.operands()}}
for name in ("cpu_vector_add", "with_header"):
    kernel = Kernel.of(name, {{"block": 16, "chunk": 4096}}, "f32", problem.epilogue, cpu_targets()[0])
    candidate = candidate_of(kernel, built_paths([kernel])[kernel], {{}})
    tensors["y"].fill_(float("nan"))
    bind(candidate, problem, tensors, (0.5, 3.0, 7.0), torch.device("cpu")).run()
    wanted = ((tensors["a"].double() + 0.5 * tensors["b"].double()) * 3).clamp_min(0) + tensors["add0"].double() + 7
    torch.testing.assert_close(tensors["y"].double(), wanted, rtol=1e-6, atol=1e-6)

def names():
    rendering.clear_cache()
    rendering._environment.cache_clear()
    return rendering.source_digest(kernel), translation_units.Unit((kernel,)).name

header = Path({str(documented.faulty)!r}, "own", "factor.h")
operator = Path({str(documented.folder)!r}, "vector_add.py")
for path in (header, operator):
    before, text = names(), path.read_text()
    path.write_text(text + ("int more;\\n" if path == header else "\\n"))
    linecache.clearcache()
    after = names()
    path.write_text(text)
    assert before[0] != after[0] and (before[1] != after[1]) == (path == header), path
print("ok")
"""
    done = python(
        code, env={**os.environ, "AUTOTUNE_FAMILIES": both, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"}
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("broken.py", "x = 1\nx = = 2\n", "broken.py, line 2: SyntaxError"),
        ("raising.py", "import os\n\nos.nothing\n", "raising.py, line 3: AttributeError"),
        ("number.py", "FAMILIES = 3\n", "number.py: FAMILIES must be a tuple or list of instances of Family"),
        ("bare.py", BARE, "bare.py: Bare must define name, operator, kind, template, architectures, parameters"),
        ("base.py", "", "base.py has the name of one of the project's own: rename it"),
        ("twin.py", "from autotune.families.cpu.conv2d import FAMILIES\n", "already a family 'cpu_conv2d'"),
        (None, "", "there is no folder"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told_in_a_sentence(file, text, said, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    if file:
        folder.mkdir()
        folder.joinpath(file).write_text(text)
    monkeypatch.setenv("AUTOTUNE_FAMILIES", "")
    try:
        families.use([folder])
        with pytest.raises(FamilyError) as caught:
            families.families()
        assert said in str(caught.value) and str(folder) in str(caught.value) and "\n" not in str(caught.value)
    finally:
        monkeypatch.undo()
        families.use([])


class Plain(Problem):
    operator, sizes = "plain", "count"
    count = 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operator": "conv2d"}, "already an operator 'conv2d'"),
        ({"operator": "vector-add"}, "'vector-add' cannot be a name"),
        ({"sizes": "count width"}, "sizes names width"),
        ({"sizes": "count Count"}, "'Count' cannot be a name"),
    ],
)
def test_a_problem_that_cannot_be_registered_is_refused(values, said):
    with pytest.raises(ProblemError, match=said):
        register(type("Other", (Plain,), values))
    assert all(map(is_built_in, OPERATORS.values()))
