"""The README and docs/: what they link to exists, headings and names included, and what their examples import."""

import ast
import functools
import importlib
import inspect
import re
import sys

import pytest
from repository import ROOT

from autotune_cli import reference_pages

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([\w./-]*)(?:#([\w-]+))?\)")


@functools.cache
def anchors(path):
    """The names that a page of the site can be entered at, as GitHub makes them from headings."""
    text = reference_pages.refreshed(path.read_text())
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    made = (re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
    return {*made, *re.findall(r'<a name="([^"]+)">', text)}


EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
OURS = ("autotune", "fused_resnet", "tuning_db")
IMPORTS = [
    (page, module, name)
    for page in PAGES
    for example in EXAMPLE.findall(page.read_text())
    for node in ast.walk(ast.parse(example))
    for module, name in (
        [(node.module, alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom)
        else [(alias.name, None) for alias in node.names]
        if isinstance(node, ast.Import)
        else []
    )
    if module.partition(".")[0] in OURS and not module.endswith(".vector_add")
]


@pytest.mark.parametrize(("page", "module", "name"), IMPORTS, ids=lambda value: getattr(value, "name", value))
def test_examples_import_what_exists(page, module, name):
    found = importlib.import_module(module)
    if name and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


DOCUMENTED = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference" / "python-api.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTED)
def test_the_documented_names_are_imported_and_never_name_a_module(path):
    importlib.import_module(path.rpartition(".")[0])
    package, *names = path.split(".")
    assert not inspect.ismodule(functools.reduce(getattr, names, sys.modules[package]))


CALLED = re.compile(r"(?<![.\w])((?:autotune|fused_resnet|tuning_db)(?:\.\w+)+)`?(?=\(| returned)")
TEXTS = [*PAGES, *(path for package in OURS for path in sorted((ROOT / package).rglob("*.py")))]


def test_functions_that_texts_and_messages_name_can_be_called():
    for path in {name for text in TEXTS for name in CALLED.findall(text.read_text())}:
        package, *names = path.split(".")
        for known in range(1, len(names)):
            importlib.import_module(".".join([package, *names[:known]]))
        assert callable(functools.reduce(getattr, names, importlib.import_module(package))), path


def test_the_cudnn_guides_names_are_public():
    from autotune import cudnn_algorithms

    text = (ROOT / "docs" / "guide" / "cudnn-algorithms.md").read_text()
    names = set(re.findall(r"cudnn_algorithms\.(\w+)\(?", "".join(EXAMPLE.findall(text))))
    assert names == {"use", "wrap", "Conv2d"} and names <= set(cudnn_algorithms.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for path, anchor in LINK.findall(text):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} is missing"
        assert not anchor or anchor in anchors(target.resolve()), f"{target.name} has no #{anchor}"


def test_every_page_is_in_the_navigation():
    known = (ROOT / "mkdocs.yml").read_text()
    docs = ROOT / "docs"
    assert not [page for page in sorted(docs.rglob("*.md")) if f"{page.relative_to(docs)}" not in known]


def test_the_ways_of_the_architecture_name_files_that_exist():
    text = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d+ \| (.*?) \|", text, re.MULTILINE)
    named = 0
    for row in rows:
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith("/"):
                folder = ROOT / word
            else:
                assert (folder / word).is_file(), f"{folder.relative_to(ROOT)}/{word} is missing"
                named += 1
    assert len(rows) > 20 and named > 100


def test_the_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))


@pytest.mark.parametrize("page", EXPERIMENTS, ids=lambda page: page.name)
def test_a_page_of_experiments_has_at_most_80_lines(page):
    assert len(page.read_text().splitlines()) <= 80
