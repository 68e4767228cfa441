"""Schemathesis over the server's own OpenAPI: its seed, its checks, and what it found."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.generation.meta import TestPhase

GOLDEN_EVERY = 100
NOTHING_HEARD = {"extra-data-sources": {"responses": False}}


@dataclass
class Findings:
    """What so many requests were answered, and what was wrong with the answers."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    faults: list[str] = field(default_factory=list[str])


def explore(
    document: Mapping[str, Any],
    url: str,
    *,
    bases: Mapping[str, Mapping[str, Any]],
    trace: str,
    max_examples: int,
    seed: int,
    is_golden: Callable[[], bool],
    one_in: int = 1,
) -> Findings:
    """Ask all that schemathesis thinks of: each border of each field, then so many of its own.

    one_in: of so many borders one is asked for; routes that share a field are asked for others.
    trace: the id of an answer, whose inside is asked for.
    is_golden: asked now and then whether a good request still has its answer.
    """
    schema = schemathesis.openapi.from_dict(
        _narrowed(document, trace), config=_config(max_examples, seed)
    )
    schema.config.update(base_url=url)
    findings = Findings()

    def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
        base = bases.get(case.path)
        if base is not None and isinstance(case.body, dict):
            case.body = _deeper(case.body, base)

    @schema.hook
    def filter_case(context: HookContext, case: Case) -> bool:
        is_border = case.meta is not None and case.meta.phase.name == TestPhase.COVERAGE
        return not is_border or _drawn(case.path, case.method, case.query, case.body) % one_in == 0

    @schema.hook
    def after_call(context: HookContext, case: Case, response: Response) -> None:
        findings.statuses[response.status_code] += 1
        if findings.statuses.total() % GOLDEN_EVERY == 0 and not is_golden():
            findings.faults.append(f"the golden request has another answer after {case!r}")

    @schema.hook
    def filter_failure(
        context: HookContext, failure: Failure, case: Case, response: Response
    ) -> bool:
        # A POST that is no JSON is refused at the door, which knows no routes: 400 and not 405.
        return not (
            response.status_code == 400 and b'"unsupported_content_type"' in response.content
        )

    schemathesis.hook(before_call)  # a schema has no such hook of its own
    try:
        for event in from_schema(schema).execute():
            if isinstance(event, events.ScenarioFinished):
                findings.faults += _faults(event.recorder)
            if isinstance(event, events.NonFatalError):
                findings.faults.append(f"{event.label}: {event.value!r}")
            if isinstance(event, events.FatalError):
                raise event.exception
    finally:
        schemathesis.hooks.unregister(before_call)
    return findings


def _config(max_examples: int, seed: int) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "suppress-health-check": ["all"],
            "cache": {"enabled": False},
            "continue-on-failure": True,
            "generation": {"max-examples": max_examples, "database": "none", "no-shrink": True},
            # Answers hold ids and times: what is asked must not hang on them.
            "phases": {
                "coverage": NOTHING_HEARD,
                "fuzzing": {**NOTHING_HEARD, "error-feedback": {"enabled": False}},
                "stateful": {"enabled": False},
            },
            # Fields hang together in ways that the schema does not say.
            "checks": {"positive_data_acceptance": {"enabled": False}},
        }
    )


def _narrowed(document: Mapping[str, Any], trace: str) -> dict[str, Any]:
    """The document with the one model and answer that there are, so that bodies come further."""
    made = json.loads(json.dumps(document))
    for post in [methods["post"] for methods in made["paths"].values() if "post" in methods]:
        fields = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
        if "model" in fields:
            fields["model"] = {"enum": ["tiny"] if fields["model"].get("type") else ["tiny", None]}
        for parameter in post.get("parameters", ()):
            if parameter["name"] == "trace_id":
                parameter["schema"] = {"enum": [trace]}
    return made


def _deeper(body: dict[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Every other body cut down to a few of its fields beside those of a good one."""
    chance = random.Random(_drawn(body))
    if chance.random() < 0.5:
        return body
    kept = chance.sample(sorted(body, key=repr), min(len(body), chance.randint(1, 3)))
    return {**base, **{name: body[name] for name in kept}}


def _drawn(*given: object) -> int:
    """A number that hangs on what is given, and on nothing else."""
    return zlib.crc32(repr(given).encode("utf-8", "backslashreplace"))


def _faults(recorder: Any) -> list[str]:
    faults: list[str] = []
    for case_id, checks in recorder.checks.items():
        for failure in [check.failure_info.failure for check in checks if check.failure_info]:
            done = recorder.interactions[case_id]
            body = (done.request.body or b"")[:600]
            answer = done.response and (done.response.status_code, done.response.content[:300])
            asked = f"{done.request.method} {done.request.uri} {body!r}: {answer}"
            faults.append(f"{failure.title}: {failure.message}\n{asked}")
    return faults
