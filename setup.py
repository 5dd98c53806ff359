"""Builds the C++ engine and lists the packages; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
ENGINE = "autotune/runtime/engine"
packages = [
    *find_packages(include=["autotune*", "fused_resnet*", "tuning_db*"]),
    "autotune.templates",
    "autotune_cli.layers.sets",
    *find_packages("scripts"),
]
sources = sorted(str(path) for path in Path(ENGINE).glob("*.cpp"))
engine = Pybind11Extension("autotune.runtime.engine._engine", sources, include_dirs=["templates"], cxx_std=17)
ParallelCompile().install()  # on all cores
engine.depends = [str(path) for path in [*Path(ENGINE).glob("*.h"), Path("templates/abi.h")]]


class BuildPackages(build_py):
    """Copies the packages; an editable installation also gets a line of sys.path.

    The import hook of setuptools comes after sys.path, whose first folder is the user's: a folder `tuning_db` there,
    which tuning makes, would be imported as a namespace package. A package further back in sys.path wins over it.
    """

    def run(self) -> None:
        """Copy the packages, or write the .pth file into the folder of what is installed."""
        super().run()
        if self.editable_mode:
            folder = Path(self.get_finalized_command("install").install_lib)
            (folder / "autotune_cutlass_checkout.pth").write_text(f"{ROOT}\n")


setup(
    packages=packages,
    package_dir={
        "autotune.templates": "templates",
        "autotune_cli": "scripts/autotune_cli",
        "autotune_cli.layers.sets": "benchmarks/layers",
    },
    ext_modules=[engine],
    cmdclass={"build_ext": build_ext, "build_py": BuildPackages},
)
