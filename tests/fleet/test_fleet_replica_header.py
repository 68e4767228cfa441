"""An answer's headers name the engine that began it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
from fleet_fakes import Engines, in_loop

import tiny
from cutaway.server.app import build_app
from cutaway.server.route_context import Context
from cutaway.server.server_config import ServerConfig
from cutaway.weights.find.find import find


@in_loop
async def test_headers_name_the_engine_that_began_an_answer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny.config()), encoding="utf-8")
    found = find(f"random:{tmp_path / 'config.json'}")
    async with Engines(replicas=2) as engines:
        context = Context.of(found, engines.fleet, ServerConfig(), name="tiny")
        transport = httpx2.ASGITransport(app=build_app(context))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8000"
        ) as http:

            async def ask(**fields: Any) -> httpx2.Response:
                body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, **fields}
                return await http.post("/v1/completions", json=body)

            for is_streamed in (False, True):
                answers = [await ask(stream=is_streamed) for _ in range(8)]
                assert [each.status_code for each in answers] == [200] * 8
                names = {each.headers["x-cutaway-replica"] for each in answers}
                assert names <= {member.name for member in engines.fleet.members}
            assert "x-cutaway-replica" not in (await ask(n=-1)).headers
        context.worker.close()
