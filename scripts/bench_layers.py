"""Compare tuned kernels with cuDNN layer by layer; the same as `autotune bench-layers`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench-layers")
