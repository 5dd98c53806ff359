"""One digest for each family, of all that the family says of the problems that were tuned for the shipped databases.

A change of how families are written must not change it; a change of what they try must.

    python tests/support/enumerations.py           print the digests
    python tests/support/enumerations.py --write   write tests/data/enumerations.json
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
from dataclasses import replace
from functools import cache
from itertools import islice
from unittest.mock import patch

from problems import TEXTS
from random_sizes import SIZES
from repository import ROOT

from autotune.codegen.rendering import source_digest
from autotune.core import AutotuneError, architecture
from autotune.families import Kernel, base, families
from autotune.families.base import PERMISSIONS
from autotune.families.cpu import common
from autotune.ir import OPERATORS, Problem, parse

FILE = ROOT / "tests" / "data" / "enumerations.json"
TUNED = ROOT / "tests" / "data" / "problems.txt.gz"
"""The problems that were tuned for the shipped databases, which hold only those that plans name."""
ARCHITECTURES = ("sm70", "sm80", "sm90", "cpu")
TARGETS = {"sm70": "sm_70", "sm80": "sm_80", "sm90": "sm_90", "cpu": "x86-64-v3"}
PROBLEMS, CONFIGS, REFUSED, COMPILED, RANDOM = 8, 300, 40, 2, 12
"""Problems of a family and architecture; configs of a problem; refused configs and problems; kernels;
random problems."""
ALL = tuple(PERMISSIONS)


@cache
def problems() -> tuple[Problem, ...]:
    """Return the problems of TUNED, one for each operator and random ones; all in float32, too."""
    texts = {*TEXTS, *_random_texts(), *gzip.decompress(TUNED.read_bytes()).decode().splitlines()}
    found: dict[str, Problem] = {}
    for text in sorted(texts):
        try:
            problem = parse(text)
            found[str(problem)] = problem
            single = replace(problem, dtype="f32")
            found[str(single)] = single
        except AutotuneError:  # calls of torch, and what float32 cannot be
            continue
    return tuple(found.values())


def _random_texts():
    for name, size in SIZES.items():
        rng = random.Random(name)
        for text in [size(rng) for _ in range(RANDOM)]:
            operator = OPERATORS[text.split()[0]]
            for dtype in ("f16", "s8"):
                yield f"{text} dtype={dtype} epilogue={','.join(operator.anchors) or 'none'}"


def spread(found: list, most: int) -> list:
    """Return at most some of a list, evenly spread."""
    return [found[i * len(found) // most] for i in range(most)] if len(found) > most else found


def _machine(name):
    """Return an architecture; of the CPU, one that does not depend on this machine."""
    return replace(architecture(name), processors=2) if name == "cpu" else architecture(name)


def facts(name: str):
    """Yield all that a family says of some problems on each architecture."""
    family = families()[name]
    yield family.name, family.kind, family.template, family.architectures, family.dtypes
    yield [solved.operator for solved in family.operators], family.compile_seconds
    for parameter in (*family.parameters, *family.launch_parameters):
        yield parameter.name, parameter.values, parameter.meaning
    own = [one for one in problems() if isinstance(one, family.operators)]
    for arch in [_machine(one) for one in ARCHITECTURES if one in family.architectures]:
        reasons = {one: family.why_not_served(one, arch) for one in own}
        yield from ((str(one), why) for one, why in islice(((o, w) for o, w in reasons.items() if w), REFUSED))
        served = spread([one for one, why in reasons.items() if why is None], PROBLEMS)
        yield [str(one) for one in served]
        for problem in served:
            found = family.configs_for(problem, arch, ALL)
            yield len(found)
            for config in spread(found, CONFIGS):
                yield list(config.items()), f"{family.cost(problem, config, arch):.9g}"
                yield [list(launch.items()) for launch in family.launches(problem, config, arch)]
                yield (
                    family.label(config),
                    dict(family.weight_layouts(config)),
                    list(family.required_permissions(config)),
                )
            for config in spread(found, COMPILED):
                kernel = Kernel.of(name, config, problem.dtype, problem.epilogue, TARGETS[arch.name])
                yield source_digest(kernel)
        for dtype, epilogue in sorted({(one.dtype, str(one.epilogue)) for one in served})[:1]:
            chain = next(one.epilogue for one in served if str(one.epilogue) == epilogue)
            yield from ((dict(c), why) for c, why in islice(family.illegal_configs(arch, dtype, chain), REFUSED))


def digest(name: str) -> str:
    """Return the digest of the facts of a family."""
    made, of_this_machine = hashlib.sha256(), (common.vector_registers, base._known_legal)
    with patch.object(common, "cpu_targets", lambda: (TARGETS["cpu"],)):
        for known in of_this_machine:
            known.cache_clear()
        for fact in facts(name):
            made.update(json.dumps(fact, default=str).encode())
    for known in of_this_machine:
        known.cache_clear()
    return made.hexdigest()[:16]


if __name__ == "__main__":
    found = {name: digest(name) for name in sorted(families())}
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    else:
        print(json.dumps(found, indent=1))
