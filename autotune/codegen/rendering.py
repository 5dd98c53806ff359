"""Renders kernels to source text, and digests of that text, which identify a binary.

Several kernels share a translation unit, each in a namespace of its own.

A digest covers a text and the headers that it includes, directly or not. Comments, blank lines, indentation and the
paths of headers do not count, so a corrected comment or a moved header leaves every binary valid. Headers that are
not below the given folders (CUDA, CUTLASS, the standard library) count by the name under which they are included; the
toolchain's key has their version.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import jinja2

from autotune.core import FamilyError, of_target, paths
from autotune.families import DEVICE_IMAGE, AnyFamily, Kernel, family, folder_of
from autotune.ir import abi, is_built_in

_TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<literal> R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r'\s*#\s*include\s*["<](?P<name>[^">]+)[">]')
_PRAGMA_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")


def text_digest(text: str, folders: Sequence[Path]) -> str:
    """Return the digest of a C++ text and of all headers below `folders` that it includes.

    Args:
        text: The text of a translation unit or of a part of one.
        folders: Where headers are looked for, the first match wins; a header's own folder comes before them.

    Returns:
        64 hexadecimal digits (SHA-256).
    """
    headers = included_headers(text, folders)
    parts = [_without_includes(text, None, tuple(folders)), *(_header(path, tuple(folders))[0] for path in headers)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def included_headers(text: str, folders: Sequence[Path]) -> list[Path]:
    """Return the headers below `folders` that a text includes, directly or not, in the order of first inclusion."""
    return list(_included(tuple(_include_names(strip_comments(text))), tuple(folders)))


def foreign_headers(text: str, folders: Sequence[Path]) -> frozenset[str]:
    """Return the names of the headers that a text includes, directly or not, and that are not below `folders`."""
    return _foreign(tuple(_include_names(strip_comments(text))), tuple(folders))


def strip_comments(text: str) -> str:
    """Return a C++ text without comments, blank lines and white space at the ends of lines; literals stay as they are.

    A comment becomes one space, as in translation phase 3 of the C++ standard ([lex.phases]).
    """
    bare = _TOKEN.sub(lambda found: found["literal"] or " ", text)
    return "\n".join(line for line in map(str.strip, bare.splitlines()) if line)


def clear_cache() -> None:
    """Forget the headers that were read, because files have changed."""
    for cached in (_header, _included, _foreign, _resolve):
        cached.cache_clear()


@cache
def _header(path: Path, folders: tuple[Path, ...]) -> tuple[str, list[str]]:
    """Return a header's text without comments and resolved includes, and the names that it includes."""
    text = path.read_text()
    return _without_includes(text, path.parent, folders), _include_names(strip_comments(text))


