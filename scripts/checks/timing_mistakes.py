"""Show common mistakes in timing a GPU; the same as `autotune timing-mistakes`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("timing-mistakes")
