"""Time the tuner and rate the kernels it finds; the same as `autotune bench-tuning`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench-tuning")
