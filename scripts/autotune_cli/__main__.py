"""`python -m autotune_cli` is the `autotune` command."""

import sys

from autotune_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
