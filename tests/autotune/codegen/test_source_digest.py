"""Digests of source text: comments and paths do not count, each line of an included header does."""

import shutil
import subprocess

import pytest
from kernels import some_kernel

from autotune.codegen import rendering, source_digest
from autotune.codegen.source_digest import included_headers, strip_comments, text_digest
from autotune.core import paths
from autotune.families import families

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
    source_digest.clear_cache()
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
def test_a_changed_line_of_a_header_changes_the_digests_of_the_kernels_that_include_it(templates, tmp_path):
    those = kernels()
    before = digests(those)
    included = {name: headers_by_the_preprocessor(kernel, templates, tmp_path) for name, kernel in those.items()}
    headers = [path for path in sorted(templates.rglob("*")) if path.suffix in HEADER_SUFFIXES]
    assert len(headers) > 30
    for path in headers:
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
        changed = text.replace("at::", "at ::").replace("asm", "asm ")
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
