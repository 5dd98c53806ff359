"""Measure the coordinator of a large tune on a simulated cluster; the same as `autotune coordinator-load`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("coordinator-load")
