"""Run random plans of a network and compare them with torch; the same as `autotune random-plans`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("random-plans")
