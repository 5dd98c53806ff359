"""What all scripts share: errors become one sentence and an exit code; sizes and times are read from text."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from autotune.core import AutotuneError
from tuning_db import DatabaseError


def run(main: Callable[[], int | None]) -> None:
    """Run a script: exit 2 with one sentence for an error that a user can mend, 130 for Ctrl-C."""
    try:
        sys.exit(main() or 0)
    except (AutotuneError, DatabaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


def seconds(text: str) -> float:
    """Read "90s", "5m", "1h" or a bare number of seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time: write 90s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def names(text: str) -> list[str]:
    """Read words joined by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def sizes(text: str) -> list[int]:
    """Read whole numbers of at least 1, joined by commas."""
    return [positive(part) for part in names(text)]


def percent(text: str) -> float:
    """Read "1%" or "0.5%" as a share."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", text)
    if not found or float(found[1]) > 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage: write 1% or 0.5%")
    return float(found[1]) / 100


def database(text: str) -> Path | str:
    """Read where a database is: a file, or a server's address such as postgresql+psycopg://user@host/name."""
    return text if "://" in text else Path(text)


def output(text: str) -> Path:
    """Read the file that results go to; what cannot be written is refused now, not once all is measured."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder: name a file in it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written: name a file in a folder of yours")
    return path


def size(text: str) -> int:
    """Read "64M", "1G", "512K" or a bare number of bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write 512K, 64M or 1G")
    return int(float(found[1]) * 1024 ** " KMG".index(found[2] or " "))
