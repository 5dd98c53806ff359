"""The tuning database: every trial, and each kernel's binary, in one SQLite file."""

from tuning_db.store import DatabaseError, Store

__all__ = ["DatabaseError", "Store"]
