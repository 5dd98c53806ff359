"""Squeeze-and-excitation in a convolution's epilogue: rules and shared memory that several families have in common.

templates/common/se_gate.cuh squeezes the channels that a tile has computed. templates/common/folded_se_gate.cuh (here
`folded_`) takes hidden values that the products have computed beside the channels: the squeeze is folded into filters.
"""

from __future__ import annotations

from autotune.core import round_up
from autotune.families.base import Config, Rules, require
from autotune.ir import Epilogue
from autotune.ir.operators import Conv2dSe, FoldedSe

HIDDEN = (8, 16, 32, 64)
"""Numbers of columns that a tile's products can have for hidden values."""

_MAX_PIXELS, _MAX_HIDDEN = 256, 64
_PADDING = 8  # elements behind a row in shared memory, so that rows begin in different banks
_ALIGNMENT = 128  # bytes, of what follows in shared memory


def hidden_columns(hidden: int) -> int:
    """Return the fewest of HIDDEN that have room for the hidden values."""
    return next(columns for columns in HIDDEN if hidden <= columns)


def image_kind(problem: FoldedSe) -> str:
    """Return how a tile's gate adds up an image's pixels, as the parameter `image` has it.

    "warps": an image is a multiple of 16 pixels, whole fragments of warps. "rows": it is 1, 4 or 8 rows of a fragment.
    """
    return "rows" if problem.p * problem.q % 16 else "warps"


def folded_fit_rules(problem: FoldedSe, config: Config) -> Rules:
    """Yield what a kernel's `image` and `hidden` must be for a problem's gates."""
    yield require(
        config["image"] == image_kind(problem),
        f"it is for images of kind {config['image']}; the problem's are {image_kind(problem)}",
    )
    yield require(
        problem.hidden <= int(config["hidden"]),
        f"it has {config['hidden']} columns for hidden values; the problem needs {problem.hidden}",
    )


def problem_rules(problem: Conv2dSe | FoldedSe) -> Rules:
    """Yield what a gated problem must be for all gated kernels."""
    pixels, few = problem.p * problem.q, (1, 4, 8) if isinstance(problem, FoldedSe) else (4, 8)
    yield require(problem.groups == 1, "a gate needs groups=1")
    yield require(
        (pixels in few or pixels % 16 == 0) and pixels <= _MAX_PIXELS,
        f"gated images must have {', '.join(map(str, few))} or a multiple of 16 pixels, at most {_MAX_PIXELS}; "
        f"they have {pixels}",
    )
    yield require(
        problem.hidden % 4 == 0 and problem.hidden <= _MAX_HIDDEN,
        f"hidden must be a multiple of 4, at most {_MAX_HIDDEN}",
    )


def epilogue_rules(epilogue: Epilogue) -> Rules:
    """Yield what a chain with a gate must be."""
    yield require(not epilogue.accesses_tensors_early, "steps before the gate must not read or write tensors")


def folded_epilogue_rules(epilogue: Epilogue) -> Rules:
    """Yield what a chain with a folded gate must be."""
    yield require(
        epilogue.anchors in (("gate",), ("gate", "project")), "the epilogue must have a gate, at most with a projection"
    )
    yield from epilogue_rules(epilogue)
    yield require(not any(epilogue.parts[1:-1]), "no steps may be between the gate and the projection")


def shared_bytes(rows: int, columns: int, pixels: int, hidden: int, peers: int = 1, run: int = 16) -> int:
    """Return the shared memory of a tile's gate, in bytes.

    Args:
        rows: Rows of a block's part of the tile.
        columns: Columns of it.
        pixels: Pixels of an image.
        hidden: Hidden values.
        peers: Blocks that share the tile's channels.
        run: Consecutive rows of a warp that belong to one image.
    """
    images = rows // pixels
    floats = rows // min(pixels, run) * columns + images * columns + (peers + 1) * images * hidden + columns + hidden
    weights = hidden * (columns + _PADDING) + columns * (hidden + _PADDING)
    return _aligned(4 * floats + 2 * weights)


def folded_shared_bytes(rows: int, columns: int, hidden: int, warps: int) -> int:
    """Return the shared memory of a tile's gate with a folded squeeze, in bytes.

    Args:
        rows: Rows of the tile.
        columns: Its columns that are channels.
        hidden: Its columns that are hidden values.
        warps: Warps that compute it.
    """
    depth = round_up(hidden, 16)
    weights = 2 * columns * (depth + _PADDING) + 4 * (columns + depth)
    return _aligned(weights + 4 * rows // 16 * hidden + 4 * warps * (hidden + columns))


def _aligned(size: int) -> int:
    return round_up(size, _ALIGNMENT)