@cache
def _included(names: tuple[str, ...], folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the headers below `folders` that these names and their headers include; those of a family are the same."""
    found: dict[Path, None] = {}

    def visit(names: Sequence[str], beside: Path | None) -> None:
        for name in names:
            path = _resolve(name, beside, folders)
            if path and path not in found:
                found[path] = None
                visit(_header(path, folders)[1], path.parent)

    visit(names, None)
    return tuple(found)


@cache
def _foreign(names: tuple[str, ...], folders: tuple[Path, ...]) -> frozenset[str]:
    """Return which of the included names, and of those that their headers include, are not below `folders`."""
    own = _included(names, folders)
    places = [(None, names), *((path.parent, _header(path, folders)[1]) for path in own)]
    return frozenset(name for beside, each in places for name in each if not _resolve(name, beside, folders))


def _without_includes(text: str, beside: Path | None, folders: tuple[Path, ...]) -> str:
    """Return a text without comments, include guards, and includes of headers below `folders`."""
    kept = []
    for line in strip_comments(text).splitlines():
        include = _INCLUDE.match(line)
        ours = include and _resolve(include["name"], beside, folders)
        if not (ours or _PRAGMA_ONCE.match(line)):
            kept.append(line)
    return "\n".join(kept)


def _include_names(text: str) -> list[str]:
    return [found["name"] for line in text.splitlines() if (found := _INCLUDE.match(line))]


@cache
def _resolve(name: str, beside: Path | None, folders: tuple[Path, ...]) -> Path | None:
    """Return the file that an include names, or None for a header from elsewhere."""
    places = (beside, *folders) if beside else folders
    return next((place / name for place in places if (place / name).is_file()), None)


CPP_TYPES = {
    **{"f32": "float", "f16": "at::half", "bf16": "at::bfloat16", "tf32": "float", "s8": "signed char"},
    **{"e4m3": "at::e4m3"},
}
_DEVICE_HEADERS = {"at::e4m3": "common/e4m3.cuh", "signed char": "common/s8.cuh"}
"""C++ type -> its header, which only units with that type include: units without it keep their digests."""


def folders(kernel: Kernel) -> list[Path]:
    """Return the folders of a kernel's templates and headers: that of a user's family first, then the project's."""
    beside = folder_of(kernel.family)
    return [beside, paths.templates()] if beside else [paths.templates()]


@cache
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def symbol(kernel: Kernel) -> str:
    """Return a kernel's name in its binary: the family and a digest of config, dtype, epilogue and target."""
    identity = "\n".join([kernel.config, kernel.dtype, str(kernel.epilogue), kernel.target])
    return f"{kernel.family}_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def render(kernel: Kernel) -> str:
    """Return a kernel's own text, from its family's template; raises FamilyError with file and line of a fault."""
    return _rendered(family(kernel.family), kernel)


@lru_cache(maxsize=1024)
def _rendered(chosen: AnyFamily, kernel: Kernel) -> str:
    try:
        context = chosen.context(kernel.values, of_target(kernel.target), kernel.dtype)
        template = _environment(tuple(folders(kernel))).get_template(chosen.template)
        return template.render(
            symbol=symbol(kernel),
            element=CPP_TYPES[kernel.dtype],
            types=CPP_TYPES,
            epilogue=kernel.epilogue,
            launch_struct=launch_struct(chosen),
            **context,
        )
    except Exception as error:  # a template may hold any expression
        raise FamilyError(_fault(chosen.template, error)) from error


def launch_struct(chosen: AnyFamily) -> str:
    """Return the C++ struct that names a family's launch values: `a.launch[Launch::kWalk]` is that of "walk"."""
    names = ["k" + parameter.name.title().replace("_", "") for parameter in chosen.launch_parameters]
    return f"struct Launch {{ enum {{ {', '.join(names)} }}; }};" if names else "struct Launch {};"


def _fault(template: str, error: Exception) -> str:
    """Return template, line and words of an error in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".j2")]
    place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else template
    if isinstance(error, jinja2.TemplateSyntaxError):
        place = f"{error.name}, line {error.lineno}"
    return f"{place}: {type(error).__name__}: {getattr(error, 'message', None) or error}"


def unit(kernels: Sequence[Kernel]) -> str:
    """Return one translation unit of kernels of one family and target; it includes each header once."""
    chosen = family(kernels[0].family)
    template = "cuda/unit.cu.j2" if chosen.kind == DEVICE_IMAGE else "cpu/unit.cpp.j2"
    texts = [render(kernel) for kernel in kernels]
    own = _DEVICE_HEADERS.items() if chosen.kind == DEVICE_IMAGE else ()
    of_types = [f'#include "{header}"' for name, header in own if any(name in text for text in texts)]
    included = [line for text in texts for line in text.splitlines() if line.startswith("#include")]
    headers = dict.fromkeys([*of_types, *included])
    bodies = ["\n".join(line for line in text.splitlines() if not line.startswith("#include")) for text in texts]
    return (
        _environment((paths.templates(),))
        .get_template(template)
        .render(
            headers=[*_declared(kernels[0]), *headers],
            bodies=bodies,
            symbols=[symbol(kernel) for kernel in kernels],
            max_shared_bytes=of_target(kernels[0].target).block_shared,
        )
    )


def _declared(kernel: Kernel) -> list[str]:
    """Return the structs of the family's operators that abi.h does not have."""
    declarations = map(abi.declaration, family(kernel.family).operators)
    return list(dict.fromkeys(filter(None, declarations)))


def _references(kernel: Kernel) -> str:
    """Return the files of a user's operators: kernels were verified against their references."""
    own = [operator for operator in family(kernel.family).operators if not is_built_in(operator)]
    return "".join(inspect.getsource(sys.modules[operator.__module__]) for operator in own)


def unit_digest(kernels: Sequence[Kernel]) -> str:
    """Return the digest of a translation unit: its text and the headers that it includes."""
    return text_digest(unit(kernels), folders(kernels[0]))


def source_digest(kernel: Kernel) -> str:
    """Return the digest of a kernel's unit and of the user's operator that it was verified against, if any."""
    try:
        return hashlib.sha256((_references(kernel) + unit_digest([kernel])).encode()).hexdigest()[:16]
    except FamilyError as error:  # the fault stands for the text: a corrected template is another kernel
        return hashlib.sha256(str(error).encode()).hexdigest()[:16]
