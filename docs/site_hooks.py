"""MkDocs hooks: links from a page to files of the repository outside docs/, and the pages that are built, not stored.

On the site a picture of the repository is copied, and a link to any other file becomes the file's path as text. In the
repository itself the links work as they are. Built with the site are the reports of shipped databases, two profiles of
recorded traces, and the lists of operators, families, options and tables in docs/reference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from autotune.core import chrome_trace
from autotune.profiling import attribution
from autotune.profiling.tree import tree
from autotune.report import collect, render
from autotune_cli import reference_pages
from autotune_cli.profiles import page as profile_page

ROOT = Path(__file__).resolve().parents[1]
PICTURES = (".png", ".svg")
REPORTED = ("resnets_h200", "se_resnet9_fixup_h200")
"""Shipped databases whose reports the site has."""
PROFILED = {"resnet50-h200": ("resnet50",), "se_resnet9_fixup-h200": ("se_resnet9_fixup", "se_resnet9_fixup-fused")}
"""Profile of the site -> its traces in tests/data/traces, recorded on an H200; two are shown side by side."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>\.\./[\w./-]+)(?:#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures that pages show from outside docs/, the reports and the profiles."""
    for page in list(files.documentation_pages()):
        for found in _LINK.finditer(page.content_string):
            path = _outside(page.src_uri, found["path"])
            if path and found["image"] and path.suffix in PICTURES and files.get_file_from_path(_name(path)) is None:
                files.append(File.generated(config, _name(path), abs_src_path=str(path)))
    for name in REPORTED:
        report = render(collect(ROOT / "tuning_db" / f"{name}.db"))
        files.append(File.generated(config, f"reports/{name}.html", content=report))
    for name, traces in PROFILED.items():
        files.append(File.generated(config, f"profiles/{name}.html", content=_profile(traces)))
    return files


def _profile(traces: tuple[str, ...]) -> str:
    """Return the page of recorded traces, as `autotune profile --from ... --html` writes it."""
    folder = ROOT / "tests" / "data" / "traces"
    profiles = [attribution.read(chrome_trace.load(folder / f"{name}.json.gz")) for name in traces]
    return profile_page.render([(profile, tree(profile)) for profile in profiles])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the generated parts of the reference, and replace links to files outside docs/."""

    def replaced(found: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, found["path"])
        if path is None:
            return found[0]
        if found["image"]:
            up = "../" * page.file.src_uri.count("/")
            return f"![{found['text']}]({up}{_name(path)})"
        where = path.relative_to(ROOT).as_posix()
        return found["text"] if where in found["text"] else f"{found['text']} (`{where}`)"

    return _LINK.sub(replaced, reference_pages.refreshed(markdown))


def _outside(source: str, link: str) -> Path | None:
    """Return the file of the repository that a link leads to, or None if it lies in docs/."""
    path = Path(os.path.normpath(ROOT / "docs" / Path(source).parent / link))
    return None if path.is_relative_to(ROOT / "docs") else path


def _name(path: Path) -> str:
    """Return the name of a copied picture on the site."""
    return f"pictures/{path.name}"
