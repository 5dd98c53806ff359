"""Random input for tests: problems of every operator, texts with mistakes, command lines, and damaged JSON.

The tests draw it with hypothesis: always the same examples, and the smallest one that fails. AUTOTUNE_FUZZ=20 makes
them draw 20 times as many.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from reference_steps import BROADCAST, STEPS

from autotune.core import ProblemError
from autotune.ir import DTYPES, Epilogue, Problem
from autotune.ir.operators import GATE_ACTIVATIONS, HIDDEN_ACTIVATIONS, Conv2dSkip, Piece
from autotune.ir.operators.upsample import MODES
from autotune.ir.problem.base import output_extent
from autotune.ir.problem.fields import DtypeName, NonNegative, NonNegativePair, Pair

_RARELY_VALID = [HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


def fuzz(examples: int) -> settings:
    """Return settings for a number of examples, the same in each run and without a time limit."""
    phases = (Phase.explicit, Phase.generate, Phase.shrink)
    return settings(
        max_examples=examples * int(os.environ.get("AUTOTUNE_FUZZ", "1")),
        derandomize=True,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=_RARELY_VALID,
    )


# -- problems ----------------------------------------------------------------------------------------------------------

_SIZES = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16, 24, 64))
_PLAIN_STEPS = [name for name in STEPS if name != "store"]
_VALUES: dict[object, st.SearchStrategy[Any]] = {
    int: _SIZES,
    NonNegative: st.integers(0, 2),
    Pair: st.tuples(st.integers(1, 3), st.integers(1, 3)),
    NonNegativePair: st.tuples(st.integers(0, 2), st.integers(0, 2)),
    DtypeName: st.sampled_from(sorted(DTYPES)),
    str: st.sampled_from(MODES),
}
_PIECES = st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 3)).map(
    lambda sizes: Piece(sum(sizes), sizes[0], sizes[0] + sizes[1])
)
# Of fields that must fit to others: most of the drawn values do.
_FITTING = {
    "act": st.sampled_from(sorted(HIDDEN_ACTIVATIONS)),
    "gate": st.sampled_from(sorted(GATE_ACTIVATIONS)),
    **dict.fromkeys(("c", "k"), st.sampled_from((4, 8, 16, 24, 64, 3))),
    **dict.fromkeys(("h", "w"), st.sampled_from((8, 12, 16, 64, 7))),
    **dict.fromkeys(("r", "s", "pool"), st.sampled_from((1, 2, 3, 5))),
    **dict.fromkeys(("groups", "skip_groups"), st.sampled_from((1, 1, 1, 2, 4))),
    **dict.fromkeys(("block",), st.sampled_from((2, 4, 3))),
    "pieces": st.lists(_PIECES, min_size=1, max_size=8).map(tuple),
    "interleave": st.sampled_from((1, 1, 2, 3)),
    **dict.fromkeys(("to",), st.sampled_from((64, 65, 100, 4))),
}


def _values(name: str, hint: object) -> st.SearchStrategy[Any]:
    return _FITTING[name] if name in _FITTING and hint != Pair else _VALUES[hint]


@st.composite
def epilogues(draw: st.DrawFn, anchors: Sequence[str] = (), broadcasts: bool = False) -> Epilogue:
    """Draw a chain of steps around an operator's anchors; broadcasts: also of steps that read broadcast tensors."""
    steps = [*_PLAIN_STEPS, *BROADCAST] if broadcasts else _PLAIN_STEPS
    parts = [draw(st.lists(st.sampled_from(steps), max_size=2)) for _ in range(len(anchors) + 1)]
    names = [*parts[0], *(name for anchor, part in zip(anchors, parts[1:], strict=True) for name in (anchor, *part))]
    try:
        return Epilogue(tuple(names))
    except ProblemError:  # too many scalars
        assume(False)
        raise


@st.composite
def problems(draw: st.DrawFn, operator: type[Problem]) -> Problem:
    """Draw a valid problem of an operator."""
    fields = {field.name for field in dataclasses.fields(operator)}
    hints = typing.get_type_hints(operator, include_extras=True)
    chains = epilogues(operator.anchors, operator.broadcasts)
    values = {
        name: draw(chains if hint is Epilogue else _values(name, hint))
        for name, hint in hints.items()
        if name in fields and (hint is Epilogue or hint in _VALUES or name in ("pieces", "act", "gate"))
    }
    if operator is Conv2dSkip:
        values |= _skip_sizes(values)
    try:
        return operator(**values)
    except ProblemError:
        assume(False)
        raise


