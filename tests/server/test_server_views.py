"""Views by HTTP: an answer's id opens it, for its owner, in idle moments, within bounds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load
from server_app import answered, chat, client, completion, serving

from cutaway.core.limits import LIMITS
from cutaway.server.entry.auth import Keys
from cutaway.trace.file import read
from cutaway.trace.viewer import VIEWER

JSON = {"accept": "application/json"}


async def viewed(http: httpx2.AsyncClient, trace: str, **body: Any) -> httpx2.Response:
    path = f"/cutaway/v1/traces/{trace}/views"
    return await http.post(path, json=body, headers=JSON)


def test_an_answers_id_opens_it_as_json_and_as_arrays(folder: Path) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            listed = (await http.get("/cutaway/v1/views")).json()["views"]
            assert {"name", "stage", "question", "takes"} == set(listed[0])
            trace = await answered(http)
            plain = (await viewed(http, trace, view="residual", position=2)).json()
            assert plain["is_exact"] is True and plain["values"]["position"] == 2
            path = f"/cutaway/v1/traces/{trace}/views"
            framed = await http.post(path, json={"view": "residual", "position": 2})
            arrays = load(framed.content)
            np.testing.assert_array_equal(arrays["stream"], np.float32(plain["values"]["stream"]))
            header = json.loads(
                framed.content[8 : 8 + int.from_bytes(framed.content[:8], "little")]
            )
            told = json.loads(header["__metadata__"]["cutaway"])
            assert told["proof"] == plain["proof"] and told["values"]["stream"] == {
                "array": "stream"
            }

    asyncio.run(body())


def test_an_answer_becomes_a_file_for_its_owner(folder: Path, tmp_path: Path) -> None:
    keys = Keys([("alice", "a" * 32), ("bob", "b" * 32)])

    async def body() -> None:
        async with serving(folder, keys=keys) as (app, _), client(app) as http:
            mine = {"authorization": f"Bearer {'a' * 32}"}
            sent = chat(max_tokens=4, ignore_eos=True)
            answer = await http.post("/v1/chat/completions", json=sent, headers=mine)
            path = f"/cutaway/v1/traces/{answer.json()['id']}/file"
            wanted = {"views": "tokens, probabilities,residual", "steps": "0,2"}
            told = await http.post(path, json=wanted, headers=mine)
            assert told.headers["content-type"] == "application/zip"
            assert told.headers["content-disposition"] == 'attachment; filename="trace.cutaway"'
            file = tmp_path / "a.cutaway"
            file.write_bytes(told.content)
            views = {view.name: view for view in read(file).views}
            assert list(views) == ["tokens", "probabilities", "residual"]
            assert [place.query for place in views["probabilities"].places] == [{"token": 2}]
            assert len(views["residual"].places) == 2 and views["residual"].lines
            page = await http.post(path, json={"views": "tokens", "html": True}, headers=mine)
            if VIEWER.is_file():
                assert page.status_code == 200 and 'id="trace">UEsD' in page.text
                assert page.headers["content-disposition"].startswith("attachment")
            else:
                assert page.status_code == 404 and "make web" in page.text
            his = {"authorization": f"Bearer {'b' * 32}"}
            assert (await http.post(path, json={}, headers=his)).status_code == 404
            for wrong, words in (
                ({"steps": "9"}, "steps has 9; it must be from 0 to 3"),
                ({"views": "x"}, 'view is "x"'),
                ({"layers": "-"}, 'layers has "-"'),
            ):
                refused = await http.post(path, json=wrong, headers=mine)
                assert refused.status_code == 400 and words in refused.json()["error"]["message"]

    asyncio.run(body())


def test_choices_of_several_prompts_are_opened_by_their_numbers(folder: Path) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            sent = completion(prompt=["one", "three"], n=2, max_tokens=2, temperature=1, seed=1)
            answer = (await http.post("/v1/completions", json=sent)).json()
            for choice, words in enumerate(["one", "one", "three", "three"]):
                shown = (await viewed(http, answer["id"], view="tokens", choice=choice)).json()
                values = shown["values"]
                assert "".join(values["texts"][: values["num_prompt"]]) == words
            assert (await viewed(http, answer["id"], view="tokens", choice=4)).status_code == 404

    asyncio.run(body())


def test_what_there_is_not_is_one_clear_error(folder: Path) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"view": "x"}, 400, 'view is "x"; there are: '),
        ({"view": "residual", "position": 10**6}, 400, "position is 1000000; it must be from 0"),
        ({"view": "residual", "layer": 0}, 400, "the view residual takes position"),
        ({"view": "tokens", "choice": 7}, 404, "no record of answer"),
        ({"view": "tokens", "choice": -1}, 400, "choice is -1"),
        ({"view": "residual", "max_bytes": 1}, 404, "allowed are 1"),
        ({"view": "residual", "max_flops": 1}, 404, "allowed are 1"),
        ({"view": "residual", "max_bytes": 0}, 400, "max_bytes"),
        ({"view": "residual", "max_bytes": int(LIMITS["view_bytes"].most) + 1}, 400, "max_bytes"),
        ({"view": 3}, 400, "view"),
        ({"view": "residual", "position": "2"}, 400, "position"),
        ({"view": "residual", "depth": 2}, 400, "depth"),
        ({}, 400, "view"),
    ]

    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            trace = await answered(http)
            for sent, status, words in cases:
                response = await viewed(http, trace, **sent)
                assert response.status_code == status, (sent, response.text)
                assert words in response.json()["error"]["message"]
            assert (await viewed(http, "chatcmpl-none", view="tokens")).status_code == 404

    asyncio.run(body())


def test_an_answer_belongs_to_the_key_that_had_it_made(folder: Path) -> None:
    keys = Keys([("ann", "a" * 20), ("ben", "b" * 20)])

    async def body() -> None:
        async with serving(folder, keys=keys) as (app, _), client(app) as http:
            http.headers["authorization"] = f"Bearer {'a' * 20}"
            trace = await answered(http)
            assert (await viewed(http, trace, view="tokens")).status_code == 200
            http.headers["authorization"] = f"Bearer {'b' * 20}"
            refused = await viewed(http, trace, view="tokens")
            assert refused.status_code == 404 and "no record" in refused.text

    asyncio.run(body())


@pytest.mark.parametrize("views", ["off", "local"])
def test_views_that_are_off_are_refused(folder: Path, views: str) -> None:
    changes: dict[str, Any] = {"views": views}
    if views == "local":
        changes |= {"host": "0.0.0.0", "allowed_hosts": ("test",)}

    async def body() -> None:
        async with serving(folder, **changes) as (app, _), client(app) as http:
            for response in (
                await http.get("/cutaway/v1/views"),
                await viewed(http, "chatcmpl-none", view="tokens"),
            ):
                assert response.status_code == 403 and "views" in response.text

    asyncio.run(body())


def test_looks_and_answers_beside_each_other_all_come(folder: Path) -> None:
    """A look takes its turns beside answers: tests/service/test_engine_loop.py has the share."""

    async def body() -> None:
        async with serving(folder) as (app, context), client(app) as http:
            trace = await answered(http)
            order: list[str] = []

            async def note(name: str, work: Any) -> None:
                await work
                order.append(name)

            long = chat(max_tokens=64, ignore_eos=True)
            answers = [
                asyncio.create_task(note("answer", http.post("/v1/chat/completions", json=long)))
                for _ in range(3)
            ]
            while not (await context.service.stats()).running:
                await asyncio.sleep(0)
            look = asyncio.create_task(note("look", viewed(http, trace, view="residual")))
            await asyncio.gather(look, *answers)
            assert sorted(order) == ["answer", "answer", "answer", "look"]

    asyncio.run(body())


def test_what_a_view_would_take_is_told_and_nothing_is_computed(folder: Path) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            trace = await answered(http)
            path = f"/cutaway/v1/traces/{trace}/views"
            sent = {"view": "lens", "position": 2, "only_cost": True}
            response = await http.post(path, json=sent)  # bytes are not asked for either
            assert response.headers["content-type"] == "application/json"
            told = response.json()
            names = {"schema", "view", "num_tokens", "flops", "num_bytes", "seconds"}
            assert told.keys() == names and told["view"] == "lens"
            assert told["num_tokens"] > 2 and told["flops"] > 0 and told["seconds"] > 0
            again = (await http.post(path, json=sent)).json()
            assert again == told, "it was not run, so it costs as much"
            assert (await viewed(http, trace, view="lens", position=2)).status_code == 200
            after = (await http.post(path, json=sent)).json()
            assert after["num_tokens"] == 0 and after["flops"] < told["flops"]
            free = (await viewed(http, trace, view="tokens", only_cost=True)).json()
            assert free["flops"] == 0 and free["seconds"] <= after["seconds"]
            refused = await viewed(http, trace, view="lens", layer=99, only_cost=True)
            assert refused.status_code == 400 and "layer is 99" in refused.text

    asyncio.run(body())
