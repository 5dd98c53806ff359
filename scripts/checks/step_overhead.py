"""Measure the host time of a replayed training step; the same as `autotune step-overhead`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("step-overhead")
