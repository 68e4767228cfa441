"""Every route against every field: below, least, most, above, and every wrong type."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import pytest
from server_app import chat, check_speaks_json, client, completion, serving

from cutaway.core import limits
from cutaway.core.limits import LIMITS, Limit
from cutaway.server.anthropic.messages import CountBody, MessagesBody
from cutaway.server.field_types import Body, Limited, Unused
from cutaway.server.looks.learn_routes import LearnBody
from cutaway.server.looks.lesson_routes import LessonBody
from cutaway.server.looks.lever_routes import CompareBody
from cutaway.server.looks.views import FileBody, ViewBody
from cutaway.server.lora_routes import LoadBody, UnloadBody
from cutaway.server.openai.chat import ChatBody
from cutaway.server.openai.completions import CompletionBody
from cutaway.server.openai.foreign_fields import ForeignFields
from cutaway.server.openai.openai_fields import NO_LIMIT, MostTokens
from cutaway.server.openai.responses import ResponsesBody
from cutaway.server.route_context import Context
from cutaway.server.tokenizer_routes import DetokenizeBody, TokenizeBody
from trials import ran

MESSAGES = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
# Every route that reads a body, what it reads, and a body that it takes.
ROUTES: dict[str, tuple[type[Body], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {**chat(max_tokens=1)}),
    "/v1/completions": (CompletionBody, {**completion(max_tokens=1)}),
    "/v1/responses": (ResponsesBody, {"model": "tiny", "input": "x", "max_output_tokens": 1}),
    "/v1/messages": (MessagesBody, MESSAGES),
    "/v1/messages/count_tokens": (CountBody, {n: MESSAGES[n] for n in ("model", "messages")}),
    "/tokenize": (TokenizeBody, {"prompt": "hello"}),
    "/detokenize": (DetokenizeBody, {"tokens": [104, 105]}),
    "/cutaway/v1/traces/{trace_id}/views": (ViewBody, {"view": "tokens"}),
    "/cutaway/v1/traces/{trace_id}/file": (FileBody, {"views": "tokens"}),
    "/cutaway/v1/traces/{trace_id}/compare": (CompareBody, {"change": "seed=1", "runs": 1}),
    "/v1/load_lora_adapter": (LoadBody, {"lora_name": "x", "lora_path": "x"}),
    "/v1/unload_lora_adapter": (UnloadBody, {"lora_name": "x"}),
    "/cutaway/v1/learn": (LearnBody, {"text": "hello hello"}),
    "/cutaway/v1/lesson": (LessonBody, {"until": "pretrain"}),
}
# What these name is not there; test_server_adapters.py loads what is.
NOTHING_THERE = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")

# What a field needs beside it to be taken at all.
COMPANY: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "continue_final_message": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    },
    "max_completion_tokens": {"max_tokens": None},
    "stream_options": {"stream": True},
}
# The same, where a route wants something else.
COMPANY_OF: dict[tuple[type[Body], str], dict[str, Any]] = {
    (ResponsesBody, "top_logprobs"): {"include": ["message.output_text.logprobs"]},
}
WRONG: dict[str, list[Any]] = {
    "int": ["1", 1.5, True, [1], {"a": 1}],
    "float": ["1", True, [1], {"a": 1}, 10**400],
    "bool": [1, 0, "true", [True], {}],
    "str": [1, True, ["a"], {"a": 1}],
}
TOO_MANY_STOPS = [str(number) for number in range(limits.MAX_STOP_STRINGS + 1)]
BAD: dict[str, list[Any]] = {
    "messages": [[], "x", {}, 1, [1], [{"role": 1, "content": "x"}]],
    "prompt": [[], [[]], {}, 1, True, [1, "a"], [["a"]], [-1], [320], [2**70], [True], [1.5]],
    "stop": [1, {}, "", [""], [1], TOO_MANY_STOPS, "x" * 257, ["x"] * 10_000],
    "stop_token_ids": [1, "1", {}, [-1], ["1"], [True], [1.5], [320], [2**70], [1] * 129],
    "logit_bias": [
        *(1, [1], "x", {"a": 1}, {"-1": 1}, {"1.0": 1}, {" 1": 1}, {"320": 1}, {"9" * 400: 1}),
        *({"1": 101}, {"1": -101}, {"1": "1"}, {"1": True}, {"1": None}),
        {str(number): 1 for number in range(1025)},
    ],
    "response_format": [
        *(1, "json", {}, {"type": "xml"}, {"type": "json_schema"}),
        # Whatever the type, what stands beside it is checked.
        *({"type": kind, "json_schema": []} for kind in ("text", "json_object", "json_schema")),
        {"type": "text", "json_schema": {"schem": {}}},
    ],
    "structured_outputs": [
        *(1, [], {}, {"json": {}, "regex": "a"}, {"regex": 1}, {"choice": []}, {"choice": [1]}),
        *({"json": 1}, {"json_object": 1}, {"grammar": ""}, {"unknown": 1}),
    ],
    "stream_options": [
        *(1, [], {"include_usage": 1}, {"include_usag": True}),
        *({"continuous_usage_stats": True}, {"continuous_usage_stats": 1}),
    ],
    "tools": [1, {}, [1], [{}], [{"type": "function"}], [{"type": "x", "function": {}}]],
    "tool_choice": [1, [], {}, "always", {"type": "function", "function": {"name": "f"}}],
    "chat_template_kwargs": [1, [], "x", {"unread": 1}],
    "tokens": [1, "1", {}, [-1], ["1"], [True], [320], [2**70], None],
    "modalities": ["text", ["audio"], []],
    "draft": [1, "x", [], {}, True, "NGRAM", ""],
    "repetition_detection": [
        *(1, [], "x", True, {}, {"max_pattern": 8}, {"max_pattern_size": 8, "min_count": 1}),
        *({"max_pattern_size": "8", "min_count": 2}, {"max_pattern_size": 1025, "min_count": 2}),
        {"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2},
    ],
    "suffix": ["x", 1],
    "best_of": [0, 2, True, 1.5, "1"],
    "function_call": ["auto", {}, 1],
    "input": [[], {}, 1, [1], [{}], [{"role": "x", "content": "y"}], [{"type": "x"}]],
    "text": [1, [], "x", {"format": 1}, {"format": {"type": "xml"}}, {"verbosities": "low"}],
    "metadata": [1, [], "x"],
    "background": [True, 1, 0, "false"],
    "include": ["x", ["x"], [1], {}, 1, [["a"]], [None]],
    "truncation": ["always", 1, []],
    "reasoning_effort": [1, [], {}, "huge", True],
    "reasoning": [1, [], "x", {"effort": "huge"}, {"effort": 1}, {"efforts": "low"}],
    "system": [1, {}, [1], [{}], [{"type": "image"}], [{"type": "text"}]],
    "stop_sequences": [1, {}, "a", [""], [1], TOO_MANY_STOPS, ["x" * 257], ["x"] * 10_000],
    "thinking": [1, [], {}, {"type": "x"}, {"type": 1}],
    "enable_thinking": [1, [], {}, "yes"],
    "output_config": [
        1,
        [],
        {"effort": "huge"},
        {"efforts": "low"},
        {"format": {}},
        {"format": {"type": "text"}},
    ],
}
REFUSED = (
    *("functions", "audio", "web_search_options"),
    *("previous_response_id", "conversation", "container", "mcp_servers"),
)
BAD |= {name: [1, "x", {"a": 1}] for name in REFUSED}
# test_server_foreign.py has the values of these that ask for nothing.
BAD |= {name: [{"on": 0.5}, "on", [0.5]] for name in ForeignFields.model_fields if name not in BAD}
BAD["cutaway"] = [1, "x", [], {"trace": 1}, {"trace": "true"}, {"trace": [True]}]
# What is no place of a short answer or a tiny model, as in steps.
BAD_PLACES = [
    "x",
    "-",
    "0-",
    "-0",
    "0,,1",
    "99",
    "0-99",
    "\u00b2",
    "9" * 19,
    "9" * 5_000,
    "0x0",
    ",",
]
# What is no change of an answer of one token: each lever's own language, and what comes near it.
BAD_CHANGES = [
    *("", "=", "temperature", "=1", "nothing=1", "TEMPERATURE=1", "temperature@1=1"),
    *("temperature=", "temperature=x", "temperature=-0.1", "temperature=5.1", "temperature=nan"),
    *("temperature=1e309", "top_k=1.5", "top_k=-2", "top_k=2147483648", "top_k=\u00b2"),
    *("top_p=1.1", "min_p=-1", "repetition_penalty=0", "presence_penalty=2.1", "seed=x"),
    *(f"seed={2**63}", f"seed={-(2**63) - 1}", "seed=" + "9" * 900, "frequency_penalty=inf"),
    *("token=5", "token@=5", "token@x=5", "token@-1=5", "token@\u00b2=5", "token@0=", "token@1=5"),
    *("token@0=320", "token@0=" + "9" * 900, f"token@{'9' * 900}=5", "context=0", "context=99"),
    *("ablate=", "ablate=2", "ablate=0.9", "ablate=0.x", "ablate=" + "9" * 900, "ablate=\u00b2"),
    *("patch=0", "patch=0@0", "patch=0@0:1", "patch=2@0:0", "patch=0@99:0", "patch=0@0:\u00b2"),
    *("positions=on", "attention=x", "window=0", "window=x", "experts_per_token=0"),
    *("prefix_cache=x", "kv_cache=on", "streaming=x", "batch=0", "batch=1025", "kv_dtype=x"),
    *(
        "prefill_chunk=0",
        "prefill_chunk=1048577",
        "page_size=0",
        "page_size=1",
        "page_size=9",
        "page_size=1048577",
        "draft=x",
    ),
    *("quant=int8", "dtype=float32", "model=x", "system=x", "prompt=x"),
    "token@0=" + "x" * limits.MAX_CHANGE,
]
# Fields whose name means something else for one route.
OTHERS: dict[tuple[type[Body], str], list[Any]] = {
    (TokenizeBody, "prompt"): WRONG["str"],
    (ChatBody, "echo"): WRONG["bool"] + [True],
    (ViewBody, "view"): [*WRONG["str"], "", "x", "tokens ", "TOKENS"],
    (ViewBody, "text"): [*WRONG["str"], "x" * (limits.MAX_VIEW_TEXT + 1), "\u00e9" * 5_001],
    (FileBody, "views"): [*WRONG["str"], "x", "tokens,x"],
    (FileBody, "steps"): [*WRONG["str"], *BAD_PLACES],
    (FileBody, "layers"): [*WRONG["str"], *BAD_PLACES],
    (FileBody, "heads"): [*WRONG["str"], *BAD_PLACES],
    (CompareBody, "change"): [*WRONG["str"], *BAD_CHANGES],
    (LearnBody, "text"): [*WRONG["str"], ""],
    (LessonBody, "rewards"): [*WRONG["str"], "", "x", "FINAL", "final "],
    (LessonBody, "until"): [*WRONG["str"], "", "x", "grpo", "until=ppo"],
}


def outside(limit: Limit) -> Iterator[Any]:
    """Values beyond a range, and of types that are none of its own."""
    yield from WRONG[limit.kind]
    if limit.kind == "int":
        yield from (int(limit.least) - 1, int(limit.most) + 1, -(2**70), 2**70)
    elif limit.kind == "float":
        yield from (limit.least - 0.001, limit.most + 0.001, -(10**400))
        if limit.least_open:
            yield limit.least


def inside(limit: Limit) -> Iterator[Any]:
    """The ends of a range, and null."""
    yield None
    if limit.kind == "bool":
        yield from (True, False)
    elif limit.kind == "int":
        yield from (int(limit.least), int(limit.most))
    else:
        yield from (math.nextafter(limit.least, 1) if limit.least_open else limit.least, limit.most)


def param_of(answer: httpx2.Response) -> str:
    """The field at fault; Anthropic's errors name it in their words alone."""
    error = answer.json()["error"]
    return str(error["param"]) if "param" in error else error["message"].split()[0]


