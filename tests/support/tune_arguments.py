"""Requests of `autotune tune`."""

import argparse

from autotune.core import architecture
from autotune_cli.arguments import tune
from autotune_cli.commands.tune import tune_requests


def requested(*arguments, arch="cpu"):
    """Return the requests of these command-line arguments, by default on the CPU."""
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return tune_requests(parser.parse_args(arguments), architecture(arch), lambda: None)
