"""Prints a profile: the tree, the libraries, the totals, and two profiles side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.core import FlopUnit, number
from autotune.profiling import LibraryTotals, Node, Totals, side_by_side

WIDE = 120  # from this many columns on the tree shows all of its numbers


def heading(about: dict[str, Any]) -> str:
    """Return the network, the variant, the settings and the device."""
    settings = [
        "x".join(map(str, about["input"])),
        about["dtype"],
        *filter(None, [about.get("precision")]),  # older traces do not have it
        *(["channels last"] if about["channels_last"] else []),
        *([] if about["cudnn"] else ["without cuDNN"]),
    ]
    return f"{about['model']}, {about['variant']}: {', '.join(settings)}; {about['machine']['device']}"


def show_tree(
    console: Console, roots: Sequence[Node], total_us: float, depth: int | None, where: str, unit: FlopUnit
) -> None:
    """Print a row for each module, and one for each kernel with the operator that launched it.

    Args:
        console: Where to print.
        roots: The modules to show.
        total_us: The time that shares refer to.
        depth: Levels of modules to show; None for all.
        where: "GPU" or "CPU", for the heading.
        unit: Of arithmetic rates.
    """
    wide = console.width >= WIDE
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("module\n  operator: kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("library\n", no_wrap=True)
    numbers = [f"{where}\nus", "share\n", "of\nlimit", "host\nus"]
    numbers += ["calls\n", "wait\nus", f"{unit.name}\n", "GB/s\n"] if wide else []
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for root in roots:
        operator = ""
        for level, node in root.walk():
            if node.kind == "operator":
                operator = node.name
            elif depth is None or _level(root, node, level) <= depth:
                cells = _cells(node, operator, level, total_us, unit if wide else None)
                table.add_row(*cells, style="" if node.kind == "module" else "dim")
    _print_fitting(console, table)


def _level(root: Node, node: Node, level: int) -> int:
    """Return the depth of a module, or of the module that a kernel belongs to."""
    return level if node.kind == "module" else node.path.count(".") - root.path.count(".") + bool(node.path)


def _cells(node: Node, operator: str, level: int, total_us: float, unit: FlopUnit | None) -> list[str]:
    """Return the row of a module, or of a kernel with the operator that launched it; a narrow one without a unit."""
    name = escape(node.path if node.path and not level else node.name)
    if node.kind == "module":
        label = f"[bold]{name}[/] [dim]{escape(node.text)}[/]"
    else:
        launcher = node.chain[-1].removeprefix("aten::") if node.chain else operator
        label = name if launcher == node.name else f"{escape(launcher)}: {name}"
    cells = [
        "  " * (level - (node.kind == "kernel")) + label,
        node.library,
        number(node.us),
        f"{node.us / total_us:.1%}" if total_us else "-",
        f"{node.limit:.0%}" if node.limit else "-" if node.kind == "module" else "",
        number(node.host_us) if node.host_us else "",
    ]
    if unit:
        rates = [node.flops / node.us / unit.flops_per_us, node.bytes / node.us / 1e3] if node.us else [0.0, 0.0]
        cells += [f"{node.calls:g}" if node.calls else "", number(node.wait_us) if node.wait_us else ""]
        cells += [number(rate) if rate else "" for rate in rates]
    return cells


def _print_fitting(console: Console, table: Table) -> None:
    """Print a table; only its first column is shortened in a narrow terminal."""
    unbounded = console.options.update(width=10**4)
    table.expand = console.measure(table, options=unbounded).maximum > console.width
    console.print(table)


def show_libraries(console: Console, found: Sequence[LibraryTotals], total_us: float) -> None:
    """Print a row for each library."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("library")
    for name in ("kernels", "launches", "us", "share"):
        table.add_column(name, justify="right")
    table.add_column("source")
    for library in found:
        share = f"{library.us / total_us:.1%}" if total_us else "-"
        numbers = [str(library.kernels), f"{library.calls:g}", number(library.us), share]
        table.add_row(library.name, *numbers, "open" if library.open else "closed")
    console.print(table)


def show_totals(console: Console, sums: Totals, where: str) -> None:
    """Print the attributed time and the measured times."""
    lost = f", [red]{number(sums.unattributed_us)} us of them without a module[/]" if sums.unattributed_us else ""
    console.print(
        f"{'kernels' if where == 'GPU' else 'operators'} {number(sums.kernels_us)} us{lost}, "
        f"between them {number(sums.wait_us)} us: {number(sums.total_us)} us a call"
    )
    console.print(
        f"measured while recording: {number(sums.profiled_us)} us; the profile has {sums.profiled_difference:+.1%}"
    )
    console.print(
        f"measured without the profiler: {number(sums.measured_us)} us; the profile has {sums.difference:+.1%}"
    )
    if sums.as_used_us:
        console.print(f"as it is used{', in a CUDA graph' if where == 'GPU' else ''}: {number(sums.as_used_us)} us")


def show_both(console: Console, before: Node, after: Node, names: tuple[str, str]) -> None:
    """Print two profiles side by side, module by module.

    "fused": the module is part of a neighboring layer's kernel. "-": the network has no such module.
    """
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("module\n", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in (f"{names[0]}\nus", "kernels\n", f"{names[1]}\nus", "kernels\n", "speedup\n"):
        table.add_column(name, justify="right", no_wrap=True)
    for path, left, right in side_by_side(before, after):
        ratio = number(left.us / right.us) if left and right and right.us else ""
        cells = [number(left.us), _launches(left)] if left else ["-", ""]
        cells += [number(right.us), _launches(right)] if right else ["fused", ""]
        table.add_row("  " * (path.count(".") + bool(path)) + (path.rpartition(".")[2] or "network"), *cells, ratio)
    _print_fitting(console, table)


def _launches(node: Node) -> str:
    return f"{sum(inner.calls for _, inner in node.walk() if inner.kind == 'kernel'):g}"