def limit_of(kind: type[Body], name: str) -> Limit | None:
    """The entry of core/limits.py that a field has."""
    metadata = kind.model_fields[name].metadata
    return next((LIMITS[each.name] for each in metadata if isinstance(each, Limited)), None)


def company(kind: type[Body], name: str) -> dict[str, Any]:
    return COMPANY_OF.get((kind, name), COMPANY.get(name, {}))


def is_unused(kind: type[Body], name: str) -> bool:
    return any(isinstance(each, Unused) for each in kind.model_fields[name].metadata)


def wrong_values(kind: type[Body], name: str) -> list[Any]:
    limit = limit_of(kind, name)
    if limit is not None:
        has_no_limit = any(isinstance(e, MostTokens) for e in kind.model_fields[name].metadata)
        return [each for each in outside(limit) if not (has_no_limit and each == NO_LIMIT)]
    if (kind, name) in OTHERS or name in BAD:
        return OTHERS.get((kind, name), BAD.get(name, []))
    hint = str(get_type_hints(kind)[name])
    assert hint in ("<class 'str'>", "str | None", "bool | None"), f"{name} has cases of its own"
    return WRONG["bool" if "bool" in hint else "str"]


CELLS = [
    (path, name)
    for path, (kind, _) in ROUTES.items()
    for name in kind.model_fields
    if not is_unused(kind, name)
]


