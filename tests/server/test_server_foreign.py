"""What programs for llama.cpp, Ollama and vLLM send first: taken where it asks for nothing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import ScriptedService, scripted
from server_app import ORIGIN, chat, completion
from test_server_objects import ANYTHING, asked_of

from cutaway.core.errors import RequestError
from cutaway.server.field_types import Refused, Unused
from cutaway.server.openai.foreign_fields import ForeignFields
from cutaway.text.template import ChatTemplate

PATHS = {"/v1/chat/completions": chat(), "/v1/completions": completion()}
FIELDS = {
    name: next(each for each in field.metadata if isinstance(each, Refused | Unused))
    for name, field in ForeignFields.model_fields.items()
}
# What the page of llama.cpp sends with every message, all samplers as they stand at first.
LLAMA_CPP_PAGE: dict[str, Any] = {
    **{"cache_prompt": True, "dynatemp_range": 0, "dynatemp_exponent": 1, "max_tokens": -1},
    **{"xtc_probability": 0, "xtc_threshold": 0.1, "typ_p": 1, "repeat_last_n": 64},
    **{"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0},
    **{"dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1},
    **{"timings_per_token": True, "return_progress": True, "backend_sampling": False},
    **{"top_k": 40, "top_p": 0.95, "min_p": 0.05, "stream": False},
}


def test_a_foreign_field_changes_nothing_or_is_refused_with_its_name_here(tmp_path: Path) -> None:
    """Every field, in both APIs: neutral values, any value of a hint, and values that would act."""

    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> list[Any]:
        wrong: list[Any] = []
        for path, body in PATHS.items():
            assert (await http.post(path, json=body)).status_code == 200
            whole = asked_of(service)
            for name, kind in FIELDS.items():
                taken = kind.neutral if isinstance(kind, Refused) else ANYTHING
                for value in (None, *taken):
                    answer = await http.post(path, json={**body, name: value})
                    if answer.status_code != 200 or asked_of(service) != whole:
                        wrong.append((path, name, value, answer.text[:200]))
                if isinstance(kind, Refused):
                    answer = await http.post(path, json={**body, name: {"on": 0.5}})
                    told = answer.json().get("error", {})
                    if answer.status_code != 400 or told["param"] != name:
                        wrong.append((path, name, answer.text[:200]))
                    elif kind.advice not in told["message"]:
                        wrong.append((path, name, told))
        return wrong

    assert scripted(tmp_path, "x", walk) == []


def test_what_the_page_of_llama_cpp_sends_is_answered(tmp_path: Path) -> None:
    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> tuple[int, Any]:
        body = {key: value for key, value in chat().items() if key != "max_tokens"}
        answer = await http.post("/v1/chat/completions", json={**body, **LLAMA_CPP_PAGE})
        return answer.status_code, service.requests[-1].params

    status, params = scripted(tmp_path, "x", walk)
    assert status == 200 and (params.top_k, params.min_p, params.max_tokens) == (40, 0.05, None)


@pytest.mark.parametrize("path", PATHS)
def test_minus_one_is_as_many_tokens_as_there_is_room_for(tmp_path: Path, path: str) -> None:
    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> list[Any]:
        seen: list[Any] = []
        for value in (-1, -1.0, -2):
            answer = await http.post(path, json={**PATHS[path], "max_tokens": value})
            seen.append((answer.status_code, service.requests[-1].params.max_tokens))
        return seen

    one, other, wrong = scripted(tmp_path, "x", walk)
    assert one == other == (200, None) and wrong[0] == 400


def test_addresses_with_a_slash_or_a_route_too_many(tmp_path: Path) -> None:
    """A slash behind, or one too many (BerriAI/litellm#8350, sigoden/aichat#767), is served; a
    route put behind a route is told where it comes from.
    """

    async def walk(http: httpx2.AsyncClient, _: ScriptedService) -> list[Any]:
        wrong: list[Any] = []
        for path, body in PATHS.items():
            for joined in (f"{path}/", path.replace("/v1/", "/v1//"), f"/{path}", f"{path}//"):
                if (await http.post(f"{ORIGIN}{joined}", json=body)).status_code != 200:
                    wrong.append(joined)
            for other in itertools.chain(PATHS, ("/chat/completions",)):
                answer = await http.post(path + other, json=body)
                if answer.status_code != 404 or "that ends in /v1" not in answer.text:
                    wrong.append((path + other, answer.text))
        if (await http.get("/v1/models/")).json() != (await http.get("/v1/models")).json():
            wrong.append("models")
        return wrong

    assert scripted(tmp_path, "x", walk) == []


@pytest.mark.parametrize("path", PATHS)
def test_options_of_a_stream_and_an_empty_bias_ask_for_nothing(tmp_path: Path, path: str) -> None:
    async def walk(http: httpx2.AsyncClient, service: ScriptedService) -> list[Any]:
        await http.post(path, json=PATHS[path])
        whole = asked_of(service)
        seen: list[Any] = []
        for more in ({"stream_options": {"include_usage": True}}, {"logit_bias": []}):
            answer = await http.post(path, json={**PATHS[path], **more})
            seen.append((answer.status_code, asked_of(service) == whole))
        return seen

    assert scripted(tmp_path, "x", walk) == [(200, True)] * 2


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/api/version", "API is that of OpenAI"),
        ("/api/tags", "GET /v1/models"),
        ("/generate", "API is that of OpenAI"),
        ("/props", "GET /v1/models"),
        ("/v1/complete", "/v1/messages"),
    ],
)
def test_routes_of_other_servers_are_told_what_is_here(
    tmp_path: Path, path: str, advice: str
) -> None:
    async def walk(http: httpx2.AsyncClient, _: ScriptedService) -> httpx2.Response:
        return await http.post(path, json={})

    answer = scripted(tmp_path, "x", walk)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unsupported_endpoint" and advice in answer.text


def test_a_model_that_does_not_reason_may_be_asked_not_to() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    reasons = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}<think>")
    for name in ("enable_thinking", "thinking"):
        assert plain.render([], extras={name: False}).text == plain.render([]).text
        for template, value in ((plain, True), (reasons, False), (plain, 0)):
            with pytest.raises(RequestError, match=f"{name} is not read"):
                template.render([], extras={name: value})
