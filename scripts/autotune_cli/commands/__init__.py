"""The subcommands of `autotune`, a module each."""