def test_every_route_that_reads_a_body_is_walked(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return (await http.get("/openapi.json")).json()

    paths = asked(ask)["paths"]
    assert {path for path, methods in paths.items() if "post" in methods} == set(ROUTES)
    for path, (kind, _) in ROUTES.items():
        content = paths[path]["post"]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        assert set(schema["properties"]) == set(kind.model_fields)
        for name in kind.model_fields:
            limit = limit_of(kind, name)
            if limit is not None and limit.kind != "bool":
                assert schema["properties"][name]["maximum"] == float(limit.most)


# What is a change, at the ends of each lever's range.
GOOD_CHANGES = [
    *("temperature=0", "temperature=5", " temperature =1", "top_k=-1", "top_k=2147483647"),
    *("top_p=0", "top_p=1", "min_p=1", "repetition_penalty=10", "presence_penalty=-2"),
    *(f"seed={-(2**63)}", f"seed={2**63 - 1}", "token@0=0", "token@2=319", "token@1=abc"),
    *("context=1", "ablate=0", "ablate=1.3", "ablate=1.mlp", "patch=0@1:0", "patch=1@4:zero"),
    *("positions=off", "attention=naive", "window=1", f"window={2**63 - 1}", "prefix_cache=off"),
    *("kv_cache=off", "streaming=on", "batch=1", "batch=4", "kv_dtype=int8", "prefill_chunk=1"),
    *("prefill_chunk=1048576", "page_size=8", "page_size=256", "draft=ngram", "draft=off"),
]


@pytest.mark.parametrize("path", ROUTES)
def test_no_field_takes_a_value_out_of_its_range_or_of_another_type(
    folder: Path, path: str
) -> None:
    kind, base = ROUTES[path]
    count = 0

    async def walk() -> None:
        nonlocal count
        async with serving(folder) as (app, context), client(app) as http:
            trace = (await http.post("/v1/completions", json=completion(max_tokens=1))).json()
            place = path.format(trace_id=trace["id"])
            for name in (name for at, name in CELLS if at == path):
                for value in wrong_values(kind, name):
                    body = {**base, **company(kind, name), name: value}
                    answer = await http.post(place, json=body)
                    told = f"{path} {name} {value!r:.60}: {answer.text:.200}"
                    expected = 404 if name == "model" and isinstance(value, str) else 400
                    assert answer.status_code == expected, told
                    assert param_of(answer).startswith(name), told
                    assert "Traceback" not in answer.text, told
                    check_speaks_json(answer.json()["error"]["message"])
                    count += 1
            assert (await context.service.stats()).pages_used == 0
            expected = 400 if path in NOTHING_THERE else 200
            assert (await http.post(place, json=base)).status_code == expected

    asyncio.run(walk())
    ran(count)


@pytest.mark.parametrize("path", [path for path in ROUTES if path.startswith("/v1/")])
def test_every_field_takes_the_ends_of_its_range(folder: Path, path: str) -> None:
    kind, base = ROUTES[path]
    # Beyond what the model holds, or more than its company: told as such, and not as a range.
    beyond = {"max_tokens", "max_completion_tokens", "min_tokens", "max_output_tokens"}
    count = 0

    async def walk() -> None:
        nonlocal count
        async with serving(folder) as (app, _), client(app) as http:
            for name in (name for at, name in CELLS if at == path):
                limit = limit_of(kind, name)
                for value in () if limit is None else inside(limit):
                    body = {**base, **company(kind, name), name: value}
                    answer = await http.post(path, json=body)
                    told = f"{path} {name} {value!r:.60}: {answer.text:.200}"
                    if path == "/v1/messages" and name == "max_tokens" and value:
                        assert answer.status_code == 200, told  # as much as there is room for
                    elif name in beyond and value in (0, limits.INT64_MAX) and value != 0:
                        assert answer.status_code == 400, told
                    elif name in beyond - {"min_tokens"} and value == 0:
                        assert param_of(answer) in (name, "max_tokens"), told
                    elif name == "timeout" and value is not None:
                        # Too short for any answer; more than this server gives.
                        assert answer.status_code == (408 if value < 1 else 400), told
                    elif value is None and kind.model_fields[name].is_required():
                        assert answer.status_code == 400, told
                    else:
                        assert answer.status_code == 200, told
                    count += 1

    asyncio.run(walk())
    ran(count)


@pytest.mark.parametrize(
    ("path", "base", "name", "values"),
    [
        ("compare", {"runs": 1}, "change", GOOD_CHANGES),
        ("file", {"views": "tokens"}, "steps", ["0", "0-1", "1,0", " 1 ", "all", "none", "0-1,1"]),
        ("file", {"views": "tokens"}, "layers", ["0", "0-1", "all", "none"]),
        ("file", {"views": "tokens"}, "heads", ["0", "0-3", "all", "none"]),
        (
            "views",
            {"view": "characters"},
            "text",
            ["x" * limits.MAX_VIEW_TEXT, "\u00e9" * 5_000, ""],
        ),
        ("views", {"view": "merges"}, "text", ["x" * limits.MAX_VIEW_TEXT, "a " * 5_000, ""]),
        ("views", {"view": "embeddings"}, "text", ["a" * limits.MAX_VIEW_TEXT, "a - b = c"]),
    ],
)
def test_a_field_of_text_takes_all_of_its_own_language(
    folder: Path, path: str, base: dict[str, Any], name: str, values: list[str]
) -> None:
    async def walk() -> None:
        async with serving(folder) as (app, context), client(app) as http:
            sent = completion(max_tokens=6, temperature=1, seed=1, ignore_eos=True)
            trace = (await http.post("/v1/completions", json=sent)).json()["id"]
            for value in values:
                body = {**base, name: value}
                answer = await http.post(f"/cutaway/v1/traces/{trace}/{path}", json=body)
                assert answer.status_code == 200, f"{value!r:.60}: {answer.text:.300}"
            assert (await context.service.stats()).pages_used == 0

    asyncio.run(walk())


def test_a_misspelt_field_is_told_with_its_neighbour(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        near = await http.post("/v1/chat/completions", json=chat(temprature=1))
        return [near, await http.post("/v1/completions", json=completion(zzz=1))]

    near, far = asked(ask)
    assert near.status_code == far.status_code == 400
    assert "Did you mean temperature?" in near.json()["error"]["message"]
    assert far.json()["error"]["param"] == "zzz"


@pytest.mark.parametrize("path", ROUTES)
def test_fields_that_are_missing_are_named(asked: Callable[..., Any], path: str) -> None:
    kind, base = ROUTES[path]
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[Any]:
        bodies = [{n: v for n, v in base.items() if n != name} for name in needed]
        return [await http.post(path, json=body) for body in bodies]

    for name, answer in zip(needed, asked(ask), strict=True):
        assert answer.status_code == 400 and param_of(answer) == name


def test_the_ranges_of_the_page_are_those_of_the_table() -> None:
    """The page is written from the table: a range that changed by mistake differs from it."""
    page = Path(__file__).parents[2] / "docs" / "serve.md"
    row = r"^\| `(\w+)` \|.*\| (an? (?:integer|number) [^;|]*?)(?:;.*)? \|$"
    told = dict(re.findall(row, page.read_text(encoding="utf-8"), re.MULTILINE))
    ranges = {name: words for name, words in told.items() if name in LIMITS}
    assert len(ranges) >= 14, ranges
    assert ranges == {name: LIMITS[name].describe() for name in ranges}
