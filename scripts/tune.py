"""Tune a network's layers or single problems; the same as `autotune tune`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("tune")
