"""Profile a network: module -> operators -> kernels, with times, libraries and sources."""

from autotune_cli.command_line import run
from autotune_cli.profiles.command import main

if __name__ == "__main__":
    run(main)
