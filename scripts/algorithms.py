"""List and time cuDNN's convolution algorithms; the same as `autotune algorithms`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("algorithms")
