"""Write a tuning database as one HTML page; the same as `autotune report`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("report")
