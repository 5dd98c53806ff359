"""Measure the host time of loading and of calls; the same as `autotune bench-host`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench-host")
