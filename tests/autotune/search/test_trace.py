"""Recordings: parts that are merged give the whole."""

from dataclasses import replace

import pytest
from repository import ROOT

from autotune.core import AutotuneError
from autotune.search import Space, SpaceTrace, TuneTrace

RECORDING = ROOT / "tests" / "data" / "search_h200.json.gz"


def part(trace: TuneTrace, start: int, step: int) -> TuneTrace:
    """Return every `step`-th config of each space."""
    spaces = []
    for traced in trace.spaces:
        space, kept = traced.space, slice(start, None, step)
        if configs := space.configs[kept]:
            kept_space = Space(space.problem, space.family, configs, space.costs[kept])
            spaces.append(SpaceTrace(kept_space, traced.results[kept]))
    return replace(trace, spaces=tuple(spaces))


def rows(trace: TuneTrace) -> dict:
    """Return the result of each config."""
    return {
        (traced.space.problem, traced.space.family, *config.items()): result
        for traced in trace.spaces
        for config, result in zip(traced.space.configs, traced.results, strict=True)
    }


def test_merged_parts_are_the_whole(tmp_path):
    whole = TuneTrace.load(RECORDING)
    merged = part(whole, 0, 3).merged(part(whole, 1, 3)).merged(part(whole, 2, 3))
    assert rows(merged) == rows(whole) and len(rows(whole)) == sum(len(one.results) for one in merged.spaces)
    assert all(list(one.space.costs) == sorted(one.space.costs) for one in merged.spaces)
    merged.save(tmp_path / "merged.json.gz")
    assert rows(TuneTrace.load(tmp_path / "merged.json.gz")) == rows(whole)


def test_of_two_results_the_first_counts():
    whole = TuneTrace.load(RECORDING)
    slower = replace(
        whole,
        spaces=tuple(
            replace(one, results=tuple(replace(result, device_seconds=9.0) for result in one.results))
            for one in whole.spaces
        ),
    )
    assert rows(part(whole, 0, 2).merged(slower)) == rows(slower) | rows(part(whole, 0, 2))


def test_recordings_of_two_devices_are_refused():
    whole = TuneTrace.load(RECORDING)
    with pytest.raises(AutotuneError, match="cannot be merged"):
        whole.merged(replace(whole, device="another GPU"))
