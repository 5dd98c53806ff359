"""Compare samplers on a recorded tuning run; the same as `autotune replay`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("replay")
