"""Call one FusedResNet from several threads; the same as `autotune stress`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("stress")
