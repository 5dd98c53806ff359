"""Writes a profile as a self-contained HTML page: no script, font or style is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from autotune.core import flop_unit, number
from autotune.profiling import Node, Profile, side_by_side, totals
from autotune.profiling.summary import libraries
from autotune_cli.profiles.report import heading

# The palette of Okabe and Ito, which color-blind readers can tell apart; black text is readable on each color.
_COLOURS = {
    "ours": "#e69f00", "cuDNN": "#56b4e9", "cuBLAS": "#7fcdbb", "cuBLASLt": "#7fcdbb", "CUTLASS": "#009e73",
    "ATen": "#cc99bb", "Triton": "#f0e442", "Inductor": "#f0e442", "oneDNN": "#56b4e9", "BLAS": "#7fcdbb",
}  # fmt: skip


def write(profiles: Sequence[tuple[Profile, Node]], path: Path) -> None:
    """Write the page of one profile, or of two profiles side by side."""
    path.write_text(render(profiles))


def render(profiles: Sequence[tuple[Profile, Node]]) -> str:
    """Return the page of one profile, or of two profiles side by side."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(number=number, percent=lambda share: f"{share:.1%}", colour=_colour, libraries=_names)
    trees = [root for _, root in profiles]
    return environment.get_template("page.html.j2").render(
        title=str(profiles[0][0].about["model"]),
        profiles=[_section(profile, root) for profile, root in profiles],
        both=side_by_side(*trees) if len(trees) > 1 else [],
    )


def _section(profile: Profile, root: Node) -> dict[str, Any]:
    about = dict(profile.about)
    return {
        "heading": heading(about),
        "about": about,
        "where": "GPU" if about["device_type"] == "cuda" else "CPU",
        "totals": totals(profile),
        "unit": flop_unit(about["limits"]["flops_per_us"]),
        "libraries": libraries(root),
        "root": root,
        "kernels": _busiest(root),
    }


def _names(node: Node) -> str:
    """Return the libraries of a module's kernels, the one with the most time first."""
    return ", ".join(dict.fromkeys(library.name for library in libraries(node)))


def _busiest(root: Node) -> list[dict[str, Any]]:
    """Return the kernels by their full names, the one with the most time first."""
    found: dict[str, dict[str, Any]] = {}
    for _, node in root.walk():
        if node.kind == "kernel":
            row = found.setdefault(node.text, {"node": node, "us": 0.0, "calls": 0.0})
            row["us"] += node.us
            row["calls"] += node.calls
    return sorted(found.values(), key=lambda row: -row["us"])


def _colour(library: str) -> str:
    return _COLOURS.get(library, "#cccccc")
