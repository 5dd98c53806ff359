"""Subcommands of `autotune` that check a claim of the documentation or the state of the project."""
