"""Train the default network by torch and on tuned kernels; the same as `autotune train`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("train")
