"""Kill tuners, their workers and compilers at random moments; the same as `autotune kill-campaign`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("kill-campaign")
