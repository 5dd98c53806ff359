"""Show, merge, sync, pack, export, compare and sign databases; the same as `autotune db`."""

from autotune_cli.main import run_script

if __name__ == "__main__":
    run_script("db")
