"""List operators and kernels below each module; the same as `autotune profile`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("profile")
