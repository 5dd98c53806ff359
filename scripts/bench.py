"""Time FusedResNet against eager torch and torch.compile; the same as `autotune bench`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench")
