"""Writes a report as a self-contained HTML page: no script, font, style or picture is loaded from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
from markupsafe import Markup

from autotune.core import format_bytes, number
from autotune.report import charts
from autotune.report.comparison import Comparison
from autotune.report.page_data import layers_data
from autotune.report.records import Report
from autotune.report.sentences import about, clock, plural, size

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("tables.js", "tooltips.js", "layer.js")


def render(report: Report, other: str = "", comparisons: tuple[Comparison, ...] = ()) -> str:
    """Return the page of a report.

    Args:
        report: The report.
        other: Name of the database that it is compared with; empty without one.
        comparisons: The comparison of each device.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        number=number,
        percent=lambda share: f"{share:.0%}",
        plural=plural,
        clock=clock,
        bytes=format_bytes,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        file=Path(report.name).name,
        other=Path(other).name,
        comparisons=comparisons,
        charts=charts,
        sentences=about,
        size=size,
        rooflines=[charts.roofline(device) for device in report.devices],
        histories=[[charts.history(run) for run in device.runs if run.best] for device in report.devices],
        style=Markup((_PAGE / "report.css").read_text()),
        script=Markup("\n".join((_PAGE / name).read_text() for name in _SCRIPTS)),
        data=_json(layers_data(report)),
    )


def _json(value: object) -> Markup:
    """Return JSON that can stand inside a script element: no text of the database ends the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
