"""Time the tune of a network that begins with another one's database; the same as `autotune bench-transfer`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("bench-transfer")
