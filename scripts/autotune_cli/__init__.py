"""The `autotune` command: its subcommands and what they share."""
