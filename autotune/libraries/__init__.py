"""Candidates that need no compiling: the vendors' libraries. Light enough for the runtime to import."""
