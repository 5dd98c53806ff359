"""Digests of source text, which identify a binary.

A digest covers a text and the headers that it includes, directly or not. Comments, blank lines, indentation and the
paths of headers do not count, so a corrected comment or a moved header leaves every binary valid. Headers that are
not below the given folders (CUDA, CUTLASS, the standard library) count by the name under which they are included; the
toolchain's key has their version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

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
