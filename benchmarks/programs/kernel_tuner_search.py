"""Searches a recording with a strategy of Kernel Tuner, in its simulation mode.

Kernel Tuner (https://github.com/KernelTuner/kernel_tuner) tunes one kernel with one set of parameters, which is a space
here. So each family of a layer is searched on its own, and gets a part of the layer's trials in proportion to its
configs. The trials of the families are taken in turn, and simulated time is not counted. Some strategies, such as
genetic_algorithm, may not end in a space of few configs.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core import AutotuneError, require_one_of
from autotune.search import SpaceTrace, TuneTrace
from autotune.tuner import MIN_CONFIGS, Replay, ReplayPoint

PREFIX = "kernel-tuner:"
"""Prefix of the sampler names that stand for strategies of Kernel Tuner, such as kernel-tuner:pso."""
MIN_TRIALS = 3
"""Least trials of a space; with fewer some strategies end with an error."""


def search(trace: TuneTrace, strategy: str, seed: int, share: float) -> Replay:
    """Search a trace.

    Args:
        trace: The recorded results; what was recorded is the whole space.
        strategy: Name of the strategy.
        seed: Seed of its random numbers.
        share: Share of a problem's configs that may be tried.

    Raises:
        AutotuneError: Kernel Tuner is not installed.
        UnknownNameError: It has no such strategy.
    """
    require_one_of("strategy of Kernel Tuner", strategy, list(_kernel_tuner().interface.strategy_map))
    layers, best_us = trace.by_problem(), trace.best_us()
    totals = {problem: sum(len(traced.results) for traced in layers[problem]) for problem in best_us}
    curves = {}
    for problem in best_us:
        part = max(MIN_CONFIGS, int(share * totals[problem])) / totals[problem]
        trials: list[tuple[float, float]] = []
        for traced in layers[problem]:
            count = min(len(traced.results), max(MIN_TRIALS, round(part * len(traced.results))))
            times = _times(traced, strategy, seed, count)
            trials += [((i + 0.5) / len(times), us) for i, us in enumerate(times)]
        curves[problem] = list(_curve(us for _, us in sorted(trials)))
    return Replay(curves, totals, best_us, 0.0)


def cache(traced: SpaceTrace, device: str) -> dict[str, Any]:
    """Return a space's trace as the content of a cache file of Kernel Tuner."""
    space, now = traced.space, str(datetime.now(UTC))
    configs = {}
    for config, result in zip(space.configs, traced.results, strict=True):
        us = result.best_us
        configs[_key(config)] = {
            **config,
            "time": "RuntimeFailedConfig" if us is None else us,
            "times": [] if us is None else [us],
            "compile_time": 1e3 * result.compile_seconds,
            "benchmark_time": 1e3 * result.device_seconds,
            "verification_time": 0,
            "strategy_time": 0,
            "framework_time": 0,
            "timestamp": now,
        }
    names = list(space.configs[0])
    return {
        "device_name": device,
        "kernel_name": space.family,
        "problem_size": "1",
        "tune_params_keys": names,
        "tune_params": {
            name: sorted({config[name] for config in space.configs}, key=lambda one: (isinstance(one, str), one))
            for name in names
        },
        "objective": "time",
        "cache": configs,
    }


def _key(config: Mapping[str, object]) -> str:
    return ",".join(map(str, config.values()))


def _times(traced: SpaceTrace, strategy: str, seed: int, count: int) -> list[float]:
    """Return the times of the configs that a strategy tries, in its order; infinite for those that failed."""
    kernel_tuner = _kernel_tuner()
    content = cache(traced, "device")
    names = content["tune_params_keys"]

    def known_space(*_: object, **options: Any) -> Any:
        """Return the space of the cache, which is no product of all values."""
        return kernel_tuner.searchspace.Searchspace(None, None, None, from_cache=content, **options)

    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "cache.json"
        path.write_text(json.dumps(content))
        original = kernel_tuner.interface.Searchspace
        kernel_tuner.interface.Searchspace = known_space
        try:
            results, _ = kernel_tuner.tune_kernel(
                traced.space.family, "", "1", [], content["tune_params"], strategy=strategy, cache=str(path),
                strategy_options={"max_fevals": count}, simulation_mode=True, lang="C", objective="time",
                objective_higher_is_better=False,
            )  # fmt: skip
        finally:
            kernel_tuner.interface.Searchspace = original
    tried = {_key({name: one[name] for name in names}): one["time"] for one in results}  # some are listed twice
    times = [time if isinstance(time, int | float) else math.inf for time in tried.values()]
    return times[:count]


def _kernel_tuner() -> Any:
    try:
        import kernel_tuner  # type: ignore[import-not-found,unused-ignore]
        import kernel_tuner.interface  # type: ignore[import-not-found,unused-ignore]
        import kernel_tuner.searchspace  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise AutotuneError(f"the samplers {PREFIX}* need a package: pip install kernel-tuner ({error})") from error
    return kernel_tuner


def _curve(times: Iterator[float]) -> Iterator[ReplayPoint]:
    best_us = math.inf
    for number, us in enumerate(times, 1):
        best_us = min(best_us, us)
        yield ReplayPoint(0.0, number, best_us)
