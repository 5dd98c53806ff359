"""Profile a network: module -> operators -> kernels, with times, libraries and sources."""

import sys

if __name__ == "__main__":
    from autotune_cli.command_line import run
    from autotune_cli.profiles.command import main

    run(main)
elif __name__ == "profile":
    # Scripts' imports are looked for in this folder first, and cProfile, which torch.compile imports, wants the
    # standard library's module of this name: give it that one.
    import importlib.util
    import sysconfig
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("profile", Path(sysconfig.get_path("stdlib"), "profile.py"))
    assert spec and spec.loader
    sys.modules["profile"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["profile"])
