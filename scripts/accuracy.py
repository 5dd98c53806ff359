"""Measure the accuracy of each precision; the same as `autotune accuracy`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("accuracy")
