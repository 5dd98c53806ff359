"""Time tunes on a cluster against tunes without one; the same as `autotune cluster-overhead`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("cluster-overhead")
