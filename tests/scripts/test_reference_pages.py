"""How problems are written: the pages and files of problems; and the generated parts of docs/reference."""

import functools
import re

import pytest
from fuzzing import damaged, fuzz
from hypothesis import given
from hypothesis import strategies as st
from problems import TEXTS
from processes import python, script
from repository import ROOT

from autotune.core import AutotuneError
from autotune.families import families, folder_of
from autotune.ir import OPERATORS, parse
from autotune_cli import reference_pages
from autotune_cli.main import NAMES
from autotune_cli.problem_file import read_problems

GENERATED = {
    "problems.md": "conv2d_dgrad n=N",
    "families.md": "output pixels of a tile",
    "options.md": "`--batch N[,N]`",
    "database.md": "SHA-256 of the uncompressed binary",
    "figures.md": "networks_h200.db",
}
"""Page of docs/reference -> a text that only its generated parts have."""
NOTE = "The built site lists"
"""How the note begins that the pages in git have in place of their generated parts."""


@functools.cache
def stored(name):
    return (ROOT / "docs" / "reference" / name).read_text()


@functools.cache
def built(name):
    """A page of docs/reference as the site has it."""
    return reference_pages.refreshed(stored(name))


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_parts_of_a_reference_page_are_built_and_not_stored(name):
    assert GENERATED[name] not in stored(name) and NOTE in stored(name)
    assert GENERATED[name] in built(name) and NOTE not in built(name)
    assert reference_pages.refreshed(built(name)) == built(name), "what is generated has no marker"


def test_no_other_page_has_generated_parts():
    marked = {path.name for path in (ROOT / "docs").rglob("*.md") if ", generated -->" in path.read_text()}
    assert marked == {*GENERATED}


def test_the_reference_has_every_family_and_command():
    families_page, options_page = built("families.md"), built("options.md")
    assert all(f"\n### {name}\n" in families_page for name, found in families().items() if folder_of(name) is None)
    for found in families().values():
        assert all(f"| `{parameter.name}` |" in families_page for parameter in found.parameters)
    assert all(f"\n## autotune {name}\n" in options_page for name in NAMES)
    assert "### autotune db merge" in options_page and "`-o FILE`, `--out FILE`" in options_page


@pytest.mark.process
def test_the_command_prints_a_page_with_its_generated_parts(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text := "# A page\n\n<!-- steps, generated -->\nold\n<!-- end -->\n")
    arguments = f"import runpy, sys; sys.argv = ['reference_pages', {str(page)!r}]"
    done = python(f"{arguments}; runpy.run_module('autotune_cli.reference_pages', run_name='__main__')")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# A page\n\n<!-- steps, generated -->\n| step | operands |")
    assert "| `clamp` | scalar, scalar |" in done.stdout and "old" not in done.stdout and page.read_text() == text


@pytest.mark.parametrize("name", OPERATORS)
def test_what_the_usage_says_is_read(name):
    usage = reference_pages.usage(OPERATORS[name])
    filled = usage.replace("result=DTYPE", "result=s8")
    for field, value in {"mode": "bilinear", "act": "silu", "gate": "sigmoid"}.items():
        filled = filled.replace(f"{field}=WORD", f"{field}={value}")
    for placeholder, value in {"DTYPE": "f32", "N,N": "2,2", "N": "4", "C,C,...": "4,1:3/8"}.items():
        filled = filled.replace(f"={placeholder}", f"={value}")
    short, full = re.sub(r" \[[^]]*\]", "", filled), filled.replace("[", "").replace("]", "")
    assert parse(short) == parse(full)
    assert f"``\n{usage}\n``" in built("problems.md")


def test_the_pages_example_is_read():
    assert parse(re.findall(r"^    (conv2d .*)$", stored("problems.md"), re.MULTILINE)[0])


def test_a_file_has_a_problem_a_line(tmp_path):
    path = tmp_path / "problems.txt"
    first, second = "avg_pool2d n=1 h=8 w=8 c=24 r=3 s=3 stride=2 dtype=f32", "conv2d n=1 h=4 w=4 c=8 k=8 dtype=f16"
    path.write_text(f"# two\n\n{first}\n  {second}  # the stem\n")
    assert read_problems(path) == [parse(first), parse(second)]


@pytest.mark.parametrize(
    ("text", "said"),
    [("# none\n", "contains no problem"), ("\nconv2d n=1\n", "line 2: 'conv2d n=1' lacks"), (None, "cannot read")],
)
def test_mistakes_in_a_file_are_told_with_their_place(text, said, tmp_path):
    path = tmp_path / "problems.txt"
    if text:
        path.write_text(text)
    with pytest.raises(AutotuneError, match=said) as caught:
        read_problems(path)
    assert str(path) in str(caught.value)


CONV = "conv2d n=1 h=4 w=4 c=8 k=8 dtype"
MISTAKES = {
    ("--problem", "conv3d n=1"): "unknown operator 'conv3d': choose one of conv2d",
    ("--problem", "conv2d n=1 h=4 w=4 c=8 dtype=f32"): "lacks k",
    ("--problem", f"{CONV}=f32 epilogue=tanhh"): "unknown epilogue step 'tanhh'",
    ("--problem", f"{CONV}=f16"): "cpu has no kernels in f16: choose f32",
    ("--problem", f"{CONV}=f99"): "unknown dtype 'f99'",
    ("--problem", f"{CONV}=f32", "--batch", "4"): "--batch: these options are for a network",
    ("--problems", "/nonexistent"): "cannot read /nonexistent",
    ("--families", "/nonexistent"): "there is no folder /nonexistent",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_tune_py_tells_mistakes_in_a_sentence(arguments, tmp_path):
    done = script("tune", "--arch", "cpu", "--db", tmp_path / "made.db", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ") and MISTAKES[arguments] in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_help_of_tune_names_the_page_of_problems():
    assert "docs/reference/problems.md describes" in script("tune", "--help").stdout


def test_a_random_file_of_problems_is_read_or_its_line_is_named(tmp_path):
    path = tmp_path / "problems.txt"
    line = st.one_of(st.sampled_from(TEXTS), st.sampled_from(TEXTS).flatmap(damaged), st.just("# a comment"))

    @fuzz(60)
    @given(st.lists(line, max_size=4), st.sampled_from((b"", b"\xff", b"\x00", b"\r\n", b"\xef\xbb\xbf")))
    def check(lines, ending):
        path.write_bytes("\n".join(lines).encode(errors="surrogateescape") + ending)
        try:
            problems = read_problems(path)
        except AutotuneError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert problems and [parse(str(problem)) for problem in problems] == problems

    check()
