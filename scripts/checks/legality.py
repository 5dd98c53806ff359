"""Compile kernels of a family that should compile; the same as `autotune legality`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("legality")
