"""Change a database in many ways and run the network from each; the same as `autotune tamper`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("tamper")
