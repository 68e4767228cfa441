"""Responses that are kept: going on from one, reading, deleting, owners, time, bounds, restarts."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import TOOL_TEMPLATE, ScriptedService
from server_app import client, make_folder, serving

from cutaway.core.errors import ConfigError
from cutaway.server.entry.auth import Keys, read_keys
from cutaway.server.openai.kept import Kept

URL = "/v1/responses"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 9, **fields}


def ask_with(
    tmp_path: Path,
    ask: Callable[..., Any],
    *,
    store: Kept | None,
    script: str = "fine",
    **more: Any,
) -> Any:
    """What a coroutine function finds with a server that keeps answers in the store."""
    folder = make_folder(tmp_path / "model", template=TOOL_TEMPLATE)
    service = ScriptedService(script)

    async def run() -> Any:
        async with serving(folder, service=service, store=store, **more) as (app, context):
            async with client(
                app, key=None if "keys" not in more else "key-of-ann-12345678"
            ) as http:
                prompts = lambda: [  # noqa: E731 - said once
                    context.tokenizer.decode(each.prompt_token_ids) for each in service.requests
                ]
                return await ask(http, prompts, app)

    return asyncio.run(run())


@pytest.fixture
def store(tmp_path: Path) -> Any:
    kept = Kept(tmp_path / "answers.db")
    yield kept
    kept.close()


async def post(http: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(URL, json=body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


def test_a_conversation_goes_on_from_an_answer(tmp_path: Path, store: Kept) -> None:
    async def ask(http: httpx2.AsyncClient, prompts: Any, _: Any) -> None:
        first = await post(http, input="My name is Ann.", instructions="Be brief.")
        assert first["store"] is True and first["previous_response_id"] is None
        second = await post(http, input="And yours?", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        stream = {"stream": True, "previous_response_id": second["id"]}
        streamed = await http.post(URL, json=body(input="Well?", **stream))
        assert '"type":"response.completed"' in streamed.text
        third = prompts()[-1]
        assert "user: My name is Ann.assistant: fineuser: And yours?" in third
        assert third.endswith("user: Well?assistant:") and "Be brief" not in third
        read = (await http.get(f"{URL}/{second['id']}")).json()
        assert read == second
        items = (await http.get(f"{URL}/{second['id']}/input_items")).json()
        assert [item["content"] for item in items["data"]] == [
            [{"type": "input_text", "text": "And yours?"}]
        ]
        assert items["first_id"] == items["last_id"] and items["has_more"] is False

    ask_with(tmp_path, ask, store=store)


def test_calls_and_results_go_on_too(tmp_path: Path, store: Kept) -> None:
    script = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}

    async def ask(http: httpx2.AsyncClient, prompts: Any, _: Any) -> None:
        long = {"max_output_tokens": 200, "tools": [tool]}
        first = await post(http, input="Weather?", **long)
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3 degrees"}
        await post(http, input=[result], previous_response_id=first["id"], **long)
        assert "Weather?" in prompts()[-1] and "Oslo" in prompts()[-1]
        assert f"tool: 3 degrees ({call['call_id']})" in prompts()[-1]

    ask_with(tmp_path, ask, store=store, script=script)


def test_a_conversation_takes_each_turn(tmp_path: Path, store: Kept) -> None:
    async def ask(http: httpx2.AsyncClient, prompts: Any, _: Any) -> None:
        items = [{"role": "developer", "content": "Speak of cats."}]
        begun = (await http.post("/v1/conversations", json={"items": items})).json()
        one = await post(http, input="One.", conversation=begun["id"])
        assert one["conversation"] == {"id": begun["id"]}
        await post(http, input="Two", conversation={"id": begun["id"]})
        for word in ("Speak of cats.", "user: One.assistant: fineuser: Two"):
            assert word in prompts()[-1]
        place = f"/v1/conversations/{begun['id']}"
        listed = (await http.get(f"{place}/items", params={"order": "asc", "limit": 2})).json()
        assert [each["role"] for each in listed["data"]] == ["developer", "user"]
        assert listed["has_more"] is True
        rest = {"order": "asc", "after": listed["last_id"]}
        more = (await http.get(f"{place}/items", params=rest)).json()
        assert [each["role"] for each in more["data"]] == ["assistant", "user", "assistant"]
        assert (await http.get(place)).json()["id"] == begun["id"]
        both = body(conversation=begun["id"], previous_response_id=one["id"])
        assert (await http.post(URL, json=both)).status_code == 400
        assert (await http.delete(place)).json()["deleted"] is True
        gone = await http.post(URL, json=body(conversation=begun["id"]))
        assert gone.status_code == 404 and gone.json()["error"]["param"] == "conversation"

    ask_with(tmp_path, ask, store=store)


def test_what_is_deleted_or_not_to_be_kept_is_not_there(tmp_path: Path, store: Kept) -> None:
    async def ask(http: httpx2.AsyncClient, _: Any, __: Any) -> None:
        unkept = await post(http, store=False)
        assert unkept["store"] is False
        kept = await post(http)
        cancelled = await http.post(f"{URL}/{kept['id']}/cancel", json={})
        assert cancelled.status_code == 400 and "is complete" in cancelled.text
        deleted = (await http.delete(f"{URL}/{kept['id']}")).json()
        assert deleted == {"id": kept["id"], "object": "response", "deleted": True}
        for name in (unkept["id"], kept["id"], "resp_none"):
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
                answer = await http.request(method, f"{URL}/{name}{path}")
                assert answer.status_code == 404, answer.text
            after = await http.post(URL, json=body(previous_response_id=name))
            assert after.status_code == 404
            assert after.json()["error"]["param"] == "previous_response_id"
        for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "item_none"}):
            again = await post(http)
            bad = await http.get(f"{URL}/{again['id']}/input_items", params=query)
            assert bad.status_code == 400 and next(iter(query)) in bad.json()["error"]["message"]

    ask_with(tmp_path, ask, store=store)


def test_another_owner_finds_nothing(tmp_path: Path, store: Kept) -> None:
    file = tmp_path / "keys"
    file.write_text("ann key-of-ann-12345678\nbob key-of-bob-12345678\n")
    file.chmod(0o600)
    keys: Keys = read_keys(file)

    async def ask(http: httpx2.AsyncClient, _: Any, app: Any) -> None:
        mine = await post(http)
        begun = (await http.post("/v1/conversations", json={})).json()
        async with client(app, key="key-of-bob-12345678") as other:
            absent = (await other.get(f"{URL}/resp_none")).json()["error"]
            found = await other.get(f"{URL}/{mine['id']}")
            assert found.status_code == 404
            told = found.json()["error"]
            assert told["message"].replace(mine["id"], "resp_none") == absent["message"]
            assert (await other.delete(f"{URL}/{mine['id']}")).status_code == 404
            assert (await other.get(f"/v1/conversations/{begun['id']}/items")).status_code == 404
            for fields in ({"previous_response_id": mine["id"]}, {"conversation": begun["id"]}):
                assert (await other.post(URL, json=body(**fields))).status_code == 404
        assert (await http.get(f"{URL}/{mine['id']}")).status_code == 200

    ask_with(tmp_path, ask, store=store, keys=keys)


def test_without_a_store_the_refusal_says_how(tmp_path: Path) -> None:
    async def ask(http: httpx2.AsyncClient, _: Any, __: Any) -> None:
        answer = await post(http, store=True)
        assert answer["store"] is False
        for fields in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
            refused = await http.post(URL, json=body(**fields))
            assert refused.status_code == 400 and "--store FILE" in refused.text
        for path in (f"{URL}/resp_1", "/v1/conversations/conv_1"):
            gone = await http.get(path)
            assert gone.status_code == 404 and "--store FILE" in gone.text

    ask_with(tmp_path, ask, store=None)


def test_answers_outlive_the_server(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    names: list[str] = []

    async def first(http: httpx2.AsyncClient, _: Any, __: Any) -> None:
        names.append((await post(http, input="Remember 7."))["id"])

    async def second(http: httpx2.AsyncClient, prompts: Any, _: Any) -> None:
        await post(http, input="Which number?", previous_response_id=names[0])
        assert "user: Remember 7.assistant: fine" in prompts()[-1]

    for ask in (first, second):
        kept = Kept(path)
        ask_with(tmp_path, ask, store=kept)
        kept.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(tmp_path: Path) -> None:
    small = Kept(tmp_path / "small.db", max_bytes=100)

    async def ask(http: httpx2.AsyncClient, _: Any, __: Any) -> None:
        answer = await post(http)
        assert answer["store"] is False and answer["output"]
        full = await http.post("/v1/conversations", json={"metadata": {"a": "b" * 200}})
        assert full.status_code == 507

    ask_with(tmp_path, ask, store=small)


def test_what_is_old_goes_and_the_owner_with_most_loses_first(tmp_path: Path) -> None:
    clock = [0.0]
    kept = Kept(tmp_path / "kept.db", seconds=100, max_bytes=1000, now=lambda: clock[0])
    kept.put("ann", "a", "response", {"text": "x" * 200})
    clock[0] = 50
    for number in range(9):  # more than there is room for
        clock[0] += 1
        kept.put("bob", f"b{number}", "response", {"text": "y" * 200})
    assert kept.get("ann", "a", "response") is not None
    assert kept.get("bob", "b0", "response") is None
    assert kept.get("bob", "b8", "response") is not None
    assert kept.get("bob", "b8", "conversation") is None
    clock[0] = 101
    assert kept.get("ann", "a", "response") is None
    assert not kept.remove("ann", "a", "response")


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    import sqlite3

    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE theirs (a)")
    before = other.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        Kept(other)
    assert other.read_bytes() == before
    (tmp_path / "text").write_text("no database at all, but a letter to somebody" * 30)
    for path in (tmp_path / "text", tmp_path, tmp_path / "none" / "file.db"):
        with pytest.raises(ConfigError, match="cannot be used"):
            Kept(path)


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    kept = Kept(tmp_path / "kept.db")
    kept.put("ann", "conv_1", "conversation", {"conversation": {}, "items": []})
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: kept.append("ann", "conv_1", [{"id": str(n)}]), range(100)))
    entry = kept.get("ann", "conv_1", "conversation")
    assert all(done) and entry is not None
    assert sorted(int(item["id"]) for item in entry["items"]) == list(range(100))
    assert json.dumps(entry)
