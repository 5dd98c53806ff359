"""Run kernels on batch sizes that they were not tuned for; the same as `autotune other-batches`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("other-batches")
