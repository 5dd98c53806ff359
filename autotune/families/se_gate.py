"""Squeeze-and-excitation in a convolution's epilogue: who can have it, and its memory.

templates/sm90/se_gate.cuh squeezes the channels that a tile has computed, templates/sm90/folded_se_gate.cuh has the
squeeze computed beside them (`folded_*`).
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core import round_up
from autotune.families.base import Config
from autotune.ir import Conv2dSe, Epilogue, FoldedSe

HIDDEN = (8, 16, 32, 64)
"""Columns of a tile's products that may be set aside for hidden values."""


def columns(hidden: int) -> int:
    """The fewest of HIDDEN that have room."""
    return next(columns for columns in HIDDEN if hidden <= columns)


def image(problem: FoldedSe) -> str:
    """How a tile's gates add up an image's pixels: "warps", a multiple of 16, or "rows", 1, 4 or 8 of a warp's."""
    return "rows" if problem.p * problem.q % 16 else "warps"


def misfit(problem: FoldedSe, config: Config) -> str | None:
    """None if a kernel of this `image` and so many columns of `hidden` values has the problem's gates, else why not."""
    if config["image"] != image(problem):
        return f"its images are {config['image']}"
    return None if problem.hidden <= int(config["hidden"]) else f"it has {config['hidden']} hidden values"


def limits(problem: Conv2dSe | FoldedSe) -> Iterator[tuple[bool, str]]:
    """(whether it is broken, what the problem must be): the rules of all gated kernels."""
    pixels, few = problem.p * problem.q, (1, 4, 8) if isinstance(problem, FoldedSe) else (4, 8)
    odd = pixels not in few and pixels % 16 > 0
    counts = f"{', '.join(map(str, few))} or a multiple of 16 pixels"
    yield problem.groups > 1, "groups before a gate"
    yield odd or pixels > 256, f"gated images have {counts}, at most 256"
    yield problem.hidden % 4 > 0 or problem.hidden > 64, "a gate's hidden must be a multiple of 4, at most 64"


def legal(epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    """(whether it is broken, what): the rule of all chains with a gate."""
    yield epilogue.accesses_tensors_early, "steps before the gate that read or write tensors"


def folded_legal(epilogue: Epilogue) -> Iterator[tuple[bool, str]]:
    """The same of chains whose gate comes from hidden values beside the channels."""
    yield epilogue.anchors not in (("gate",), ("gate", "project")), "no gate, or other places than it and a projection"
    yield from legal(epilogue)
    yield any(epilogue.parts[1:-1]), "steps between the gate and the projection"


def shared_bytes(rows: int, columns: int, pixels: int, hidden: int, peers: int = 1, run: int = 16) -> int:
    """Shared memory of a tile's gate.

    rows, columns: of a block's part of the tile; pixels: of an image; peers: blocks that share its channels; run: rows
    of a warp, one after the other, that are of one image.
    """
    images = rows // pixels
    floats = rows // min(pixels, run) * columns + images * columns + (peers + 1) * images * hidden + columns + hidden
    weights = hidden * (columns + 8) + columns * (hidden + 8)
    return round_up(4 * floats + 2 * weights, 128)


def folded_bytes(rows: int, columns: int, hidden: int, warps: int) -> int:
    """Shared memory of a tile's gate with a folded squeeze. hidden: columns of the tile that are hidden values."""
    depth = round_up(hidden, 16)
    weights = 2 * columns * (depth + 8) + 4 * (columns + depth)
    return round_up(weights + 4 * rows // 16 * hidden + 4 * warps * (hidden + columns), 128)
