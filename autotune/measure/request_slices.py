"""How the requests to a measuring process and their answers are shown in the trace of a tuning run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autotune.core import timeline
from autotune.measure.network_bench import LayerAssignment
from autotune.measure.protocol import (
    Answer,
    FinalsRequest,
    LibraryRequest,
    NetworkRequest,
    Reply,
    Request,
    TrialRequest,
)
from autotune.measure.result import TRIAL_STEPS, Result
from autotune.runtime import Candidate


def show(lane: timeline.Lane, request: Request, reply: Reply) -> None:
    """Add a request that was answered to the trace."""
    if not timeline.is_recording():
        return
    timeline.add(
        lane,
        _name(request),
        reply.started,
        reply.ended,
        _steps(request, reply.answer),
        **_given(request),
        **_outcome(reply.answer),
    )


def _name(request: Request) -> str:
    match request:
        case TrialRequest():
            return f"{request.problem.short_name} {request.candidate.family}"
        case FinalsRequest():
            return f"finals: {request.problem.short_name}"
        case NetworkRequest():
            return f"network: {len(request.plans)} plans" if len(request.plans) > 1 else "network: 1 plan"
        case LibraryRequest():
            return f"plans: {request.problem.short_name}" if request.problem else "version of cuDNN"
        case _:
            return "measure the device"


def _given(request: Request) -> dict[str, Any]:
    match request:
        case TrialRequest():
            return {"problem": str(request.problem), **_candidate(request.candidate)}
        case FinalsRequest():
            candidates = [str(candidate) for candidate in request.candidates]
            return {"problem": str(request.problem), "candidates": candidates, "rounds": request.rounds}
        case NetworkRequest():
            return {"network": request.network.key, "rounds": request.rounds, "changes": _changes(request.plans)}
        case LibraryRequest():
            return {"problem": str(request.problem)} if request.problem else {}
        case _:
            return {}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"family": candidate.family, "config": json.loads(candidate.config), "launch": dict(candidate.launch)}


def _changes(plans: Sequence[Sequence[LayerAssignment]]) -> list[list[str]]:
    """Return the assignments of each plan that the first one does not have; none for another order of the same."""
    texts = [[_assignment(one) for one in plan] for plan in plans]
    first = set(texts[0])
    return [[text for text in plan if text not in first] for plan in texts]


def _assignment(one: LayerAssignment) -> str:
    return f"{one.layer}: {one.candidate}" + (", overlapping" if one.overlap else "")


def _outcome(answer: Answer) -> dict[str, Any]:
    """Return the times and failures of an answer."""
    if isinstance(answer, list):
        return {"us": [result.median_us for result in answer]}
    if not isinstance(answer, Result):
        return {}
    known = {"status": answer.status, "us": answer.median_us, "error": answer.error}
    return {name: value for name, value in known.items() if value is not None}


def _steps(request: Request, answer: Answer) -> list[tuple[str, float]]:
    """Return the steps of a trial with their seconds; none for other requests."""
    if not (isinstance(request, TrialRequest) and isinstance(answer, Result)):
        return []
    seconds = answer.details.get("seconds", {})
    return [(step, seconds[step]) for step in TRIAL_STEPS if step in seconds]
