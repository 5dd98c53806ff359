"""Kernel -> source text. Several kernels share one translation unit; each lives in a namespace of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import jinja2

from autotune import paths
from autotune.arch import Architecture, architecture
from autotune.families import family
from autotune.families.base import DEVICE_IMAGE, Kernel

CPP_TYPES = {"f32": "float", "f16": "at::half", "bf16": "at::bfloat16", "tf32": "float", "s8": "signed char"}


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(paths.templates())
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def symbol(kernel: Kernel) -> str:
    """The kernel's name in its binary: the family and a digest of all that decides its code."""
    identity = "\n".join([kernel.config, kernel.dtype, str(kernel.epilogue), kernel.target])
    return f"{kernel.family}_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def architecture_of(kernel: Kernel) -> Architecture:
    """The architecture whose instructions the kernel's target has."""
    return architecture(kernel.target.replace("_", "") if kernel.target.startswith("sm_") else "cpu")


def render(kernel: Kernel) -> str:
    """The kernel's own text: its family's template with its values."""
    chosen = family(kernel.family)
    context = chosen.context(kernel.values, architecture_of(kernel), kernel.dtype)
    return (
        _environment()
        .get_template(chosen.template)
        .render(
            symbol=symbol(kernel),
            element=CPP_TYPES[kernel.dtype],
            epilogue=kernel.epilogue,
            **context,
        )
    )


def unit(kernels: Sequence[Kernel]) -> str:
    """One translation unit with all of `kernels`, which share a kind and a target; each header is included once."""
    template = "cuda/unit.cu.j2" if family(kernels[0].family).kind == DEVICE_IMAGE else "cpu/unit.cpp.j2"
    texts = [render(kernel) for kernel in kernels]
    headers = dict.fromkeys(line for text in texts for line in text.splitlines() if line.startswith("#include"))
    bodies = ["\n".join(line for line in text.splitlines() if not line.startswith("#include")) for text in texts]
    symbols = [symbol(kernel) for kernel in kernels]
    return _environment().get_template(template).render(headers=list(headers), bodies=bodies, symbols=symbols)


@cache
def headers_digest() -> str:
    """Digest of every plain header under templates/: part of what decides a binary."""
    digest = hashlib.sha256()
    for header in sorted(paths.templates().rglob("*.*h")):
        digest.update(header.relative_to(paths.templates()).as_posix().encode() + header.read_bytes())
    return digest.hexdigest()


def source_digest(kernel: Kernel) -> str:
    """Digest of the kernel's text and of the headers it can include: changes when the code does."""
    return hashlib.sha256((render(kernel) + headers_digest()).encode()).hexdigest()[:16]
