"""Time FusedResNet on a list of networks; the same as `autotune bench-networks`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench-networks")
