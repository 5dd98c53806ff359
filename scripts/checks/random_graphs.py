"""Compare random networks on FusedResNet with torch; the same as `autotune random-graphs`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("random-graphs")
