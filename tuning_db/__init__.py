"""The tuning database: all trials and the binaries of all kernels, in one SQLite file or on a PostgreSQL server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuning_db.errors import DatabaseError
from tuning_db.opening import open_reader
from tuning_db.reader import Reader
from tuning_db.trust.digests import launch_text
from tuning_db.trust.signature import public_keys

if TYPE_CHECKING:
    from tuning_db.store import Store

__all__ = ["DatabaseError", "Reader", "Store", "launch_text", "open_reader", "public_keys", "shipped_databases"]


def shipped_databases() -> list[Path]:
    """Return the databases that this package brings along, in alphabetical order.

    If the environment names trusted keys, those that none of them signed are left out.
    """
    found = sorted(Path(__file__).parent.glob("*_h?00.db"))  # they are named after the GPU that they were tuned on
    keys = public_keys(())
    return [path for path in found if _is_signed(path, keys)] if keys else found


def _is_signed(path: Path, keys: tuple[str, ...]) -> bool:
    try:
        with Reader(path, keys):
            return True
    except DatabaseError:
        return False


def __getattr__(name: str) -> Any:
    # Imported on demand: a Store imports SQLAlchemy, and running a network needs only a reader.
    if name == "Store":
        from tuning_db.store import Store

        return Store
    raise AttributeError(f"module 'tuning_db' has no attribute '{name}'")
