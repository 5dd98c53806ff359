"""The tuning database: every trial, and each kernel's binary, in one SQLite file or on a PostgreSQL server."""

from tuning_db.errors import DatabaseError
from tuning_db.store import Store

__all__ = ["DatabaseError", "Store"]
