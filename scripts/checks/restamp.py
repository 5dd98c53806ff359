"""Renew source digests where machine code is unchanged; the same as `autotune restamp`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("restamp")
