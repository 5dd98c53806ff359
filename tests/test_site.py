"""docs/site_hooks.py: the pages that are built with the site, not stored, are all there and complete."""

import importlib.util
import types

import pytest
from repository import ROOT

from autotune.families import families, folder_of
from autotune.ir import OPERATORS
from autotune_cli.main import MODULES

pytest.importorskip("mkdocs")
from mkdocs.config.base import load_config
from mkdocs.structure.files import Files


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_page(hooks, name):
    """The Markdown of a page of docs/ as the site renders it."""
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=name))
    return hooks.on_page_markdown((ROOT / "docs" / name).read_text(), page=page)


def test_the_site_has_every_report_and_profile_of_the_navigation(hooks, monkeypatch):
    monkeypatch.setattr(hooks, "collect", lambda path, *_: path.read_bytes()[:6])  # tests/scripts tests the reports
    monkeypatch.setattr(hooks, "render", bytes.decode)
    config = load_config(str(ROOT / "mkdocs.yml"))
    config.plugins._current_plugin = "site_hooks"  # as mkdocs does around each hook
    built = {file.src_uri: file.content_string for file in hooks.on_files(Files([]), config)}
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert built and all(f": {name}\n" in navigation for name in built)
    assert {*built} == {
        *(f"reports/{name}.html" for name in hooks.REPORTED),
        *(f"profiles/{name}.html" for name in hooks.PROFILED),
    }
    assert all(built[f"reports/{name}.html"] == "SQLite" for name in hooks.REPORTED), "a database is missing"
    first, second = (built[f"profiles/{name}.html"] for name in ("resnet50-h200", "se_resnet9_fixup-h200"))
    assert "torchvision:resnet50" in first and "NVIDIA H200" in first and "</html>" in first
    assert "FusedResNet: 128x3x64x64" in second and "NVIDIA H200" in second and "</html>" in second, "side by side"


def test_the_reference_of_the_site_is_complete(hooks):
    problems, found = of_page(hooks, "reference/problems.md"), of_page(hooks, "reference/families.md")
    options, tables = of_page(hooks, "reference/options.md"), of_page(hooks, "reference/database.md")
    assert all(f"\n### {name}\n" in problems for name in OPERATORS)
    assert all(f"\n### {name}\n" in found for name in families() if folder_of(name) is None)
    assert all(f"\n## autotune {name}\n" in options for name in MODULES)
    assert all(f"\n### {name}\n" in tables for name in ("kernel", "measurement", "plan"))
    assert not any("make docs" in page for page in (problems, found, options, tables)), "a note is left"


def test_links_to_files_outside_docs_become_text(hooks):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="guide/page.md"))
    shown = hooks.on_page_markdown("[a](../../Makefile), [b](b.md), ![c](../../benchmarks/c.png)", page=page)
    assert shown == "a (`Makefile`), [b](b.md), ![c](../pictures/c.png)"