def _skip_sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of the skip tensor for which its projection has the size of the convolution."""
    axes = zip(("h", "w"), ("r", "s"), *(values[name] for name in ("stride", "pad", "dilation")), strict=True)
    outputs = [output_extent(values[size], values[window], *rest) for size, window, *rest in axes]
    return {
        f"skip_{size}": max(1, (output - 1) * stride + 1)
        for size, output, stride in zip(("h", "w"), outputs, values["skip_stride"], strict=True)
    }


# -- texts -------------------------------------------------------------------------------------------------------------

ODD_WORDS = [
    *("", "0", "-1", "1,2", "1,2,3", "1,,2", ",", "1_000", "+3", "0x10", "1e3", "3.0", "nan", "inf", "-inf", "None"),
    *("٣", "²", "\uff19", "=", "a=b", "==", "2147483647", "2147483648", "4294967297", "9" * 30, "9" * 400, "9" * 5000),
    *("\t", "';--", "../x", "{{7*7}}", "{% x %}", "$(id)", "%s", "%", "[bold]", "[/]", "🙂", "\udcff", "x" * 3000),
    *("relu,,relu", "bias" * 1000, ",".join(["bias"] * 100), ",".join(["add_scalar"] * 9), "none,relu"),
    *("relu@deadbeef", "@", "conv", "gate", "s8", "f64", "torch", "store,store"),
]
"""Words that are a mistake in most places."""


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """Draw a text that differs from a valid one in one to three places."""
    for _ in range(draw(st.integers(1, 3))):
        words = text.split(" ")
        i = draw(st.integers(0, len(words) - 1))
        name, _, value = words[i].partition("=")
        odd = draw(st.sampled_from(ODD_WORDS))
        replacement = draw(
            st.sampled_from((odd, f"{name}={odd}", f"{odd}={value}", f"{words[i]} {words[i]}", "", f"{words[i]}{odd}"))
        )
        words[i] = replacement
        if draw(st.booleans()):
            words = draw(st.permutations(words))
        text = " ".join(words)
    return text


# -- command lines -----------------------------------------------------------------------------------------------------


@st.composite
def command_lines(draw: st.DrawFn, parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Draw options of a command, each with some value: one of its choices, or one of the words."""
    line: list[str] = []
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    for action in draw(st.lists(st.sampled_from(options), max_size=4)) if options else []:
        line.append(action.option_strings[0])
        if action.nargs != 0:
            choices = [str(choice) for choice in action.choices or ()]
            line.append(draw(st.sampled_from([*choices, *words])))
    return line


# -- JSON --------------------------------------------------------------------------------------------------------------

_ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, "", "x", "x" * 10_000, "\udcff", "\x00"),
    *("../../x", "'; DROP TABLE kernel;--", "[/]", [], [[]], {}, [1, 2], {"a": {"b": []}}, "=", "aGVsbG8=", "NaN"),
    *({"float": "nan"}, {"float": "x"}, {"float": 1}, {"float": "inf"}, {"float": []}),
]


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(place for key, part in inner for place in _places(part, (*at, key)))]


Damage = tuple[tuple[Any, ...], str, Any]
"""A place in a JSON value, what happens to it, and the value that replaces it."""


def damages(value: Any) -> st.SearchStrategy[list[Damage]]:
    """Draw one to three damages of a JSON value."""
    kinds = st.sampled_from(("replace", "replace", "replace", "remove", "double"))
    damage = st.tuples(st.sampled_from(_places(value)), kinds, st.sampled_from(_ODD_VALUES))
    return st.lists(damage, min_size=1, max_size=3)


def damaged_json(value: Any, found: Sequence[Damage]) -> Any:
    """Return a copy of a JSON value with some of its parts replaced, removed or doubled."""
    value = copy.deepcopy(value)
    for (*path, key), kind, other in found:
        parent = value
        try:
            for step in path:
                parent = parent[step]
            part = parent[key]
        except (KeyError, IndexError, TypeError):  # an earlier damage has removed the place
            continue
        if kind == "replace":
            parent[key] = other
        elif kind == "remove":
            del parent[key]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(part))
        elif isinstance(parent, dict):
            parent[f"{key}2"] = part
    return value
