"""Builds the C++ engine and lists the packages; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import find_packages, setup

ENGINE = "autotune/runtime/engine"
packages = [
    *find_packages(include=["autotune*", "fused_resnet*", "tuning_db*"]),
    "autotune.templates",
    "autotune_cli.layers.sets",
    *find_packages("scripts"),
]
sources = sorted(str(path) for path in Path(ENGINE).glob("*.cpp"))
engine = Pybind11Extension("autotune.runtime.engine._engine", sources, include_dirs=["templates"], cxx_std=17)
engine.depends = [str(path) for path in [*Path(ENGINE).glob("*.h"), Path("templates/abi.h")]]
setup(
    packages=packages,
    package_dir={
        "autotune.templates": "templates",
        "autotune_cli": "scripts/autotune_cli",
        "autotune_cli.layers.sets": "benchmarks/layers",
    },
    ext_modules=[engine],
    cmdclass={"build_ext": build_ext},
)
