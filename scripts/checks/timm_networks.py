"""Compare networks of timm on FusedResNet with torch; the same as `autotune timm-networks`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("timm-networks")
