"""Builds the C++ engine; everything else is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

sources = sorted(str(path) for path in Path("fused_resnet/engine").glob("*.cpp"))
engine = Pybind11Extension("fused_resnet.engine._engine", sources, include_dirs=["templates"], cxx_std=17)
engine.depends = [str(path) for path in [*Path("fused_resnet/engine").glob("*.h"), Path("templates/abi.h")]]
setup(ext_modules=[engine], cmdclass={"build_ext": build_ext})
