"""Time FusedResNet of this checkout against another one; the same as `autotune compare-checkouts`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("compare-checkouts")
